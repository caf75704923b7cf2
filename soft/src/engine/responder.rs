//! The responder's half of a reliable connection (IBTA 9.7): executes the peer's requests in their order, and answers.
//!
//! Answers wait in a queue that the number of reads and atomics bounds (`max_dest_rd_atomic`): the bytes of a read are
//! taken from memory when the socket has room for them, and acknowledgements stand for all that came before.

use super::qp::{PSN_MASK, Qp, completion};
use super::receive::Receive;
use super::region::{self, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use super::transport::stream::{BATCHES, Batch};
use super::{State, limit};
use nix::errno::Errno;
use rdma_sys::ibv_qp_state::IBV_QPS_RTR;
use rdma_sys::{ibv_event_type, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};
use rdma_verbs_wire::Malformed;
use rdma_verbs_wire::frame::MAX_PAYLOAD;
use rdma_verbs_wire::packet::{self, Aeth, Header, Kind, Nak, Place, Reth, Syndrome};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// The encoded credit count that promises nothing and limits nothing (9.7.7.2, table 45).
const NO_CREDITS: u8 = 31;

/// After so many messages or bytes an acknowledgement does not wait for a better moment.
const ACK_MESSAGES: u32 = 32;
const ACK_BYTES: usize = 512 * 1024;

pub(super) struct Responder {
    /// The connection, by its index.
    pub(super) link: Option<usize>,
    /// The PSN that comes next.
    expected: u32,
    /// Messages completed.
    msn: u32,
    /// The message that has begun and not ended.
    message: Option<Message>,
    /// The packet whose payload is being received.
    packet: Option<Packet>,
    /// A message has been refused with an RNR NAK; all is dropped until it comes again.
    refusing: bool,
    /// The peer has been told that there is no receive, and waits for better news.
    pub(super) hungry: bool,
    established: bool,
    answers: VecDeque<Answer>,
    /// Packets of the first answer that are on their way.
    sent: u32,
    /// An acknowledgement of everything so far is due, behind the answers.
    ack: bool,
    /// Something has been executed since an acknowledgement last went along with requests.
    untold: bool,
    /// It is on the list of those that owe an acknowledgement.
    pub(super) deferred: bool,
    unacknowledged_messages: u32,
    unacknowledged_bytes: usize,
}

enum Message {
    Send { receive: Receive, offset: usize },
    Write { address: u64, rkey: u32, length: usize, offset: usize },
}

impl Message {
    /// Whether a packet of it has come to its end.
    fn has_begun(&self) -> bool {
        match self {
            Message::Send { offset, .. } | Message::Write { offset, .. } => *offset > 0,
        }
    }
}

/// A packet that is executed, between its header and the end of its payload.
struct Packet {
    ends: bool,
    imm: Option<u32>,
    invalidate: Option<u32>,
    solicited: bool,
    payload: usize,
    received: usize,
    /// That a write with immediate data consumes.
    receive: Option<Receive>,
}

#[derive(Clone, Copy)]
enum Answer {
    Read { psn: u32, msn: u32, reth: Reth, packets: u32 },
    Atomic { psn: u32, msn: u32, original: u64 },
    Nak { psn: u32, aeth: Aeth },
}

/// What of the answers is on its way.
#[derive(Clone, Copy)]
pub(super) struct Progress {
    answers: usize,
    /// Packets of the answer behind those.
    packets: u32,
    ack: bool,
}

impl Responder {
    pub(super) fn new(psn: u32) -> Responder {
        Responder {
            link: None,
            expected: psn,
            msn: 0,
            message: None,
            packet: None,
            refusing: false,
            hungry: false,
            established: false,
            answers: VecDeque::new(),
            sent: 0,
            ack: false,
            untold: false,
            deferred: false,
            unacknowledged_messages: 0,
            unacknowledged_bytes: 0,
        }
    }

    /// Nothing more is executed. Gives back the receive of a message that has begun.
    pub(super) fn stop(&mut self) -> Option<Receive> {
        self.hungry = false;
        let receive = self.packet.take().and_then(|packet| packet.receive);
        match self.message.take() {
            Some(Message::Send { receive, .. }) => Some(receive),
            _ => receive,
        }
    }

    pub(super) fn owes_ack(&self) -> bool {
        self.ack
    }

    /// Whether there is more to be said than an acknowledgement.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    fn advance(&mut self, packets: u32) {
        self.expected = (self.expected + packets) & PSN_MASK;
        self.untold = true;
    }

    fn complete_message(&mut self) {
        self.msn = (self.msn + 1) & PSN_MASK;
        self.unacknowledged_messages += 1;
    }

    /// An answer that says by itself that everything in front of it has arrived.
    fn answer(&mut self, answer: Answer) {
        self.ack = false;
        self.answers.push_back(answer);
    }

    fn reads(&self) -> usize {
        self.answers.iter().filter(|answer| !matches!(answer, Answer::Nak { .. })).count()
    }
}

