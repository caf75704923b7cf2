//! The refusals that make sense below the id: a post that is certain to fail or to crash is answered here.

use crate::request::{INLINE, WorkRequest};
use rdma_sys::{ibv_qp_type, ibv_recv_wr, ibv_send_wr, ibv_wr_opcode};
use rdma_verbs_contract::errno::Errno;
use rdma_verbs_contract::refusal;
use rdma_verbs_contract::view::Qp;

/// What is answered, and the name of the reason in the trace.
#[derive(Clone, Copy)]
pub(crate) struct Refusal {
    pub(crate) errno: Errno,
    pub(crate) reason: &'static str,
}

const fn invalid(reason: &'static str) -> Refusal {
    Refusal { errno: Errno::EINVAL, reason }
}

pub(crate) fn not_ready(errno: Errno) -> Refusal {
    Refusal { errno, reason: "not_ready_to_send" }
}

/// Whether there is nothing about a send that [`send`] would have to look at closely.
#[inline]
pub(crate) fn is_plain_send(qp: Qp, wr: &ibv_send_wr) -> bool {
    refusal::ready_to_send(qp).is_ok()
        && refusal::entries(wr.sg_list, wr.num_sge).is_ok()
        && wr.send_flags & INLINE == 0
        && !is_ud(qp)
}

/// # Safety
/// * The request's list is an array of its number of entries.
pub(crate) unsafe fn send(qp: Qp, wr: &ibv_send_wr) -> Result<(), Refusal> {
    refusal::ready_to_send(qp).map_err(not_ready)?;
    refusal::entries(wr.sg_list, wr.num_sge).map_err(|errno| Refusal { errno, reason: "bad_entry_list" })?;
    // SAFETY: the caller's promise.
    if wr.send_flags & INLINE != 0 && unsafe { is_inline_from_null(wr) } {
        return Err(invalid("inline_from_null"));
    }
    if is_ud(qp) && matches!(wr.opcode, ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM) {
        // SAFETY: an address, which a UD request has.
        let ah = unsafe { wr.wr.ud.ah };
        if ah.is_null() {
            return Err(invalid("no_address_handle"));
        }
    }
    Ok(())
}

/// # Safety
/// * The request's list is an array of its number of entries.
unsafe fn is_inline_from_null(wr: &ibv_send_wr) -> bool {
    // SAFETY: the caller's promise.
    let request = unsafe { wr.describe(false) };
    request.sges.iter().any(|sge| sge.addr == 0 && sge.length > 0)
}

#[inline]
pub(crate) fn recv(qp: Qp, wr: &ibv_recv_wr) -> Result<(), Refusal> {
    if qp.has_srq() {
        return Err(invalid("qp_has_srq"));
    }
    shared_recv(wr)
}

#[inline]
pub(crate) fn shared_recv(wr: &ibv_recv_wr) -> Result<(), Refusal> {
    refusal::entries(wr.sg_list, wr.num_sge).map_err(|errno| Refusal { errno, reason: "bad_entry_list" })
}

#[inline]
pub(crate) fn is_ud(qp: Qp) -> bool {
    qp.qp_type() == ibv_qp_type::IBV_QPT_UD
}
