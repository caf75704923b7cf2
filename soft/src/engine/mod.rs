//! Queue pairs and what they need, without a C object in sight.
//!
//! One lock holds all state but the rings of completion queues, which have their own, so that finding a completion
//! does not wait for the engine. Order: engine, then ring.

mod cq;
#[cfg(test)]
mod exchanges;
#[cfg(test)]
mod measure;
mod progress;
mod qp;
mod receive;
mod region;
mod requester;
mod responder;
#[cfg(test)]
mod tests;
mod transport;

pub(crate) use cq::Cq;
pub(crate) use transport::tcp::connect as connect_tcp;

use crate::descriptors::Tracked;
use crate::event_queue::EventQueue;
use crate::reactor::{self, Registration, Source, Timer};
use crate::uncancelled::{self, Uncancelled};
use crate::{addresses, capture, descriptors};
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use once_cell::sync::OnceCell;
use progress::State;
use qp::Qp;
use rdma_sys::{ibv_event_type, ibv_qp_attr, ibv_qp_cap, ibv_sge, ibv_srq_attr, ibv_wc};
use receive::Srq;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use transport::listener;

/// What the C side gives with an object, and gets back with its events: the address of the C struct.
pub(crate) type Cookie = usize;

/// A completion channel: each event is the cookie of a completion queue.
pub(crate) type Channel = EventQueue<Cookie>;

/// Asynchronous events of a context.
pub(crate) type AsyncEvents = EventQueue<AsyncEvent>;

#[derive(Clone, Copy)]
pub(crate) struct AsyncEvent {
    pub(crate) kind: ibv_event_type,
    /// Of the queue pair, completion queue or shared receive queue; the number of the port for its events.
    pub(crate) element: Cookie,
}

/// Limits, as ibv_query_device(3) reports them.
pub(crate) mod limit {
    pub(crate) const MAX_QP_WR: u32 = 16384;
    pub(crate) const MAX_SGE: u32 = 32;
    pub(crate) const MAX_INLINE_DATA: u32 = 1024;
    pub(crate) const MAX_CQE: u32 = 1 << 20;
    pub(crate) const MAX_SRQ_WR: u32 = 32768;
    pub(crate) const MAX_RD_ATOMIC: u8 = 128;
    /// 1 GiB, as `max_msg_sz` of a RoCE port of hardware.
    pub(crate) const MAX_MESSAGE: u32 = 1 << 30;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PdKey(pub(crate) u32);
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QpKey(pub(crate) u32);
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SrqKey(pub(crate) u32);

#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryRegion {
    pub(crate) address: usize,
    pub(crate) length: usize,
    /// The address by which requests name the first byte.
    pub(crate) iova: u64,
    /// `IBV_ACCESS_*`.
    pub(crate) access: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    pub(crate) lkey: u32,
    /// 0 where the region grants no remote access.
    pub(crate) rkey: u32,
}

pub(crate) struct QpInit {
    pub(crate) pd: PdKey,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<SrqKey>,
    /// As asked for; the queue pair is made with exactly these (0 inline data stays 0).
    pub(crate) cap: ibv_qp_cap,
    pub(crate) sq_sig_all: bool,
    pub(crate) events: Arc<AsyncEvents>,
    pub(crate) cookie: Cookie,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Send,
    /// In network byte order, as `ibv_send_wr.imm_data`.
    SendWithImm(u32),
    SendWithInv {
        rkey: u32,
    },
    Write {
        address: u64,
        rkey: u32,
    },
    WriteWithImm {
        address: u64,
        rkey: u32,
        imm: u32,
    },
    Read {
        address: u64,
        rkey: u32,
    },
    CompareSwap {
        address: u64,
        rkey: u32,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        address: u64,
        rkey: u32,
        add: u64,
    },
}

/// Where the bytes of a send or write come from.
#[derive(Clone, Copy)]
pub(crate) enum Data<'a> {
    Sges(&'a [ibv_sge]),
    /// `IBV_SEND_INLINE`: copied before the post returns, keys ignored.
    InlineSges(&'a [ibv_sge]),
}

#[derive(Clone, Copy)]
pub(crate) struct SendRequest<'a> {
    pub(crate) wr_id: u64,
    pub(crate) operation: Operation,
    /// `IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED`; others have been taken out or refused.
    pub(crate) flags: u32,
    pub(crate) data: Data<'a>,
}

