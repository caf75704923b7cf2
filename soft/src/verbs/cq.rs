//! Completion channels and completion queues, plain and extended.

use super::acknowledged::{HandedOut, acknowledged};
use super::object::{self, Room, own};
use super::outcome;
use crate::engine::{self, Channel, Cookie, limit};
use libc::{c_int, c_uint, c_void};
use nix::errno::Errno;
use rdma_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_cq_init_attr_mask,
    ibv_create_cq_attr_flags, ibv_create_cq_wc_flags, ibv_poll_cq_attr, ibv_wc, ibv_wc_opcode,
};
use std::cell::UnsafeCell;
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// What is behind an `ibv_cq`.
pub(super) struct Own {
    pub(super) queue: Arc<engine::Cq>,
    completion_events: HandedOut,
    pub(super) async_events: HandedOut,
    /// The completion that `ibv_start_poll` or `ibv_next_poll` found, for the reading functions.
    current: UnsafeCell<MaybeUninit<ibv_wc>>,
    /// Held from `ibv_start_poll` to `ibv_end_poll`. The C library's: those are two calls.
    polling: UnsafeCell<libc::pthread_mutex_t>,
}

/// # Safety
/// * As for `ibv_create_comp_channel(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    outcome::object(engine::get().and_then(|_| Channel::new()).map(|channel| {
        let fd = channel.fd();
        object::make::<ibv_comp_channel>(ibv_comp_channel { context, fd, refcnt: 0 }, Arc::new(channel))
    }))
}

/// # Safety
/// * As for `ibv_create_comp_channel(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: a live object.
    if unsafe { users(channel) }.load(Ordering::Acquire) != 0 {
        return outcome::value(Err(Errno::EBUSY));
    }
    // SAFETY: nobody uses it any more.
    unsafe { object::free(channel) };
    0
}

/// How many completion queues use a channel.
///
/// # Safety
/// * `channel` is a live object as long as `'a`.
unsafe fn users<'a>(channel: *mut ibv_comp_channel) -> &'a AtomicI32 {
    // SAFETY: the caller's promise.
    let users = unsafe { &raw mut (*channel).refcnt };
    // SAFETY: as above; programs do not touch it.
    unsafe { AtomicI32::from_ptr(users) }
}

/// # Safety
/// * As for `ibv_create_cq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let (Ok(cqe), Ok(comp_vector)) = (u32::try_from(cqe), u32::try_from(comp_vector)) else {
        return outcome::object(Err(Errno::EINVAL));
    };
    // SAFETY: the caller's promise.
    outcome::object(unsafe { create(context, cqe, cq_context, channel, comp_vector) }).cast()
}

/// The extended form, with the standard fields of completions; no other is known here.
///
/// # Safety
/// * As for `ibv_create_cq_ex(3)`.
pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller's promise.
    let attr = unsafe { &*attr };
    // SAFETY: as above.
    outcome::object(
        check_attributes(attr)
            .and_then(|()| unsafe { create(context, attr.cqe, attr.cq_context, attr.channel, attr.comp_vector) }),
    )
}

