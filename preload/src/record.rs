//! What is known of each queue: which requests are on it, and what its statistics are.

use crate::device::Device;
use crate::region::Regions;
use crate::request::{Request, SIGNALED};
use crate::stats::OpStats;
use crate::trace::Place;
use crate::wr_ex::{Batch, Functions};
use rdma_sys::{ibv_qp, ibv_qp_init_attr, ibv_qp_state, ibv_srq, ibv_wc};
use rdma_verbs_options::Op;
use std::collections::VecDeque;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// `IBV_WC_RECV`: set in the opcode of every completion of a receive.
const RECV_BIT: u32 = 128;

/// A request that the provider has.
pub(crate) struct Posted {
    sequence: u64,
    pub(crate) wr_id: u64,
    pub(crate) op: Op,
    pub(crate) bytes: u64,
    /// Nanoseconds of the monotonic clock.
    pub(crate) at: u64,
    pub(crate) signaled: bool,
    /// The keys of its buffers, where the rules are checked.
    pub(crate) lkeys: Vec<u32>,
}

/// The requests of one direction, oldest first.
pub(crate) struct Queue {
    posted: VecDeque<Posted>,
    sequence: u64,
    /// So many at the most. What is beyond was completed where nobody saw it.
    limit: usize,
    /// There were more, so that what is here may be done.
    overflowed: bool,
}

/// More than the queues of devices hold.
const UNKNOWN_LIMIT: usize = 1 << 17;

impl Default for Queue {
    fn default() -> Queue {
        Queue { posted: VecDeque::new(), sequence: 0, limit: UNKNOWN_LIMIT, overflowed: false }
    }
}

impl Queue {
    /// A queue that was made for so many requests. Devices round that up, and do not always say so.
    fn of(max_wr: u32) -> Queue {
        Queue { limit: (max_wr as usize).saturating_mul(4).clamp(16, UNKNOWN_LIMIT), ..Queue::default() }
    }

    pub(crate) fn push(&mut self, request: &Request, signaled: bool, at: u64, keep_lkeys: bool) {
        let sequence = self.sequence;
        self.sequence += 1;
        let lkeys = if keep_lkeys && request.flags & crate::request::INLINE == 0 {
            request.sges.iter().map(|sge| sge.lkey).collect()
        } else {
            Vec::new()
        };
        let (wr_id, op, bytes) = (request.wr_id, request.op, request.bytes());
        if self.posted.len() >= self.limit {
            self.posted.pop_front();
            self.overflowed = true;
        }
        self.posted.push_back(Posted { sequence, wr_id, op, bytes, at, signaled, lkeys });
    }

    /// The number that the next request will have.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence
    }

    /// Takes back requests that the provider did not accept.
    pub(crate) fn withdraw(&mut self, sequences: std::ops::Range<u64>) -> VecDeque<Posted> {
        let (withdrawn, kept) =
            std::mem::take(&mut self.posted).into_iter().partition(|posted| sequences.contains(&posted.sequence));
        self.posted = kept;
        withdrawn
    }

    /// Takes the request that a completion is of: the oldest of its `wr_id`. The unsignaled ones before it are done,
    /// too: a send queue completes in order.
    fn complete(&mut self, wr_id: u64, success: bool) -> Option<Posted> {
        let is_it = |posted: &Posted| posted.wr_id == wr_id && (posted.signaled || !success);
        let index = self.posted.iter().position(is_it)?;
        let done = self.posted.remove(index);
        for earlier in (0..index).rev() {
            if !self.posted[earlier].signaled {
                self.posted.remove(earlier);
            }
        }
        done
    }

    fn has(&self, wr_id: u64) -> bool {
        self.posted.iter().any(|posted| posted.wr_id == wr_id)
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Posted> {
        self.posted.iter()
    }

    /// Those that have a completion, which was not taken yet. Whether another one is done nobody can tell.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = &Posted> {
        self.posted.iter().filter(|posted| posted.signaled && !self.overflowed)
    }

    fn clear(&mut self) {
        self.posted.clear();
        self.overflowed = false;
    }
}

/// What a queue pair was created with.
#[derive(Clone, Copy, Default)]
pub(crate) struct Caps {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
    pub(crate) sq_sig_all: bool,
}

impl Caps {
    /// From the attributes as the provider left them: with what it really gave.
    pub(crate) fn of(attr: &ibv_qp_init_attr) -> Caps {
        Caps {
            max_send_wr: attr.cap.max_send_wr,
            max_recv_wr: attr.cap.max_recv_wr,
            max_send_sge: attr.cap.max_send_sge,
            max_recv_sge: attr.cap.max_recv_sge,
            max_inline_data: attr.cap.max_inline_data,
            sq_sig_all: attr.sq_sig_all != 0,
        }
    }
}

