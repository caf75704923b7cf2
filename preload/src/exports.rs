//! The functions of libibverbs that ours stand in front of. `preload.map` gives them libibverbs's version nodes.
//!
//! Each lets the real one run and notes what it did. An older libibverbs may lack one: then nobody can have been
//! linked to it, and the answer is that it is not there.

use crate::config;
use crate::device::{CreateQpEx, Device};
use crate::next::Next;
use crate::record::{Caps, Record};
use crate::rules;
use crate::wr_ex;
use libc::{c_int, c_uint, c_void, size_t};
use rdma_sys::{
    ibv_access_flags, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_attr_mask, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq,
};
use rdma_verbs_contract::errno::{self, Call, Errno};
use rdma_verbs_options::Check;
use std::ptr::NonNull;

type OpenDevice = unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context;
type ImportDevice = unsafe extern "C" fn(c_int) -> *mut ibv_context;
type CloseDevice = unsafe extern "C" fn(*mut ibv_context) -> c_int;
type AllocPd = unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd;
type CreateCq = unsafe extern "C" fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
type CreateQp = unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
type ModifyQp = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
type DestroyQp = unsafe extern "C" fn(*mut ibv_qp) -> c_int;
type DestroySrq = unsafe extern "C" fn(*mut ibv_srq) -> c_int;
type QpToQpEx = unsafe extern "C" fn(*mut ibv_qp) -> *mut ibv_qp_ex;
type RegMr = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, size_t, c_int) -> *mut ibv_mr;
type RegMrIova = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, size_t, u64, c_int) -> *mut ibv_mr;
type RegMrIova2 = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, size_t, u64, c_uint) -> *mut ibv_mr;
type RegDmabufMr = unsafe extern "C" fn(*mut ibv_pd, u64, size_t, u64, c_int, c_int) -> *mut ibv_mr;
type ReregMr = unsafe extern "C" fn(*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, size_t, c_int) -> c_int;
type DeregMr = unsafe extern "C" fn(*mut ibv_mr) -> c_int;

// SAFETY: the types of these versions in <infiniband/verbs.h>; so in the lines below.
static OPEN_DEVICE: Next<OpenDevice> = unsafe { Next::new(c"ibv_open_device", c"IBVERBS_1.1") };
// SAFETY: as above.
static IMPORT_DEVICE: Next<ImportDevice> = unsafe { Next::new(c"ibv_import_device", c"IBVERBS_1.10") };
// SAFETY: as above.
static CLOSE_DEVICE: Next<CloseDevice> = unsafe { Next::new(c"ibv_close_device", c"IBVERBS_1.1") };
// SAFETY: as above.
static ALLOC_PD: Next<AllocPd> = unsafe { Next::new(c"ibv_alloc_pd", c"IBVERBS_1.1") };
// SAFETY: as above.
static CREATE_CQ: Next<CreateCq> = unsafe { Next::new(c"ibv_create_cq", c"IBVERBS_1.1") };
// SAFETY: as above.
static CREATE_QP: Next<CreateQp> = unsafe { Next::new(c"ibv_create_qp", c"IBVERBS_1.1") };
// SAFETY: as above.
static MODIFY_QP: Next<ModifyQp> = unsafe { Next::new(c"ibv_modify_qp", c"IBVERBS_1.1") };
// SAFETY: as above.
static DESTROY_QP: Next<DestroyQp> = unsafe { Next::new(c"ibv_destroy_qp", c"IBVERBS_1.1") };
// SAFETY: as above.
static DESTROY_SRQ: Next<DestroySrq> = unsafe { Next::new(c"ibv_destroy_srq", c"IBVERBS_1.1") };
// SAFETY: as above.
static QP_TO_QP_EX: Next<QpToQpEx> = unsafe { Next::new(c"ibv_qp_to_qp_ex", c"IBVERBS_1.6") };
// SAFETY: as above.
static REG_MR: Next<RegMr> = unsafe { Next::new(c"ibv_reg_mr", c"IBVERBS_1.1") };
// SAFETY: as above.
static REG_MR_IOVA: Next<RegMrIova> = unsafe { Next::new(c"ibv_reg_mr_iova", c"IBVERBS_1.7") };
// SAFETY: as above.
static REG_MR_IOVA2: Next<RegMrIova2> = unsafe { Next::new(c"ibv_reg_mr_iova2", c"IBVERBS_1.8") };
// SAFETY: as above.
static REG_DMABUF_MR: Next<RegDmabufMr> = unsafe { Next::new(c"ibv_reg_dmabuf_mr", c"IBVERBS_1.12") };
// SAFETY: as above.
static REREG_MR: Next<ReregMr> = unsafe { Next::new(c"ibv_rereg_mr", c"IBVERBS_1.1") };
// SAFETY: as above.
static DEREG_MR: Next<DeregMr> = unsafe { Next::new(c"ibv_dereg_mr", c"IBVERBS_1.1") };

