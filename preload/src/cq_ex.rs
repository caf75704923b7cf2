//! Completion queues that are polled through `ibv_cq_ex`: `ibv_start_poll` and `ibv_next_poll`, whose functions the object
//! itself holds.

use crate::completion;
use crate::config;
use crate::device::Device;
use libc::c_int;
use rdma_sys::{ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc};
use rdma_verbs_contract::errno::Call;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{LazyLock, RwLock};

type StartPoll = unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int;
type NextPoll = unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int;

/// What the provider put into an object.
#[derive(Clone, Copy)]
struct Functions {
    start_poll: Option<StartPoll>,
    next_poll: Option<NextPoll>,
}

/// By the object's address; a later object of the same address takes the place of an earlier one.
static OBJECTS: LazyLock<RwLock<HashMap<usize, Functions>>> = LazyLock::new(RwLock::default);

/// What the extended tables hold for `ibv_create_cq_ex`.
///
/// # Safety
/// * As for `ibv_create_cq_ex(3)`.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    let Some(real) = Device::of(context).and_then(|device| device.create_cq_ex.get()) else { return ptr::null_mut() };
    // SAFETY: the caller's promise.
    let cq = unsafe { real(context, attr) };
    // SAFETY: an object that nobody else has yet.
    if let Some(object) = unsafe { cq.as_mut() }
        && !config::in_forked_child()
    {
        let functions = Functions { start_poll: object.start_poll, next_poll: object.next_poll };
        object.start_poll = functions.start_poll.and(Some(start_poll));
        object.next_poll = functions.next_poll.and(Some(next_poll));
        OBJECTS.write().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(cq.addr(), functions);
    }
    cq
}

fn functions(cq: *mut ibv_cq_ex) -> Option<Functions> {
    OBJECTS.read().unwrap_or_else(|poisoned| poisoned.into_inner()).get(&cq.addr()).copied()
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    let Some(real) = functions(cq).and_then(|functions| functions.start_poll) else { return libc::EOPNOTSUPP };
    // SAFETY: as for `ibv_start_poll(3)`.
    let result = unsafe { real(cq, attr) };
    if result == 0 {
        // SAFETY: the object is at a completion.
        unsafe { tell(cq) };
    }
    result
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let Some(real) = functions(cq).and_then(|functions| functions.next_poll) else { return libc::EOPNOTSUPP };
    // SAFETY: as for `ibv_next_poll(3)`.
    let result = unsafe { real(cq) };
    if result == 0 {
        // SAFETY: the object is at a completion.
        unsafe { tell(cq) };
    }
    result
}

/// Reads the completion that the object is at, and passes it on as `ibv_poll_cq` would have returned it. What the
/// queue was not created to tell has no function.
///
/// # Safety
/// * `cq` is at a completion.
unsafe fn tell(cq: *mut ibv_cq_ex) {
    if config::in_forked_child() {
        return;
    }
    // SAFETY: the caller's promise.
    let object = unsafe { &mut *cq };
    let Some(device) = Device::of(object.context) else { return };
    // SAFETY: integers, for which 0 is a value.
    let mut wc: ibv_wc = unsafe { MaybeUninit::zeroed().assume_init() };
    wc.wr_id = object.wr_id;
    wc.status = object.status;
    macro_rules! read {
        ($function:ident) => {
            // SAFETY: the caller's promise.
            object.$function.map(|read| unsafe { read(cq) })
        };
    }
    if wc.status == 0 {
        wc.opcode = read!(read_opcode).unwrap_or_default();
        wc.byte_len = read!(read_byte_len).unwrap_or_default();
        wc.wc_flags = read!(read_wc_flags).unwrap_or_default();
        const WITH_IMM: u32 = rdma_sys::ibv_wc_flags::IBV_WC_WITH_IMM.0;
        if wc.wc_flags & WITH_IMM != 0 {
            wc.imm_data_invalidated_rkey_union.imm_data = read!(read_imm_data).unwrap_or_default();
        }
    } else {
        wc.vendor_err = read!(read_vendor_err).unwrap_or_default();
    }
    let number = read!(read_qp_num).or_else(|| device.records.by_request(cq.addr(), wc.wr_id));
    wc.qp_num = number.unwrap_or_default();
    // Writing a trace uses errno.
    let call = Call::begin();
    completion::completed(config::get(), device, cq.addr(), &mut wc);
    call.restore();
    // A fault shows where the program reads it.
    object.status = wc.status;
}
