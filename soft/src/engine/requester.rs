//! The requester's half of a reliable connection (IBTA 9.7): what is posted to the send queue goes out, is acknowledged,
//! and completes.
//!
//! TCP loses nothing, so a request is sent a second time only if the responder has refused it with an RNR NAK.

use super::qp::{PSN_MASK, Qp, completion};
use super::receive::Sges;
use super::region::{self, LOCAL_WRITE, Regions};
use super::transport::stream::{BATCHES, Batch};
use super::{Data, Operation, PdKey, SendRequest, State, limit};
use libc::iovec;
use nix::errno::Errno;
use rdma_sys::ibv_qp_state::{IBV_QPS_ERR, IBV_QPS_RTS, IBV_QPS_SQD};
use rdma_sys::{ibv_event_type, ibv_send_flags, ibv_wc, ibv_wc_opcode, ibv_wc_status};
use rdma_verbs_wire::Malformed;
use rdma_verbs_wire::frame::MAX_PAYLOAD;
use rdma_verbs_wire::packet::{self, Aeth, Header, Kind, Nak, Place, Reth, Syndrome};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// PSNs that may be on the way: half of those whose order can be told.
const WINDOW: u64 = 1 << 22;

/// How long a request outlives the connection on which it was not acknowledged.
const GONE: Duration = Duration::from_millis(500);

/// Between attempts to reach a peer that refuses connections.
const RECONNECT: Duration = Duration::from_millis(50);

pub(super) struct Requester {
    queue: VecDeque<Send>,
    /// Number of the oldest request in the queue, counted from 0 at RTS. Its SSN is one more (9.7.7.2).
    oldest: u64,
    /// PSNs are counted on beyond their 24 bits; this is that of the next request that is posted.
    next_psn: u64,
    /// What goes out next.
    cursor: Cursor,
    /// The number behind the last request of which something has been sent, be it refused.
    begun: u64,
    /// The oldest PSN that is not acknowledged.
    unacknowledged: u64,
    /// The last SSN that the responder has promised a receive for; `None`: it promises nothing and takes all (an SRQ).
    credit_limit: Option<u64>,
    /// RNR NAKs in a row.
    refusals: u8,
    /// A request that fails before it is sent, once those in front of it are complete: its number and how.
    failed: Option<(u64, ibv_wc_status::Type)>,
    /// When the peer has been silent for one time more.
    pub(super) deadline: Option<Instant>,
    silences: u8,
    /// What the connection had moved at the last of them.
    moved: Option<u64>,
    /// What is outstanding will not be answered.
    gone: bool,
    /// Nothing goes out before: the peer was not ready, or not there.
    pub(super) resume: Option<Instant>,
    /// In SQD: the request that waits for RTS.
    drain: Option<u64>,
    /// The connection, by its index.
    pub(super) link: Option<usize>,
    /// The packet whose payload is being received.
    response: Option<Response>,
    /// Acknowledged by what has overtaken the response to a read on the way: counts when that has come.
    early: u64,
}

/// A place in the send queue, and what follows from it.
#[derive(Clone, Copy)]
struct Cursor {
    /// The request, by number, and the packet of it.
    request: u64,
    packet: u32,
    psn: u64,
    /// Reads and atomics that are on the way.
    reads: u32,
    /// The PSN of a request that was sent without credit: until it is acknowledged, no other goes out without.
    limited: Option<u64>,
}

/// How far a packet leads.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    cursor: Cursor,
    /// An acknowledgement of the responder travels with it.
    ack: bool,
}

/// A posted request.
struct Send {
    wr_id: u64,
    operation: Operation,
    signaled: bool,
    fence: bool,
    solicited: bool,
    source: Source,
    length: u64,
    first_psn: u64,
    /// PSNs: packets of the request or, of a read, of its response.
    packets: u32,
    /// Packets of a response that have come.
    answered: u32,
    /// It fails with this when it is its turn.
    fails: Option<ibv_wc_status::Type>,
}

enum Source {
    Sges(Sges),
    Inline(Box<[u8]>),
}

