//! Messages: whole lines, each in one write, that never do a program harm.

use libc::{c_int, sigset_t, timespec};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// Writes `text` to a descriptor at once. Nothing is left to do where that fails; not even a closed pipe, whose signal
/// would end the program, is the program's business.
pub fn write(fd: c_int, text: &str) {
    let pipe = only_sigpipe();
    let mut before = MaybeUninit::<sigset_t>::uninit();
    let was_pending = is_pending();
    // SAFETY: a set, and room for one.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, before.as_mut_ptr()) };
    if write_all(fd, text.as_bytes()).is_err_and(|error| error.raw_os_error() == Some(libc::EPIPE)) {
        let now = timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a set and a time; takes the signal of this write, which is this thread's and so comes before one that
        // waits for the process.
        unsafe { libc::sigtimedwait(&pipe, ptr::null_mut(), &now) };
        if was_pending && !is_pending() {
            // It was one with a signal that this thread had already.
            // SAFETY: a signal that exists, blocked here.
            unsafe { libc::raise(libc::SIGPIPE) };
        }
    }
    // SAFETY: the set that was there before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
}

/// Writes it at once, and goes on where a signal of the program came in between.
pub fn write_all(fd: c_int, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the bytes of a slice.
        let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(written) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// Whether a SIGPIPE waits for this thread or for the process.
fn is_pending() -> bool {
    let mut pending = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: room for a set.
    unsafe { libc::sigpending(pending.as_mut_ptr()) };
    // SAFETY: filled just now.
    unsafe { libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1 }
}

fn only_sigpipe() -> sigset_t {
    let mut set = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: room for a set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: an empty set now, and a signal that exists.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE) };
    // SAFETY: initialised by sigemptyset.
    unsafe { set.assume_init() }
}
