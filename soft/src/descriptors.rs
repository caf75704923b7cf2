//! Every descriptor of the device, so that a child of a fork can let go of them.
//!
//! The child shares the parent's sockets and counters: reading from one would rob the parent, and holding one open would
//! keep a peer from noticing that the parent has gone. So the child replaces each by a descriptor that answers EBADF.
//! It does not close them: their numbers would be used again, and closed again by whoever believes to own them.

use crate::uncancelled;
use nix::errno::Errno;
use nix::sys::stat::Mode;
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

static OPEN: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());
static FORKED: AtomicBool = AtomicBool::new(false);

/// A descriptor that a child of a fork lets go of.
pub(crate) struct Tracked<T: AsRawFd>(ManuallyDrop<T>);

impl<T: AsRawFd> Tracked<T> {
    /// Opens with `open`; no fork comes between.
    pub(crate) fn open<E>(open: impl FnMut() -> Result<T, E>) -> Result<Tracked<T>, E> {
        let mut list = self::list();
        let inner = with_room(open)?;
        list.insert(inner.as_raw_fd());
        Ok(Tracked(ManuallyDrop::new(inner)))
    }
}

impl<T: AsRawFd> Deref for Tracked<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: AsFd + AsRawFd> AsFd for Tracked<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl<T: AsRawFd> Drop for Tracked<T> {
    fn drop(&mut self) {
        // No fork comes between, whose child would keep it open.
        let mut list = list();
        list.remove(&self.0.as_raw_fd());
        // SAFETY: nobody uses it any more.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// Whether this process is the child of one that had the device open: nothing works here.
#[inline]
pub(crate) fn in_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// The list, locked. The last of all locks.
pub(crate) fn list() -> uncancelled::Guard<'static, BTreeSet<RawFd>> {
    uncancelled::lock(&OPEN)
}

/// Where descriptors have run out, raises the soft limit to the hard one and tries again: the program knows nothing of most
/// that the device has.
pub(crate) fn with_room<T, E>(mut open: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    match open() {
        Err(_) if Errno::last() == Errno::EMFILE && raise_limit() => open(),
        result => result,
    }
}

/// Whether there is room for more.
fn raise_limit() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for the limits.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 || limit.rlim_cur >= limit.rlim_max {
        return false;
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the limits.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0 }
}

/// In the child of a fork, with the list locked. Only calls that are safe after a fork of a threaded program.
pub(crate) fn abandon(list: &BTreeSet<RawFd>) {
    FORKED.store(true, Ordering::Relaxed);
    let open = || nix::fcntl::open("/", nix::fcntl::OFlag::O_PATH | nix::fcntl::OFlag::O_CLOEXEC, Mode::empty());
    // Where descriptors have run out, one of these is as good as any.
    let nothing = open().or_else(|reason| {
        let first = *list.first().ok_or(reason)?;
        // SAFETY: the device's own; what it stood for is let go.
        unsafe { libc::close(first) };
        open()
    });
    let Ok(nothing) = nothing else { return };
    for &fd in list {
        // Reads, writes and waits on it answer EBADF or POLLNVAL.
        // SAFETY: `fd` is the device's own; what it stood for is let go.
        let _ = Errno::result(unsafe { libc::dup3(nothing.as_raw_fd(), fd, libc::O_CLOEXEC) });
    }
    if list.contains(&nothing.as_raw_fd()) {
        std::mem::forget(nothing);
    }
}
