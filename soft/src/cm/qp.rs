//! Queue pairs of identifiers: making them, and moving them as the connection goes.

use super::device::{self, check, object, verbs};
use super::id::IdRef;
use crate::addresses;
use nix::errno::Errno;
use rdma_sys::{
    ibv_ah_attr, ibv_cq, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_state as qp_state, ibv_srq_init_attr, ibv_srq_init_attr_ex,
    ibv_srq_init_attr_mask, ibv_srq_type,
};
use std::ffi::c_int;
use std::ptr;

/// What rdma_init_qp_attr(3) fills in: attributes that bring the identifier's queue pair into `state`, and their mask.
/// EINVAL where the identifier has not come so far.
pub(super) fn attributes(id: IdRef, state: qp_state::Type) -> Result<(ibv_qp_attr, c_int), Errno> {
    if id.verbs().is_null() {
        return Err(Errno::EINVAL);
    }
    let attributes = id.core().lock().connection.qp_attributes(state)?;
    // SAFETY: numbers, for all of which zero is a value.
    let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attr.qp_state = state;
    attr.port_num = id.port_num();
    attr.qp_access_flags = attributes.access_flags;
    attr.path_mtu = attributes.path_mtu.into();
    attr.dest_qp_num = attributes.dest_qp_num;
    attr.rq_psn = attributes.rq_psn;
    attr.sq_psn = attributes.sq_psn;
    attr.max_dest_rd_atomic = attributes.max_dest_rd_atomic;
    attr.max_rd_atomic = attributes.max_rd_atomic;
    attr.timeout = attributes.timeout;
    attr.retry_cnt = attributes.retry_cnt;
    attr.rnr_retry = attributes.rnr_retry;
    if attributes.mask & ibv_qp_attr_mask::IBV_QP_AV.0 != 0 {
        let sgid_index = addresses::table().iter().position(|entry| entry.gid == attributes.local_gid);
        attr.ah_attr = ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: attributes.remote_gid },
                flow_label: 0,
                sgid_index: sgid_index.and_then(|index| index.try_into().ok()).ok_or(Errno::EADDRNOTAVAIL)?,
                hop_limit: attributes.hop_limit,
                traffic_class: attributes.traffic_class,
            },
            dlid: 0,
            sl: attributes.traffic_class >> 5,
            src_path_bits: 0,
            static_rate: 0,
            is_global: 1,
            port_num: id.port_num(),
        };
    }
    Ok((attr, attributes.mask as c_int))
}

/// Brings the queue pair into `state`; `change` has the last word on the attributes.
fn modify(id: IdRef, state: qp_state::Type, change: impl FnOnce(&mut ibv_qp_attr)) -> Result<(), Errno> {
    let (mut attr, mask) = attributes(id, state)?;
    change(&mut attr);
    // SAFETY: the identifier's queue pair, and its attributes.
    check(unsafe { (verbs()?.modify_qp)(id.qp(), &raw mut attr, mask) })
}

/// Brings the identifier's queue pair, if it has one, to where it can send. `None`: as many reads as were agreed.
pub(super) fn ready(id: IdRef, responder_resources: Option<u8>, initiator_depth: Option<u8>) -> Result<(), Errno> {
    if id.qp().is_null() {
        return Ok(());
    }
    // Only now is it known which rights the peer has.
    modify(id, qp_state::IBV_QPS_INIT, |_| {})?;
    modify(id, qp_state::IBV_QPS_RTR, |attr| {
        attr.max_dest_rd_atomic = responder_resources.unwrap_or(attr.max_dest_rd_atomic);
    })?;
    modify(id, qp_state::IBV_QPS_RTS, |attr| {
        attr.max_rd_atomic = initiator_depth.unwrap_or(attr.max_rd_atomic);
    })
}

/// Brings the queue pair, if there is one, into ERR: all that is posted is flushed.
pub(super) fn error(id: IdRef) -> Result<(), Errno> {
    if id.qp().is_null() {
        return Ok(());
    }
    // SAFETY: numbers, for all of which zero is a value.
    let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attr.qp_state = qp_state::IBV_QPS_ERR;
    // SAFETY: the identifier's queue pair, and its attributes.
    check(unsafe { (verbs()?.modify_qp)(id.qp(), &raw mut attr, ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int) })
}

/// The peer has accepted: the queue pair gets ready, and the peer hears so.
pub(super) fn connect(id: IdRef) -> Result<(), Errno> {
    ready(id, None, None).and_then(|()| id.core().establish()).inspect_err(|_| {
        // The first failure is the one to tell.
        let _ = error(id);
    })
}

