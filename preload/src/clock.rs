//! The two clocks.

use libc::{CLOCK_MONOTONIC, CLOCK_REALTIME, clockid_t, timespec};

/// Nanoseconds since some moment; only differences mean something.
pub(crate) fn monotonic() -> u64 {
    nanoseconds(CLOCK_MONOTONIC)
}

/// Microseconds since the epoch.
pub(crate) fn wall_us() -> u64 {
    nanoseconds(CLOCK_REALTIME) / 1000
}

fn nanoseconds(clock: clockid_t) -> u64 {
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for a time; both clocks exist on every Linux, so it cannot fail.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