fn check_attributes(attr: &ibv_cq_init_attr_ex) -> Result<(), Errno> {
    use ibv_create_cq_wc_flags as fields;
    let standard = fields::IBV_WC_EX_WITH_BYTE_LEN
        | fields::IBV_WC_EX_WITH_IMM
        | fields::IBV_WC_EX_WITH_QP_NUM
        | fields::IBV_WC_EX_WITH_SRC_QP
        | fields::IBV_WC_EX_WITH_SLID
        | fields::IBV_WC_EX_WITH_SL
        | fields::IBV_WC_EX_WITH_DLID_PATH_BITS;
    // Both are permissions to do less, of which no use is made.
    let flags = ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED
        | ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    let with_flags = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
    if attr.wc_flags & !u64::from(standard.0) != 0
        || attr.comp_mask & !with_flags != 0
        || (attr.comp_mask & with_flags != 0 && attr.flags & !flags.0 != 0)
    {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(())
}

/// # Safety
/// * `context` is open; `channel` is NULL or a live object.
unsafe fn create(
    context: *mut ibv_context,
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
) -> Result<*mut ibv_cq_ex, Errno> {
    // SAFETY: the caller's promise.
    let vectors = unsafe { (*context).num_comp_vectors };
    if !(1..=limit::MAX_CQE).contains(&cqe) || comp_vector >= vectors as u32 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: as above.
    let events = unsafe { own(context) }.events.clone();
    // SAFETY: as above.
    let notify = (!channel.is_null()).then(|| unsafe { own(channel) }.clone());
    let room = Room::<ibv_cq_ex>::new();
    let queue = engine::get()?.create_cq(cqe, notify, events, room.cookie())?;
    if !channel.is_null() {
        // SAFETY: as above.
        unsafe { users(channel) }.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: numbers, pointers, locks (whose initial state is all zeros) and functions that may be absent.
    let mut cq: ibv_cq_ex = unsafe { mem::zeroed() };
    cq.context = context;
    cq.channel = channel;
    cq.cq_context = cq_context;
    cq.cqe = queue.capacity() as c_int;
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_dlid_path_bits);
    Ok(room.fill(
        cq,
        Own {
            queue,
            completion_events: HandedOut::none(),
            async_events: HandedOut::none(),
            current: UnsafeCell::new(MaybeUninit::uninit()),
            polling: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
        },
    ))
}

/// # Safety
/// * As for `ibv_resize_cq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: a live object.
    let queue = &unsafe { own(cq) }.queue;
    let size = u32::try_from(cqe).ok().filter(|cqe| (1..=limit::MAX_CQE).contains(cqe)).ok_or(Errno::EINVAL);
    outcome::value(size.and_then(|cqe| engine::get()?.resize_cq(queue, cqe)).map(|()| {
        // SAFETY: a live object.
        unsafe { (*cq).cqe = queue.capacity() as c_int };
    }))
}

/// # Safety
/// * As for `ibv_destroy_cq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: a live object.
    let own = unsafe { own(cq) };
    if let Err(errno) = engine::get().and_then(|engine| engine.destroy_cq(&own.queue)) {
        return outcome::value(Err(errno));
    }
    let acknowledged = acknowledged!(cq, comp_events_completed);
    // SAFETY: a live object.
    unsafe { own.completion_events.wait(acknowledged) };
    let acknowledged = acknowledged!(cq, async_events_completed);
    // SAFETY: a live object.
    unsafe { own.async_events.wait(acknowledged) };
    // SAFETY: as above.
    let channel = unsafe { (*cq).channel };
    if !channel.is_null() {
        // SAFETY: it cannot be destroyed before this.
        unsafe { users(channel) }.fetch_sub(1, Ordering::Release);
    }
    // SAFETY: nobody uses it any more.
    unsafe { object::free(cq) };
    0
}

fn cq_of(cookie: Cookie) -> *mut ibv_cq {
    ptr::with_exposed_provenance_mut(cookie)
}

/// # Safety
/// * As for `ibv_get_cq_event(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a live object.
    let events = unsafe { own(channel) };
    // SAFETY: the cookie of a completion queue, which is there as long as its events are not withdrawn.
    let event = events.pop_with(|cookie| unsafe { own(cq_of(*cookie)) }.completion_events.one_more());
    outcome::status(event.map(|cookie| {
        // SAFETY: the caller's promise.
        unsafe { *cq = cq_of(cookie) };
        // SAFETY: it cannot be destroyed before the event is acknowledged.
        let context = unsafe { (*cq_of(cookie)).cq_context };
        // SAFETY: the caller's promise.
        unsafe { *cq_context = context };
    }))
}

/// # Safety
/// * As for `ibv_ack_cq_events(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    if nevents != 0 {
        let acknowledged = acknowledged!(cq, comp_events_completed);
        // SAFETY: a live object.
        unsafe { acknowledged.add(nevents) };
    }
}