/// Makes the queues that the program has not brought, each with a channel of its own.
fn create_cqs(id: IdRef, send_wr: u32, recv_wr: u32) -> Result<(), Errno> {
    let create = |size: u32| {
        let verbs = verbs()?;
        let size = c_int::try_from(size).map_err(|_| Errno::EINVAL)?;
        // SAFETY: an open device.
        let channel = object(unsafe { (verbs.create_comp_channel)(id.verbs()) })?;
        // SAFETY: an open device, and a channel of it.
        match object(unsafe { (verbs.create_cq)(id.verbs(), size, id.as_ptr().cast(), channel, 0) }) {
            Ok(cq) => Ok((channel, cq)),
            Err(reason) => {
                // SAFETY: made above, and nobody else's.
                unsafe { (verbs.destroy_comp_channel)(channel) };
                Err(reason)
            }
        }
    };
    if recv_wr > 0 {
        let (channel, cq) = create(recv_wr)?;
        id.set_recv_cq_channel(channel);
        id.set_recv_cq(cq);
    }
    if send_wr > 0 {
        let (channel, cq) = create(send_wr).inspect_err(|_| destroy_cqs(id))?;
        id.set_send_cq_channel(channel);
        id.set_send_cq(cq);
    }
    Ok(())
}

/// Destroys the identifier's own completion queues; one that is still in use stays, as with librdmacm.
fn destroy_cqs(id: IdRef) {
    let Ok(verbs) = verbs() else { return };
    let (recv, send) = (id.recv_cq(), id.send_cq());
    id.set_recv_cq(ptr::null_mut());
    id.set_send_cq(ptr::null_mut());
    let destroy = |cq: *mut ibv_cq| {
        if !cq.is_null() {
            // SAFETY: the identifier's own, which nobody finds in it any more.
            unsafe { (verbs.destroy_cq)(cq) };
        }
    };
    destroy(recv);
    if send != recv {
        destroy(send);
    }
    let (recv, send) = (id.recv_cq_channel(), id.send_cq_channel());
    id.set_recv_cq_channel(ptr::null_mut());
    id.set_send_cq_channel(ptr::null_mut());
    for channel in [recv, if send == recv { ptr::null_mut() } else { send }] {
        if !channel.is_null() {
            // SAFETY: as above.
            unsafe { (verbs.destroy_comp_channel)(channel) };
        }
    }
}

/// rdma_create_qp_ex(3).
///
/// # Safety
/// * `attr` and what it names are valid objects.
pub(super) unsafe fn create_ex(id: IdRef, attr: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    if !id.qp().is_null() || id.verbs().is_null() {
        return Err(Errno::EINVAL);
    }
    let pd_given = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
    if attr.comp_mask & pd_given == 0 || attr.pd.is_null() {
        attr.comp_mask |= pd_given;
        attr.pd = id.pd();
    } else {
        // SAFETY: a valid object, by the caller's promise.
        let context = unsafe { (*attr.pd).context };
        if context != id.verbs() {
            return Err(Errno::EINVAL);
        }
    }
    let contradict = |own: *mut ibv_cq, given: *mut ibv_cq| !own.is_null() && !given.is_null() && own != given;
    if contradict(id.recv_cq(), attr.recv_cq) || contradict(id.send_cq(), attr.send_cq) {
        return Err(Errno::EINVAL);
    }
    // For a queue of no requests, too: rdma_create_qp(3).
    let wanted = |own: *mut ibv_cq, given: *mut ibv_cq, size: u32| match own.is_null() && given.is_null() {
        true => size.max(1),
        false => 0,
    };
    let send_wr = wanted(id.send_cq(), attr.send_cq, attr.cap.max_send_wr);
    let recv_wr = wanted(id.recv_cq(), attr.recv_cq, attr.cap.max_recv_wr);
    create_cqs(id, send_wr, recv_wr)?;
    let given = (attr.send_cq, attr.recv_cq);
    let made = (|| {
        if attr.send_cq.is_null() {
            attr.send_cq = id.send_cq();
        }
        if attr.recv_cq.is_null() {
            attr.recv_cq = id.recv_cq();
        }
        if attr.srq.is_null() {
            attr.srq = id.srq();
        }
        // SAFETY: an open device, and valid attributes by the caller's promise.
        let qp = unsafe { device::create_qp_ex(id.verbs(), attr) }?;
        id.set_qp(qp);
        modify(id, qp_state::IBV_QPS_INIT, |_| {}).inspect_err(|_| {
            id.set_qp(ptr::null_mut());
            if let Ok(verbs) = verbs() {
                // SAFETY: made above, and nobody else's.
                unsafe { (verbs.destroy_qp)(qp) };
            }
        })?;
        // SAFETY: made above.
        id.set_pd(unsafe { (*qp).pd });
        Ok(())
    })();
    made.inspect_err(|_| {
        if send_wr > 0 || recv_wr > 0 {
            destroy_cqs(id);
        }
        // Programs try again with less.
        (attr.send_cq, attr.recv_cq) = given;
    })
}

