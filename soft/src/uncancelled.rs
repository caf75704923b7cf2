//! Locks and pthread_cancel(3).
//!
//! Writes to sockets and counters are cancellation points of the C library. A thread that ended there would never give
//! back the locks that it holds, and no verb would work in the process any more.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// While it lives its thread is not cancelled: for as long as a lock is held.
pub(crate) struct Uncancelled {
    before: c_int,
    /// It stays on its thread.
    _thread: PhantomData<*const ()>,
}

impl Uncancelled {
    #[inline]
    pub(crate) fn new() -> Uncancelled {
        let mut before = 0;
        // SAFETY: room for the state before.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Uncancelled { before, _thread: PhantomData }
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        let mut disabled = 0;
        // SAFETY: as above, and a state that was one.
        unsafe { pthread_setcancelstate(self.before, &mut disabled) };
    }
}

/// A lock, held by a thread that is not cancelled.
pub(crate) struct Guard<'a, T> {
    value: MutexGuard<'a, T>,
    /// Behind the lock, which it outlives.
    _uncancelled: Uncancelled,
}

/// How every lock is taken under which a call may be a cancellation point.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Guard<'_, T> {
    let _uncancelled = Uncancelled::new();
    Guard { value: mutex.lock().unwrap_or_else(PoisonError::into_inner), _uncancelled }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}
