//! Views of the objects that C hands in: a pointer that was checked once, and fields that are read safely.
//!
//! A view is made at the start of a call and gone at its end; the caller promises that the object behind it
//! stays for that long (see "valid object" in the crate's documentation). Fields are copied out one at a time,
//! never borrowed: other threads may write to the same object.

use crate::sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_state, ibv_qp_type, ibv_recv_wr, ibv_send_wr,
    ibv_srq, ibv_transport_type, rdma_cm_id,
};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// A communication identifier that is not NULL.
#[derive(Clone, Copy)]
pub struct CmId(NonNull<rdma_cm_id>);

impl CmId {
    /// # Safety
    /// * `id` is a valid object.
    #[inline]
    pub unsafe fn new(id: *mut rdma_cm_id) -> Option<CmId> {
        NonNull::new(id).map(CmId)
    }

    /// The queue pair; `None` also where it has no context, for nothing can be asked of it then.
    #[inline]
    pub fn qp(self) -> Option<Qp> {
        // SAFETY: a valid object, by `new`.
        let qp = unsafe { (*self.0.as_ptr()).qp };
        // SAFETY: a valid object, as a field of one.
        unsafe { Qp::new(qp) }
    }

    /// The shared receive queue, if there is one; `Some(None)` where it has no context.
    #[inline]
    pub fn srq(self) -> Option<Option<Srq>> {
        // SAFETY: a valid object, by `new`.
        let srq = unsafe { (*self.0.as_ptr()).srq };
        // SAFETY: a valid object, as a field of one.
        (!srq.is_null()).then(|| unsafe { Srq::new(srq) })
    }

    #[inline]
    pub fn send_cq(self) -> Option<Cq> {
        // SAFETY: a valid object, by `new`.
        Cq::new(unsafe { (*self.0.as_ptr()).send_cq })
    }

    #[inline]
    pub fn recv_cq(self) -> Option<Cq> {
        // SAFETY: a valid object, by `new`.
        Cq::new(unsafe { (*self.0.as_ptr()).recv_cq })
    }

    #[inline]
    pub fn send_cq_channel(self) -> Option<NonNull<ibv_comp_channel>> {
        // SAFETY: a valid object, by `new`.
        NonNull::new(unsafe { (*self.0.as_ptr()).send_cq_channel })
    }

    #[inline]
    pub fn recv_cq_channel(self) -> Option<NonNull<ibv_comp_channel>> {
        // SAFETY: a valid object, by `new`.
        NonNull::new(unsafe { (*self.0.as_ptr()).recv_cq_channel })
    }

    #[inline]
    pub fn pd(self) -> Option<NonNull<ibv_pd>> {
        // SAFETY: a valid object, by `new`.
        NonNull::new(unsafe { (*self.0.as_ptr()).pd })
    }
}

/// A queue pair with a context.
#[derive(Clone, Copy)]
pub struct Qp {
    qp: NonNull<ibv_qp>,
    context: Context,
}

impl Qp {
    /// # Safety
    /// * `qp` is a valid object.
    #[inline]
    pub unsafe fn new(qp: *mut ibv_qp) -> Option<Qp> {
        let qp = NonNull::new(qp)?;
        // SAFETY: a valid object, by the caller's promise.
        let context = Context::new(unsafe { (*qp.as_ptr()).context })?;
        Some(Qp { qp, context })
    }

    #[inline]
    pub fn as_ptr(self) -> *mut ibv_qp {
        self.qp.as_ptr()
    }

    #[inline]
    pub fn context(self) -> Context {
        self.context
    }

    /// Whether the queue pair itself was made with a shared receive queue.
    #[inline]
    pub fn has_srq(self) -> bool {
        // SAFETY: a valid object, by `new`.
        let srq = unsafe { (*self.qp.as_ptr()).srq };
        !srq.is_null()
    }

    #[inline]
    pub fn qp_type(self) -> ibv_qp_type::Type {
        // SAFETY: a valid object, by `new`.
        unsafe { (*self.qp.as_ptr()).qp_type }
    }

    /// The queue pair's number, of 24 bits.
    #[inline]
    pub fn qp_num(self) -> u32 {
        // SAFETY: a valid object, by `new`.
        unsafe { (*self.qp.as_ptr()).qp_num }
    }

    /// The state that libibverbs last recorded. Another thread may be in `ibv_modify_qp` right now.
    #[inline]
    pub fn state(self) -> ibv_qp_state::Type {
        // SAFETY: a valid object, by `new`; no reference is made.
        let state = unsafe { &raw mut (*self.qp.as_ptr()).state };
        // SAFETY: a field of a valid object, aligned as u32 is.
        unsafe { AtomicU32::from_ptr(state) }.load(Ordering::Relaxed)
    }
}