/// What a function without a real one answers.
fn missing<T>() -> *mut T {
    errno::object(Err(Errno::EOPNOTSUPP))
}

/// Puts our operations into a context. Done again whenever an object is made: a context may have come from a
/// function that is not ours, and a driver may have changed its table.
///
/// # Safety
/// * `context` is NULL or a context that libibverbs has opened.
unsafe fn adopt(context: *mut ibv_context) {
    if let Some(context) = NonNull::new(context)
        && !config::in_forked_child()
    {
        // Reading what was asked for uses errno.
        let call = Call::begin();
        let config = config::get();
        if config.observing || config.check != Check::Off {
            // SAFETY: the caller's promise.
            unsafe { Device::adopt(context, &config.operations) };
        }
        call.restore();
    }
}

/// # Safety
/// * As for `ibv_open_device(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let Some(real) = OPEN_DEVICE.get() else { return missing() };
    // SAFETY: the caller's promise.
    let context = unsafe { real(device) };
    // SAFETY: a context that was just opened, or NULL.
    unsafe { adopt(context) };
    context
}

/// # Safety
/// * As for `ibv_import_device(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    let Some(real) = IMPORT_DEVICE.get() else { return missing() };
    // SAFETY: the caller's promise.
    let context = unsafe { real(cmd_fd) };
    // SAFETY: a context that was just opened, or NULL.
    unsafe { adopt(context) };
    context
}

/// # Safety
/// * As for `ibv_close_device(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    let Some(real) = CLOSE_DEVICE.get() else { return libc::EOPNOTSUPP };
    // Before: the next context may get the same address. A child cannot take the lock, which may be held for ever.
    if !config::in_forked_child() {
        Device::forget(context);
    }
    // SAFETY: the caller's promise.
    let result = unsafe { real(context) };
    if result != 0 {
        // SAFETY: it is still open.
        unsafe { adopt(context) };
    }
    result
}

/// # Safety
/// * As for `ibv_alloc_pd(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let Some(real) = ALLOC_PD.get() else { return missing() };
    // SAFETY: the caller's promise.
    let pd = unsafe { real(context) };
    if !pd.is_null() {
        // SAFETY: a context in which something could be made.
        unsafe { adopt(context) };
    }
    pd
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
    let Some(real) = CREATE_CQ.get() else { return missing() };
    // SAFETY: the caller's promise.
    let cq = unsafe { real(context, cqe, cq_context, channel, comp_vector) };
    if !cq.is_null() {
        // SAFETY: a context in which something could be made.
        unsafe { adopt(context) };
    }
    cq
}

/// # Safety
/// * As for `ibv_create_qp(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    let Some(real) = CREATE_QP.get() else { return missing() };
    // SAFETY: the caller's promise.
    let qp = unsafe { real(pd, attr) };
    // SAFETY: the attributes that a queue pair could be made of.
    unsafe { created(qp, attr) };
    qp
}