/// A request that has left the queue.
pub(super) struct Taken {
    pub(super) wr_id: u64,
}

/// A packet of a response, between its header and the end of its payload.
#[derive(Clone, Copy)]
struct Response {
    /// Bytes of the read that came before.
    offset: usize,
    received: usize,
}

impl Send {
    fn is_read_or_atomic(&self) -> bool {
        matches!(self.operation, Operation::Read { .. } | Operation::CompareSwap { .. } | Operation::FetchAdd { .. })
    }

    fn consumes_receive(&self) -> bool {
        matches!(
            self.operation,
            Operation::Send
                | Operation::SendWithImm(_)
                | Operation::SendWithInv { .. }
                | Operation::WriteWithImm { .. }
        )
    }

    fn end_psn(&self) -> u64 {
        self.first_psn + u64::from(self.packets)
    }

    /// Packets that it is sent in.
    fn request_packets(&self) -> u32 {
        if self.is_read_or_atomic() { 1 } else { self.packets }
    }

    fn is_answered(&self) -> bool {
        !self.is_read_or_atomic() || self.answered == self.packets
    }

    fn rights(&self) -> u32 {
        if self.is_read_or_atomic() { LOCAL_WRITE } else { 0 }
    }

    /// The status that it fails with before anything is sent.
    fn check(&self, pd: PdKey, regions: &Regions) -> Result<(), ibv_wc_status::Type> {
        if let Some(status) = self.fails {
            return Err(status);
        }
        match &self.source {
            Source::Sges(sges) => {
                regions.check(pd, sges, self.rights()).map_err(|_| ibv_wc_status::IBV_WC_LOC_PROT_ERR)
            }
            Source::Inline(_) => Ok(()),
        }
    }

    /// The header of packet `at` and how much payload it has.
    fn packet(&self, at: u32, destination_qp: u32, ask: bool) -> (Header, usize) {
        let last = at + 1 == self.request_packets();
        let place = match (at == 0, last) {
            (true, true) => Place::Only,
            (true, false) => Place::First,
            (false, true) => Place::Last,
            (false, false) => Place::Middle,
        };
        let length = self.length as u32;
        let reth = |address, rkey| Reth { address, rkey, length };
        let first = |reth| (at == 0).then_some(reth);
        let kind = match self.operation {
            Operation::Send => Kind::Send { place, imm: None, invalidate: None },
            Operation::SendWithImm(imm) => Kind::Send { place, imm: last.then_some(imm), invalidate: None },
            Operation::SendWithInv { rkey } => Kind::Send { place, imm: None, invalidate: last.then_some(rkey) },
            Operation::Write { address, rkey } => Kind::Write { place, reth: first(reth(address, rkey)), imm: None },
            Operation::WriteWithImm { address, rkey, imm } => {
                Kind::Write { place, reth: first(reth(address, rkey)), imm: last.then_some(imm) }
            }
            Operation::Read { address, rkey } => Kind::ReadRequest(reth(address, rkey)),
            Operation::CompareSwap { address, rkey, compare, swap } => {
                Kind::CompareSwap { address, rkey, compare, swap }
            }
            Operation::FetchAdd { address, rkey, add } => Kind::FetchAdd { address, rkey, add },
        };
        let payload = match self.is_read_or_atomic() {
            true => 0,
            false => (self.length as usize - at as usize * MAX_PAYLOAD).min(MAX_PAYLOAD),
        };
        let header = Header {
            kind,
            solicited: last && self.solicited && self.consumes_receive(),
            ack_request: last || ask,
            destination_qp,
            psn: (self.first_psn + u64::from(at)) as u32 & PSN_MASK,
        };
        (header, payload)
    }

