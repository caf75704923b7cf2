//! How the functions of libibverbs say that something went wrong. `errno` is set in all cases: programs look at it even
//! where the value is returned.

use libc::c_int;
use nix::errno::Errno;
use std::ptr;

/// 0, or the errno value.
#[inline]
pub(super) fn value(outcome: Result<(), Errno>) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(errno) => set(errno, errno as c_int),
    }
}

/// A count, or -1.
#[inline]
pub(super) fn count(outcome: Result<c_int, Errno>) -> c_int {
    outcome.unwrap_or_else(|errno| set(errno, -1))
}

/// 0, or -1.
#[inline]
pub(super) fn status(outcome: Result<(), Errno>) -> c_int {
    count(outcome.map(|()| 0))
}

/// An object, or NULL.
pub(super) fn object<T>(outcome: Result<*mut T, Errno>) -> *mut T {
    outcome.unwrap_or_else(|errno| set(errno, ptr::null_mut()))
}

#[cold]
fn set<T>(errno: Errno, result: T) -> T {
    errno.set();
    result
}
