//! Contexts whose operations are ours, and the operations that they had.
//!
//! The list only grows, so that the data path walks it without a lock; the entry of a closed device serves the next
//! one of that name.

use crate::record::Records;
use libc::{c_int, c_void};
use rdma_sys::{
    ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_qp, ibv_qp_init_attr_ex, ibv_recv_wr, ibv_send_wr,
    ibv_srq, ibv_wc, verbs_context,
};
use std::ffi::CStr;
use std::marker::PhantomData;
use std::mem::{self, offset_of};
use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering, fence};

pub(crate) type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
pub(crate) type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
pub(crate) type PostSrqRecv = unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
pub(crate) type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
pub(crate) type CreateQpEx = unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
pub(crate) type CreateCqEx = unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;

/// An operation as the driver had it. Drivers may change theirs after opening.
pub(crate) struct Saved<F>(AtomicPtr<c_void>, PhantomData<F>);

impl<F: Copy> Saved<F> {
    const fn none() -> Saved<F> {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Saved(AtomicPtr::new(ptr::null_mut()), PhantomData)
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<F> {
        let address = self.0.load(Ordering::Relaxed);
        // SAFETY: only `take` stores here, an `F`.
        (!address.is_null()).then(|| unsafe { mem::transmute_copy(&address) })
    }

    /// Puts `ours` into a table's entry and keeps what was there; an entry without an operation stays so.
    ///
    /// # Safety
    /// * `entry` is an entry of a live table.
    unsafe fn take(&self, entry: *mut Option<F>, ours: F) {
        // SAFETY: `Option<F>` is a nullable pointer, by the assertion in `none`.
        let entry = unsafe { AtomicPtr::from_ptr(entry.cast::<*mut c_void>()) };
        // SAFETY: a function pointer is a pointer.
        let ours: *mut c_void = unsafe { mem::transmute_copy(&ours) };
        let theirs = entry.load(Ordering::Acquire);
        if theirs != ours && !theirs.is_null() {
            self.0.store(theirs, Ordering::Release);
            entry.store(ours, Ordering::Release);
        }
    }
}

/// What is put into the tables. Chosen once, so that the data path does not ask what is switched on.
pub(crate) struct Operations {
    pub(crate) post_send: Option<PostSend>,
    pub(crate) post_recv: Option<PostRecv>,
    pub(crate) post_srq_recv: Option<PostSrqRecv>,
    pub(crate) poll_cq: Option<PollCq>,
    pub(crate) create_qp_ex: Option<CreateQpEx>,
    pub(crate) create_cq_ex: Option<CreateCqEx>,
}

pub(crate) struct Device {
    /// NULL while no context is open.
    context: AtomicPtr<ibv_context>,
    name: String,
    pub(crate) post_send: Saved<PostSend>,
    pub(crate) post_recv: Saved<PostRecv>,
    pub(crate) post_srq_recv: Saved<PostSrqRecv>,
    pub(crate) poll_cq: Saved<PollCq>,
    pub(crate) create_qp_ex: Saved<CreateQpEx>,
    pub(crate) create_cq_ex: Saved<CreateCqEx>,
    pub(crate) records: Records,
    next: Option<&'static Device>,
}

static DEVICES: AtomicPtr<Device> = AtomicPtr::new(ptr::null_mut());
/// Held while the list or a table changes.
static CHANGE: Mutex<()> = Mutex::new(());

impl Device {
    /// All that were ever opened.
    pub(crate) fn all() -> impl Iterator<Item = &'static Device> {
        // SAFETY: entries are leaked boxes, published whole.
        let first = unsafe { DEVICES.load(Ordering::Acquire).as_ref() };
        std::iter::successors(first, |device| device.next)
    }

