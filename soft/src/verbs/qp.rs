//! Queue pairs: making, modifying, asking, destroying.

use super::acknowledged::{HandedOut, acknowledged};
use super::object::{self, Room, own};
use super::wr::{self, Batch};
use super::{memory, outcome};
use crate::engine::{self, QpInit, QpKey, limit};
use libc::{c_int, c_uint, c_void};
use nix::errno::Errno;
use rdma_sys::{
    ibv_context, ibv_ece, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_create_send_ops_flags,
    ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_state, ibv_qp_type, ibv_sge,
};
use std::mem;
use std::ptr;

/// What is behind an `ibv_qp`.
pub(super) struct Own {
    pub(super) key: QpKey,
    pub(super) cap: ibv_qp_cap,
    sq_sig_all: bool,
    pub(super) async_events: HandedOut,
    /// Where it was made for `ibv_wr_start(3)`.
    pub(super) batch: Option<Batch>,
}

/// # Safety
/// * As for `ibv_create_qp(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller's promise.
    let attr = unsafe { &mut *attr };
    // SAFETY: as above.
    outcome::object(unsafe { create(pd, attr, false) })
}

/// # Safety
/// * As for `ibv_create_qp_ex(3)`.
pub(super) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller's promise.
    let extension = unsafe { &*attr };
    let pd = extension.pd;
    outcome::object(check_extension(extension).and_then(|for_wr| {
        // SAFETY: the extended attributes begin as the plain ones do.
        let attr = unsafe { &mut *attr.cast() };
        // SAFETY: the caller's promise.
        unsafe { create(pd, attr, for_wr) }
    }))
}