/// rdma_create_qp(3).
///
/// # Safety
/// * `attr` and what it names are valid objects, and so is `pd` unless it is NULL.
pub(super) unsafe fn create(id: IdRef, pd: *mut rdma_sys::ibv_pd, attr: *mut ibv_qp_init_attr) -> Result<(), Errno> {
    // SAFETY: numbers and pointers, for all of which zero is a value.
    let mut ex: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    // SAFETY: a valid object, by the caller's promise; the larger struct begins as the smaller one does.
    unsafe { ptr::copy_nonoverlapping(attr, (&raw mut ex).cast(), 1) };
    ex.comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
    ex.pd = if pd.is_null() { id.pd() } else { pd };
    // SAFETY: valid objects, by the caller's promise.
    let made = unsafe { create_ex(id, &mut ex) };
    // SAFETY: as above, the other way.
    unsafe { ptr::copy_nonoverlapping((&raw const ex).cast(), attr, 1) };
    made
}

/// rdma_destroy_qp(3).
pub(super) fn destroy(id: IdRef) {
    let qp = id.qp();
    if qp.is_null() {
        return;
    }
    if let Ok(verbs) = verbs() {
        // SAFETY: the identifier's queue pair.
        unsafe { (verbs.destroy_qp)(qp) };
    }
    id.set_qp(ptr::null_mut());
    destroy_cqs(id);
}

/// rdma_create_srq_ex(3).
///
/// # Safety
/// * `attr` and what it names are valid objects.
pub(super) unsafe fn create_srq_ex(id: IdRef, attr: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    let (type_given, pd_given) =
        (ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0, ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0);
    if attr.comp_mask & type_given == 0 || id.verbs().is_null() {
        return Err(Errno::EINVAL);
    }
    if attr.srq_type == ibv_srq_type::IBV_SRQT_XRC {
        return Err(Errno::EOPNOTSUPP);
    }
    if attr.comp_mask & pd_given == 0 || attr.pd.is_null() {
        attr.comp_mask |= pd_given;
        attr.pd = id.pd();
    }
    // SAFETY: an open device, and valid attributes by the caller's promise.
    let srq = unsafe { device::create_srq_ex(id.verbs(), attr) }?;
    if id.pd().is_null() {
        id.set_pd(attr.pd);
    }
    id.set_srq(srq);
    Ok(())
}

/// rdma_create_srq(3).
///
/// # Safety
/// * `attr` is a valid object, and so is `pd` unless it is NULL.
pub(super) unsafe fn create_srq(
    id: IdRef,
    pd: *mut rdma_sys::ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> Result<(), Errno> {
    // SAFETY: numbers and pointers, for all of which zero is a value.
    let mut ex: ibv_srq_init_attr_ex = unsafe { std::mem::zeroed() };
    // SAFETY: a valid object, by the caller's promise; the larger struct begins as the smaller one does.
    unsafe { ptr::copy_nonoverlapping(attr, (&raw mut ex).cast(), 1) };
    ex.comp_mask = (ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE | ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD).0;
    ex.srq_type = ibv_srq_type::IBV_SRQT_BASIC;
    ex.pd = pd;
    // SAFETY: valid objects, by the caller's promise.
    let made = unsafe { create_srq_ex(id, &mut ex) };
    // SAFETY: as above, the other way.
    unsafe { ptr::copy_nonoverlapping((&raw const ex).cast(), attr, 1) };
    made
}

/// rdma_destroy_srq(3).
pub(super) fn destroy_srq(id: IdRef) {
    let srq = id.srq();
    if srq.is_null() {
        return;
    }
    if let Ok(verbs) = verbs() {
        // SAFETY: the identifier's shared receive queue.
        unsafe { (verbs.destroy_srq)(srq) };
    }
    id.set_srq(ptr::null_mut());
    if id.qp().is_null() {
        destroy_cqs(id);
    }
}