    /// The entry of an open context.
    #[inline]
    pub(crate) fn of(context: *mut ibv_context) -> Option<&'static Device> {
        // Whoever was led here by a table's entry sees what was stored before it.
        fence(Ordering::Acquire);
        Device::all().find(|device| device.context.load(Ordering::Acquire) == context)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Puts `operations` into the tables of a context, or once more into those that the driver has changed since.
    ///
    /// # Safety
    /// * `context` is a context that libibverbs has opened.
    pub(crate) unsafe fn adopt(context: NonNull<ibv_context>, operations: &Operations) -> &'static Device {
        let _change = CHANGE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let device = Device::of(context.as_ptr()).unwrap_or_else(|| {
            // SAFETY: an open context has a device, whose name is a C string inside it.
            let name = unsafe { device_name(context) };
            let closed =
                Device::all().find(|device| device.context.load(Ordering::Acquire).is_null() && device.name == name);
            closed.unwrap_or_else(|| Device::add(name))
        });
        // First: with the first of our functions in the table, posts of other threads look for the context.
        device.context.store(context.as_ptr(), Ordering::Release);
        // SAFETY: the caller's promise.
        unsafe { device.patch(context, operations) };
        device
    }

    fn add(name: String) -> &'static Device {
        let device = Box::leak(Box::new(Device {
            context: AtomicPtr::new(ptr::null_mut()),
            name,
            post_send: Saved::none(),
            post_recv: Saved::none(),
            post_srq_recv: Saved::none(),
            poll_cq: Saved::none(),
            create_qp_ex: Saved::none(),
            create_cq_ex: Saved::none(),
            records: Records::new(),
            next: Device::all().next(),
        }));
        DEVICES.store(device, Ordering::Release);
        device
    }

    /// # Safety
    /// * `context` is a context that libibverbs has opened.
    unsafe fn patch(&self, context: NonNull<ibv_context>, operations: &Operations) {
        let context = context.as_ptr();
        macro_rules! table {
            ($($op:ident),*) => {$(
                if let Some(ours) = operations.$op {
                    // SAFETY: a field of the caller's context.
                    let entry = unsafe { &raw mut (*context).ops.$op };
                    // SAFETY: as above.
                    unsafe { self.$op.take(entry, ours) };
                }
            )*};
        }
        table!(post_send, post_recv, post_srq_recv, poll_cq);
        macro_rules! extended {
            ($($op:ident),*) => {$(
                if let Some(ours) = operations.$op
                    // SAFETY: the caller's promise.
                    && let Some(entry) = unsafe { extended_entry(context, offset_of!(verbs_context, $op)) }
                {
                    // SAFETY: an entry of the caller's context.
                    unsafe { self.$op.take(entry.as_ptr().cast(), ours) };
                }
            )*};
        }
        extended!(create_qp_ex, create_cq_ex);
    }

    /// Forgets a context that is about to be closed.
    pub(crate) fn forget(context: *mut ibv_context) {
        let _change = CHANGE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(device) = Device::of(context) {
            device.context.store(ptr::null_mut(), Ordering::Release);
            device.records.regions.clear();
        }
    }
}

/// # Safety
/// * `context` is a context that libibverbs has opened.
unsafe fn device_name(context: NonNull<ibv_context>) -> String {
    // SAFETY: the caller's promise.
    let device = unsafe { (*context.as_ptr()).device };
    if device.is_null() {
        return "?".to_owned();
    }
    // SAFETY: an open context's device lives as long as the context.
    let name = unsafe { &raw const (*device).name };
    // SAFETY: a C string, by libibverbs.
    unsafe { CStr::from_ptr(name.cast()) }.to_string_lossy().into_owned()
}

/// An entry of the table that lies before an extended context. The table grows at its front, so its size says
/// whether an entry is there; see `verbs_get_ctx_op` in `<infiniband/verbs.h>`.
///
/// # Safety
/// * `context` is a context that libibverbs has opened.
unsafe fn extended_entry(context: *mut ibv_context, offset: usize) -> Option<NonNull<c_void>> {
    // SAFETY: the caller's promise.
    let compat = unsafe { (*context).abi_compat };
    if compat.addr() != usize::MAX {
        return None;
    }
    // SAFETY: what an extended context is part of.
    let extended = unsafe { context.byte_sub(offset_of!(verbs_context, context)) }.cast::<verbs_context>();
    // SAFETY: as above; `sz` and what follows it never moved.
    let size = unsafe { (*extended).sz };
    if size < size_of::<verbs_context>() - offset {
        return None;
    }
    // SAFETY: inside the table, by its size.
    NonNull::new(unsafe { extended.byte_add(offset) }.cast())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{rules, stats};
    use rdma_verbs_options::Format;

    #[test]
    fn the_program_ends_also_where_it_was_interrupted_inside() {
        let device = Device::add("test0".into());
        let (interrupted, other) = (device.records.qp(device, 1), device.records.qp(device, 2));
        for record in [interrupted, other] {
            record.lock().stats(rdma_verbs_options::Op::Send).failed(stats::Failure::Errno(libc::ENOMEM));
        }
        let _locked = interrupted.lock();
        rules::at_exit();
        let table = stats::render(Format::Text, "test", 0.0);
        assert!(table.contains("test0    0x2 ") && !table.contains("0x1 "), "{table}");
    }

    #[test]
    fn a_shared_queue_is_found_again() {
        let device = Device::add("test1".into());
        let addresses = [0x10, 0x20, 0x30].map(ptr::without_provenance_mut::<ibv_srq>);
        let first = addresses.map(|srq| device.records.srq(device, srq));
        for (srq, record) in addresses.into_iter().zip(first) {
            assert!(ptr::eq(device.records.srq(device, srq), record));
        }
        assert!(device.records.all().into_iter().zip(first).all(|(listed, made)| ptr::eq(listed, made)));
    }
}