/// A connection that a peer opened to one of the listeners for connection management, behind its first frame.
pub(crate) struct Accepted {
    /// Non-blocking.
    pub(crate) stream: Tracked<TcpStream>,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    /// Bytes that came behind the first frame.
    pub(crate) rest: Vec<u8>,
}

/// The engine; starts its thread and its first listener at the first call. ENODEV in a child of a fork whose parent had
/// started it. EINVAL, and a line on standard error, for a variable of the environment that is wrong.
pub(crate) fn get() -> Result<&'static Engine, Errno> {
    if descriptors::in_child() {
        return Err(Errno::ENODEV);
    }
    ENGINE.get_or_try_init(Engine::start)
}

static ENGINE: OnceCell<Engine> = OnceCell::new();

/// Looks of programs that poll, with no completion queue armed meanwhile, before the thread leaves the sockets to them.
const STREAK: u32 = 32;

/// How often the thread looks whether the program still polls.
const TICK: Duration = Duration::from_millis(1);

/// How long the thread keeps the sockets after a program that polled has let data wait; at first, and at most. Doubled
/// each time: some programs poll for what they have sent, but wait for what they receive in other ways.
const PENALTY: Duration = Duration::from_millis(4);
const MAX_PENALTY: Duration = Duration::from_secs(4);

/// How much more often the thread may meet a program at the lock than not, and wait for it.
const MEETINGS: u32 = 8;

/// How often it tries to get the lock then, and how long it sleeps in between.
const NAPS: usize = 10;
const NAP: Duration = Duration::from_micros(50);

/// So many ticks without such a lapse, and all is forgotten.
const GOOD_TICKS: u32 = 256;

pub(crate) struct Engine {
    state: Mutex<State>,
    port: u16,
    /// Threads that wait for the lock: a program that polls without a break lets them in.
    waiting: AtomicUsize,
    /// How often the thread has met a program at the lock, less how often it has not.
    meetings: AtomicU32,
    /// Looks at the sockets by programs that poll.
    looks: AtomicU64,
    /// Those since the thread stood back last, or a completion queue was armed.
    streak: AtomicU32,
    /// The thread leaves the sockets to the programs that poll.
    standing_back: AtomicBool,
    /// The data sockets, as the thread waits for them.
    data: Registration,
    manners: Mutex<Manners>,
}

/// How the thread behaves towards programs that poll.
struct Manners {
    tick: Option<Timer>,
    looks_at_tick: u64,
    good_ticks: u32,
    penalty: Duration,
    not_before: Instant,
}

/// The engine, locked.
pub(crate) struct Locked<'a> {
    engine: &'a Engine,
    state: MutexGuard<'a, State>,
    /// A post or a poll: a program that does nothing else comes back to send the acknowledgements that wait.
    fast: bool,
    /// Behind the lock, which it outlives.
    _uncancelled: Uncancelled,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if alive().is_ok() {
            self.state.settle();
            if !self.fast || !self.engine.standing_back.load(Ordering::SeqCst) {
                self.state.acknowledge();
            }
            self.state.news.tell();
        }
    }
}