/// Whether it is wanted for `ibv_wr_start(3)`.
fn check_extension(attr: &ibv_qp_init_attr_ex) -> Result<bool, Errno> {
    use ibv_qp_create_send_ops_flags as operations;
    use ibv_qp_init_attr_mask as mask;
    let supported = operations::IBV_QP_EX_WITH_RDMA_WRITE
        | operations::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | operations::IBV_QP_EX_WITH_SEND
        | operations::IBV_QP_EX_WITH_SEND_WITH_IMM
        | operations::IBV_QP_EX_WITH_RDMA_READ
        | operations::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | operations::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | operations::IBV_QP_EX_WITH_SEND_WITH_INV;
    let has = |bit: mask| attr.comp_mask & bit.0 != 0;
    let known = mask::IBV_QP_INIT_ATTR_PD | mask::IBV_QP_INIT_ATTR_CREATE_FLAGS | mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if attr.comp_mask & !known.0 != 0 || (has(mask::IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr.create_flags != 0) {
        return Err(Errno::EOPNOTSUPP);
    }
    if !has(mask::IBV_QP_INIT_ATTR_PD) {
        return Err(Errno::EINVAL);
    }
    if !has(mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
        return Ok(false);
    }
    if attr.send_ops_flags & !u64::from(supported.0) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(true)
}

/// # Safety
/// * The pointers in `attr` are NULL or live objects, and so is `pd`.
unsafe fn create(pd: *mut ibv_pd, attr: &mut ibv_qp_init_attr, for_wr: bool) -> Result<*mut ibv_qp, Errno> {
    use ibv_qp_type as kind;
    match attr.qp_type {
        kind::IBV_QPT_RC => {}
        kind::IBV_QPT_UC | kind::IBV_QPT_UD | kind::IBV_QPT_RAW_PACKET => return Err(Errno::EOPNOTSUPP),
        kind::IBV_QPT_XRC_SEND | kind::IBV_QPT_XRC_RECV | kind::IBV_QPT_DRIVER => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    }
    if pd.is_null() || attr.send_cq.is_null() || attr.recv_cq.is_null() {
        return Err(Errno::EINVAL);
    }
    let cap = actual(attr)?;
    // SAFETY: the caller's promise.
    let context = unsafe { (*pd).context };
    let room = Room::<ibv_qp>::new();
    let init = QpInit {
        // SAFETY: the caller's promise, here and below.
        pd: unsafe { memory::key(pd) },
        // SAFETY: as above.
        send_cq: unsafe { own(attr.send_cq) }.queue.clone(),
        // SAFETY: as above.
        recv_cq: unsafe { own(attr.recv_cq) }.queue.clone(),
        // SAFETY: as above.
        srq: (!attr.srq.is_null()).then(|| unsafe { own(attr.srq) }.key),
        cap,
        sq_sig_all: attr.sq_sig_all != 0,
        // SAFETY: as above.
        events: unsafe { own(context) }.events.clone(),
        cookie: room.cookie(),
    };
    let (key, number) = engine::get()?.create_qp(init)?;
    attr.cap = cap;
    // SAFETY: numbers, pointers, locks (whose initial state is all zeros) and functions that may be absent.
    let mut qp: ibv_qp_ex = unsafe { mem::zeroed() };
    let base = &mut qp.qp_base;
    base.context = context;
    base.qp_context = attr.qp_context;
    base.pd = pd;
    base.send_cq = attr.send_cq;
    base.recv_cq = attr.recv_cq;
    base.srq = attr.srq;
    base.handle = key.0;
    base.qp_num = number;
    base.state = ibv_qp_state::IBV_QPS_RESET;
    base.qp_type = attr.qp_type;
    let batch = for_wr.then(|| {
        wr::set_functions(&mut qp);
        Batch::new()
    });
    let sq_sig_all = attr.sq_sig_all != 0;
    Ok(room.fill(qp, Own { key, cap, sq_sig_all, async_events: HandedOut::none(), batch }).cast())
}

/// The capabilities that a queue pair will have: what is asked for, with no receive queue where a shared one is used.
/// Inline data has at least the room of the entries that it stands in place of, as on adapters and Soft-RoCE: there are
/// programs that ask for none and post some (rdma_xclient).
fn actual(attr: &ibv_qp_init_attr) -> Result<ibv_qp_cap, Errno> {
    let mut cap = attr.cap;
    if !attr.srq.is_null() {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    if cap.max_send_wr.max(cap.max_recv_wr) > limit::MAX_QP_WR
        || cap.max_send_sge.max(cap.max_recv_sge) > limit::MAX_SGE
        || cap.max_inline_data > limit::MAX_INLINE_DATA
    {
        return Err(Errno::EINVAL);
    }
    cap.max_inline_data = cap.max_inline_data.max(cap.max_send_sge * size_of::<ibv_sge>() as u32);
    Ok(cap)
}

/// # Safety
/// * As for `ibv_modify_qp(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: a live object.
    let key = unsafe { own(qp) }.key;
    // SAFETY: the caller's promise.
    let attr = unsafe { &*attr };
    let mask = mask as c_uint;
    outcome::value(engine::get().and_then(|engine| engine.modify_qp(key, attr, mask)).map(|()| {
        if mask & ibv_qp_attr_mask::IBV_QP_STATE.0 != 0 {
            // SAFETY: a live object.
            unsafe { (*qp).state = attr.qp_state };
        }
    }))
}

/// Answers with all attributes, whichever are asked for.
///
/// # Safety
/// * As for `ibv_query_qp(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: a live object.
    let own = unsafe { own(qp) };
    outcome::value(engine::get().and_then(|engine| engine.query_qp(own.key)).map(|now| {
        // SAFETY: a live object.
        unsafe { (*qp).state = now.qp_state };
        // SAFETY: room for the attributes.
        unsafe { attr.write(ibv_qp_attr { cap: own.cap, ..now }) };
        let init = ibv_qp_init_attr {
            // SAFETY: a live object, here and below.
            qp_context: unsafe { (*qp).qp_context },
            // SAFETY: as above.
            send_cq: unsafe { (*qp).send_cq },
            // SAFETY: as above.
            recv_cq: unsafe { (*qp).recv_cq },
            // SAFETY: as above.
            srq: unsafe { (*qp).srq },
            cap: own.cap,
            // SAFETY: as above.
            qp_type: unsafe { (*qp).qp_type },
            sq_sig_all: own.sq_sig_all.into(),
        };
        // SAFETY: room for the attributes.
        unsafe { init_attr.write(init) };
    }))
}

/// # Safety
/// * As for `ibv_destroy_qp(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: a live object.
    let own = unsafe { own(qp) };
    if let Err(errno) = engine::get().and_then(|engine| engine.destroy_qp(own.key)) {
        return outcome::value(Err(errno));
    }
    let acknowledged = acknowledged!(qp, events_completed);
    // SAFETY: a live object.
    unsafe { own.async_events.wait(acknowledged) };
    // SAFETY: nobody uses it any more.
    unsafe { object::free(qp) };
    0
}

/// NULL for a queue pair that was made without `send_ops_flags`.
///
/// # Safety
/// * As for `ibv_qp_to_qp_ex(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: a live object.
    if unsafe { own(qp) }.batch.is_some() { qp.cast() } else { ptr::null_mut() }
}

/// No enhanced connection establishment: no options.
///
/// # Safety
/// * As for `ibv_query_ece(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: room for it.
    unsafe { ece.write_bytes(0, 1) };
    0
}

/// # Safety
/// * As for `ibv_set_ece(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's promise.
    let nothing = unsafe { &*ece }.options == 0;
    outcome::value(if nothing { Ok(()) } else { Err(Errno::EOPNOTSUPP) })
}

/// No promise is made.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_query_qp_data_in_order(_qp: *mut c_void, _operation: c_uint, _flags: u32) -> c_int {
    0
}