/// What the extended tables hold for `ibv_create_qp_ex`.
///
/// # Safety
/// * As for `ibv_create_qp_ex(3)`.
pub(crate) unsafe extern "C" fn create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    let real: Option<CreateQpEx> = Device::of(context).and_then(|device| device.create_qp_ex.get());
    let Some(real) = real else { return missing() };
    // SAFETY: the caller's promise.
    let qp = unsafe { real(context, attr) };
    // SAFETY: the extended attributes begin as the plain ones do.
    unsafe { created(qp, attr.cast()) };
    qp
}

/// # Safety
/// * `qp` is NULL or was just made of `attr`.
unsafe fn created(qp: *mut ibv_qp, attr: *const ibv_qp_init_attr) {
    // SAFETY: the caller's promise.
    let Some(qp) = (unsafe { qp.as_ref() }) else { return };
    // SAFETY: a queue pair's context.
    unsafe { adopt(qp.context) };
    if config::in_forked_child() || !config::get().observing {
        return;
    }
    let Some(device) = Device::of(qp.context) else { return };
    // SAFETY: the caller's promise.
    let caps = Caps::of(unsafe { &*attr });
    let shared = (!qp.srq.is_null()).then(|| device.records.srq(device, qp.srq));
    device.records.qp(device, qp.qp_num).begin(qp, caps, shared);
}

/// # Safety
/// * As for `ibv_modify_qp(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    let Some(real) = MODIFY_QP.get() else { return libc::EOPNOTSUPP };
    // SAFETY: the caller's promise.
    let result = unsafe { real(qp, attr, mask) };
    const STATE: c_int = ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
    if result == 0
        && mask & STATE != 0
        // SAFETY: the caller's promise.
        && let Some(record) = unsafe { record_of(qp) }
    {
        // SAFETY: attributes of which the state is valid, by the mask.
        record.moved(unsafe { (*attr).qp_state });
    }
    result
}

/// # Safety
/// * As for `ibv_destroy_qp(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    let Some(real) = DESTROY_QP.get() else { return libc::EOPNOTSUPP };
    // SAFETY: the caller's promise.
    let record = unsafe { record_of(qp) };
    if let Some(record) = record
        && config::get().check == Check::Full
    {
        rules::before_destroy(record);
    }
    // SAFETY: the caller's promise.
    destroy(record, || unsafe { real(qp) })
}

/// Destroys an object, the record of which is kept for the next one of its number or address.
fn destroy(record: Option<&'static Record>, real: impl FnOnce() -> c_int) -> c_int {
    let retired = record.map(|record| (record, record.retire()));
    let result = real();
    if let Some((record, retired)) = retired
        && result != 0
    {
        record.restore(retired);
    }
    result
}

/// The record of a queue pair, while records are kept.
///
/// # Safety
/// * `qp` is a queue pair.
unsafe fn record_of(qp: *mut ibv_qp) -> Option<&'static Record> {
    if config::in_forked_child() || !config::get().observing {
        return None;
    }
    // SAFETY: the caller's promise.
    let qp = unsafe { qp.as_ref() }?;
    let device = Device::of(qp.context)?;
    Some(device.records.qp(device, qp.qp_num))
}

/// # Safety
/// * As for `ibv_destroy_srq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    let Some(real) = DESTROY_SRQ.get() else { return libc::EOPNOTSUPP };
    // SAFETY: the caller's promise.
    let context = unsafe { srq.as_ref() }.map(|srq| srq.context);
    let record = if config::in_forked_child() || !config::get().observing {
        None
    } else {
        context.and_then(Device::of).map(|device| device.records.srq(device, srq))
    };
    // SAFETY: the caller's promise.
    destroy(record, || unsafe { real(srq) })
}

/// # Safety
/// * As for `ibv_qp_to_qp_ex(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    let Some(real) = QP_TO_QP_EX.get() else { return missing() };
    // SAFETY: the caller's promise.
    let extended = unsafe { real(qp) };
    // SAFETY: the caller's promise.
    if let Some(record) = unsafe { record_of(qp) }
        && let Some(extended) = NonNull::new(extended)
    {
        // SAFETY: the extended part of a queue pair.
        unsafe { wr_ex::wrap(record, extended) };
    }
    extended
}