/// A shared receive queue with a context.
#[derive(Clone, Copy)]
pub struct Srq {
    srq: NonNull<ibv_srq>,
    context: Context,
}

impl Srq {
    /// # Safety
    /// * `srq` is a valid object.
    #[inline]
    pub unsafe fn new(srq: *mut ibv_srq) -> Option<Srq> {
        let srq = NonNull::new(srq)?;
        // SAFETY: a valid object, by the caller's promise.
        let context = Context::new(unsafe { (*srq.as_ptr()).context })?;
        Some(Srq { srq, context })
    }

    #[inline]
    pub fn as_ptr(self) -> *mut ibv_srq {
        self.srq.as_ptr()
    }

    #[inline]
    pub fn context(self) -> Context {
        self.context
    }
}

/// A completion queue with a context.
#[derive(Clone, Copy)]
pub struct Cq {
    cq: NonNull<ibv_cq>,
    context: Context,
}

impl Cq {
    /// `cq` is a field of a valid object, so itself a valid object.
    #[inline]
    fn new(cq: *mut ibv_cq) -> Option<Cq> {
        let cq = NonNull::new(cq)?;
        // SAFETY: a valid object, as a field of one.
        let context = Context::new(unsafe { (*cq.as_ptr()).context })?;
        Some(Cq { cq, context })
    }

    #[inline]
    pub fn as_ptr(self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }

    #[inline]
    pub fn context(self) -> Context {
        self.context
    }
}

/// A device context that is not NULL.
#[derive(Clone, Copy)]
pub struct Context(NonNull<ibv_context>);

impl Context {
    /// `context` is a field of a valid object, so itself a valid object.
    #[inline]
    fn new(context: *mut ibv_context) -> Option<Context> {
        NonNull::new(context).map(Context)
    }

    #[inline]
    pub fn as_ptr(self) -> *mut ibv_context {
        self.0.as_ptr()
    }

    /// Whether this is known to be an InfiniBand or RoCE device.
    #[cold]
    pub fn is_ib(self) -> bool {
        // SAFETY: a valid object, by `new`.
        let Some(device) = NonNull::new(unsafe { (*self.0.as_ptr()).device }) else { return false };
        // SAFETY: a valid object, as a field of one.
        let transport = unsafe { (*device.as_ptr()).transport_type };
        // The field's C type is an enum with negative members, the constant's in Rust may be of either sign.
        transport as i64 == ibv_transport_type::IBV_TRANSPORT_IB as i64
    }
}

/// A memory region that is not NULL.
#[derive(Clone, Copy)]
pub struct Mr(NonNull<ibv_mr>);

impl Mr {
    /// # Safety
    /// * `mr` is a valid object.
    #[inline]
    pub unsafe fn new(mr: *mut ibv_mr) -> Option<Mr> {
        NonNull::new(mr).map(Mr)
    }

    #[inline]
    pub fn as_ptr(self) -> *mut ibv_mr {
        self.0.as_ptr()
    }

    #[inline]
    pub fn lkey(self) -> u32 {
        // SAFETY: a valid object, by `new`.
        unsafe { (*self.0.as_ptr()).lkey }
    }

    /// The address that was registered.
    #[inline]
    pub fn addr(self) -> usize {
        // SAFETY: a valid object, by `new`.
        unsafe { (*self.0.as_ptr()).addr }.addr()
    }

    /// The number of bytes that were registered.
    #[inline]
    pub fn length(self) -> usize {
        // SAFETY: a valid object, by `new`.
        unsafe { (*self.0.as_ptr()).length }
    }
}

/// The work requests of the verbs below: C structs of integers, pointers and unions of such.
///
/// # Safety
/// * The type has a value whose bytes are all 0.
pub unsafe trait WorkRequest {}

// SAFETY: integers, and pointers that may be NULL.
unsafe impl WorkRequest for ibv_send_wr {}
// SAFETY: integers, and pointers that may be NULL.
unsafe impl WorkRequest for ibv_recv_wr {}

/// A work request of which every byte is 0, padding too, made where it will stay: a move need not keep padding.
#[inline]
pub fn zeroed<T: WorkRequest>(place: &mut MaybeUninit<T>) -> &mut T {
    // SAFETY: room for one.
    unsafe { place.as_mut_ptr().write_bytes(0, 1) };
    // SAFETY: 0 is a value of the type, by `WorkRequest`.
    unsafe { place.assume_init_mut() }
}