/// # Safety
/// * As for `ibv_req_notify_cq(3)`.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: a live object.
    let queue = &unsafe { own(cq) }.queue;
    outcome::value(engine::get().and_then(|engine| engine.arm(queue, solicited_only != 0)))
}

/// # Safety
/// * As for `ibv_poll_cq(3)`.
pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    let Ok(entries @ 1..) = usize::try_from(num_entries) else { return 0 };
    // SAFETY: room for so many, by the caller's promise.
    let to = unsafe { slice::from_raw_parts_mut(wc.cast::<MaybeUninit<ibv_wc>>(), entries) };
    // SAFETY: a live object.
    let queue = &unsafe { own(cq) }.queue;
    outcome::count(engine::get().and_then(|engine| engine.poll_cq(queue, to)).map(|found| found as c_int))
}

/// # Safety
/// * As for `ibv_start_poll(3)`.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return outcome::value(Err(Errno::EINVAL));
    }
    // SAFETY: a live object.
    let polling = unsafe { own(cq) }.polling.get();
    // SAFETY: as above.
    unsafe { libc::pthread_mutex_lock(polling) };
    // SAFETY: as above; this thread polls.
    let result = unsafe { next_poll(cq) };
    if result != 0 {
        // SAFETY: locked above. Without a completion there is no `ibv_end_poll`.
        unsafe { libc::pthread_mutex_unlock(polling) };
    }
    result
}

/// # Safety
/// * As for `ibv_next_poll(3)`.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: a live object.
    let own = unsafe { own(cq) };
    // SAFETY: the lock is held from `ibv_start_poll` on.
    let current = unsafe { &mut *own.current.get() };
    match engine::get().and_then(|engine| engine.poll_cq(&own.queue, slice::from_mut(current))) {
        // ENOENT is no error here, and leaves `errno` alone.
        Ok(0) => libc::ENOENT,
        Ok(_) => {
            // SAFETY: filled just now.
            let found = unsafe { current.assume_init_ref() };
            // SAFETY: a live object.
            unsafe { (*cq).wr_id = found.wr_id };
            // SAFETY: as above.
            unsafe { (*cq).status = found.status };
            0
        }
        Err(errno) => outcome::value(Err(errno)),
    }
}

/// # Safety
/// * As for `ibv_end_poll(3)`.
unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: a live object.
    let polling = unsafe { own(cq) }.polling.get();
    // SAFETY: locked by `ibv_start_poll`.
    unsafe { libc::pthread_mutex_unlock(polling) };
}

/// Functions that read a field of the current completion.
macro_rules! readers {
    ($($name:ident: $type:ty = $field:expr;)*) => {$(
        /// # Safety
        /// * Called between a successful `ibv_start_poll(3)` or `ibv_next_poll` and `ibv_end_poll`.
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: a live object.
            let current = unsafe { own(cq) }.current.get();
            // SAFETY: only changed by the thread that polls.
            let current = unsafe { &*current };
            // SAFETY: filled when it was found.
            let current: &ibv_wc = unsafe { current.assume_init_ref() };
            let field: fn(&ibv_wc) -> $type = $field;
            field(current)
        }
    )*};
}

readers! {
    read_opcode: ibv_wc_opcode::Type = |wc| wc.opcode;
    read_vendor_err: u32 = |wc| wc.vendor_err;
    read_byte_len: u32 = |wc| wc.byte_len;
    // SAFETY: both members of the union are 32 bits.
    read_imm_data: u32 = |wc| unsafe { wc.imm_data_invalidated_rkey_union.imm_data };
    read_qp_num: u32 = |wc| wc.qp_num;
    read_src_qp: u32 = |wc| wc.src_qp;
    read_wc_flags: c_uint = |wc| wc.wc_flags;
    read_slid: u32 = |wc| wc.slid.into();
    read_sl: u8 = |wc| wc.sl;
    read_dlid_path_bits: u8 = |wc| wc.dlid_path_bits;
}
