//! Queue pairs: attributes, and the states that ibv_modify_qp(3) leads through (IBTA 10.3.1 and 11.2.5.2).

use super::receive::ReceiveQueue;
use super::requester::Requester;
use super::responder::Responder;
use super::{AsyncEvent, AsyncEvents, Cookie, Cq, PdKey, QpInit, State, limit};
use crate::addresses;
use nix::errno::Errno;
use rdma_sys::ibv_qp_state::{self, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD};
use rdma_sys::{ibv_event_type, ibv_mig_state, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_wc};
use rdma_sys::{ibv_wc_opcode, ibv_wc_status, imm_data_invalidated_rkey_union_t};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct Qp {
    pub(super) number: u32,
    pub(super) pd: PdKey,
    pub(super) send_cq: Arc<Cq>,
    pub(super) recv_cq: Arc<Cq>,
    pub(super) srq: Option<usize>,
    pub(super) cap: ibv_qp_cap,
    pub(super) sq_sig_all: bool,
    events: Arc<AsyncEvents>,
    cookie: Cookie,
    pub(super) state: ibv_qp_state::Type,
    pub(super) attr: ibv_qp_attr,
    pub(super) path: Option<Path>,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    pub(super) receives: ReceiveQueue,
    /// The earliest timer that is waiting for this queue pair.
    pub(super) timer: Option<std::time::Instant>,
}

/// Where the queue pair is, and where its peer.
#[derive(Clone, Copy)]
pub(super) struct Path {
    pub(super) source_gid: [u8; 16],
    pub(super) destination_gid: [u8; 16],
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
}

/// 24 bits.
pub(super) const PSN_MASK: u32 = 0xFF_FFFF;

impl Qp {
    pub(super) fn new(number: u32, init: QpInit, srq: Option<usize>) -> Qp {
        Qp {
            number,
            pd: init.pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq,
            cap: init.cap,
            sq_sig_all: init.sq_sig_all,
            events: init.events,
            cookie: init.cookie,
            state: IBV_QPS_RESET,
            attr: no_attributes(),
            path: None,
            requester: Requester::new(0),
            responder: Responder::new(0),
            receives: ReceiveQueue::new(init.cap.max_recv_wr, init.cap.max_recv_sge),
            timer: None,
        }
    }

    pub(super) fn event(&self, kind: ibv_event_type) {
        self.events.push(AsyncEvent { kind, element: self.cookie });
    }

    /// Nothing of it will be seen any more.
    pub(super) fn withdraw(&self) {
        use ibv_event_type::*;
        let kinds = [
            IBV_EVENT_QP_FATAL,
            IBV_EVENT_QP_REQ_ERR,
            IBV_EVENT_QP_ACCESS_ERR,
            IBV_EVENT_COMM_EST,
            IBV_EVENT_SQ_DRAINED,
            IBV_EVENT_QP_LAST_WQE_REACHED,
        ];
        self.events.retain(|event| !kinds.contains(&event.kind) || event.element != self.cookie);
        self.send_cq.forget(self.number);
        self.recv_cq.forget(self.number);
    }

    /// Whether it takes requests of its peer.
    pub(super) fn receives_requests(&self) -> bool {
        matches!(self.state, IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD)
    }

    /// How long a peer may be silent before that counts as one of the `retry_cnt` + 1 times; `None`: for ever
    /// (9.7.6.1.3).
    pub(super) fn patience(&self) -> Option<Duration> {
        // Of all times together. Software that shares a processor with its peer is not as quick as the values that
        // programs have for hardware.
        const LEAST: Duration = Duration::from_secs(1);
        match self.attr.timeout {
            0 => None,
            timeout => Some(Duration::from_nanos(4096 << timeout).max(LEAST / (u32::from(self.attr.retry_cnt) + 1))),
        }
    }

    pub(super) fn query(&self) -> ibv_qp_attr {
        let mut attr = no_attributes();
        // SAFETY: a plain struct, copied from one that lives.
        unsafe { std::ptr::copy_nonoverlapping(&self.attr, &mut attr, 1) };
        attr.qp_state = self.state;
        attr.cur_qp_state = self.state;
        attr.cap = self.cap;
        attr.sq_draining = u8::from(self.state == IBV_QPS_SQD && self.requester.is_busy());
        attr.path_mig_state = ibv_mig_state::IBV_MIG_MIGRATED;
        attr
    }
}