/// A request that is wrong: what the peer is told, and what becomes of the receive that it has taken.
struct Wrong {
    nak: Nak,
    receive: Option<ibv_wc_status::Type>,
}

const INVALID: Wrong = Wrong { nak: Nak::InvalidRequest, receive: None };
const NO_ACCESS: Wrong = Wrong { nak: Nak::RemoteAccessError, receive: None };

impl State {
    /// The header of a packet that came on the responder's connection. The payload is dropped unless it is the next
    /// packet, and right.
    pub(super) fn request(&mut self, q: usize, header: &Header, payload: usize) -> Result<(), Malformed> {
        let qp = &mut self.qps[q];
        if header.destination_qp != qp.number {
            return Err(Malformed("a request for another queue pair"));
        }
        if !qp.receives_requests() {
            return Ok(());
        }
        let responder = &mut qp.responder;
        match packet::distance(header.psn, responder.expected) {
            0 => responder.refusing = false,
            1.. if responder.refusing => return Ok(()),
            ..0 if matches!(header.kind, Kind::Send { .. } | Kind::Write { .. }) => {
                responder.ack = true;
                self.defer_ack(q);
                return Ok(());
            }
            _ => return Err(Malformed("a packet out of its order")),
        }
        if !responder.established {
            responder.established = true;
            if qp.state == IBV_QPS_RTR {
                qp.event(ibv_event_type::IBV_EVENT_COMM_EST);
            }
        }
        let outcome = match header.kind {
            Kind::Send { place, imm, invalidate } => self.begin_send(q, header, place, imm, invalidate, payload),
            Kind::Write { place, reth, imm } => self.begin_write(q, header, place, reth, imm, payload),
            Kind::ReadRequest(reth) => self.read(q, header, reth),
            Kind::CompareSwap { address, rkey, compare, swap } => self.atomic(q, header, address, rkey, |value| {
                value.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|old| old)
            }),
            Kind::FetchAdd { address, rkey, add } => {
                self.atomic(q, header, address, rkey, |value| value.fetch_add(add, Ordering::SeqCst))
            }
            _ => return Ok(()),
        };
        if let Err(wrong) = outcome {
            self.wrong(q, wrong);
        }
        Ok(())
    }

    fn begin_send(
        &mut self,
        q: usize,
        header: &Header,
        place: Place,
        imm: Option<u32>,
        invalidate: Option<u32>,
        payload: usize,
    ) -> Result<(), Wrong> {
        let responder = &mut self.qps[q].responder;
        match (place, &responder.message) {
            (Place::Only | Place::First, None) => {
                let Some(receive) = self.take_receive(q) else {
                    self.refuse(q);
                    return Ok(());
                };
                self.qps[q].responder.message = Some(Message::Send { receive, offset: 0 });
            }
            (Place::Middle | Place::Last, Some(Message::Send { .. })) => {}
            _ => return Err(INVALID),
        }
        let responder = &mut self.qps[q].responder;
        let Some(Message::Send { receive, offset }) = &responder.message else { return Err(INVALID) };
        if matches!(place, Place::First | Place::Middle) && payload != MAX_PAYLOAD {
            return Err(INVALID);
        }
        let length = *offset as u64 + payload as u64;
        if length > receive.room || length > u64::from(limit::MAX_MESSAGE) {
            return Err(Wrong { nak: Nak::InvalidRequest, receive: Some(ibv_wc_status::IBV_WC_LOC_LEN_ERR) });
        }
        let ends = matches!(place, Place::Only | Place::Last);
        let solicited = header.solicited;
        responder.packet = Some(Packet { ends, imm, invalidate, solicited, payload, received: 0, receive: None });
        Ok(())
    }

    fn begin_write(
        &mut self,
        q: usize,
        header: &Header,
        place: Place,
        reth: Option<Reth>,
        imm: Option<u32>,
        payload: usize,
    ) -> Result<(), Wrong> {
        if imm.is_some() && self.receives_left(q) == 0 {
            self.refuse(q);
            return Ok(());
        }
        let qp = &mut self.qps[q];
        match (place, &qp.responder.message, reth) {
            (Place::Only | Place::First, None, Some(Reth { address, rkey, length })) => {
                let length = length as usize;
                if length > limit::MAX_MESSAGE as usize {
                    return Err(INVALID);
                }
                // An operation that the queue pair does not take is an invalid request (9.7.4.1.2).
                if qp.attr.qp_access_flags & REMOTE_WRITE == 0 {
                    return Err(INVALID);
                }
                // Without bytes no key is looked at (9.7.4.1.5).
                if length > 0 && self.regions.find(qp.pd, rkey, address, length, REMOTE_WRITE).is_err() {
                    return Err(NO_ACCESS);
                }
                qp.responder.message = Some(Message::Write { address, rkey, length, offset: 0 });
            }
            (Place::Middle | Place::Last, Some(Message::Write { .. }), None) => {}
            _ => return Err(INVALID),
        }
        let responder = &mut self.qps[q].responder;
        let Some(Message::Write { length, offset, .. }) = &responder.message else { return Err(INVALID) };
        let left = length - offset;
        let ends = matches!(place, Place::Only | Place::Last);
        // All but the last are full, and the last has what is left.
        if payload != left.min(MAX_PAYLOAD) || ends != (left <= MAX_PAYLOAD) {
            return Err(INVALID);
        }
        let receive = match imm {
            Some(_) => self.take_receive(q),
            None => None,
        };
        let (invalidate, solicited) = (None, header.solicited);
        let packet = Packet { ends, imm, invalidate, solicited, payload, received: 0, receive };
        self.qps[q].responder.packet = Some(packet);
        Ok(())
    }

    fn read(&mut self, q: usize, header: &Header, reth: Reth) -> Result<(), Wrong> {
        let qp = &mut self.qps[q];
        let responder = &mut qp.responder;
        let length = reth.length as usize;
        if responder.message.is_some()
            || length > limit::MAX_MESSAGE as usize
            || responder.reads() >= usize::from(qp.attr.max_dest_rd_atomic)
            || qp.attr.qp_access_flags & REMOTE_READ == 0
        {
            return Err(INVALID);
        }
        if length > 0 && self.regions.find(qp.pd, reth.rkey, reth.address, length, REMOTE_READ).is_err() {
            return Err(NO_ACCESS);
        }
        let packets = length.div_ceil(MAX_PAYLOAD).max(1) as u32;
        responder.complete_message();
        let msn = responder.msn;
        responder.answer(Answer::Read { psn: header.psn, msn, reth, packets });
        responder.advance(packets);
        self.defer_ack(q);
        Ok(())
    }

    fn atomic(
        &mut self,
        q: usize,
        header: &Header,
        address: u64,
        rkey: u32,
        execute: impl FnOnce(&AtomicU64) -> u64,
    ) -> Result<(), Wrong> {
        let qp = &mut self.qps[q];
        let responder = &mut qp.responder;
        if responder.message.is_some()
            || responder.reads() >= usize::from(qp.attr.max_dest_rd_atomic)
            || qp.attr.qp_access_flags & REMOTE_ATOMIC == 0
        {
            return Err(INVALID);
        }
        // The place in the address space of the process is what has to be aligned, and the address that names it.
        if !address.is_multiple_of(8) {
            return Err(INVALID);
        }
        let place = self.regions.find(qp.pd, rkey, address, 8, REMOTE_ATOMIC).map_err(|_| NO_ACCESS)?.cast::<u64>();
        if !place.is_aligned() {
            return Err(INVALID);
        }
        // SAFETY: 8 aligned bytes of a region that is registered for atomics, while the engine is locked. The program
        // may read and write them at the same time, with atomics of its own if it cares.
        let value = unsafe { AtomicU64::from_ptr(place) };
        let original = execute(value);
        responder.complete_message();
        let msn = responder.msn;
        responder.answer(Answer::Atomic { psn: header.psn, msn, original });
        responder.advance(1);
        self.defer_ack(q);
        Ok(())
    }

    /// The connection is gone, and with it what it was to carry. A message that has begun goes on if the peer sends the
    /// rest over another, from the packet on that did not come to its end.
    pub(super) fn responder_lost(&mut self, q: usize) {
        let qp = &mut self.qps[q];
        let responder = &mut qp.responder;
        responder.link = None;
        responder.answers.clear();
        responder.sent = 0;
        responder.ack = false;
        let Some(packet) = responder.packet.take() else { return };
        let unused = match responder.message.take_if(|message| !message.has_begun()) {
            Some(Message::Send { receive, .. }) => Some(receive),
            _ => packet.receive,
        };
        if let Some(receive) = unused {
            match qp.srq.and_then(|srq| self.srqs.get_mut(srq)) {
                Some(srq) => srq.queue.put_back(receive),
                None => qp.receives.put_back(receive),
            }
        }
    }

    fn take_receive(&mut self, q: usize) -> Option<Receive> {
        match self.qps[q].srq {
            Some(srq) => self.srqs.get_mut(srq)?.take(),
            None => self.qps[q].receives.take(),
        }
    }

    fn receives_left(&self, q: usize) -> usize {
        match self.qps[q].srq {
            Some(srq) => self.srqs.get(srq).map_or(0, |srq| srq.queue.len()),
            None => self.qps[q].receives.len(),
        }
    }

    /// There is no receive: the packet is to come again later.
    fn refuse(&mut self, q: usize) {
        let qp = &mut self.qps[q];
        let responder = &mut qp.responder;
        responder.refusing = true;
        responder.hungry = true;
        let syndrome = Syndrome::RnrNak { timer: qp.attr.min_rnr_timer };
        let (psn, aeth) = (responder.expected, Aeth { syndrome, msn: responder.msn });
        // What the socket does not take must not grow, however often the message comes.
        if !matches!(responder.answers.back(), Some(Answer::Nak { psn: last, .. }) if *last == psn) {
            responder.answer(Answer::Nak { psn, aeth });
        }
        if let Some(srq) = qp.srq.and_then(|srq| self.srqs.get_mut(srq)) {
            let hungry = (q, qp.number);
            if !srq.hungry.contains(&hungry) {
                srq.hungry.push_back(hungry);
            }
        }
        self.defer_ack(q);
    }

    /// A receive has been posted: a peer that waits for one is told. One that was refused waits for nothing else.
    /// Whether there was a peer to tell.
    pub(super) fn feed(&mut self, q: usize) -> bool {
        let responder = &mut self.qps[q].responder;
        let feeds = std::mem::take(&mut responder.hungry) && responder.link.is_some();
        if feeds {
            responder.ack = true;
            if responder.refusing {
                self.hurried.push(q);
            } else {
                self.defer_ack(q);
            }
        }
        feeds
    }

    /// Tells the peer, fails the receive, and ends in ERR.
    fn wrong(&mut self, q: usize, wrong: Wrong) {
        let qp = &mut self.qps[q];
        let responder = &mut qp.responder;
        let (psn, aeth) = (responder.expected, Aeth { syndrome: Syndrome::Nak(wrong.nak), msn: responder.msn });
        responder.answer(Answer::Nak { psn, aeth });
        if let Some(status) = wrong.receive
            && let Some(Message::Send { receive, .. }) = responder.message.take()
        {
            qp.recv_cq.push(completion(qp.number, receive.wr_id, status), false, &mut self.news);
        } else {
            // Nothing else tells the program (11.6.3.2).
            qp.event(match wrong.nak {
                Nak::RemoteAccessError => ibv_event_type::IBV_EVENT_QP_ACCESS_ERR,
                _ => ibv_event_type::IBV_EVENT_QP_REQ_ERR,
            });
        }
        self.enter_error(q, None);
        self.hurried.push(q);
    }

    /// Where the next `length` bytes of the payload go. Nothing in `self.places` means that they are dropped.
    pub(super) fn request_places(&mut self, q: usize, length: usize) {
        let qp = &self.qps[q];
        let Some(packet) = &qp.responder.packet else { return };
        let wrong = match &qp.responder.message {
            Some(Message::Send { receive, offset }) => {
                let at = offset + packet.received;
                match self.regions.gather(qp.pd, &receive.sges, at, length, region::LOCAL_WRITE, &mut self.places) {
                    Ok(()) => return,
                    Err(_) => {
                        Wrong { nak: Nak::RemoteOperationalError, receive: Some(ibv_wc_status::IBV_WC_LOC_PROT_ERR) }
                    }
                }
            }
            Some(Message::Write { address, rkey, offset, .. }) => {
                let at = address.wrapping_add((offset + packet.received) as u64);
                match self.regions.find(qp.pd, *rkey, at, length, REMOTE_WRITE) {
                    Ok(place) => {
                        self.places.push(libc::iovec { iov_base: place.cast(), iov_len: length });
                        return;
                    }
                    Err(_) => NO_ACCESS,
                }
            }
            None => return,
        };
        self.places.clear();
        self.wrong(q, wrong);
    }

    pub(super) fn request_received(&mut self, q: usize, length: usize) {
        if let Some(packet) = &mut self.qps[q].responder.packet {
            packet.received += length;
        }
    }

    /// The payload could not be written: the program has unmapped what it still has registered.
    pub(super) fn request_fault(&mut self, q: usize) {
        let receive = Some(ibv_wc_status::IBV_WC_LOC_PROT_ERR);
        self.wrong(q, Wrong { nak: Nak::RemoteOperationalError, receive });
    }

    /// The packet is complete.
    pub(super) fn request_done(&mut self, q: usize) {
        let responder = &mut self.qps[q].responder;
        let Some(packet) = responder.packet.take() else { return };
        match &mut responder.message {
            Some(Message::Send { offset, .. } | Message::Write { offset, .. }) => *offset += packet.payload,
            None => return,
        }
        let payload = packet.payload;
        if packet.ends
            && let Err(wrong) = self.end_message(q, packet)
        {
            return self.wrong(q, wrong);
        }
        let responder = &mut self.qps[q].responder;
        responder.advance(1);
        responder.ack = true;
        responder.unacknowledged_bytes += payload;
        self.defer_ack(q);
    }

    fn end_message(&mut self, q: usize, packet: Packet) -> Result<(), Wrong> {
        let qp = &mut self.qps[q];
        if let Some(rkey) = packet.invalidate {
            self.regions.invalidate(qp.pd, rkey).map_err(|_| NO_ACCESS)?;
        }
        let (receive, opcode, length) = match qp.responder.message.take() {
            Some(Message::Send { receive, offset }) => (Some(receive), ibv_wc_opcode::IBV_WC_RECV, offset),
            Some(Message::Write { length, .. }) => (packet.receive, ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, length),
            None => return Ok(()),
        };
        if let Some(receive) = receive {
            let mut wc = completion(qp.number, receive.wr_id, ibv_wc_status::IBV_WC_SUCCESS);
            wc.opcode = opcode;
            wc.byte_len = length as u32;
            wc.wc_flags = ibv_wc_flags::IBV_WC_GRH.0;
            if let Some(imm) = packet.imm {
                wc.wc_flags |= ibv_wc_flags::IBV_WC_WITH_IMM.0;
                wc.imm_data_invalidated_rkey_union.imm_data = imm;
            }
            if let Some(rkey) = packet.invalidate {
                wc.wc_flags |= ibv_wc_flags::IBV_WC_WITH_INV.0;
                wc.imm_data_invalidated_rkey_union.invalidated_rkey = rkey;
            }
            qp.recv_cq.push(wc, packet.solicited, &mut self.news);
        }
        qp.responder.complete_message();
        Ok(())
    }

    /// Something is to be answered. An acknowledgement alone can wait until the program had its turn.
    fn defer_ack(&mut self, q: usize) {
        let responder = &self.qps[q].responder;
        let full = responder.unacknowledged_messages >= ACK_MESSAGES || responder.unacknowledged_bytes >= ACK_BYTES;
        if full || !responder.answers.is_empty() {
            self.hurried.push(q);
        } else if !std::mem::replace(&mut self.qps[q].responder.deferred, true) {
            self.deferred.push(q);
        }
    }

    /// Sends the answers that are due, as far as the socket takes them.
    pub(super) fn answer(&mut self, q: usize) {
        let mut batch = self.answers.take().unwrap_or_else(Batch::new);
        let mut turn = 0;
        while let Some(c) = self.qps.get(q).and_then(|qp| qp.responder.link) {
            if self.streams[c].blocked {
                break;
            }
            batch.clear();
            let wrong = self.fill_answers(q, &mut batch);
            if batch.is_empty() && !self.streams[c].stream.has_rest() && wrong.is_none() {
                break;
            }
            if turn == BATCHES {
                // As a requester does.
                self.block(c);
                break;
            }
            turn += 1;
            let blocked = match self.streams[c].stream.send(&mut batch) {
                Ok(sent) => {
                    if let Some(progress) = sent.mark {
                        self.answered(q, progress);
                    }
                    sent.blocked
                }
                Err(Errno::EFAULT) if self.unreadable(q) => false,
                Err(_) => {
                    self.block(c);
                    break;
                }
            };
            if blocked {
                self.block(c);
                break;
            }
            if wrong.is_some() && batch.is_empty() {
                self.unreadable(q);
            }
        }
        self.answers = Some(batch);
    }

    fn fill_answers(&mut self, q: usize, batch: &mut Batch<Progress>) -> Option<region::Refused> {
        let Qp { responder, attr, pd, .. } = &self.qps[q];
        let header = |kind, psn| Header {
            kind,
            solicited: false,
            ack_request: false,
            destination_qp: attr.dest_qp_num,
            psn: psn & PSN_MASK,
        };
        let ack = self.credits(q);
        let mut progress = Progress { answers: 0, packets: responder.sent, ack: false };
        for answer in &responder.answers {
            match *answer {
                Answer::Read { psn, msn, reth, packets } => {
                    while progress.packets < packets {
                        if batch.is_full() {
                            return None;
                        }
                        let at = progress.packets;
                        let offset = at as usize * MAX_PAYLOAD;
                        let length = (reth.length as usize - offset).min(MAX_PAYLOAD);
                        let place = match (at == 0, at + 1 == packets) {
                            (true, true) => Place::Only,
                            (true, false) => Place::First,
                            (false, true) => Place::Last,
                            (false, false) => Place::Middle,
                        };
                        let aeth = (place != Place::Middle).then_some(Aeth { syndrome: ack, msn });
                        progress.packets += 1;
                        let mark = match progress.packets == packets {
                            true => Progress { answers: progress.answers + 1, packets: 0, ack: false },
                            false => progress,
                        };
                        let gather = |to: &mut Vec<libc::iovec>| {
                            if length > 0 {
                                let address = reth.address + offset as u64;
                                let place = self.regions.find(*pd, reth.rkey, address, length, REMOTE_READ)?;
                                to.push(libc::iovec { iov_base: place.cast(), iov_len: length });
                            }
                            Ok(())
                        };
                        let header = header(Kind::ReadResponse { place, aeth }, psn + at);
                        if let Err(refused) = batch.push(&header, length, mark, gather) {
                            return Some(refused);
                        }
                    }
                    progress = Progress { answers: progress.answers + 1, packets: 0, ack: false };
                }
                Answer::Atomic { psn, msn, original } => {
                    if batch.is_full() {
                        return None;
                    }
                    progress = Progress { answers: progress.answers + 1, packets: 0, ack: false };
                    let aeth = Aeth { syndrome: ack, msn };
                    let header = header(Kind::AtomicAcknowledge { aeth, original }, psn);
                    let _ = batch.push(&header, 0, progress, |_| Ok::<_, region::Refused>(()));
                }
                Answer::Nak { psn, aeth } => {
                    if batch.is_full() {
                        return None;
                    }
                    progress = Progress { answers: progress.answers + 1, packets: 0, ack: false };
                    let header = header(Kind::Acknowledge(aeth), psn);
                    let _ = batch.push(&header, 0, progress, |_| Ok::<_, region::Refused>(()));
                }
            }
        }
        if responder.ack && !batch.is_full() {
            progress.ack = true;
            let _ = batch.push(&self.ack_header(q), 0, progress, |_| Ok::<_, region::Refused>(()));
        }
        None
    }

    /// What goes in front of requests of the same queue pair, so that no program hears of an answer before its own request
    /// has completed: a responder of hardware acknowledges before its program can answer.
    pub(super) fn ack_along(&self, q: usize) -> Option<Header> {
        let Qp { responder, requester, .. } = &self.qps[q];
        let c = responder.link?;
        if requester.link.is_none_or(|own| own == c) {
            // In one connection answers stay in their order; this is one packet and one call less for each message.
            let due = responder.ack && responder.answers.is_empty() && !responder.refusing;
            return due.then(|| self.ack_header(q));
        }
        // What has gone over the other connection may come later.
        if !responder.untold {
            return None;
        }
        let (psn, msn) = match responder.answers.front() {
            None => (responder.expected, responder.msn),
            Some(Answer::Read { psn, msn, .. } | Answer::Atomic { psn, msn, .. }) => (*psn, msn.wrapping_sub(1)),
            Some(Answer::Nak { psn, aeth }) => (*psn, aeth.msn),
        };
        // Without credit it is no news for a peer that waits because it was refused.
        let syndrome = if responder.refusing { Syndrome::Ack { credits: 0 } } else { self.credits(q) };
        let kind = Kind::Acknowledge(Aeth { syndrome, msn: msn & PSN_MASK });
        Some(Header { kind, psn: psn.wrapping_sub(1) & PSN_MASK, ..self.ack_header(q) })
    }

    pub(super) fn acknowledged_along(&mut self, q: usize) {
        let responder = &mut self.qps[q].responder;
        responder.untold = false;
        if responder.answers.is_empty() && !responder.refusing {
            self.answered(q, Progress { answers: 0, packets: 0, ack: true });
        }
    }

    /// An acknowledgement of everything so far.
    fn ack_header(&self, q: usize) -> Header {
        let Qp { responder, attr, .. } = &self.qps[q];
        Header {
            kind: Kind::Acknowledge(Aeth { syndrome: self.credits(q), msn: responder.msn }),
            solicited: false,
            ack_request: false,
            destination_qp: attr.dest_qp_num,
            psn: responder.expected.wrapping_sub(1) & PSN_MASK,
        }
    }

    /// A promise of as many receives as there are.
    fn credits(&self, q: usize) -> Syndrome {
        Syndrome::Ack {
            credits: match self.qps[q].srq {
                Some(_) => NO_CREDITS,
                None => packet::encode_credits(self.receives_left(q) as u32),
            },
        }
    }

    fn answered(&mut self, q: usize, progress: Progress) {
        let receives = self.receives_left(q);
        let qp = &mut self.qps[q];
        let told_none = qp.srq.is_none() && receives == 0 && qp.receives_requests();
        let responder = &mut qp.responder;
        responder.answers.drain(..progress.answers);
        responder.sent = progress.packets;
        responder.unacknowledged_messages = 0;
        responder.unacknowledged_bytes = 0;
        if progress.ack {
            responder.ack = false;
        }
        // With a queue of its own the peer has just been told how many receives there are.
        responder.hungry |= told_none;
    }

    /// What the first read asks for is not there any more.
    fn unreadable(&mut self, q: usize) -> bool {
        let responder = &mut self.qps[q].responder;
        let Some(Answer::Read { psn, msn, .. }) = responder.answers.front().copied() else { return false };
        let psn = (psn + responder.sent) & PSN_MASK;
        let aeth = Aeth { syndrome: Syndrome::Nak(Nak::RemoteAccessError), msn };
        responder.answers.clear();
        responder.sent = 0;
        responder.answer(Answer::Nak { psn, aeth });
        self.qps[q].event(ibv_event_type::IBV_EVENT_QP_ACCESS_ERR);
        self.enter_error(q, None);
        true
    }
}