impl Engine {
    /// The engine, where it runs.
    fn started() -> Option<&'static Engine> {
        ENGINE.get().filter(|_| !descriptors::in_child())
    }

    fn start() -> Result<Engine, Errno> {
        let _uncancelled = Uncancelled::new();
        let ports = match rdma_verbs_contract::environment::value(c"RDMA_SOFT_PORTS") {
            None => None,
            Some(text) => {
                let ports = text.to_str().ok().and_then(listener::parse);
                if ports.is_none() {
                    let text = text.to_string_lossy();
                    complain(&format!("RDMA_SOFT_PORTS must be a TCP port, or LOW-HIGH, two of them, not \"{text}\""));
                    return Err(Errno::EINVAL);
                }
                ports
            }
        };
        if let Err(error) = capture::open() {
            complain(&format!("the file that RDMA_SOFT_PCAP names cannot be made: {error}"));
            return Err(Errno::EINVAL);
        }
        static HANDLERS: Once = Once::new();
        HANDLERS.call_once(|| {
            // SAFETY: functions that live as long as the process.
            unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child)) };
            // SAFETY: as above.
            unsafe { libc::atexit(at_exit) };
        });
        let open = || {
            addresses::look()?;
            let state = State::new(ports)?;
            let data = reactor::register(state.epoll().as_fd(), EpollFlags::EPOLLIN, Arc::new(Sockets))?;
            Ok((state, data))
        };
        // Programs do not tell why: many have a message of their own for whatever it was.
        let (state, data) = open().inspect_err(|errno| {
            let takes = "a thread, a TCP port, netlink and a few descriptors";
            complain(&format!("the device, which takes {takes}, cannot be opened: {errno}"));
        })?;
        let port = state.port();
        Ok(Engine {
            state: Mutex::new(state),
            port,
            waiting: AtomicUsize::new(0),
            meetings: AtomicU32::new(0),
            looks: AtomicU64::new(0),
            streak: AtomicU32::new(0),
            standing_back: AtomicBool::new(false),
            data,
            manners: Mutex::new(Manners {
                tick: None,
                looks_at_tick: 0,
                good_ticks: 0,
                penalty: PENALTY,
                not_before: Instant::now(),
            }),
        })
    }

    /// The TCP port at which this process is reached for connection management.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn alloc_pd(&self) -> Result<PdKey, Errno> {
        alive()?;
        Ok(PdKey(self.lock().state.pds.insert(0) as u32))
    }

    /// EBUSY while a region, queue pair or shared receive queue belongs to it.
    pub(crate) fn dealloc_pd(&self, pd: PdKey) -> Result<(), Errno> {
        alive()?;
        let mut locked = self.lock();
        match locked.state.pds.get(pd.0 as usize) {
            None => Err(Errno::EINVAL),
            Some(0) => {
                locked.state.pds.remove(pd.0 as usize);
                Ok(())
            }
            Some(_) => Err(Errno::EBUSY),
        }
    }

    /// EINVAL for rights that contradict each other (remote write or atomic without local write).
    pub(crate) fn reg_mr(&self, pd: PdKey, region: MemoryRegion) -> Result<Keys, Errno> {
        alive()?;
        let mut locked = self.lock();
        let State { pds, regions, .. } = &mut *locked.state;
        let users = pds.get_mut(pd.0 as usize).ok_or(Errno::EINVAL)?;
        let keys = regions.insert(pd, region)?;
        *users += 1;
        Ok(keys)
    }

    /// From the return on the memory is not touched.
    pub(crate) fn dereg_mr(&self, lkey: u32) -> Result<(), Errno> {
        alive()?;
        let mut locked = self.lock();
        let region = locked.state.regions.remove(lkey).ok_or(Errno::EINVAL)?;
        locked.state.pds[region.pd.0 as usize] -= 1;
        Ok(())
    }

    pub(crate) fn create_cq(
        &self,
        cqe: u32,
        channel: Option<Arc<Channel>>,
        events: Arc<AsyncEvents>,
        cookie: Cookie,
    ) -> Result<Arc<Cq>, Errno> {
        alive()?;
        Cq::new(cqe, channel, events, cookie).map(Arc::new)
    }

    /// EINVAL where more completions are waiting than would fit.
    pub(crate) fn resize_cq(&self, cq: &Arc<Cq>, cqe: u32) -> Result<(), Errno> {
        alive()?;
        cq.resize(cqe)
    }

    /// EBUSY while a queue pair uses it. Withdraws its events.
    pub(crate) fn destroy_cq(&self, cq: &Arc<Cq>) -> Result<(), Errno> {
        alive()?;
        let _locked = self.lock();
        if cq.users.load(Ordering::Relaxed) > 0 {
            return Err(Errno::EBUSY);
        }
        cq.withdraw();
        Ok(())
    }

    /// Takes completions; where there is none, moves the sockets on first, unless another thread does. Less than asked
    /// for means that there are no more. `Err` after an overrun.
    #[inline]
    pub(crate) fn poll_cq(&self, cq: &Cq, to: &mut [MaybeUninit<ibv_wc>]) -> Result<usize, Errno> {
        alive()?;
        match cq.take(to) {
            Ok(0) => {
                self.look();
                cq.take(to)
            }
            result => result,
        }
    }

    /// The next completion (or the next solicited or failed one) makes an event.
    pub(crate) fn arm(&self, cq: &Cq, solicited_only: bool) -> Result<(), Errno> {
        alive()?;
        cq.arm(solicited_only);
        self.streak.store(0, Ordering::Relaxed);
        if self.standing_back.load(Ordering::SeqCst) {
            self.step_forward(&mut self.manners());
        }
        Ok(())
    }

    pub(crate) fn create_srq(
        &self,
        pd: PdKey,
        attr: &ibv_srq_attr,
        events: Arc<AsyncEvents>,
        cookie: Cookie,
    ) -> Result<SrqKey, Errno> {
        alive()?;
        let mut locked = self.lock();
        let State { pds, srqs, .. } = &mut *locked.state;
        let users = pds.get_mut(pd.0 as usize).ok_or(Errno::EINVAL)?;
        let srq = srqs.insert(Srq::new(pd, attr, events, cookie)?);
        *users += 1;
        Ok(SrqKey(srq as u32))
    }

    /// `mask`: `IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT`.
    pub(crate) fn modify_srq(&self, srq: SrqKey, attr: &ibv_srq_attr, mask: u32) -> Result<(), Errno> {
        alive()?;
        self.lock().state.srqs.get_mut(srq.0 as usize).ok_or(Errno::EINVAL)?.modify(attr, mask)
    }

    pub(crate) fn query_srq(&self, srq: SrqKey) -> Result<ibv_srq_attr, Errno> {
        alive()?;
        Ok(self.lock().state.srqs.get(srq.0 as usize).ok_or(Errno::EINVAL)?.query())
    }

    /// EBUSY while a queue pair uses it.
    pub(crate) fn destroy_srq(&self, srq: SrqKey) -> Result<(), Errno> {
        alive()?;
        let mut locked = self.lock();
        let State { pds, srqs, .. } = &mut *locked.state;
        let found = srqs.get(srq.0 as usize).ok_or(Errno::EINVAL)?;
        if found.users > 0 {
            return Err(Errno::EBUSY);
        }
        found.withdraw();
        pds[found.pd.0 as usize] -= 1;
        srqs.remove(srq.0 as usize);
        Ok(())
    }

    /// In RESET. Returns the queue pair's number, too.
    pub(crate) fn create_qp(&self, init: QpInit) -> Result<(QpKey, u32), Errno> {
        alive()?;
        let cap = &init.cap;
        // With a shared receive queue there is no own one.
        let receives = if init.srq.is_some() { 0 } else { cap.max_recv_wr };
        if cap.max_send_wr > limit::MAX_QP_WR
            || receives > limit::MAX_QP_WR
            || cap.max_send_sge > limit::MAX_SGE
            || cap.max_recv_sge > limit::MAX_SGE
            || cap.max_inline_data > limit::MAX_INLINE_DATA
        {
            return Err(Errno::EINVAL);
        }
        let mut locked = self.lock();
        let state = &mut *locked.state;
        let srq = init.srq.map(|srq| srq.0 as usize);
        if !state.pds.contains(init.pd.0 as usize) || srq.is_some_and(|srq| !state.srqs.contains(srq)) {
            return Err(Errno::EINVAL);
        }
        let number = state.issue_number()?;
        if let Some(srq) = srq {
            state.srqs[srq].users += 1;
        }
        state.pds[init.pd.0 as usize] += 1;
        init.send_cq.users.fetch_add(1, Ordering::Relaxed);
        init.recv_cq.users.fetch_add(1, Ordering::Relaxed);
        let q = state.qps.insert(Qp::new(number, init, srq));
        state.by_number.insert(number, q);
        Ok((QpKey(q as u32), number))
    }

    /// `mask`: `IBV_QP_*`. EINVAL for a transition that is none, an attribute that is missing or not allowed
    /// in it, or a value out of range.
    pub(crate) fn modify_qp(&self, qp: QpKey, attr: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
        alive()?;
        self.lock().state.modify(qp.0 as usize, attr, mask)
    }

    pub(crate) fn query_qp(&self, qp: QpKey) -> Result<ibv_qp_attr, Errno> {
        alive()?;
        Ok(self.lock().state.qps.get(qp.0 as usize).ok_or(Errno::EINVAL)?.query())
    }

    /// Takes the completions and asynchronous events of the queue pair away with it.
    pub(crate) fn destroy_qp(&self, qp: QpKey) -> Result<(), Errno> {
        alive()?;
        let mut locked = self.lock();
        let state = &mut *locked.state;
        let q = qp.0 as usize;
        if !state.qps.contains(q) {
            return Err(Errno::EINVAL);
        }
        state.disconnect(q);
        let qp = state.qps.remove(q);
        state.hurried.retain(|hurried| *hurried != q);
        state.by_number.remove(&qp.number);
        state.take_back_number(qp.number);
        state.pds[qp.pd.0 as usize] -= 1;
        if let Some(srq) = qp.srq {
            state.srqs[srq].users -= 1;
        }
        qp.withdraw();
        qp.send_cq.users.fetch_sub(1, Ordering::Relaxed);
        qp.recv_cq.users.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    /// For a list of requests. In a child of a fork nothing is there to be used; posting and everything else answers
    /// ENODEV.
    pub(crate) fn lock_to_post(&self) -> Locked<'_> {
        self.lock_as(true)
    }

    /// For everything else.
    fn lock(&self) -> Locked<'_> {
        self.lock_as(false)
    }

    fn lock_as(&self, fast: bool) -> Locked<'_> {
        if let Some(locked) = self.try_lock_as(fast) {
            return locked;
        }
        let _uncancelled = Uncancelled::new();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Locked { engine: self, state, fast, _uncancelled }
    }

    /// `None` while another thread has it.
    fn try_lock_as(&self, fast: bool) -> Option<Locked<'_>> {
        let _uncancelled = Uncancelled::new();
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Locked { engine: self, state, fast, _uncancelled })
    }

    /// One look at the sockets by a program that polls and found nothing.
    fn look(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return;
        }
        let Some(mut locked) = self.try_lock_as(true) else { return };
        self.looks.fetch_add(1, Ordering::Relaxed);
        if !locked.state.look() {
            // The program has had its turn to post, with which they might have travelled.
            locked.state.acknowledge();
        }
        drop(locked);
        if self.streak.fetch_add(1, Ordering::Relaxed) + 1 >= STREAK {
            self.streak.store(0, Ordering::Relaxed);
            self.stand_back();
        }
    }

    fn manners(&self) -> uncancelled::Guard<'_, Manners> {
        uncancelled::lock(&self.manners)
    }

    /// Leaves the sockets to a program that polls all the time.
    fn stand_back(&self) {
        let mut manners = self.manners();
        if cq::any_armed() || Instant::now() < manners.not_before || self.standing_back.swap(true, Ordering::SeqCst) {
            return;
        }
        manners.looks_at_tick = self.looks.load(Ordering::Relaxed);
        manners.tick = reactor::after(TICK, tick).ok();
        let failed = manners.tick.is_none() || self.data.modify(EpollFlags::empty()).is_err();
        // Armed meanwhile, by someone who saw the thread still at its place.
        if failed || cq::any_armed() {
            self.step_forward(&mut manners);
        }
    }

    /// The thread serves the sockets again.
    fn step_forward(&self, _manners: &mut Manners) {
        if self.standing_back.swap(false, Ordering::SeqCst) {
            let _ = self.data.modify(EpollFlags::EPOLLIN);
            // The program may wait now, and its peer for an acknowledgement that was left to a program that polls.
            drop(self.lock());
        }
    }

    /// While standing back: whether the program still polls.
    fn tick(&self) {
        let mut manners = self.manners();
        if !self.standing_back.load(Ordering::SeqCst) {
            return;
        }
        let looks = self.looks.load(Ordering::Relaxed);
        if looks != std::mem::replace(&mut manners.looks_at_tick, looks) {
            manners.good_ticks += 1;
            if manners.good_ticks >= GOOD_TICKS {
                manners.penalty = PENALTY;
            }
            manners.tick = reactor::after(TICK, tick).ok();
            if manners.tick.is_some() {
                // A program that finds something with every look has sent no acknowledgement meanwhile.
                return drop(self.lock());
            }
        }
        self.step_forward(&mut manners);
        let locked = self.lock();
        if locked.state.anything() {
            manners.good_ticks = 0;
            manners.not_before = Instant::now() + manners.penalty;
            manners.penalty = (manners.penalty * 2).min(MAX_PENALTY);
        }
    }

    /// The thread's turn with the sockets.
    fn serve(&self) {
        self.lock_in_thread().state.serve();
    }

    /// Waits for a program that has the lock, unless the thread always meets one: that is at work on the sockets itself, and
    /// would have to wake the thread each time, and to wait in its turn.
    fn lock_in_thread(&self) -> Locked<'_> {
        let meetings = self.meetings.load(Ordering::Relaxed);
        if let Some(locked) = self.try_lock_as(false) {
            self.meetings.store(meetings.saturating_sub(1), Ordering::Relaxed);
            return locked;
        }
        self.meetings.store((meetings + 1).min(2 * MEETINGS), Ordering::Relaxed);
        if meetings > MEETINGS {
            for _ in 0..NAPS {
                std::thread::sleep(NAP);
                if let Some(locked) = self.try_lock_as(false) {
                    return locked;
                }
            }
        }
        self.lock()
    }
}

