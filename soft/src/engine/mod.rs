//! Queue pairs and what they need, without a C object in sight.
//!
//! One lock holds all state but the rings of completion queues, which have their own, so that finding a completion
//! does not wait for the engine. Order: engine, then ring.

use crate::event_queue::EventQueue;
use nix::errno::Errno;
use rdma_sys::{ibv_event_type, ibv_qp_attr, ibv_qp_cap, ibv_sge, ibv_srq_attr, ibv_wc};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

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

/// A completion queue.
pub(crate) struct Cq {
    _todo: (),
}

impl Cq {
    /// Completions that fit.
    pub(crate) fn capacity(&self) -> u32 {
        todo!()
    }
}

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
    SendWithInv { rkey: u32 },
    Write { address: u64, rkey: u32 },
    WriteWithImm { address: u64, rkey: u32, imm: u32 },
    Read { address: u64, rkey: u32 },
    CompareSwap { address: u64, rkey: u32, compare: u64, swap: u64 },
    FetchAdd { address: u64, rkey: u32, add: u64 },
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
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    /// Bytes that came behind the first frame.
    pub(crate) rest: Vec<u8>,
}

/// The engine; starts its thread and its first listener at the first call. ENODEV in a child of a fork whose parent had
/// started it.
pub(crate) fn get() -> Result<&'static Engine, Errno> {
    todo!()
}

pub(crate) struct Engine {
    _todo: (),
}

/// The engine, locked: for a list of requests.
pub(crate) struct Locked<'a> {
    _todo: &'a (),
}

impl Engine {
    /// The TCP port at which this process is reached for connection management.
    pub(crate) fn port(&self) -> u16 {
        todo!()
    }

    pub(crate) fn alloc_pd(&self) -> Result<PdKey, Errno> {
        todo!()
    }

    /// EBUSY while a region, queue pair or shared receive queue belongs to it.
    pub(crate) fn dealloc_pd(&self, _pd: PdKey) -> Result<(), Errno> {
        todo!()
    }

    /// EINVAL for rights that contradict each other (remote write or atomic without local write).
    pub(crate) fn reg_mr(&self, _pd: PdKey, _region: MemoryRegion) -> Result<Keys, Errno> {
        todo!()
    }

    /// From the return on the memory is not touched.
    pub(crate) fn dereg_mr(&self, _lkey: u32) -> Result<(), Errno> {
        todo!()
    }

    pub(crate) fn create_cq(
        &self, _cqe: u32, _channel: Option<Arc<Channel>>, _events: Arc<AsyncEvents>, _cookie: Cookie,
    ) -> Result<Arc<Cq>, Errno> {
        todo!()
    }

    /// EINVAL where more completions are waiting than would fit.
    pub(crate) fn resize_cq(&self, _cq: &Arc<Cq>, _cqe: u32) -> Result<(), Errno> {
        todo!()
    }

    /// EBUSY while a queue pair uses it. Withdraws its events.
    pub(crate) fn destroy_cq(&self, _cq: &Arc<Cq>) -> Result<(), Errno> {
        todo!()
    }

    /// Takes completions; where there is none, moves the sockets on first, unless another thread does. Less than asked
    /// for means that there are no more. `Err` after an overrun.
    pub(crate) fn poll_cq(&self, _cq: &Cq, _to: &mut [MaybeUninit<ibv_wc>]) -> Result<usize, Errno> {
        todo!()
    }

    /// The next completion (or the next solicited or failed one) makes an event.
    pub(crate) fn arm(&self, _cq: &Cq, _solicited_only: bool) -> Result<(), Errno> {
        todo!()
    }

    pub(crate) fn create_srq(
        &self, _pd: PdKey, _attr: &ibv_srq_attr, _events: Arc<AsyncEvents>, _cookie: Cookie,
    ) -> Result<SrqKey, Errno> {
        todo!()
    }

    /// `mask`: `IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT`.
    pub(crate) fn modify_srq(&self, _srq: SrqKey, _attr: &ibv_srq_attr, _mask: u32) -> Result<(), Errno> {
        todo!()
    }

    pub(crate) fn query_srq(&self, _srq: SrqKey) -> Result<ibv_srq_attr, Errno> {
        todo!()
    }

    /// EBUSY while a queue pair uses it.
    pub(crate) fn destroy_srq(&self, _srq: SrqKey) -> Result<(), Errno> {
        todo!()
    }

    /// In RESET. Returns the queue pair's number, too.
    pub(crate) fn create_qp(&self, _init: QpInit) -> Result<(QpKey, u32), Errno> {
        todo!()
    }

    /// `mask`: `IBV_QP_*`. EINVAL for a transition that is none, an attribute that is missing or not allowed
    /// in it, or a value out of range.
    pub(crate) fn modify_qp(&self, _qp: QpKey, _attr: &ibv_qp_attr, _mask: u32) -> Result<(), Errno> {
        todo!()
    }

    pub(crate) fn query_qp(&self, _qp: QpKey) -> Result<ibv_qp_attr, Errno> {
        todo!()
    }

    /// Takes the completions and asynchronous events of the queue pair away with it.
    pub(crate) fn destroy_qp(&self, _qp: QpKey) -> Result<(), Errno> {
        todo!()
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        todo!()
    }
}

impl Locked<'_> {
    /// EINVAL in RESET, INIT and RTR, for too many entries and too much inline data; ENOMEM where the queue is full.
    pub(crate) fn post_send(&mut self, _qp: QpKey, _request: &SendRequest<'_>) -> Result<(), Errno> {
        todo!()
    }

    /// How many more requests the send queue takes.
    pub(crate) fn send_room(&self, _qp: QpKey) -> Result<usize, Errno> {
        todo!()
    }

    /// After the last request of a list: puts them on their way.
    pub(crate) fn ring(&mut self, _qp: QpKey) {
        todo!()
    }

    pub(crate) fn post_recv(&mut self, _qp: QpKey, _wr_id: u64, _sges: &[ibv_sge]) -> Result<(), Errno> {
        todo!()
    }

    pub(crate) fn post_srq_recv(&mut self, _srq: SrqKey, _wr_id: u64, _sges: &[ibv_sge]) -> Result<(), Errno> {
        todo!()
    }
}
