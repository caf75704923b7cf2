//! C objects with what is ours behind them, where no program looks.

use crate::engine::Cookie;
use rdma_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_mr, ibv_pd, ibv_qp, ibv_qp_ex, ibv_srq, verbs_context,
};
use std::mem::{MaybeUninit, offset_of};

/// A C struct as programs see it, and what is ours.
///
/// The C part is written by programs and by several threads, so it is touched through raw pointers only, field by
/// field; `own` is only ever shared.
#[repr(C)]
struct Object<C, O> {
    c: C,
    own: O,
}

/// The types of C objects that are made here.
///
/// # Safety
/// * `whole` returns the address of the C struct that [`Visible::make`] was given, from one of its aliases.
pub(super) unsafe trait Visible: Sized {
    /// The C struct that is allocated: `ibv_cq_ex` for an `ibv_cq`.
    type Whole;
    type Own;

    fn whole(this: *mut Self) -> *mut Self::Whole {
        this.cast()
    }
}

macro_rules! visible {
    ($($c:ty, $whole:ty => $own:ty;)*) => {$(
        // SAFETY: an `ibv_*_ex` begins with its `ibv_*` (<infiniband/verbs.h> casts them).
        unsafe impl Visible for $c {
            type Whole = $whole;
            type Own = $own;
        }
    )*};
}

visible! {
    ibv_pd, ibv_pd => crate::engine::PdKey;
    ibv_mr, ibv_mr => super::memory::Own;
    ibv_comp_channel, ibv_comp_channel => std::sync::Arc<crate::engine::Channel>;
    ibv_cq, ibv_cq_ex => super::cq::Own;
    ibv_cq_ex, ibv_cq_ex => super::cq::Own;
    ibv_srq, ibv_srq => super::srq::Own;
    ibv_qp, ibv_qp_ex => super::qp::Own;
    ibv_qp_ex, ibv_qp_ex => super::qp::Own;
}

// SAFETY: the context is the last field of the table.
unsafe impl Visible for ibv_context {
    type Whole = verbs_context;
    type Own = super::device::Own;

    fn whole(this: *mut ibv_context) -> *mut verbs_context {
        this.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
    }
}

/// An object on the heap, whose address is that of its C struct.
pub(super) fn make<T: Visible>(c: T::Whole, own: T::Own) -> *mut T::Whole {
    Room::<T>::new().fill(c, own)
}

/// Room for an object whose address is needed before what is in it is known.
pub(super) struct Room<T: Visible>(Box<MaybeUninit<Object<T::Whole, T::Own>>>);

impl<T: Visible> Room<T> {
    pub(super) fn new() -> Room<T> {
        Room(Box::new_uninit())
    }

    /// The address that the object will have.
    pub(super) fn cookie(&self) -> Cookie {
        self.0.as_ptr().addr()
    }

    pub(super) fn fill(self, c: T::Whole, own: T::Own) -> *mut T::Whole {
        let object = Box::into_raw(self.0).cast::<Object<T::Whole, T::Own>>();
        // SAFETY: room for it.
        unsafe { object.write(Object { c, own }) };
        // From here on a cookie can become a pointer again.
        object.expose_provenance();
        object.cast()
    }
}

/// # Safety
/// * `object` was made by [`make`] and lives as long as `'a`.
#[inline]
pub(super) unsafe fn own<'a, T: Visible>(object: *mut T) -> &'a T::Own {
    let object = T::whole(object).cast::<Object<T::Whole, T::Own>>();
    // SAFETY: the caller's promise.
    let own = unsafe { &raw const (*object).own };
    // SAFETY: as above; nobody has it exclusively.
    unsafe { &*own }
}

/// Puts other contents into an object.
///
/// # Safety
/// * `object` was made by [`make`], and nobody else uses it meanwhile.
pub(super) unsafe fn replace<T: Visible>(object: *mut T, c: T::Whole, own: T::Own) {
    let object = T::whole(object).cast::<Object<T::Whole, T::Own>>();
    // SAFETY: the caller's promise.
    unsafe { *object = Object { c, own } };
}

/// # Safety
/// * `object` was made by [`make`], and nobody uses it any more.
pub(super) unsafe fn free<T: Visible>(object: *mut T) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(T::whole(object).cast::<Object<T::Whole, T::Own>>()) });
}