/// ENODEV in a child of a fork.
#[inline]
fn alive() -> Result<(), Errno> {
    if descriptors::in_child() { Err(Errno::ENODEV) } else { Ok(()) }
}

fn tick() {
    if let Some(engine) = Engine::started() {
        engine.tick();
    }
}

/// The data sockets, for the thread.
struct Sockets;

impl Source for Sockets {
    fn ready(&self, _events: EpollFlags) {
        if let Some(engine) = Engine::started() {
            engine.serve();
        }
    }
}

/// A line on standard error.
fn complain(what: &str) {
    rdma_verbs_contract::output::write(libc::STDERR_FILENO, &format!("rdma_verbs_soft: {what}\n"));
}

// A fork copies every lock as it is at that moment. So the forking thread holds those that other threads take, and both
// sides give them back.

struct Held {
    // Given back in this order, the reverse of that in which they are taken.
    list: uncancelled::Guard<'static, BTreeSet<RawFd>>,
    _reactor: Option<uncancelled::Guard<'static, reactor::Waiting>>,
    _state: Option<Locked<'static>>,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

extern "C" fn before_fork() {
    let _ = HELD.try_with(|held| {
        let _state = Engine::started().map(Engine::lock);
        let _reactor = reactor::hold();
        *held.borrow_mut() = Some(Held { list: descriptors::list(), _reactor, _state });
    });
}

extern "C" fn after_fork() {
    let _ = HELD.try_with(|held| held.borrow_mut().take());
}

extern "C" fn after_fork_in_child() {
    let _ = HELD.try_with(|held| {
        if let Some(held) = held.borrow_mut().take() {
            descriptors::abandon(&held.list);
        }
    });
}

/// What has been received is acknowledged, though the program did not poll once more.
extern "C" fn at_exit() {
    if let Some(engine) = Engine::started() {
        drop(engine.try_lock_as(false));
    }
}

impl Locked<'_> {
    /// EINVAL in RESET, INIT and RTR, for too many entries and too much inline data; ENOMEM where the queue is full.
    pub(crate) fn post_send(&mut self, qp: QpKey, request: &SendRequest<'_>) -> Result<(), Errno> {
        alive()?;
        self.state.post_send(qp.0 as usize, request)
    }

    /// How many more requests the send queue takes.
    pub(crate) fn send_room(&self, qp: QpKey) -> Result<usize, Errno> {
        alive()?;
        let qp = self.state.qps.get(qp.0 as usize).ok_or(Errno::EINVAL)?;
        Ok((qp.cap.max_send_wr as usize).saturating_sub(qp.requester.len()))
    }

    /// After the last request of a list: puts them on their way.
    pub(crate) fn ring(&mut self, qp: QpKey) {
        if alive().is_ok() {
            self.state.pump(qp.0 as usize);
        }
    }

    pub(crate) fn post_recv(&mut self, qp: QpKey, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Errno> {
        alive()?;
        self.state.post_recv(qp.0 as usize, wr_id, sges)
    }

    pub(crate) fn post_srq_recv(&mut self, srq: SrqKey, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Errno> {
        alive()?;
        self.state.post_srq_recv(srq.0 as usize, wr_id, sges)
    }
}