/// Notes a region, if there is one.
///
/// # Safety
/// * `mr` is NULL or was just made.
unsafe fn registered(mr: *mut ibv_mr, iova: u64, length: size_t, access: c_uint) {
    // SAFETY: the caller's promise.
    let Some(mr) = (unsafe { mr.as_ref() }) else { return };
    let Some(device) = device_for_rules(mr.context) else { return };
    if access & ibv_access_flags::IBV_ACCESS_ZERO_BASED.0 != 0 {
        // Used by offsets, where the device can do that.
        device.records.regions.forget(mr.lkey);
    } else {
        device.records.regions.registered(mr.lkey, iova, length as u64);
    }
}

/// The device of a context, while the rules are checked.
fn device_for_rules(context: *mut ibv_context) -> Option<&'static Device> {
    if config::in_forked_child() || config::get().check != Check::Full {
        return None;
    }
    Device::of(context)
}

/// # Safety
/// * As for `ibv_reg_mr(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut ibv_mr {
    let Some(real) = REG_MR.get() else { return missing() };
    // SAFETY: the caller's promise.
    let mr = unsafe { real(pd, addr, length, access) };
    // SAFETY: what was just made, if anything.
    unsafe { registered(mr, addr.addr() as u64, length, access as c_uint) };
    mr
}

/// # Safety
/// * As for `ibv_reg_mr_iova(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    let Some(real) = REG_MR_IOVA.get() else { return missing() };
    // SAFETY: the caller's promise.
    let mr = unsafe { real(pd, addr, length, iova, access) };
    // SAFETY: what was just made, if anything.
    unsafe { registered(mr, iova, length, access as c_uint) };
    mr
}

/// # Safety
/// * As for `ibv_reg_mr(3)`, to which programs with optional access flags are linked by this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let Some(real) = REG_MR_IOVA2.get() else { return missing() };
    // SAFETY: the caller's promise.
    let mr = unsafe { real(pd, addr, length, iova, access) };
    // SAFETY: what was just made, if anything.
    unsafe { registered(mr, iova, length, access) };
    mr
}

/// # Safety
/// * As for `ibv_reg_dmabuf_mr(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: size_t,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let Some(real) = REG_DMABUF_MR.get() else { return missing() };
    // SAFETY: the caller's promise.
    let mr = unsafe { real(pd, offset, length, iova, fd, access) };
    // SAFETY: what was just made, if anything.
    unsafe { registered(mr, iova, length, access as c_uint) };
    mr
}

/// # Safety
/// * As for `ibv_rereg_mr(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> c_int {
    let Some(real) = REREG_MR.get() else { return libc::EOPNOTSUPP };
    // What it covers afterwards depends on flags and on how far it got, and its key may be another one: better to say
    // nothing about either any more.
    let forget = || {
        // SAFETY: the caller's promise.
        if let Some(mr) = unsafe { mr.as_ref() }
            && let Some(device) = device_for_rules(mr.context)
        {
            device.records.regions.forget(mr.lkey);
        }
    };
    forget();
    // SAFETY: the caller's promise.
    let result = unsafe { real(mr, flags, pd, addr, length, access) };
    forget();
    result
}

/// # Safety
/// * As for `ibv_dereg_mr(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let Some(real) = DEREG_MR.get() else { return libc::EOPNOTSUPP };
    // SAFETY: the caller's promise.
    let region = unsafe { mr.as_ref() }.and_then(|mr| Some((device_for_rules(mr.context)?, mr.lkey)));
    if let Some((device, lkey)) = region {
        rules::before_deregistration(device, lkey);
        // Before: once it is done, another thread may have a new region of this key.
        device.records.regions.set_registered(lkey, false);
    }
    // SAFETY: the caller's promise.
    let result = unsafe { real(mr) };
    if let Some((device, lkey)) = region
        && result != 0
    {
        device.records.regions.set_registered(lkey, true);
    }
    result
}