/// A queue pair, or a shared receive queue, of which only the receive side is used.
pub(crate) struct Record {
    pub(crate) device: &'static Device,
    /// The queue pair's number; 0 for a shared receive queue.
    qpn: u32,
    /// The address of a shared receive queue; 0 for a queue pair.
    srq: usize,
    /// Of the shared receive queues.
    next: Option<&'static Record>,
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// None where the queue pair's creation was not seen.
    pub(crate) caps: Option<Caps>,
    /// The address of the queue pair while it lives.
    qp: usize,
    /// A request failed, which puts the queue pair into an error state: libibverbs does not notice.
    pub(crate) failed: bool,
    pub(crate) send_cq: usize,
    pub(crate) recv_cq: usize,
    pub(crate) shared: Option<&'static Record>,
    pub(crate) send: Queue,
    pub(crate) recv: Queue,
    pub(crate) stats: Vec<(Op, OpStats)>,
    /// What the provider put into the extended object, where the program uses it.
    pub(crate) functions: Functions,
    pub(crate) batch: Batch,
    /// The rules that were reported about this queue, a bit each.
    pub(crate) reported: u32,
}

/// What was on the queues of an object that is being destroyed.
pub(crate) struct Retired {
    qp: usize,
    send: Queue,
    recv: Queue,
    reported: u32,
}

impl State {
    /// Whether this is of a queue pair in a state in which the device works on its requests: in ERR it has flushed them.
    pub(crate) fn is_working(&self) -> bool {
        let qp = ptr::with_exposed_provenance::<ibv_qp>(self.qp);
        // SAFETY: `State::qp` is NULL or a queue pair that was not destroyed yet.
        let Some(qp) = (unsafe { qp.as_ref() }) else { return false };
        !self.failed && !matches!(qp.state, ibv_qp_state::IBV_QPS_RESET | ibv_qp_state::IBV_QPS_ERR)
    }

    pub(crate) fn stats(&mut self, op: Op) -> &mut OpStats {
        let index = match self.stats.iter().position(|(known, _)| *known == op) {
            Some(index) => index,
            None => {
                self.stats.push((op, OpStats::default()));
                self.stats.len() - 1
            }
        };
        &mut self.stats[index].1
    }

    pub(crate) fn is_signaled(&self, request: &Request) -> bool {
        request.op == Op::Recv || request.flags & SIGNALED != 0 || self.caps.is_some_and(|caps| caps.sq_sig_all)
    }
}

impl Record {
    fn of_qp(device: &'static Device, qpn: u32) -> Box<Record> {
        Box::new(Record { device, qpn, srq: 0, next: None, state: Mutex::default() })
    }

    /// The queue pair's number; a shared receive queue has none.
    pub(crate) fn qp_number(&self) -> Option<u32> {
        (self.srq == 0).then_some(self.qpn)
    }

