//! Receive queues, a queue pair's own and shared ones.

use super::qp::completion;
use super::{AsyncEvent, AsyncEvents, Cookie, PdKey, State, limit, region};
use nix::errno::Errno;
use rdma_sys::ibv_qp_state::{IBV_QPS_ERR, IBV_QPS_RESET};
use rdma_sys::{ibv_event_type, ibv_sge, ibv_srq_attr, ibv_srq_attr_mask, ibv_wc_status};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// A scatter/gather list.
pub(super) type Sges = SmallVec<[ibv_sge; 2]>;

/// A posted receive.
pub(super) struct Receive {
    pub(super) wr_id: u64,
    pub(super) sges: Sges,
    /// Bytes that fit.
    pub(super) room: u64,
}

pub(super) struct ReceiveQueue {
    queue: VecDeque<Receive>,
    max_wr: usize,
    max_sge: usize,
}

impl ReceiveQueue {
    pub(super) fn new(max_wr: u32, max_sge: u32) -> ReceiveQueue {
        ReceiveQueue { queue: VecDeque::new(), max_wr: max_wr as usize, max_sge: max_sge as usize }
    }

    /// ENOMEM where it is full, EINVAL for too many entries; the former first, as rxe does.
    pub(super) fn post(&mut self, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Errno> {
        if self.queue.len() >= self.max_wr {
            return Err(Errno::ENOMEM);
        }
        if sges.len() > self.max_sge {
            return Err(Errno::EINVAL);
        }
        self.queue.push_back(Receive { wr_id, sges: Sges::from_slice(sges), room: region::total(sges) });
        Ok(())
    }

    pub(super) fn take(&mut self) -> Option<Receive> {
        self.queue.pop_front()
    }

    /// One that has been taken and not been used.
    pub(super) fn put_back(&mut self, receive: Receive) {
        self.queue.push_front(receive);
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }
}

/// A shared receive queue.
pub(super) struct Srq {
    pub(super) pd: PdKey,
    pub(super) queue: ReceiveQueue,
    /// The event comes when fewer are left; 0: it does not.
    limit: u32,
    events: Arc<AsyncEvents>,
    cookie: Cookie,
    pub(super) users: u32,
    /// Queue pairs, by index and number, that refused a message for want of a receive; in order.
    pub(super) hungry: VecDeque<(usize, u32)>,
}

impl Srq {
    pub(super) fn new(pd: PdKey, attr: &ibv_srq_attr, events: Arc<AsyncEvents>, cookie: Cookie) -> Result<Srq, Errno> {
        let (max_wr, max_sge) = (attr.max_wr, attr.max_sge);
        if max_wr == 0 || max_wr > limit::MAX_SRQ_WR || max_sge > limit::MAX_SGE {
            return Err(Errno::EINVAL);
        }
        let queue = ReceiveQueue::new(max_wr, max_sge);
        Ok(Srq { pd, queue, limit: 0, events, cookie, users: 0, hungry: VecDeque::new() })
    }

    pub(super) fn modify(&mut self, attr: &ibv_srq_attr, mask: u32) -> Result<(), Errno> {
        let known = ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0 | ibv_srq_attr_mask::IBV_SRQ_LIMIT.0;
        let resize = mask & ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0 != 0;
        let set_limit = mask & ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 != 0;
        let max_wr = if resize { attr.max_wr } else { self.queue.max_wr as u32 };
        if mask & !known != 0
            || max_wr == 0
            || max_wr > limit::MAX_SRQ_WR
            || (max_wr as usize) < self.queue.len()
            || set_limit && attr.srq_limit > max_wr
        {
            return Err(Errno::EINVAL);
        }
        self.queue.max_wr = max_wr as usize;
        if set_limit {
            self.limit = attr.srq_limit;
            self.check_limit();
        }
        Ok(())
    }

    pub(super) fn query(&self) -> ibv_srq_attr {
        let (max_wr, max_sge) = (self.queue.max_wr as u32, self.queue.max_sge as u32);
        ibv_srq_attr { max_wr, max_sge, srq_limit: self.limit }
    }

    pub(super) fn take(&mut self) -> Option<Receive> {
        let receive = self.queue.take();
        self.check_limit();
        receive
    }

    /// The event disarms the limit (IBTA 10.2.9.3).
    fn check_limit(&mut self) {
        if self.limit > 0 && self.queue.len() < self.limit as usize {
            self.limit = 0;
            self.events.push(AsyncEvent { kind: ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED, element: self.cookie });
        }
    }

    /// Nothing of it will be seen any more.
    pub(super) fn withdraw(&self) {
        let kinds = [ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED, ibv_event_type::IBV_EVENT_SRQ_ERR];
        self.events.retain(|event| !kinds.contains(&event.kind) || event.element != self.cookie);
    }
}

impl State {
    pub(super) fn post_recv(&mut self, q: usize, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Errno> {
        let qp = self.qps.get_mut(q).ok_or(Errno::EINVAL)?;
        if qp.state == IBV_QPS_RESET || qp.srq.is_some() {
            return Err(Errno::EINVAL);
        }
        qp.receives.post(wr_id, sges)?;
        if qp.state == IBV_QPS_ERR {
            qp.receives.clear();
            let wc = completion(qp.number, wr_id, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
            qp.recv_cq.push(wc, false, &mut self.news);
        } else if qp.responder.hungry {
            self.feed(q);
        }
        Ok(())
    }

    pub(super) fn post_srq_recv(&mut self, srq: usize, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Errno> {
        self.srqs.get_mut(srq).ok_or(Errno::EINVAL)?.queue.post(wr_id, sges)?;
        // One receive is good news for one of those that wait.
        while let Some((q, number)) = self.srqs[srq].hungry.pop_front() {
            if self.qps.get(q).is_some_and(|qp| qp.number == number && qp.responder.hungry) && self.feed(q) {
                break;
            }
        }
        Ok(())
    }
}