    /// The places of the payload.
    fn gather(
        &self,
        pd: PdKey,
        regions: &Regions,
        offset: usize,
        length: usize,
        to: &mut Vec<iovec>,
    ) -> Result<(), region::Refused> {
        match &self.source {
            Source::Sges(sges) => regions.gather(pd, sges, offset, length, self.rights(), to),
            Source::Inline(bytes) => {
                let part = bytes.get(offset..offset + length).ok_or(region::Refused)?;
                if !part.is_empty() {
                    to.push(iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
                }
                Ok(())
            }
        }
    }

    fn completion(&self, qp_num: u32) -> ibv_wc {
        let mut wc = completion(qp_num, self.wr_id, ibv_wc_status::IBV_WC_SUCCESS);
        (wc.opcode, wc.byte_len) = match self.operation {
            Operation::Send | Operation::SendWithImm(_) | Operation::SendWithInv { .. } => {
                (ibv_wc_opcode::IBV_WC_SEND, self.length as u32)
            }
            Operation::Write { .. } | Operation::WriteWithImm { .. } => {
                (ibv_wc_opcode::IBV_WC_RDMA_WRITE, self.length as u32)
            }
            Operation::Read { .. } => (ibv_wc_opcode::IBV_WC_RDMA_READ, self.length as u32),
            Operation::CompareSwap { .. } => (ibv_wc_opcode::IBV_WC_COMP_SWAP, 8),
            Operation::FetchAdd { .. } => (ibv_wc_opcode::IBV_WC_FETCH_ADD, 8),
        };
        wc
    }
}

impl Requester {
    pub(super) fn new(psn: u32) -> Requester {
        // A turn further on, so that there is always one before.
        let psn = u64::from(psn) + u64::from(PSN_MASK) + 1;
        Requester {
            queue: VecDeque::new(),
            oldest: 0,
            next_psn: psn,
            cursor: Cursor { request: 0, packet: 0, psn, reads: 0, limited: None },
            begun: 0,
            unacknowledged: psn,
            credit_limit: Some(0),
            refusals: 0,
            failed: None,
            deadline: None,
            silences: 0,
            moved: None,
            gone: false,
            resume: None,
            drain: None,
            link: None,
            response: None,
            early: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    fn get(&self, request: u64) -> Option<&Send> {
        self.queue.get(request.checked_sub(self.oldest)? as usize)
    }

    /// Whether something has been begun that is not complete.
    pub(super) fn is_busy(&self) -> bool {
        self.begun > self.oldest
    }

    pub(super) fn take_oldest(&mut self) -> Option<Taken> {
        let send = self.queue.pop_front()?;
        self.oldest += 1;
        Some(Taken { wr_id: send.wr_id })
    }

    /// The PSN, counted on, that a packet's 24 bits stand for: the one next to what is not acknowledged.
    fn whole_psn(&self, psn: u32) -> Option<u64> {
        self.unacknowledged.checked_add_signed(i64::from(packet::distance(psn, self.unacknowledged as u32 & PSN_MASK)))
    }
}

impl State {
    pub(super) fn post_send(&mut self, q: usize, request: &SendRequest<'_>) -> Result<(), Errno> {
        let qp = self.qps.get_mut(q).ok_or(Errno::EINVAL)?;
        let has = |flag: ibv_send_flags| request.flags & flag.0 != 0;
        let (sges, inline) = match request.data {
            Data::Sges(sges) => (sges, false),
            Data::InlineSges(sges) => (sges, true),
        };
        let length = region::total(sges);
        // Inline data takes no entry of the queue pair's: ibv_wr_set_inline_data(3) needs none.
        let entries = qp.cap.max_send_sge.max(u32::from(inline));
        if !matches!(qp.state, IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_ERR) || sges.len() > entries as usize {
            return Err(Errno::EINVAL);
        }
        let reads = matches!(
            request.operation,
            Operation::Read { .. } | Operation::CompareSwap { .. } | Operation::FetchAdd { .. }
        );
        if inline && !reads && length > u64::from(qp.cap.max_inline_data) {
            return Err(Errno::EINVAL);
        }
        let requester = &mut qp.requester;
        if requester.queue.len() >= qp.cap.max_send_wr as usize {
            return Err(Errno::ENOMEM);
        }
        if qp.state == IBV_QPS_ERR {
            let wc = completion(qp.number, request.wr_id, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
            qp.send_cq.push(wc, false, &mut self.news);
            return Ok(());
        }
        let atomic = reads && !matches!(request.operation, Operation::Read { .. });
        let fails = if inline && reads {
            // As rxe; there is nowhere to put the answer.
            Some(ibv_wc_status::IBV_WC_LOC_PROT_ERR)
        } else if length > u64::from(limit::MAX_MESSAGE) || atomic && length != 8 {
            Some(ibv_wc_status::IBV_WC_LOC_LEN_ERR)
        } else if reads && qp.attr.max_rd_atomic == 0 {
            Some(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR)
        } else {
            None
        };
        let packets = if atomic || fails.is_some() { 1 } else { length.div_ceil(MAX_PAYLOAD as u64).max(1) as u32 };
        let source = if inline && !reads { Source::Inline(copy(sges)) } else { Source::Sges(Sges::from_slice(sges)) };
        requester.queue.push_back(Send {
            wr_id: request.wr_id,
            operation: request.operation,
            signaled: qp.sq_sig_all || has(ibv_send_flags::IBV_SEND_SIGNALED),
            fence: has(ibv_send_flags::IBV_SEND_FENCE),
            solicited: has(ibv_send_flags::IBV_SEND_SOLICITED),
            source,
            length,
            first_psn: requester.next_psn,
            packets,
            answered: 0,
            fails,
        });
        requester.next_psn += u64::from(packets);
        Ok(())
    }

    /// Sends what may be sent and what the socket takes.
    pub(super) fn pump(&mut self, q: usize) {
        let Some(qp) = self.qps.get_mut(q) else { return };
        if !matches!(qp.state, IBV_QPS_RTS | IBV_QPS_SQD) || qp.requester.resume.is_some() || qp.requester.gone {
            return;
        }
        // What the program has received before it posted is answered first, as far as that is possible.
        if qp.responder.has_answers() {
            self.answer(q);
        }
        let mut batch = self.requests.take().unwrap_or_else(Batch::new);
        for turn in 0.. {
            batch.clear();
            self.fill(q, &mut batch);
            let qp = &mut self.qps[q];
            let has_rest = qp.requester.link.is_some_and(|c| self.streams[c].stream.has_rest());
            if batch.is_empty() && !has_rest {
                break;
            }
            let Some(c) = qp.requester.link.or_else(|| self.connect(q)) else { break };
            let connection = &mut self.streams[c];
            if connection.blocked {
                break;
            }
            if turn == BATCHES {
                // Others have their turn with the lock; the socket, which takes more, brings it back here.
                self.block(c);
                break;
            }
            match connection.stream.send(&mut batch) {
                Ok(sent) => {
                    if let Some(Mark { cursor, ack }) = sent.mark {
                        if ack {
                            self.acknowledged_along(q);
                        }
                        let requester = &mut self.qps[q].requester;
                        requester.cursor = cursor;
                        requester.begun = requester.begun.max(cursor.request + u64::from(cursor.packet > 0));
                    }
                    if sent.blocked {
                        self.block(c);
                        break;
                    }
                }
                Err(Errno::EFAULT) => {
                    // The program has unmapped what it still has registered.
                    let requester = &mut self.qps[q].requester;
                    requester.failed = Some((requester.cursor.request, ibv_wc_status::IBV_WC_LOC_PROT_ERR));
                    break;
                }
                Err(reason) => {
                    if reason == Errno::ECONNREFUSED {
                        self.peer_gone(q);
                    }
                    // What the peer has sent before it went is read first; the end of that tells.
                    self.block(c);
                    break;
                }
            }
        }
        self.requests = Some(batch);
        self.complete_failed(q);
        self.set_deadline(q, false);
    }

    /// The packets that may go out now.
    fn fill(&mut self, q: usize, batch: &mut Batch<Mark>) {
        let along = self.ack_along(q);
        let qp = &mut self.qps[q];
        let (pd, destination) = (qp.pd, qp.attr.dest_qp_num);
        let requester = &mut qp.requester;
        if requester.failed.is_some() {
            return;
        }
        let mut cursor = requester.cursor;
        while !batch.is_full() && cursor.psn - requester.unacknowledged < WINDOW {
            let Some(send) = requester.get(cursor.request) else { break };
            if cursor.packet == 0 {
                let waits = requester.drain.is_some_and(|drain| cursor.request >= drain)
                    || send.fence && cursor.reads > 0
                    || send.is_read_or_atomic() && cursor.reads >= u32::from(qp.attr.max_rd_atomic).max(1);
                if waits {
                    break;
                }
                if let Err(status) = send.check(pd, &self.regions) {
                    requester.failed = Some((cursor.request, status));
                    break;
                }
            }
            let mut limited = false;
            if send.consumes_receive() && requester.credit_limit.is_some_and(|limit| cursor.request + 1 > limit) {
                // Without credit the first packet may try its luck, and shows by being acknowledged that it has a
                // receive (9.7.7.2.5).
                if cursor.packet == 0 {
                    if cursor.limited.is_some_and(|psn| requester.unacknowledged <= psn) {
                        break;
                    }
                    limited = true;
                } else if requester.unacknowledged <= send.first_psn {
                    break;
                }
            }
            let (header, payload) = send.packet(cursor.packet, destination, limited);
            let offset = cursor.packet as usize * MAX_PAYLOAD;
            let mut next = cursor;
            next.packet += 1;
            next.psn += if send.is_read_or_atomic() { u64::from(send.packets) } else { 1 };
            next.reads += u32::from(send.is_read_or_atomic());
            if limited {
                next.limited = Some(send.first_psn);
            }
            if next.packet == send.request_packets() {
                next.request += 1;
                next.packet = 0;
            }
            if batch.is_empty()
                && let Some(ack) = &along
            {
                let _ = batch.push(ack, 0, Mark { cursor, ack: true }, |_| Ok::<_, region::Refused>(()));
            }
            let mark = Mark { cursor: next, ack: along.is_some() };
            let gather = |to: &mut Vec<iovec>| match send.is_read_or_atomic() {
                true => Ok(()),
                false => send.gather(pd, &self.regions, offset, payload, to),
            };
            if batch.push(&header, payload, mark, gather).is_err() {
                // Deregistered while it is being sent.
                requester.failed = Some((cursor.request, ibv_wc_status::IBV_WC_LOC_PROT_ERR));
                break;
            }
            cursor = next;
        }
    }

    /// Completes the request that cannot be sent, if nothing is in front of it.
    fn complete_failed(&mut self, q: usize) {
        let requester = &self.qps[q].requester;
        if let Some((request, status)) = requester.failed
            && request == requester.oldest
        {
            self.enter_error(q, Some(status));
        }
    }

    /// When the peer has to have answered. It begins anew with every answer.
    fn set_deadline(&mut self, q: usize, anew: bool) {
        let qp = &mut self.qps[q];
        let requester = &qp.requester;
        let drained = requester.drain.is_some_and(|drain| requester.oldest >= drain);
        let refused = requester.resume.is_some() && requester.link.is_some();
        let waits = qp.state != IBV_QPS_ERR && !requester.queue.is_empty() && !drained && !refused;
        if !waits {
            qp.requester.deadline = None;
        } else if anew || requester.deadline.is_none() {
            qp.requester.deadline = qp.patience().map(|patience| Instant::now() + patience);
            qp.requester.silences = 0;
            qp.requester.moved = None;
        }
        self.schedule(q);
    }

    /// A timer of this queue pair has run out.
    pub(super) fn expire(&mut self, q: usize, now: Instant) {
        let late = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if late(self.qps[q].requester.deadline) {
            // If all the machine has slept, what has come meanwhile still counts.
            let Qp { requester, responder, .. } = &self.qps[q];
            for c in [requester.link, responder.link].into_iter().flatten() {
                self.receive(c);
            }
        }
        let qp = &mut self.qps[q];
        if late(qp.requester.deadline) {
            if qp.requester.gone || qp.requester.silences >= qp.attr.retry_cnt {
                self.enter_error(q, Some(ibv_wc_status::IBV_WC_RETRY_EXC_ERR));
            } else {
                // There is nothing to send again: TCP does that. A slow network is not a silent peer.
                let moved = qp.requester.link.map(|c| self.streams[c].stream.carrier.moved());
                let grows = qp.requester.moved.is_some_and(|before| moved > Some(before));
                qp.requester.moved = moved;
                qp.requester.silences = if grows { 0 } else { qp.requester.silences + 1 };
                qp.requester.deadline = qp.patience().map(|patience| now + patience);
            }
        } else if late(qp.requester.resume) {
            qp.requester.resume = None;
            self.pump(q);
        }
        self.schedule(q);
    }

    /// The connection could not be made; the peer may still come.
    pub(super) fn connect_later(&mut self, q: usize) {
        self.qps[q].requester.resume = Some(Instant::now() + RECONNECT);
        self.set_deadline(q, false);
    }

    /// What is outstanding will not be answered: the connection has ended, or is refused, which the listener of a process
    /// that is there does not do. A network would tell only when the retries are over: programs end while their last
    /// messages, which nobody waits for, are on their way.
    pub(super) fn peer_gone(&mut self, q: usize) {
        let requester = &mut self.qps[q].requester;
        let soon = Instant::now() + GONE;
        requester.gone = true;
        requester.resume = None;
        requester.deadline = Some(requester.deadline.map_or(soon, |deadline| deadline.min(soon)));
        self.schedule(q);
    }

    /// The peer has closed the connection.
    pub(super) fn requester_lost(&mut self, q: usize) {
        let requester = &mut self.qps[q].requester;
        requester.link = None;
        requester.response = None;
        if requester.is_busy() {
            self.peer_gone(q);
        } else if !requester.queue.is_empty() && !requester.gone {
            // Nothing has been lost; it may only have come too early.
            self.connect_later(q);
        }
    }

    /// In ERR nothing is sent any more, and no answer is waited for.
    pub(super) fn stop_requesting(&mut self, q: usize) {
        let Qp { requester, responder, .. } = &mut self.qps[q];
        (requester.deadline, requester.resume, requester.response, requester.failed) = (None, None, None, None);
        // The peer's requests are dropped in silence: how long it waits for an answer is its own business.
        if let Some(c) = requester.link.take().filter(|c| responder.link != Some(*c)) {
            self.drop_stream(c);
        }
    }

    /// To SQD: what has been begun is finished (10.3.1.5).
    pub(super) fn begin_drain(&mut self, q: usize) {
        let requester = &mut self.qps[q].requester;
        requester.drain = Some(requester.begun);
        self.check_drained(q);
    }

    pub(super) fn end_drain(&mut self, q: usize) {
        self.qps[q].requester.drain = None;
        self.pump(q);
    }

    fn check_drained(&mut self, q: usize) {
        let qp = &mut self.qps[q];
        let drained = qp.requester.drain.is_some_and(|drain| qp.requester.oldest >= drain);
        if qp.state == IBV_QPS_SQD && qp.attr.en_sqd_async_notify != 0 && drained {
            // Once for each time.
            qp.attr.en_sqd_async_notify = 0;
            qp.event(ibv_event_type::IBV_EVENT_SQ_DRAINED);
        }
    }

    /// The header of a packet that came on the requester's connection.
    pub(super) fn response(&mut self, q: usize, header: &Header, payload: usize) -> Result<(), Malformed> {
        let qp = &mut self.qps[q];
        if header.destination_qp != qp.number {
            return Err(Malformed("a response for another queue pair"));
        }
        let requester = &mut qp.requester;
        let psn = requester.whole_psn(header.psn).ok_or(Malformed("a response to nothing"))?;
        if psn >= requester.cursor.psn {
            return Err(Malformed("a response to what was not sent"));
        }
        match header.kind {
            Kind::Acknowledge(aeth) => match aeth.syndrome {
                Syndrome::Ack { credits } => {
                    self.acknowledged(q, psn + 1);
                    self.credited(q, aeth);
                    // After an RNR NAK nothing that gives credit comes before there is a receive.
                    if credits > 0 && self.qps[q].requester.link.is_some() {
                        self.qps[q].requester.resume = None;
                    }
                    self.pump(q);
                }
                Syndrome::RnrNak { timer } => {
                    self.acknowledged(q, psn);
                    self.refused(q, psn, packet::rnr_timer(timer))?;
                }
                Syndrome::Nak(nak) => {
                    self.acknowledged(q, psn);
                    let status = match nak {
                        Nak::InvalidRequest => ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
                        Nak::RemoteAccessError => ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
                        Nak::RemoteOperationalError => ibv_wc_status::IBV_WC_REM_OP_ERR,
                        Nak::InvalidRdRequest => ibv_wc_status::IBV_WC_REM_INV_RD_REQ_ERR,
                        Nak::PsnSequenceError => return Err(Malformed("a packet is lost, which TCP does not lose")),
                    };
                    self.enter_error(q, Some(status));
                }
            },
            Kind::ReadResponse { place, aeth } => {
                self.acknowledged(q, psn);
                let requester = &mut self.qps[q].requester;
                let read = requester.queue.front().filter(|send| matches!(send.operation, Operation::Read { .. }));
                let read = read.ok_or(Malformed("a read response to another request"))?;
                let offset = read.answered as usize * MAX_PAYLOAD;
                let expected = (read.length as usize - offset).min(MAX_PAYLOAD);
                let place_of = match (read.answered == 0, read.answered + 1 == read.packets) {
                    (true, true) => Place::Only,
                    (true, false) => Place::First,
                    (false, true) => Place::Last,
                    (false, false) => Place::Middle,
                };
                if psn != read.first_psn + u64::from(read.answered) || payload != expected || place != place_of {
                    return Err(Malformed("a read response that is not the next"));
                }
                requester.response = Some(Response { offset, received: 0 });
                if let Some(aeth) = aeth {
                    self.credited(q, aeth);
                }
            }
            Kind::AtomicAcknowledge { aeth, original } => {
                self.acknowledged(q, psn);
                let Qp { requester, pd, .. } = &mut self.qps[q];
                let atomic = requester
                    .queue
                    .front_mut()
                    .filter(|send| send.is_read_or_atomic() && !matches!(send.operation, Operation::Read { .. }));
                let atomic = atomic.ok_or(Malformed("an atomic response to another request"))?;
                if psn != atomic.first_psn {
                    return Err(Malformed("an atomic response that is not the next"));
                }
                self.places.clear();
                if atomic.gather(*pd, &self.regions, 0, 8, &mut self.places).is_err() {
                    self.enter_error(q, Some(ibv_wc_status::IBV_WC_LOC_PROT_ERR));
                    return Ok(());
                }
                region::scatter(&original.to_ne_bytes(), &self.places);
                atomic.answered = 1;
                requester.cursor.reads -= 1;
                let end = requester.early.max(psn + 1);
                self.acknowledged(q, end);
                self.credited(q, aeth);
                self.pump(q);
            }
            _ => {}
        }
        Ok(())
    }

    /// Where the next `length` bytes of the payload go. Nothing in `self.places` means that they are dropped.
    pub(super) fn response_places(&mut self, q: usize, length: usize) {
        let Qp { requester, pd, .. } = &mut self.qps[q];
        let (Some(response), Some(read)) = (requester.response, requester.queue.front()) else { return };
        let at = response.offset + response.received;
        if read.gather(*pd, &self.regions, at, length, &mut self.places).is_err() {
            self.places.clear();
            self.enter_error(q, Some(ibv_wc_status::IBV_WC_LOC_PROT_ERR));
        }
    }

    pub(super) fn response_received(&mut self, q: usize, length: usize) {
        if let Some(response) = &mut self.qps[q].requester.response {
            response.received += length;
        }
    }

    /// The payload could not be written: the program has unmapped what it still has registered.
    pub(super) fn response_fault(&mut self, q: usize) {
        self.enter_error(q, Some(ibv_wc_status::IBV_WC_LOC_PROT_ERR));
    }

    /// The packet is complete.
    pub(super) fn response_done(&mut self, q: usize) {
        let requester = &mut self.qps[q].requester;
        if requester.response.take().is_none() {
            return;
        }
        let Some(read) = requester.queue.front_mut() else { return };
        read.answered += 1;
        let mut psn = read.first_psn + u64::from(read.answered);
        let complete = read.is_answered();
        if complete {
            requester.cursor.reads -= 1;
            psn = psn.max(requester.early);
        }
        self.acknowledged(q, psn);
        if complete {
            self.pump(q);
        }
    }

    /// All packets before `end` have arrived at the responder. Completes what is complete.
    fn acknowledged(&mut self, q: usize, mut end: u64) {
        let qp = &mut self.qps[q];
        let requester = &mut qp.requester;
        if end <= requester.unacknowledged {
            return;
        }
        while let Some(send) = requester.queue.front() {
            if !send.is_answered() {
                let so_far = send.first_psn + u64::from(send.answered);
                if end > so_far {
                    requester.early = requester.early.max(end);
                    end = so_far;
                }
                break;
            }
            if end < send.end_psn() {
                break;
            }
            if send.signaled {
                qp.send_cq.push(send.completion(qp.number), false, &mut self.news);
            }
            requester.queue.pop_front();
            requester.oldest += 1;
        }
        requester.unacknowledged = end;
        requester.refusals = 0;
        requester.gone &= requester.is_busy();
        self.set_deadline(q, true);
        self.complete_failed(q);
        self.check_drained(q);
    }

    fn credited(&mut self, q: usize, aeth: Aeth) {
        let requester = &mut self.qps[q].requester;
        if let Syndrome::Ack { credits } = aeth.syndrome {
            let completed = requester
                .oldest
                .saturating_add_signed(i64::from(packet::distance(aeth.msn, requester.oldest as u32 & PSN_MASK)));
            // An older one may come later, over another connection; a promise holds.
            requester.credit_limit = packet::credits(credits)
                .map(|credits| requester.credit_limit.unwrap_or(0).max(completed + u64::from(credits)));
        }
    }

    /// The responder has no receive for the packet `psn`; it drops all until that comes again (9.7.5.2.8).
    fn refused(&mut self, q: usize, psn: u64, wait: Duration) -> Result<(), Malformed> {
        let qp = &mut self.qps[q];
        let retries = qp.attr.rnr_retry;
        let requester = &mut qp.requester;
        if psn < requester.unacknowledged {
            return Err(Malformed("a refusal of what has arrived"));
        }
        let begun = requester.queue.partition_point(|send| send.first_psn <= psn);
        let at = begun.checked_sub(1).ok_or(Malformed("a refusal of nothing"))?;
        let send = &requester.queue[at];
        if send.is_read_or_atomic() {
            return Err(Malformed("a refusal of a request that needs no receive"));
        }
        if retries < 7 && requester.refusals >= retries {
            self.enter_error(q, Some(ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR));
            return Ok(());
        }
        requester.refusals = requester.refusals.saturating_add(1);
        requester.cursor = Cursor {
            request: requester.oldest + at as u64,
            packet: (psn - send.first_psn) as u32,
            psn,
            reads: requester.queue.range(..at).filter(|send| !send.is_answered()).count() as u32,
            limited: None,
        };
        // A request that failed behind it is found again.
        requester.failed = None;
        requester.resume = Some(Instant::now() + wait);
        self.set_deadline(q, false);
        Ok(())
    }
}

/// The bytes of a scatter/gather list, whose keys nobody looks at.
fn copy(sges: &[rdma_sys::ibv_sge]) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(region::total(sges) as usize);
    for sge in sges.iter().filter(|sge| sge.length > 0) {
        // SAFETY: the program says that its memory is there, as it does for every post.
        let part = unsafe { std::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) };
        bytes.extend_from_slice(part);
    }
    bytes.into_boxed_slice()
}
