//! Locks and pthread_cancel(3).
//!
//! Writes to sockets and counters are cancellation points of the C library. A thread that ended there would never give
//! back the locks that it holds, and no verb would work in the process any more.

use std::ffi::c_int;
use std::marker::PhantomData;

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