/// The fields that every completion has. Those of an error have these, and zeros.
pub(super) fn completion(qp_num: u32, wr_id: u64, status: ibv_wc_status::Type) -> ibv_wc {
    ibv_wc {
        wr_id,
        status,
        opcode: ibv_wc_opcode::IBV_WC_SEND,
        vendor_err: 0,
        byte_len: 0,
        imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t { imm_data: 0 },
        qp_num,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

fn no_attributes() -> ibv_qp_attr {
    // SAFETY: integers, and enums that are integers, may be zero.
    unsafe { std::mem::zeroed() }
}

const STATE: u32 = ibv_qp_attr_mask::IBV_QP_STATE.0;
const CUR_STATE: u32 = ibv_qp_attr_mask::IBV_QP_CUR_STATE.0;
const EN_SQD_ASYNC_NOTIFY: u32 = ibv_qp_attr_mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0;
const ACCESS_FLAGS: u32 = ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0;
const PKEY_INDEX: u32 = ibv_qp_attr_mask::IBV_QP_PKEY_INDEX.0;
const PORT: u32 = ibv_qp_attr_mask::IBV_QP_PORT.0;
const AV: u32 = ibv_qp_attr_mask::IBV_QP_AV.0;
const PATH_MTU: u32 = ibv_qp_attr_mask::IBV_QP_PATH_MTU.0;
const TIMEOUT: u32 = ibv_qp_attr_mask::IBV_QP_TIMEOUT.0;
const RETRY_CNT: u32 = ibv_qp_attr_mask::IBV_QP_RETRY_CNT.0;
const RNR_RETRY: u32 = ibv_qp_attr_mask::IBV_QP_RNR_RETRY.0;
const RQ_PSN: u32 = ibv_qp_attr_mask::IBV_QP_RQ_PSN.0;
const MAX_QP_RD_ATOMIC: u32 = ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
const ALT_PATH: u32 = ibv_qp_attr_mask::IBV_QP_ALT_PATH.0;
const MIN_RNR_TIMER: u32 = ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0;
const SQ_PSN: u32 = ibv_qp_attr_mask::IBV_QP_SQ_PSN.0;
const MAX_DEST_RD_ATOMIC: u32 = ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC.0;
const PATH_MIG_STATE: u32 = ibv_qp_attr_mask::IBV_QP_PATH_MIG_STATE.0;
const DEST_QPN: u32 = ibv_qp_attr_mask::IBV_QP_DEST_QPN.0;

/// The attributes that a transition of a reliable connection must have and those that it may have; `None` where there is
/// no such transition. Table 93 of 11.2.5.2, as Linux reads it.
fn transition(from: ibv_qp_state::Type, to: ibv_qp_state::Type) -> Option<(u32, u32)> {
    Some(match (from, to) {
        (IBV_QPS_RESET, IBV_QPS_RESET) => (0, 0),
        (IBV_QPS_RESET, IBV_QPS_INIT) => (PKEY_INDEX | PORT | ACCESS_FLAGS, 0),
        (IBV_QPS_INIT, IBV_QPS_INIT) => (0, PKEY_INDEX | PORT | ACCESS_FLAGS),
        (IBV_QPS_INIT, IBV_QPS_RTR) => (
            AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
            ALT_PATH | ACCESS_FLAGS | PKEY_INDEX,
        ),
        (IBV_QPS_RTR, IBV_QPS_RTS) => (
            TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
            CUR_STATE | ALT_PATH | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE,
        ),
        (IBV_QPS_RTS | IBV_QPS_SQD, IBV_QPS_RTS) => {
            (0, CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE | MIN_RNR_TIMER)
        }
        (IBV_QPS_RTS, IBV_QPS_SQD) => (0, EN_SQD_ASYNC_NOTIFY),
        (IBV_QPS_SQD, IBV_QPS_SQD) => (
            0,
            PORT | AV
                | TIMEOUT
                | RETRY_CNT
                | RNR_RETRY
                | MAX_QP_RD_ATOMIC
                | MAX_DEST_RD_ATOMIC
                | ALT_PATH
                | ACCESS_FLAGS
                | PKEY_INDEX
                | MIN_RNR_TIMER
                | PATH_MIG_STATE,
        ),
        (IBV_QPS_INIT | IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_ERR, IBV_QPS_RESET | IBV_QPS_ERR) => (0, 0),
        _ => return None,
    })
}

/// The values that are in range, whatever the transition.
fn in_range(attr: &ibv_qp_attr, mask: u32) -> bool {
    let unless = |bit: u32, good: bool| mask & bit == 0 || good;
    unless(PORT, attr.port_num == 1)
        && unless(PKEY_INDEX, attr.pkey_index == 0)
        && unless(PATH_MTU, (ibv_mtu::IBV_MTU_256..=ibv_mtu::IBV_MTU_4096).contains(&attr.path_mtu))
        && unless(TIMEOUT, attr.timeout <= 31)
        && unless(RETRY_CNT, attr.retry_cnt <= 7)
        && unless(RNR_RETRY, attr.rnr_retry <= 7)
        && unless(MIN_RNR_TIMER, attr.min_rnr_timer <= 31)
        && unless(MAX_QP_RD_ATOMIC, attr.max_rd_atomic <= limit::MAX_RD_ATOMIC)
        && unless(MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic <= limit::MAX_RD_ATOMIC)
        && unless(DEST_QPN, attr.dest_qp_num <= PSN_MASK)
}

/// The addresses that an address vector leads from and to. RoCE always has a global route.
fn path(attr: &ibv_qp_attr, destination_qp: u32) -> Result<Path, Errno> {
    let ah = &attr.ah_attr;
    if ah.is_global == 0 || ah.port_num > 1 {
        return Err(Errno::EINVAL);
    }
    let table = addresses::table();
    let source = table.get(usize::from(ah.grh.sgid_index)).filter(|entry| entry.gid != [0; 16]).ok_or(Errno::EINVAL)?;
    // SAFETY: any 16 bytes are a GID.
    let destination_gid = unsafe { ah.grh.dgid.raw };
    Ok(Path {
        source_gid: source.gid,
        destination_gid,
        source: addresses::socket_address(source.gid, 0, source.scope_id),
        destination: addresses::socket_address(destination_gid, destination_qp as u16, source.scope_id),
    })
}

impl State {
    pub(super) fn modify(&mut self, q: usize, attr: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
        let qp = self.qps.get_mut(q).ok_or(Errno::EINVAL)?;
        let from = qp.state;
        if mask & CUR_STATE != 0 && attr.cur_qp_state != from {
            return Err(Errno::EINVAL);
        }
        let to = if mask & STATE != 0 { attr.qp_state } else { from };
        let (required, optional) = transition(from, to).ok_or(Errno::EINVAL)?;
        if mask & required != required || mask & !(required | optional | STATE) != 0 || !in_range(attr, mask) {
            return Err(Errno::EINVAL);
        }
        let set = |bit: u32| mask & bit != 0;
        if set(AV) {
            let number = if set(DEST_QPN) { attr.dest_qp_num } else { qp.attr.dest_qp_num };
            qp.path = Some(path(attr, number)?);
            qp.attr.ah_attr = attr.ah_attr;
        }
        macro_rules! take {
            ($($bit:ident: $field:ident),*) => { $(if set($bit) { qp.attr.$field = attr.$field; })* };
        }
        take!(
            ACCESS_FLAGS: qp_access_flags, PKEY_INDEX: pkey_index, PORT: port_num, PATH_MTU: path_mtu,
            TIMEOUT: timeout, RETRY_CNT: retry_cnt, RNR_RETRY: rnr_retry, MAX_QP_RD_ATOMIC: max_rd_atomic,
            ALT_PATH: alt_ah_attr, MIN_RNR_TIMER: min_rnr_timer, MAX_DEST_RD_ATOMIC: max_dest_rd_atomic,
            DEST_QPN: dest_qp_num, EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify
        );
        if set(ALT_PATH) {
            qp.attr.alt_pkey_index = attr.alt_pkey_index;
            qp.attr.alt_port_num = attr.alt_port_num;
            qp.attr.alt_timeout = attr.alt_timeout;
        }
        if set(RQ_PSN) {
            qp.attr.rq_psn = attr.rq_psn & PSN_MASK;
            qp.responder = Responder::new(qp.attr.rq_psn);
        }
        if set(SQ_PSN) {
            qp.attr.sq_psn = attr.sq_psn & PSN_MASK;
            qp.requester = Requester::new(qp.attr.sq_psn);
        }
        match to {
            IBV_QPS_RESET => self.reset(q),
            IBV_QPS_ERR => self.enter_error(q, None),
            _ => {
                qp.state = to;
                match (from, to) {
                    (IBV_QPS_INIT, IBV_QPS_RTR) => self.bind_waiting(q),
                    (IBV_QPS_RTS, IBV_QPS_SQD) => self.begin_drain(q),
                    (IBV_QPS_SQD, IBV_QPS_RTS) => self.end_drain(q),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// To RESET: as if nothing had ever happened. What is posted disappears (10.3.1).
    fn reset(&mut self, q: usize) {
        self.disconnect(q);
        let qp = &mut self.qps[q];
        qp.state = IBV_QPS_RESET;
        qp.attr = no_attributes();
        qp.path = None;
        qp.requester = Requester::new(0);
        qp.responder = Responder::new(0);
        qp.receives.clear();
    }

    /// To ERR: everything posted is completed, the oldest send with `status`, if there is one, and the rest as flushed.
    pub(super) fn enter_error(&mut self, q: usize, status: Option<ibv_wc_status::Type>) {
        let qp = &mut self.qps[q];
        if matches!(qp.state, IBV_QPS_RESET | IBV_QPS_ERR) {
            return;
        }
        qp.state = IBV_QPS_ERR;
        self.stop_requesting(q);
        let qp = &mut self.qps[q];
        let flushed = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        // The one that failed is the first to be heard of, also where both queues complete into one.
        if let Some(status) = status
            && let Some(send) = qp.requester.take_oldest()
        {
            qp.send_cq.push(completion(qp.number, send.wr_id, status), false, &mut self.news);
        }
        let mut next = qp.responder.stop();
        while let Some(receive) = next.or_else(|| qp.receives.take()) {
            qp.recv_cq.push(completion(qp.number, receive.wr_id, flushed), false, &mut self.news);
            next = None;
        }
        while let Some(send) = qp.requester.take_oldest() {
            qp.send_cq.push(completion(qp.number, send.wr_id, flushed), false, &mut self.news);
        }
        if qp.srq.is_some() {
            qp.event(ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED);
        }
    }
}
