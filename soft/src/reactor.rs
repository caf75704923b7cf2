//! The process's one thread: waits for sockets and for time, and calls whom it concerns.
//!
//! Started by the first user, with all signals blocked. Every descriptor is close-on-exec. After a fork the child has no
//! thread, and everything here answers ENODEV there.

use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Who is called when a descriptor is ready; on the thread, with no lock held. May register, drop and start timers.
pub(crate) trait Source: Send + Sync {
    fn ready(&self, events: EpollFlags);
}

/// A descriptor that is waited for, as long as this lives. Level-triggered.
pub(crate) struct Registration {
    _todo: (),
}

impl Registration {
    /// Waits for other events from now on.
    pub(crate) fn modify(&self, _events: EpollFlags) -> Result<(), Errno> {
        todo!()
    }
}

/// Calls `source` whenever one of `events` is there. The descriptor must stay open while the registration lives.
pub(crate) fn register(_fd: BorrowedFd<'_>, _events: EpollFlags, _source: Arc<dyn Source>) -> Result<Registration, Errno> {
    todo!()
}

/// A call that will come, unless this is dropped before.
pub(crate) struct Timer {
    _todo: (),
}

/// Calls `then` once, on the thread, no earlier than after `delay`.
pub(crate) fn after(_delay: Duration, _then: impl FnOnce() + Send + 'static) -> Result<Timer, Errno> {
    todo!()
}
