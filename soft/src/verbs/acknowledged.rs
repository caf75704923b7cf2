//! Events that a program has got and must acknowledge before it may destroy what they are about.

use libc::{pthread_cond_t, pthread_mutex_t};
use std::sync::atomic::{AtomicU32, Ordering};

/// How many events about an object were handed out.
pub(super) struct HandedOut(AtomicU32);

/// The lock, the condition and the count of acknowledged events in a C object.
#[derive(Clone, Copy)]
pub(super) struct Acknowledged {
    pub(super) mutex: *mut pthread_mutex_t,
    pub(super) cond: *mut pthread_cond_t,
    pub(super) count: *mut u32,
}

/// The three fields of an object.
macro_rules! acknowledged {
    ($object:expr, $count:ident) => {{
        let object = $object;
        $crate::verbs::acknowledged::Acknowledged {
            // SAFETY: a live object.
            mutex: unsafe { &raw mut (*object).mutex }.cast(),
            // SAFETY: as above.
            cond: unsafe { &raw mut (*object).cond }.cast(),
            // SAFETY: as above.
            count: unsafe { &raw mut (*object).$count },
        }
    }};
}
pub(super) use acknowledged;

impl HandedOut {
    pub(super) const fn none() -> HandedOut {
        HandedOut(AtomicU32::new(0))
    }

    pub(super) fn one_more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until every event that was handed out is acknowledged. No more are handed out by now.
    ///
    /// # Safety
    /// * `acknowledged` is of a live object.
    pub(super) unsafe fn wait(&self, acknowledged: Acknowledged) {
        // SAFETY: the caller's promise.
        unsafe { libc::pthread_mutex_lock(acknowledged.mutex) };
        // SAFETY: as above, and locked.
        while unsafe { *acknowledged.count } != self.0.load(Ordering::Relaxed) {
            // SAFETY: as above.
            unsafe { libc::pthread_cond_wait(acknowledged.cond, acknowledged.mutex) };
        }
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_unlock(acknowledged.mutex) };
    }
}

impl Acknowledged {
    /// # Safety
    /// * `self` is of a live object.
    pub(super) unsafe fn add(self, events: u32) {
        // SAFETY: the caller's promise.
        unsafe { libc::pthread_mutex_lock(self.mutex) };
        // SAFETY: as above, and locked.
        let count = unsafe { &mut *self.count };
        *count = count.wrapping_add(events);
        // SAFETY: as above.
        unsafe { libc::pthread_cond_signal(self.cond) };
        // SAFETY: as above. The one who waits can destroy the object only after this.
        unsafe { libc::pthread_mutex_unlock(self.mutex) };
    }
}