    pub(crate) fn place(&self) -> Place {
        if self.srq == 0 { Place::Qp(self.qpn) } else { Place::Srq(self.srq) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// As [`Record::lock`], at the end of the program: threads may go on, and may also have been stopped for ever, as the
    /// one that ends the program in a signal handler.
    pub(crate) fn lock_at_exit(&self) -> Option<MutexGuard<'_, State>> {
        for _ in 0..100 {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        None
    }

    /// Begins anew for a queue pair that was just created; what was counted stays.
    pub(crate) fn begin(&self, qp: &ibv_qp, caps: Caps, shared: Option<&'static Record>) {
        let mut state = self.lock();
        state.caps = Some(caps);
        state.qp = ptr::from_ref(qp).expose_provenance();
        state.send_cq = qp.send_cq.addr();
        state.recv_cq = qp.recv_cq.addr();
        state.shared = shared;
        state.send = Queue::of(caps.max_send_wr);
        state.recv = Queue::of(caps.max_recv_wr);
        state.failed = false;
        state.reported = 0;
    }

    /// The queue pair was moved to a state, by `ibv_modify_qp(3)`.
    pub(crate) fn moved(&self, to: ibv_qp_state::Type) {
        let mut state = self.lock();
        if to == ibv_qp_state::IBV_QPS_RESET {
            state.send.clear();
            state.recv.clear();
        }
        state.failed = false;
    }

    /// Before the object is destroyed: from here on its memory may go, and its number or address be another's. What was
    /// counted stays.
    pub(crate) fn retire(&self) -> Retired {
        let mut state = self.lock();
        state.batch = Batch::new();
        state.stats.iter_mut().for_each(|(_, stats)| stats.compact());
        Retired {
            qp: mem::take(&mut state.qp),
            send: mem::take(&mut state.send),
            recv: mem::take(&mut state.recv),
            reported: mem::take(&mut state.reported),
        }
    }

    /// It could not be destroyed.
    pub(crate) fn restore(&self, retired: Retired) {
        let mut state = self.lock();
        state.qp = retired.qp;
        state.send = retired.send;
        state.recv = retired.recv;
        state.reported = retired.reported;
    }

    /// Takes the request that a completion polled from `cq` is of.
    pub(crate) fn complete(&self, cq: usize, wc: &ibv_wc) -> Option<Posted> {
        let success = wc.status == 0;
        let mut state = self.lock();
        state.failed |= !success;
        let is_recv = if success {
            wc.opcode & RECV_BIT != 0
        } else if state.send_cq != state.recv_cq && (state.send_cq == cq || state.recv_cq == cq) {
            state.recv_cq == cq
        } else {
            // The opcode of a failed completion need not be valid: it only decides where the wr_id leaves a choice.
            let received =
                state.recv.has(wc.wr_id) || state.shared.is_some_and(|shared| shared.lock().recv.has(wc.wr_id));
            received && (wc.opcode & RECV_BIT != 0 || !state.send.has(wc.wr_id))
        };
        match state.shared {
            Some(shared) if is_recv => shared.lock().recv.complete(wc.wr_id, success),
            _ if is_recv => state.recv.complete(wc.wr_id, success),
            _ => state.send.complete(wc.wr_id, success),
        }
    }
}

const PAGE: usize = 4096;
type Page = [AtomicPtr<Record>; PAGE];

/// The records of a device. Queue pair numbers have 24 bits, so two levels of tables find one without a lock, and
/// records stay: there is one for each number, and the statistics are told at the end.
pub(crate) struct Records {
    pages: Box<[AtomicPtr<Page>; PAGE]>,
    /// Shared receive queues; the list only grows, and a record serves the next queue of the same address.
    shared: AtomicPtr<Record>,
    /// Held while the list grows.
    growing: Mutex<()>,
    pub(crate) regions: Regions,
}

impl Records {
    pub(crate) fn new() -> Records {
        Records {
            pages: Box::new([const { AtomicPtr::new(ptr::null_mut()) }; PAGE]),
            shared: AtomicPtr::new(ptr::null_mut()),
            growing: Mutex::new(()),
            regions: Regions::default(),
        }
    }

    /// The record of a queue pair number.
    pub(crate) fn qp(&self, device: &'static Device, qpn: u32) -> &'static Record {
        let page = &self.pages[qpn as usize / PAGE % PAGE];
        let page = get_or_publish(page, || Box::new([const { AtomicPtr::new(ptr::null_mut()) }; PAGE]));
        get_or_publish(&page[qpn as usize % PAGE], || Record::of_qp(device, qpn))
    }

    /// The record of a shared receive queue.
    pub(crate) fn srq(&self, device: &'static Device, srq: *mut ibv_srq) -> &'static Record {
        let known = || self.shared().find(|record| record.srq == srq.addr());
        if let Some(record) = known() {
            return record;
        }
        let _growing = self.growing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        known().unwrap_or_else(|| {
            let (srq, next) = (srq.addr(), self.shared().next());
            let record = Box::leak(Box::new(Record { device, qpn: 0, srq, next, state: Mutex::default() }));
            self.shared.store(record, Ordering::Release);
            record
        })
    }

    fn shared(&self) -> impl Iterator<Item = &'static Record> {
        // SAFETY: records are leaked boxes, published whole.
        let first = unsafe { self.shared.load(Ordering::Acquire).as_ref() };
        std::iter::successors(first, |record| record.next)
    }

    /// All records, shared receive queues last.
    pub(crate) fn all(&self) -> Vec<&'static Record> {
        let mut all = Vec::new();
        for page in self.pages.iter() {
            // SAFETY: pages are leaked boxes, published whole.
            let Some(page) = (unsafe { page.load(Ordering::Acquire).as_ref() }) else { continue };
            // SAFETY: records are leaked boxes, published whole.
            all.extend(page.iter().filter_map(|slot| unsafe { slot.load(Ordering::Acquire).as_ref() }));
        }
        let first_shared = all.len();
        all.extend(self.shared());
        // As they came.
        all[first_shared..].reverse();
        all
    }

    /// The queue pair whose request a completion is of, where the completion does not say.
    pub(crate) fn by_request(&self, cq: usize, wr_id: u64) -> Option<u32> {
        let has = |record: &&'static Record| {
            let state = record.lock();
            let received = || state.recv.has(wr_id) || state.shared.is_some_and(|shared| shared.lock().recv.has(wr_id));
            (state.send_cq == cq && state.send.has(wr_id)) || (state.recv_cq == cq && received())
        };
        self.all().into_iter().find(has).and_then(Record::qp_number)
    }
}

/// What a slot points to, made by `make` if it is the first to ask.
fn get_or_publish<T>(slot: &AtomicPtr<T>, make: impl FnOnce() -> Box<T>) -> &'static T {
    // SAFETY: only leaked boxes are published.
    if let Some(found) = unsafe { slot.load(Ordering::Acquire).as_ref() } {
        return found;
    }
    let made = Box::into_raw(make());
    match slot.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: published, and never freed.
        Ok(_) => unsafe { &*made },
        Err(first) => {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: as above.
            unsafe { &*first }
        }
    }
}
