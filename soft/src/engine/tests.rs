//! Queue pairs of one process, over the real sockets of 127.0.0.1.

use super::region::{LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use super::transport::Carrier;
use super::*;
use crate::addresses;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use rdma_sys::ibv_qp_state::*;
use rdma_sys::ibv_wc_opcode::*;
use rdma_sys::ibv_wc_status::*;
use rdma_sys::{ibv_mtu, ibv_qp_attr_mask as Mask, ibv_send_flags, ibv_wc_flags};
use rdma_verbs_wire::frame::{LENGTH_BYTES, MAX_PAYLOAD};
use rdma_verbs_wire::packet::{Aeth, Header, Kind, MAX_HEADER, Nak, Place, Reth, Syndrome};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};

const ALL: u32 = LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC;
pub(super) const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
/// Far longer than anything takes that works.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn engine() -> &'static Engine {
    get().unwrap()
}

/// How the queue pairs of a test are made and connected.
#[derive(Clone, Copy)]
pub(super) struct Setup {
    pub(super) cap: ibv_qp_cap,
    pub(super) cqe: u32,
    pub(super) access: u32,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    /// 14: 1 ms.
    pub(super) min_rnr_timer: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) sq_psn: u32,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            cap: ibv_qp_cap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 8,
                max_recv_sge: 8,
                max_inline_data: 128,
            },
            cqe: 256,
            access: ALL,
            timeout: 0,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 14,
            max_rd_atomic: 4,
            // Wraps soon.
            sq_psn: 0xFF_FFFA,
        }
    }
}

/// A queue pair and what it needs.
pub(super) struct Node {
    setup: Setup,
    pd: PdKey,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    channel: Arc<Channel>,
    events: Arc<AsyncEvents>,
    pub(super) qp: QpKey,
    pub(super) number: u32,
    found: std::cell::RefCell<[VecDeque<ibv_wc>; 2]>,
}

const QP_COOKIE: Cookie = 0x1000;
const SRQ_COOKIE: Cookie = 0x2000;
const SEND_CQ_COOKIE: Cookie = 0x3000;
const RECV_CQ_COOKIE: Cookie = 0x4000;

impl Node {
    pub(super) fn new(setup: Setup) -> Node {
        Node::with_srq(setup, None)
    }

    fn with_srq(setup: Setup, srq: Option<(PdKey, SrqKey)>) -> Node {
        let pd = srq.map_or_else(|| engine().alloc_pd().unwrap(), |(pd, _)| pd);
        let channel = Arc::new(Channel::new().unwrap());
        let events = Arc::new(AsyncEvents::new().unwrap());
        let cq = |cookie| engine().create_cq(setup.cqe, Some(channel.clone()), events.clone(), cookie).unwrap();
        let (send_cq, recv_cq) = (cq(SEND_CQ_COOKIE), cq(RECV_CQ_COOKIE));
        let init = QpInit {
            pd,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: srq.map(|(_, srq)| srq),
            cap: setup.cap,
            sq_sig_all: false,
            events: events.clone(),
            cookie: QP_COOKIE,
        };
        let (qp, number) = engine().create_qp(init).unwrap();
        Node { setup, pd, send_cq, recv_cq, channel, events, qp, number, found: Default::default() }
    }

    fn modify(&self, attr: ibv_qp_attr, mask: Mask) -> Result<(), Errno> {
        engine().modify_qp(self.qp, &attr, mask.0)
    }

    fn init(&self) {
        let attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, qp_access_flags: self.setup.access, ..zero() };
        let bits = Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        self.modify(attr, bits).unwrap();
    }

    fn rtr(&self, peer: &Node) {
        self.rtr_to(peer.number, peer.setup.sq_psn);
    }

    fn rtr_to(&self, dest_qp_num: u32, rq_psn: u32) {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: ibv_mtu::IBV_MTU_1024,
            dest_qp_num,
            rq_psn,
            max_dest_rd_atomic: self.setup.max_rd_atomic,
            min_rnr_timer: self.setup.min_rnr_timer,
            ..zero()
        };
        let (index, gid) = loopback();
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.sgid_index = index;
        attr.ah_attr.grh.dgid.raw = gid;
        self.modify(attr, RTR).unwrap();
    }

    fn rts(&self) {
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: self.setup.timeout,
            retry_cnt: self.setup.retry_cnt,
            rnr_retry: self.setup.rnr_retry,
            sq_psn: self.setup.sq_psn,
            max_rd_atomic: self.setup.max_rd_atomic,
            ..zero()
        };
        self.modify(attr, RTS).unwrap();
    }

    fn set_state(&self, state: rdma_sys::ibv_qp_state::Type) -> Result<(), Errno> {
        self.modify(ibv_qp_attr { qp_state: state, ..zero() }, Mask::IBV_QP_STATE)
    }

    fn state(&self) -> rdma_sys::ibv_qp_state::Type {
        engine().query_qp(self.qp).unwrap().qp_state
    }

    pub(super) fn post(&self, wr_id: u64, operation: Operation, flags: u32, sges: &[ibv_sge]) -> Result<(), Errno> {
        let mut locked = engine().lock_to_post();
        let outcome = locked.post_send(self.qp, &SendRequest { wr_id, operation, flags, data: Data::Sges(sges) });
        locked.ring(self.qp);
        outcome
    }

    pub(super) fn send(&self, wr_id: u64, sges: &[ibv_sge]) {
        self.post(wr_id, Operation::Send, SIGNALED, sges).unwrap();
    }

    pub(super) fn recv(&self, wr_id: u64, sges: &[ibv_sge]) {
        engine().lock_to_post().post_recv(self.qp, wr_id, sges).unwrap();
    }

    /// The next completion of the send queue.
    pub(super) fn sent(&self) -> ibv_wc {
        self.wait(0)
    }

    fn received(&self) -> ibv_wc {
        self.wait(1)
    }

    fn wait(&self, which: usize) -> ibv_wc {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(wc) = self.poll(which) {
                assert_eq!(wc.qp_num, self.number);
                return wc;
            }
            assert!(Instant::now() < deadline, "no completion");
            std::thread::yield_now();
        }
    }

    pub(super) fn poll(&self, which: usize) -> Option<ibv_wc> {
        let cq = if which == 0 { &self.send_cq } else { &self.recv_cq };
        let mut found = self.found.borrow_mut();
        if found[which].is_empty() {
            let mut wcs = [const { MaybeUninit::uninit() }; 4];
            let count = engine().poll_cq(cq, &mut wcs).unwrap();
            // SAFETY: as many as the poll says are there.
            found[which].extend(wcs.into_iter().take(count).map(|wc| unsafe { wc.assume_init() }));
        }
        found[which].pop_front()
    }

    /// For a while the queues stay empty.
    fn assert_quiet(&self) {
        for _ in 0..50 {
            for which in [0, 1] {
                assert!(self.poll(which).is_none_or(|wc| panic!("unexpected: {}, status {}", wc.wr_id, wc.status)));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn event(&self) -> (u32, Cookie) {
        let event = self.events.pop().unwrap();
        (event.kind as u32, event.element)
    }

    fn region(&self, memory: &Memory, access: u32) -> Keys {
        let address = memory.base();
        let region = MemoryRegion { address, length: memory.0.len() * 8, iova: address as u64, access };
        engine().reg_mr(self.pd, region).unwrap()
    }

    /// Registered for everything.
    pub(super) fn memory(&self, bytes: usize) -> Registered {
        let memory = Memory(vec![0; bytes.div_ceil(8)]);
        let keys = self.region(&memory, ALL);
        Registered { memory, keys }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = engine().destroy_qp(self.qp);
    }
}

/// Aligned for atomics.
struct Memory(Vec<u64>);

impl Memory {
    fn base(&self) -> usize {
        self.0.as_ptr() as usize
    }
}

pub(super) struct Registered {
    memory: Memory,
    pub(super) keys: Keys,
}

impl Registered {
    pub(super) fn sge(&self, offset: usize, length: usize) -> ibv_sge {
        ibv_sge { addr: self.address(offset), length: length as u32, lkey: self.keys.lkey }
    }

    pub(super) fn address(&self, offset: usize) -> u64 {
        (self.memory.base() + offset) as u64
    }

    pub(super) fn fill(&mut self, seed: u8) {
        for (at, byte) in self.bytes_mut().iter_mut().enumerate() {
            *byte = (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8).wrapping_add(seed);
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes of the vector.
        unsafe { std::slice::from_raw_parts(self.memory.base() as *const u8, self.memory.0.len() * 8) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes of the vector.
        unsafe { std::slice::from_raw_parts_mut(self.memory.base() as *mut u8, self.memory.0.len() * 8) }
    }

    fn write(&self, offset: usize) -> Operation {
        Operation::Write { address: self.address(offset), rkey: self.keys.rkey }
    }

    fn read(&self, offset: usize) -> Operation {
        Operation::Read { address: self.address(offset), rkey: self.keys.rkey }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _ = engine().dereg_mr(self.keys.lkey);
    }
}

const RTR: Mask = Mask(1 << 0 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20);
const RTS: Mask = Mask(1 << 0 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16);

fn zero() -> ibv_qp_attr {
    // SAFETY: integers.
    unsafe { std::mem::zeroed() }
}

fn loopback() -> (u8, [u8; 16]) {
    let gid = addresses::gid(std::net::Ipv4Addr::LOCALHOST.into());
    let index = addresses::table().iter().position(|entry| entry.gid == gid).unwrap();
    (index as u8, gid)
}

fn pair_of(a: Setup, b: Setup) -> (Node, Node) {
    let (a, b) = (Node::new(a), Node::new(b));
    connect(&a, &b);
    (a, b)
}

pub(super) fn connect(a: &Node, b: &Node) {
    for node in [a, b] {
        node.init();
    }
    a.rtr(b);
    b.rtr(a);
    a.rts();
    b.rts();
}

/// To a queue pair of another process, which has the same setup.
pub(super) fn connect_to(node: &Node, number: u32) {
    node.init();
    node.rtr_to(number, node.setup.sq_psn);
    node.rts();
}

fn pair() -> (Node, Node) {
    pair_of(Setup::default(), Setup::default())
}

pub(super) fn imm(wc: &ibv_wc) -> u32 {
    // SAFETY: both fields of the union are integers.
    unsafe { wc.imm_data_invalidated_rkey_union.imm_data }
}

/// An error completion has four fields, and zeros.
fn assert_error(wc: &ibv_wc, wr_id: u64, status: rdma_sys::ibv_wc_status::Type) {
    assert_eq!((wc.wr_id, wc.status), (wr_id, status));
    assert_eq!((wc.opcode, wc.byte_len, wc.vendor_err, wc.wc_flags, imm(wc)), (IBV_WC_SEND, 0, 0, 0, 0));
}

fn assert_good(wc: &ibv_wc, wr_id: u64, opcode: rdma_sys::ibv_wc_opcode::Type, length: usize) {
    assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), (wr_id, IBV_WC_SUCCESS, opcode, length as u32));
}

#[test]
fn a_message_arrives_and_both_sides_are_told() {
    let (a, b) = pair();
    let (mut from, to) = (a.memory(100), b.memory(200));
    from.fill(1);
    b.recv(u64::MAX, &[to.sge(0, 200)]);
    a.send(0x1234_5678_9ABC_DEF0, &[from.sge(0, 100)]);
    let wc = b.received();
    assert_good(&wc, u64::MAX, IBV_WC_RECV, 100);
    assert_eq!(wc.wc_flags, ibv_wc_flags::IBV_WC_GRH.0);
    assert_good(&a.sent(), 0x1234_5678_9ABC_DEF0, IBV_WC_SEND, 100);
    assert_eq!(to.bytes()[..100], from.bytes()[..100]);
    assert!(to.bytes()[100..].iter().all(|byte| *byte == 0));
}

#[test]
fn messages_of_every_size_come_in_order_and_whole() {
    let (a, b) = pair();
    let sizes = [0, 1, 7, MAX_PAYLOAD - 1, MAX_PAYLOAD, MAX_PAYLOAD + 1, 3 * MAX_PAYLOAD, 1_000_003, 5, 0, 70_000];
    let total: usize = sizes.iter().sum();
    let (mut from, to) = (a.memory(total), b.memory(total));
    from.fill(2);
    let mut offset = 0;
    for (wr_id, size) in sizes.iter().enumerate() {
        b.recv(wr_id as u64, &[to.sge(offset, *size)]);
        a.send(100 + wr_id as u64, &[from.sge(offset, *size)]);
        offset += size;
    }
    for (wr_id, size) in sizes.iter().enumerate() {
        assert_good(&b.received(), wr_id as u64, IBV_WC_RECV, *size);
        assert_good(&a.sent(), 100 + wr_id as u64, IBV_WC_SEND, *size);
    }
    assert_eq!(to.bytes(), from.bytes());
}

#[test]
fn immediate_data_and_invalidation_come_with_the_message() {
    let (a, b) = pair();
    let (from, to) = (a.memory(8), b.memory(8));
    b.recv(1, &[to.sge(0, 8)]);
    b.recv(2, &[]);
    b.recv(3, &[to.sge(0, 8)]);
    a.post(1, Operation::SendWithImm(0xAABB_CCDD), SIGNALED, &[from.sge(0, 8)]).unwrap();
    let (address, rkey) = (to.address(0), to.keys.rkey);
    a.post(2, Operation::WriteWithImm { address, rkey, imm: 7 }, SIGNALED, &[from.sge(0, 8)]).unwrap();
    a.post(3, Operation::SendWithInv { rkey }, SIGNALED, &[from.sge(0, 4)]).unwrap();
    let wc = b.received();
    assert_good(&wc, 1, IBV_WC_RECV, 8);
    assert_eq!((wc.wc_flags, imm(&wc)), (1 | ibv_wc_flags::IBV_WC_WITH_IMM.0, 0xAABB_CCDD));
    let wc = b.received();
    assert_good(&wc, 2, IBV_WC_RECV_RDMA_WITH_IMM, 8);
    assert_eq!((wc.wc_flags, imm(&wc)), (1 | ibv_wc_flags::IBV_WC_WITH_IMM.0, 7));
    let wc = b.received();
    assert_good(&wc, 3, IBV_WC_RECV, 4);
    assert_eq!((wc.wc_flags, imm(&wc)), (1 | ibv_wc_flags::IBV_WC_WITH_INV.0, rkey));
    assert_good(&a.sent(), 1, IBV_WC_SEND, 8);
    assert_good(&a.sent(), 2, IBV_WC_RDMA_WRITE, 8);
    assert_good(&a.sent(), 3, IBV_WC_SEND, 4);
    // The key is no good any more.
    a.post(4, to.write(0), SIGNALED, &[from.sge(0, 8)]).unwrap();
    assert_error(&a.sent(), 4, IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn a_megabyte_is_written_and_read_through_many_entries() {
    const MEGABYTE: usize = 1 << 20;
    let (a, b) = pair();
    let (mut from, to, mut back) = (a.memory(MEGABYTE), b.memory(MEGABYTE), a.memory(MEGABYTE));
    from.fill(3);
    back.fill(4);
    let lengths = [1, 4095, 32768, 100_000, 0, 7, 500_000];
    let rest = MEGABYTE - lengths.iter().sum::<usize>();
    let split = |memory: &Registered| {
        let mut offset = 0;
        lengths
            .iter()
            .chain([&rest])
            .map(|length| {
                offset += length;
                memory.sge(offset - length, *length)
            })
            .collect::<Vec<_>>()
    };
    a.post(1, to.write(0), SIGNALED, &split(&from)).unwrap();
    a.post(2, to.read(0), SIGNALED | ibv_send_flags::IBV_SEND_FENCE.0, &split(&back)).unwrap();
    assert_good(&a.sent(), 1, IBV_WC_RDMA_WRITE, MEGABYTE);
    assert_eq!(to.bytes(), from.bytes());
    assert_good(&a.sent(), 2, IBV_WC_RDMA_READ, MEGABYTE);
    assert_eq!(back.bytes(), from.bytes());
    assert!(b.poll(1).is_none());
}

#[test]
fn atomics_return_what_was_there() {
    let (a, b) = pair();
    let (result, target) = (a.memory(24), b.memory(16));
    let (address, rkey) = (target.address(8), target.keys.rkey);
    let operations = [
        Operation::FetchAdd { address, rkey, add: 5 },
        Operation::CompareSwap { address, rkey, compare: 5, swap: 100 },
        Operation::CompareSwap { address, rkey, compare: 5, swap: 200 },
    ];
    for (at, operation) in operations.into_iter().enumerate() {
        a.post(at as u64, operation, SIGNALED, &[result.sge(8 * at, 8)]).unwrap();
    }
    assert_good(&a.sent(), 0, IBV_WC_FETCH_ADD, 8);
    assert_good(&a.sent(), 1, IBV_WC_COMP_SWAP, 8);
    assert_good(&a.sent(), 2, IBV_WC_COMP_SWAP, 8);
    assert_eq!(result.memory.0, [0, 5, 100]);
    assert_eq!(target.memory.0, [0, 100]);
}

#[test]
fn a_queue_pair_talks_to_itself() {
    let node = Node::new(Setup::default());
    node.init();
    node.rtr(&node);
    node.rts();
    let mut memory = node.memory(300_000);
    memory.fill(5);
    let expected = memory.bytes()[..100_000].to_vec();
    node.recv(1, &[memory.sge(100_000, 100_000)]);
    node.send(2, &[memory.sge(0, 100_000)]);
    node.post(3, memory.read(100_000), SIGNALED | ibv_send_flags::IBV_SEND_FENCE.0, &[memory.sge(200_000, 100_000)])
        .unwrap();
    assert_good(&node.received(), 1, IBV_WC_RECV, 100_000);
    assert_good(&node.sent(), 2, IBV_WC_SEND, 100_000);
    assert_good(&node.sent(), 3, IBV_WC_RDMA_READ, 100_000);
    assert_eq!(memory.bytes()[100_000..200_000], expected);
    assert_eq!(memory.bytes()[200_000..], expected);
}

#[test]
fn unsignaled_sends_are_silent_and_free_their_slot() {
    let (a, b) = pair();
    let (from, to) = (a.memory(8), b.memory(8));
    for round in 0..200 {
        b.recv(round, &[to.sge(0, 8)]);
        a.post(round, Operation::Send, if round % 8 == 7 { SIGNALED } else { 0 }, &[from.sge(0, 8)]).unwrap();
        assert_good(&b.received(), round, IBV_WC_RECV, 8);
        if round % 8 == 7 {
            assert_good(&a.sent(), round, IBV_WC_SEND, 8);
        }
    }
    assert!(a.poll(0).is_none());
}

#[test]
fn full_queues_and_long_lists_are_refused() {
    let cap = ibv_qp_cap { max_send_wr: 2, max_recv_wr: 3, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 10 };
    let (a, b) = pair_of(Setup { cap, ..Setup::default() }, Setup::default());
    let from = a.memory(64);
    let recv = |sges: &[ibv_sge]| engine().lock_to_post().post_recv(a.qp, 0, sges);
    assert_eq!(recv(&[from.sge(0, 1); 2]), Err(Errno::EINVAL));
    for _ in 0..3 {
        assert_eq!(recv(&[from.sge(0, 1)]), Ok(()));
    }
    assert_eq!(recv(&[from.sge(0, 1)]), Err(Errno::ENOMEM));
    assert_eq!(a.post(0, Operation::Send, 0, &[from.sge(0, 1); 3]), Err(Errno::EINVAL));
    let inline = |length| {
        let sges = [ibv_sge { lkey: 0, ..from.sge(0, length) }];
        let data = Data::InlineSges(&sges);
        engine().lock_to_post().post_send(a.qp, &SendRequest { wr_id: 0, operation: Operation::Send, flags: 0, data })
    };
    assert_eq!(inline(11), Err(Errno::EINVAL));
    assert_eq!(engine().lock_to_post().send_room(a.qp), Ok(2));
    assert_eq!(inline(10), Ok(()));
    assert_eq!(inline(0), Ok(()));
    assert_eq!(engine().lock_to_post().send_room(a.qp), Ok(0));
    assert_eq!(inline(0), Err(Errno::ENOMEM));
    drop(b);
}

#[test]
fn inline_data_is_copied_when_it_is_posted() {
    let (a, b) = pair();
    let (mut from, to) = (a.memory(100), b.memory(100));
    from.fill(9);
    let expected = from.bytes()[..100].to_vec();
    {
        let sges = [ibv_sge { lkey: 0, ..from.sge(0, 60) }, ibv_sge { lkey: 0, ..from.sge(60, 40) }];
        let data = Data::InlineSges(&sges);
        let request = SendRequest { wr_id: 1, operation: Operation::Send, flags: SIGNALED, data };
        let mut locked = engine().lock_to_post();
        locked.post_send(a.qp, &request).unwrap();
        // Nothing has gone out yet.
        from.bytes_mut().fill(0);
        locked.ring(a.qp);
    }
    b.recv(1, &[to.sge(0, 100)]);
    b.received();
    assert_good(&a.sent(), 1, IBV_WC_SEND, 100);
    assert_eq!(to.bytes()[..100], expected);
}

#[test]
fn a_message_that_is_too_long_fails_on_both_sides() {
    for length in [11, MAX_PAYLOAD + 5, 5 * MAX_PAYLOAD] {
        let (a, b) = pair();
        let (from, to) = (a.memory(length), b.memory(length));
        b.recv(1, &[to.sge(0, length - 1)]);
        b.recv(2, &[]);
        a.send(3, &[from.sge(0, length)]);
        a.send(4, &[]);
        assert_error(&b.received(), 1, IBV_WC_LOC_LEN_ERR);
        assert_error(&b.received(), 2, IBV_WC_WR_FLUSH_ERR);
        assert_error(&a.sent(), 3, IBV_WC_REM_INV_REQ_ERR);
        assert_error(&a.sent(), 4, IBV_WC_WR_FLUSH_ERR);
        assert_eq!((a.state(), b.state()), (IBV_QPS_ERR, IBV_QPS_ERR));
    }
}

#[test]
fn a_peer_touches_only_what_it_may() {
    let elsewhere = Node::new(Setup::default());
    let foreign = elsewhere.memory(100);
    type Case = fn(&Registered, &Node, &Registered) -> (Operation, usize, u32);
    let cases: [(&str, Case); 9] = [
        ("bad key", |to, _, _| (Operation::Write { address: to.address(0), rkey: to.keys.rkey ^ 1 }, 8, ALL)),
        ("beyond the end", |to, _, _| (to.write(95), 10, ALL)),
        ("before the begin", |to, _, _| (Operation::Read { address: to.address(0) - 1, rkey: to.keys.rkey }, 8, ALL)),
        ("at the end of all addresses", |to, _, _| {
            (Operation::Write { address: u64::MAX - 3, rkey: to.keys.rkey }, 8, ALL)
        }),
        ("another protection domain", |_, _, foreign| (foreign.write(0), 8, ALL)),
        ("region without write", |to, b, _| {
            let keys = b.region(&to.memory, LOCAL_WRITE | REMOTE_READ);
            (Operation::Write { address: to.address(0), rkey: keys.rkey }, 8, ALL)
        }),
        ("region without read", |to, b, _| {
            let keys = b.region(&to.memory, LOCAL_WRITE | REMOTE_WRITE);
            (Operation::Read { address: to.address(0), rkey: keys.rkey }, 8, ALL)
        }),
        ("queue pair without write", |to, _, _| (to.write(0), 8, ALL & !REMOTE_WRITE)),
        ("queue pair without atomics", |to, _, _| {
            let (address, rkey) = (to.address(0), to.keys.rkey);
            (Operation::FetchAdd { address, rkey, add: 1 }, 8, ALL & !REMOTE_ATOMIC)
        }),
    ];
    for (name, case) in cases {
        let (a, mut b) = (Node::new(Setup::default()), Node::new(Setup::default()));
        let (from, mut to) = (a.memory(100), b.memory(100));
        to.fill(1);
        let before = to.bytes().to_vec();
        let (operation, length, access) = case(&to, &b, &foreign);
        b.setup.access = access;
        // What the queue pair does not take at all is an invalid request.
        let (status, event) = match access {
            ALL => (IBV_WC_REM_ACCESS_ERR, ibv_event_type::IBV_EVENT_QP_ACCESS_ERR),
            _ => (IBV_WC_REM_INV_REQ_ERR, ibv_event_type::IBV_EVENT_QP_REQ_ERR),
        };
        connect(&a, &b);
        b.recv(7, &[]);
        a.post(1, operation, SIGNALED, &[from.sge(0, length)]).unwrap();
        assert_error(&a.sent(), 1, status);
        assert_eq!((a.state(), b.state()), (IBV_QPS_ERR, IBV_QPS_ERR), "{name}");
        assert_error(&b.received(), 7, IBV_WC_WR_FLUSH_ERR);
        assert!(b.poll(0).is_none());
        assert_eq!(b.event(), (event as u32, QP_COOKIE), "{name}");
        assert_eq!(to.bytes(), before, "{name}");
    }
}

#[test]
fn an_address_of_no_bytes_needs_no_key() {
    let (a, b) = pair();
    a.post(1, Operation::Write { address: 0, rkey: 0 }, SIGNALED, &[]).unwrap();
    let nothing = ibv_sge { addr: 0, length: 0, lkey: 0 };
    a.post(2, Operation::Read { address: 0, rkey: 0 }, SIGNALED, &[nothing]).unwrap();
    assert_good(&a.sent(), 1, IBV_WC_RDMA_WRITE, 0);
    assert_good(&a.sent(), 2, IBV_WC_RDMA_READ, 0);
    drop(b);
}

#[test]
fn misaligned_atomics_are_invalid_requests() {
    let (a, b) = pair();
    let (result, target) = (a.memory(8), b.memory(16));
    a.post(
        1,
        Operation::FetchAdd { address: target.address(4), rkey: target.keys.rkey, add: 1 },
        SIGNALED,
        &[result.sge(0, 8)],
    )
    .unwrap();
    assert_error(&a.sent(), 1, IBV_WC_REM_INV_REQ_ERR);
    assert_eq!(target.memory.0, [0, 0]);
    assert_eq!(b.event(), (ibv_event_type::IBV_EVENT_QP_REQ_ERR as u32, QP_COOKIE));
}

#[test]
fn a_local_error_is_nobody_elses() {
    let (a, b) = pair();
    let (from, to) = (a.memory(100), b.memory(100));
    b.recv(1, &[to.sge(0, 8)]);
    b.recv(2, &[to.sge(0, 8)]);
    a.send(1, &[from.sge(0, 8)]);
    a.post(2, Operation::Send, 0, &[ibv_sge { lkey: from.keys.lkey ^ 1, ..from.sge(0, 8) }]).unwrap();
    a.send(3, &[from.sge(0, 8)]);
    assert_good(&a.sent(), 1, IBV_WC_SEND, 8);
    // Unsignaled, and yet.
    assert_error(&a.sent(), 2, IBV_WC_LOC_PROT_ERR);
    assert_error(&a.sent(), 3, IBV_WC_WR_FLUSH_ERR);
    assert_good(&b.received(), 1, IBV_WC_RECV, 8);
    assert_eq!((a.state(), b.state()), (IBV_QPS_ERR, IBV_QPS_RTS));
    b.assert_quiet();
}

#[test]
fn a_receive_that_cannot_be_written_fails_on_both_sides() {
    for length in [8, 100_000] {
        let (a, b) = pair();
        let (from, to) = (a.memory(length), b.memory(length));
        let keys = b.region(&to.memory, REMOTE_READ);
        b.recv(1, &[ibv_sge { lkey: keys.lkey, ..to.sge(0, length) }]);
        a.send(1, &[from.sge(0, length)]);
        assert_error(&b.received(), 1, IBV_WC_LOC_PROT_ERR);
        assert_error(&a.sent(), 1, IBV_WC_REM_OP_ERR);
        assert_eq!((a.state(), b.state()), (IBV_QPS_ERR, IBV_QPS_ERR));
        engine().dereg_mr(keys.lkey).unwrap();
    }
}

#[test]
fn a_region_that_went_while_posted_fails_at_use() {
    let (a, b) = pair();
    let (from, to) = (a.memory(8), b.memory(8));
    b.recv(1, &[to.sge(0, 8)]);
    drop(to);
    a.send(1, &[from.sge(0, 8)]);
    assert_error(&b.received(), 1, IBV_WC_LOC_PROT_ERR);
    assert_error(&a.sent(), 1, IBV_WC_REM_OP_ERR);
}

#[test]
fn err_flushes_what_is_posted_and_what_will_be() {
    let (a, b) = pair();
    let to = a.memory(8);
    a.recv(1, &[to.sge(0, 8)]);
    a.recv(2, &[]);
    a.set_state(IBV_QPS_ERR).unwrap();
    a.recv(3, &[]);
    a.send(4, &[]);
    a.post(5, Operation::Send, 0, &[]).unwrap();
    for wr_id in [1, 2, 3] {
        assert_error(&a.received(), wr_id, IBV_WC_WR_FLUSH_ERR);
    }
    for wr_id in [4, 5] {
        assert_error(&a.sent(), wr_id, IBV_WC_WR_FLUSH_ERR);
    }
    assert_eq!(b.state(), IBV_QPS_RTS);
    // And back.
    a.set_state(IBV_QPS_RESET).unwrap();
    assert_eq!(engine().lock_to_post().post_recv(a.qp, 1, &[]), Err(Errno::EINVAL));
    assert_eq!(a.post(1, Operation::Send, 0, &[]), Err(Errno::EINVAL));
}

#[test]
fn queue_pairs_come_back_from_reset() {
    let (a, b) = pair();
    for round in 0..5 {
        b.recv(round, &[]);
        a.send(round, &[]);
        b.send(round, &[]);
        a.recv(round, &[]);
        assert_good(&b.received(), round, IBV_WC_RECV, 0);
        assert_good(&a.received(), round, IBV_WC_RECV, 0);
        assert_good(&a.sent(), round, IBV_WC_SEND, 0);
        assert_good(&b.sent(), round, IBV_WC_SEND, 0);
        if round % 2 == 0 {
            a.set_state(IBV_QPS_ERR).unwrap();
        }
        a.set_state(IBV_QPS_RESET).unwrap();
        b.set_state(IBV_QPS_RESET).unwrap();
        connect(&b, &a);
    }
}

#[test]
fn a_peer_that_is_not_ready_is_waited_for() {
    let (a, b) = (Node::new(Setup::default()), Node::new(Setup::default()));
    a.init();
    a.rtr(&b);
    a.rts();
    let (from, to) = (a.memory(100_000), b.memory(100_000));
    a.send(1, &[from.sge(0, 100_000)]);
    a.assert_quiet();
    b.init();
    b.recv(1, &[to.sge(0, 100_000)]);
    b.rtr(&a);
    assert_good(&b.received(), 1, IBV_WC_RECV, 100_000);
    assert_good(&a.sent(), 1, IBV_WC_SEND, 100_000);
    assert_eq!(b.event(), (ibv_event_type::IBV_EVENT_COMM_EST as u32, QP_COOKIE));
}

#[test]
fn a_message_waits_for_its_receive() {
    // With and without a promise of credits, of one packet and of several.
    for length in [8, 200_000] {
        let (a, b) = pair();
        let (mut from, to) = (a.memory(length), b.memory(length));
        from.fill(6);
        let (target, source) = (b.memory(8), b.memory(8));
        for wr_id in 0..4 {
            a.send(wr_id, &[from.sge(0, length)]);
        }
        // Behind the refused messages, and so refused with them.
        a.post(4, source.read(0), SIGNALED, &[from.sge(0, 0)]).unwrap();
        a.post(5, target.write(0), SIGNALED, &[from.sge(0, 8)]).unwrap();
        a.assert_quiet();
        for wr_id in 0..4 {
            b.recv(wr_id, &[to.sge(0, length)]);
            assert_good(&b.received(), wr_id, IBV_WC_RECV, length);
            assert_eq!(to.bytes(), from.bytes());
            assert_good(&a.sent(), wr_id, IBV_WC_SEND, length);
        }
        assert_good(&a.sent(), 4, IBV_WC_RDMA_READ, 0);
        assert_good(&a.sent(), 5, IBV_WC_RDMA_WRITE, 8);
        assert_eq!(target.bytes(), &from.bytes()[..8]);
    }
}

#[test]
fn a_write_with_immediate_data_waits_for_its_receive() {
    for length in [8, 100_000] {
        let (a, b) = pair();
        let (mut from, to) = (a.memory(length), b.memory(length));
        from.fill(7);
        let operation = Operation::WriteWithImm { address: to.address(0), rkey: to.keys.rkey, imm: 5 };
        a.post(1, operation, SIGNALED, &[from.sge(0, length)]).unwrap();
        a.post(2, operation, SIGNALED, &[from.sge(0, length)]).unwrap();
        a.assert_quiet();
        b.recv(1, &[]);
        assert_good(&b.received(), 1, IBV_WC_RECV_RDMA_WITH_IMM, length);
        assert_good(&a.sent(), 1, IBV_WC_RDMA_WRITE, length);
        b.recv(2, &[]);
        assert_good(&b.received(), 2, IBV_WC_RECV_RDMA_WITH_IMM, length);
        assert_good(&a.sent(), 2, IBV_WC_RDMA_WRITE, length);
        assert_eq!(to.bytes(), from.bytes());
    }
}

#[test]
fn rnr_retries_run_out() {
    for rnr_retry in [0, 3] {
        let (a, b) = pair_of(Setup { rnr_retry, ..Setup::default() }, Setup::default());
        a.send(1, &[]);
        a.send(2, &[]);
        assert_error(&a.sent(), 1, IBV_WC_RNR_RETRY_EXC_ERR);
        assert_error(&a.sent(), 2, IBV_WC_WR_FLUSH_ERR);
        assert_eq!((a.state(), b.state()), (IBV_QPS_ERR, IBV_QPS_RTS));
    }
}

#[test]
fn a_receive_ends_the_wait_for_the_rnr_timer() {
    // 0: 655 ms, of which a test of many rounds would take minutes.
    let (a, b) = pair_of(Setup::default(), Setup { min_rnr_timer: 0, ..Setup::default() });
    for wr_id in 0..300 {
        a.send(wr_id, &[]);
        a.poll(0);
        b.poll(1);
        b.recv(wr_id, &[]);
        assert_good(&b.received(), wr_id, IBV_WC_RECV, 0);
        a.found.borrow_mut()[0].clear();
        while engine().lock_to_post().send_room(a.qp) != Ok(64) {
            a.poll(0);
        }
    }
}

#[test]
fn credits_do_not_stop_a_stream_for_want_of_an_answer() {
    let (a, b) = pair();
    let (from, to) = (a.memory(8), b.memory(8));
    for wr_id in 0..3 {
        b.recv(wr_id, &[to.sge(0, 8)]);
    }
    let (mut posted, mut sent) = (0, 0);
    for received in 0..1000 {
        while posted - sent < 60 && posted < 1000 {
            a.send(posted, &[from.sge(0, 8)]);
            posted += 1;
        }
        assert_good(&b.received(), received, IBV_WC_RECV, 8);
        b.recv(received + 3, &[to.sge(0, 8)]);
        while let Some(wc) = a.poll(0) {
            assert_good(&wc, sent, IBV_WC_SEND, 8);
            sent += 1;
        }
    }
    while sent < 1000 {
        assert_good(&a.sent(), sent, IBV_WC_SEND, 8);
        sent += 1;
    }
}

#[test]
fn more_reads_than_may_be_outstanding_take_turns() {
    let (a, b) =
        pair_of(Setup { max_rd_atomic: 2, ..Setup::default() }, Setup { max_rd_atomic: 2, ..Setup::default() });
    const LENGTH: usize = 100_000;
    let (to, mut from) = (a.memory(20 * LENGTH), b.memory(20 * LENGTH));
    from.fill(8);
    for at in 0..20 {
        let sges = [to.sge(at * LENGTH, 1), to.sge(at * LENGTH + 1, LENGTH - 1)];
        a.post(at as u64, from.read(at * LENGTH), SIGNALED, &sges).unwrap();
    }
    for at in 0..20 {
        assert_good(&a.sent(), at, IBV_WC_RDMA_READ, LENGTH);
    }
    assert_eq!(to.bytes(), from.bytes());
}

#[test]
fn more_reads_than_the_responder_allows_are_invalid() {
    let (a, b) =
        pair_of(Setup { max_rd_atomic: 128, ..Setup::default() }, Setup { max_rd_atomic: 0, ..Setup::default() });
    let (to, from) = (a.memory(8), b.memory(8));
    a.post(1, from.read(0), SIGNALED, &[to.sge(0, 8)]).unwrap();
    assert_error(&a.sent(), 1, IBV_WC_REM_INV_REQ_ERR);
    // And at a requester that may have none, none goes out.
    b.set_state(IBV_QPS_RESET).unwrap();
    a.set_state(IBV_QPS_RESET).unwrap();
    connect(&a, &b);
    b.post(1, to.read(0), SIGNALED, &[from.sge(0, 8)]).unwrap();
    assert_error(&b.sent(), 1, IBV_WC_LOC_QP_OP_ERR);
}

#[test]
fn a_receive_withheld_until_a_read_is_done_is_no_deadlock() {
    let (a, b) = pair();
    const LENGTH: usize = 8 << 20;
    let (mut from, to) = (a.memory(LENGTH), b.memory(LENGTH));
    from.fill(9);
    b.recv(1, &[to.sge(0, LENGTH)]);
    // The first fills its receive, the second all that the sockets take.
    a.send(1, &[from.sge(0, LENGTH)]);
    a.send(2, &[from.sge(0, LENGTH)]);
    assert_good(&b.received(), 1, IBV_WC_RECV, LENGTH);
    to_zero(&to);
    b.post(3, from.read(0), SIGNALED, &[to.sge(0, LENGTH)]).unwrap();
    assert_good(&b.sent(), 3, IBV_WC_RDMA_READ, LENGTH);
    assert_eq!(to.bytes(), from.bytes());
    to_zero(&to);
    b.recv(2, &[to.sge(0, LENGTH)]);
    assert_good(&b.received(), 2, IBV_WC_RECV, LENGTH);
    assert_eq!(to.bytes(), from.bytes());
    assert_good(&a.sent(), 1, IBV_WC_SEND, LENGTH);
    assert_good(&a.sent(), 2, IBV_WC_SEND, LENGTH);
}

fn to_zero(memory: &Registered) {
    // SAFETY: the vector's bytes, which nobody else touches.
    unsafe { std::ptr::write_bytes(memory.memory.base() as *mut u8, 0, memory.memory.0.len() * 8) };
}

#[test]
fn reads_and_writes_cross_in_both_directions() {
    let (a, b) = pair();
    const LENGTH: usize = 4 << 20;
    let (mut x, mut y) = (a.memory(4 * LENGTH), b.memory(4 * LENGTH));
    x.fill(1);
    y.fill(2);
    // Each writes from its first quarter to the peer's third, and reads the peer's second into its fourth.
    for (node, own, other) in [(&a, &x, &y), (&b, &y, &x)] {
        node.post(1, other.write(2 * LENGTH), SIGNALED, &[own.sge(0, LENGTH)]).unwrap();
        node.post(2, other.read(LENGTH), SIGNALED, &[own.sge(3 * LENGTH, LENGTH)]).unwrap();
    }
    for node in [&b, &a] {
        assert_good(&node.sent(), 1, IBV_WC_RDMA_WRITE, LENGTH);
        assert_good(&node.sent(), 2, IBV_WC_RDMA_READ, LENGTH);
    }
    let part = |memory: &Registered, at: usize| memory.bytes()[at * LENGTH..(at + 1) * LENGTH].to_vec();
    for (own, other) in [(&x, &y), (&y, &x)] {
        assert!(part(own, 2) == part(other, 0));
        assert!(part(own, 3) == part(other, 1));
    }
}

#[test]
fn a_peer_that_goes_ends_what_is_outstanding() {
    let (a, b) = pair_of(Setup { timeout: 1, ..Setup::default() }, Setup::default());
    b.recv(1, &[]);
    a.send(1, &[]);
    a.sent();
    b.received();
    a.recv(10, &[]);
    a.send(2, &[]);
    drop(b);
    assert_error(&a.sent(), 2, IBV_WC_RETRY_EXC_ERR);
    assert_error(&a.received(), 10, IBV_WC_WR_FLUSH_ERR);
}

#[test]
fn a_peer_that_went_meanwhile_is_found_out_by_the_next_send() {
    let (a, b) = pair_of(Setup { timeout: 1, ..Setup::default() }, Setup::default());
    b.recv(1, &[]);
    a.send(1, &[]);
    a.sent();
    b.received();
    drop(b);
    a.assert_quiet();
    assert_eq!(a.state(), IBV_QPS_RTS);
    a.send(2, &[]);
    assert_error(&a.sent(), 2, IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn nobody_at_the_port_is_tried_until_the_retries_run_out() {
    let a = Node::new(Setup { timeout: 1, ..Setup::default() });
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = gone.local_addr().unwrap().port();
    drop(gone);
    let mut b = Node::new(Setup::default());
    let number = std::mem::replace(&mut b.number, 1 << 16 | u32::from(port));
    a.init();
    a.rtr(&b);
    a.rts();
    a.send(1, &[]);
    assert_error(&a.sent(), 1, IBV_WC_RETRY_EXC_ERR);
    b.number = number;
}

#[test]
fn a_silent_peer_is_given_up_after_its_timeouts() {
    let (a, b) = pair_of(Setup { timeout: 1, ..Setup::default() }, Setup::default());
    // In ERR packets are dropped, and nothing is said.
    b.set_state(IBV_QPS_ERR).unwrap();
    a.send(1, &[]);
    assert_error(&a.sent(), 1, IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn an_overrun_is_an_error_of_the_queue_and_of_its_users() {
    let (a, b) = pair_of(Setup { cqe: 2, ..Setup::default() }, Setup::default());
    for wr_id in 0..3 {
        b.recv(wr_id, &[]);
        a.send(wr_id, &[]);
    }
    for wr_id in 0..3 {
        assert_good(&b.received(), wr_id, IBV_WC_RECV, 0);
    }
    assert_eq!(a.event(), (ibv_event_type::IBV_EVENT_CQ_ERR as u32, SEND_CQ_COOKIE));
    assert_eq!(a.state(), IBV_QPS_ERR);
    assert_good(&a.sent(), 0, IBV_WC_SEND, 0);
    assert_good(&a.sent(), 1, IBV_WC_SEND, 0);
    assert!(engine().poll_cq(&a.send_cq, &mut [MaybeUninit::uninit()]).is_err());
}

#[test]
fn events_come_for_what_they_were_armed_for() {
    let (a, b) = pair();
    let fire = |flags, error: bool| {
        b.recv(1, &[]);
        a.post(1, Operation::Send, SIGNALED | flags, &[]).unwrap();
        if error {
            b.set_state(IBV_QPS_ERR).unwrap();
        }
        a.sent();
        b.received();
    };
    let fired = || {
        let mut poll = [nix::poll::PollFd::new(b.channel.as_fd(), nix::poll::PollFlags::POLLIN)];
        nix::poll::poll(&mut poll, nix::poll::PollTimeout::ZERO) == Ok(1)
    };
    const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;
    fire(SOLICITED, false);
    assert!(!fired());
    engine().arm(&b.recv_cq, false).unwrap();
    fire(0, false);
    assert_eq!(b.channel.pop(), Ok(RECV_CQ_COOKIE));
    fire(SOLICITED, false);
    assert!(!fired());
    engine().arm(&b.recv_cq, true).unwrap();
    fire(0, false);
    assert!(!fired());
    fire(SOLICITED, false);
    assert_eq!(b.channel.pop(), Ok(RECV_CQ_COOKIE));
    engine().arm(&b.recv_cq, true).unwrap();
    b.recv(1, &[]);
    b.set_state(IBV_QPS_ERR).unwrap();
    assert_eq!(b.channel.pop(), Ok(RECV_CQ_COOKIE));
}

#[test]
fn a_program_that_only_waits_is_served_by_the_thread() {
    let (a, b) = pair();
    let (from, to) = (a.memory(8), b.memory(8));
    for wr_id in 0..100 {
        b.recv(wr_id, &[to.sge(0, 8)]);
        engine().arm(&b.recv_cq, false).unwrap();
        engine().arm(&a.send_cq, false).unwrap();
        a.send(wr_id, &[from.sge(0, 8)]);
        assert_eq!(b.channel.pop(), Ok(RECV_CQ_COOKIE));
        assert_eq!(a.channel.pop(), Ok(SEND_CQ_COOKIE));
        assert_good(&b.received(), wr_id, IBV_WC_RECV, 8);
        assert_good(&a.sent(), wr_id, IBV_WC_SEND, 8);
    }
}

#[test]
fn one_sided_operations_go_on_while_nobody_polls() {
    let (a, b) = pair();
    let (from, to) = (a.memory(1 << 20), b.memory(1 << 20));
    // The program has polled without a break, and stops.
    for _ in 0..1000 {
        b.poll(1);
    }
    engine().arm(&a.send_cq, false).unwrap();
    a.post(1, to.write(0), SIGNALED, &[from.sge(0, 1 << 20)]).unwrap();
    assert_eq!(a.channel.pop(), Ok(SEND_CQ_COOKIE));
    assert_good(&a.sent(), 1, IBV_WC_RDMA_WRITE, 1 << 20);
}

#[test]
fn a_shared_receive_queue_serves_all_its_queue_pairs() {
    let pd = engine().alloc_pd().unwrap();
    let events = Arc::new(AsyncEvents::new().unwrap());
    let attr = ibv_srq_attr { max_wr: 8, max_sge: 1, srq_limit: 0 };
    let srq = engine().create_srq(pd, &attr, events.clone(), SRQ_COOKIE).unwrap();
    let servers: Vec<Node> = (0..3).map(|_| Node::with_srq(Setup::default(), Some((pd, srq)))).collect();
    let clients: Vec<Node> = (0..3).map(|_| Node::new(Setup::default())).collect();
    for (client, server) in clients.iter().zip(&servers) {
        connect(client, server);
    }
    assert_eq!(engine().lock_to_post().post_recv(servers[0].qp, 0, &[]), Err(Errno::EINVAL));
    let post = |wr_id| engine().lock_to_post().post_srq_recv(srq, wr_id, &[]);
    for round in 0..20 {
        // All are refused at first, and each receive is for one of them.
        clients.iter().for_each(|client| client.send(round, &[]));
        for wr_id in 0..3 {
            post(wr_id).unwrap();
        }
        let mut ids: Vec<u64> = servers.iter().map(|server| server.received().wr_id).collect();
        ids.sort();
        assert_eq!(ids, [0, 1, 2]);
        clients.iter().for_each(|client| assert_good(&client.sent(), round, IBV_WC_SEND, 0));
    }
    for wr_id in 0..8 {
        post(wr_id).unwrap();
    }
    assert_eq!(post(8), Err(Errno::ENOMEM));
    engine().modify_srq(srq, &ibv_srq_attr { srq_limit: 7, ..attr }, 2).unwrap();
    assert_eq!(engine().query_srq(srq).unwrap().srq_limit, 7);
    clients[0].send(1, &[]);
    clients[1].send(1, &[]);
    servers[0].received();
    servers[1].received();
    let event = events.pop().unwrap();
    assert_eq!((event.kind as u32, event.element), (ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED as u32, SRQ_COOKIE));
    assert_eq!(engine().query_srq(srq).unwrap().srq_limit, 0);
    // Receives of the shared queue are nobody's, and stay.
    servers[2].set_state(IBV_QPS_ERR).unwrap();
    assert_eq!(servers[2].event(), (ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED as u32, QP_COOKIE));
    assert!(servers[2].poll(1).is_none());
    assert_eq!(engine().destroy_srq(srq), Err(Errno::EBUSY));
    assert_eq!(engine().dealloc_pd(pd), Err(Errno::EBUSY));
    drop(servers);
    engine().destroy_srq(srq).unwrap();
    engine().dealloc_pd(pd).unwrap();
}

#[test]
fn a_drained_send_queue_says_so_and_goes_on() {
    let (a, b) = pair();
    a.send(1, &[]);
    let attr = ibv_qp_attr { qp_state: IBV_QPS_SQD, en_sqd_async_notify: 1, ..zero() };
    a.modify(attr, Mask::IBV_QP_STATE | Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY).unwrap();
    assert_eq!(engine().query_qp(a.qp).unwrap().sq_draining, 1);
    a.send(2, &[]);
    b.recv(1, &[]);
    b.recv(2, &[]);
    assert_good(&a.sent(), 1, IBV_WC_SEND, 0);
    assert_eq!(a.event(), (ibv_event_type::IBV_EVENT_SQ_DRAINED as u32, QP_COOKIE));
    a.assert_quiet();
    assert_eq!(engine().query_qp(a.qp).unwrap().sq_draining, 0);
    a.set_state(IBV_QPS_RTS).unwrap();
    assert_good(&a.sent(), 2, IBV_WC_SEND, 0);
}

#[test]
fn a_fence_waits_for_the_reads_in_front() {
    let (a, b) = pair();
    const LENGTH: usize = 4 << 20;
    let (to, mut from) = (a.memory(LENGTH), b.memory(LENGTH));
    from.fill(3);
    let expected = from.bytes().to_vec();
    let zeros = a.memory(LENGTH);
    a.post(1, from.read(0), SIGNALED, &[to.sge(0, LENGTH)]).unwrap();
    a.post(2, from.write(0), SIGNALED | ibv_send_flags::IBV_SEND_FENCE.0, &[zeros.sge(0, LENGTH)]).unwrap();
    assert_good(&a.sent(), 1, IBV_WC_RDMA_READ, LENGTH);
    assert_good(&a.sent(), 2, IBV_WC_RDMA_WRITE, LENGTH);
    assert!(to.bytes() == expected);
    assert!(from.bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn transitions_need_their_attributes_and_take_no_others() {
    let (a, b) = (Node::new(Setup::default()), Node::new(Setup::default()));
    let state = |state| ibv_qp_attr { qp_state: state, ..zero() };
    assert_eq!(a.set_state(IBV_QPS_RTS), Err(Errno::EINVAL));
    assert_eq!(a.set_state(IBV_QPS_INIT), Err(Errno::EINVAL));
    assert_eq!(a.set_state(IBV_QPS_ERR), Err(Errno::EINVAL));
    let init = Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
    let good = || ibv_qp_attr { port_num: 1, ..state(IBV_QPS_INIT) };
    assert_eq!(a.modify(good(), init | Mask::IBV_QP_PATH_MTU), Err(Errno::EINVAL));
    assert_eq!(a.modify(ibv_qp_attr { port_num: 2, ..state(IBV_QPS_INIT) }, init), Err(Errno::EINVAL));
    assert_eq!(a.modify(ibv_qp_attr { pkey_index: 1, port_num: 1, ..state(IBV_QPS_INIT) }, init), Err(Errno::EINVAL));
    a.modify(good(), init).unwrap();
    a.modify(good(), init).unwrap();
    assert_eq!(a.set_state(IBV_QPS_RTR), Err(Errno::EINVAL));
    let (index, gid) = loopback();
    let rtr = || {
        let mut attr = ibv_qp_attr { path_mtu: ibv_mtu::IBV_MTU_1024, dest_qp_num: b.number, ..state(IBV_QPS_RTR) };
        (attr.ah_attr.is_global, attr.ah_attr.grh.sgid_index, attr.ah_attr.grh.dgid.raw) = (1, index, gid);
        attr
    };
    type Spoil = fn(&mut ibv_qp_attr);
    let wrong: [Spoil; 6] = [
        |attr| attr.ah_attr.is_global = 0,
        |attr| attr.ah_attr.grh.sgid_index = 255,
        |attr| attr.path_mtu = 6,
        |attr| attr.max_dest_rd_atomic = 129,
        |attr| attr.min_rnr_timer = 32,
        |attr| attr.dest_qp_num = 1 << 24,
    ];
    for spoil in wrong {
        let mut attr = rtr();
        spoil(&mut attr);
        assert_eq!(a.modify(attr, RTR), Err(Errno::EINVAL));
    }
    assert_eq!(a.state(), IBV_QPS_INIT);
    a.modify(rtr(), RTR).unwrap();
    assert_eq!(a.post(1, Operation::Send, 0, &[]), Err(Errno::EINVAL));
    let rts =
        |cur_qp_state| ibv_qp_attr { timeout: 14, retry_cnt: 7, rnr_retry: 7, cur_qp_state, ..state(IBV_QPS_RTS) };
    assert_eq!(a.modify(rts(IBV_QPS_RTS), RTS | Mask::IBV_QP_CUR_STATE), Err(Errno::EINVAL));
    a.modify(rts(IBV_QPS_RTR), RTS | Mask::IBV_QP_CUR_STATE).unwrap();
    let attr = engine().query_qp(a.qp).unwrap();
    assert_eq!((attr.qp_state, attr.timeout, attr.dest_qp_num, attr.cap.max_send_wr), (IBV_QPS_RTS, 14, b.number, 64));
    assert_eq!(a.set_state(IBV_QPS_INIT), Err(Errno::EINVAL));
    a.set_state(IBV_QPS_ERR).unwrap();
    a.set_state(IBV_QPS_ERR).unwrap();
    assert_eq!(a.set_state(IBV_QPS_RTS), Err(Errno::EINVAL));
    a.set_state(IBV_QPS_RESET).unwrap();
}

#[test]
fn strangers_are_shown_the_door() {
    let (a, b) = pair();
    let (from, to) = (a.memory(100), b.memory(100));
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], engine().port()));
    let (_, gid) = loopback();
    let hello = |source_qp, destination_qp, source_gid| {
        rdma_verbs_wire::frame::Hello::Requests { source_qp, destination_qp, source_gid, destination_gid: gid }.encode()
    };
    let mut sockets = Vec::new();
    let mut random = 1u64;
    for round in 0..50 {
        let mut socket = std::net::TcpStream::connect(address).unwrap();
        let mut bytes = Vec::new();
        match round % 5 {
            0 => {}
            1 => bytes.extend_from_slice(&hello(a.number, b.number, [9; 16])),
            2 => bytes.extend_from_slice(&hello(a.number ^ 1, b.number, gid)),
            3 => bytes.extend_from_slice(&hello(a.number, 0x123, gid)),
            // From the peer's address, for the peer's queue pair: and yet not what belongs there.
            _ => bytes.extend_from_slice(&hello(a.number, b.number, gid)),
        }
        for _ in 0..random % 300 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes.push((random >> 56) as u8);
        }
        let _ = socket.write_all(&bytes);
        sockets.push(socket);
    }
    std::thread::sleep(Duration::from_millis(20));
    drop(sockets);
    for wr_id in 0..10 {
        b.recv(wr_id, &[to.sge(0, 100)]);
        a.send(wr_id, &[from.sge(0, 100)]);
        assert_good(&b.received(), wr_id, IBV_WC_RECV, 100);
        assert_good(&a.sent(), wr_id, IBV_WC_SEND, 100);
    }
}

#[test]
fn regions_come_and_go_under_traffic() {
    const LENGTH: usize = 1 << 20;
    for round in 0..20 {
        let (a, b) = pair();
        let (from, to) = (a.memory(LENGTH), b.memory(LENGTH));
        for wr_id in 0..8 {
            a.post(wr_id, if wr_id % 2 == 0 { to.write(0) } else { to.read(0) }, SIGNALED, &[from.sge(0, LENGTH)])
                .unwrap();
        }
        for _ in 0..round {
            a.poll(0).into_iter().for_each(|wc| a.found.borrow_mut()[0].push_front(wc));
        }
        let (gone, stays) = if round % 2 == 0 { (from, to) } else { (to, from) };
        engine().dereg_mr(gone.keys.lkey).unwrap();
        let before = gone.bytes().to_vec();
        let mut failed = false;
        for wr_id in 0..8 {
            let wc = a.sent();
            assert_eq!(wc.wr_id, wr_id);
            let expected = [IBV_WC_LOC_PROT_ERR, IBV_WC_REM_ACCESS_ERR];
            if failed {
                assert_eq!(wc.status, IBV_WC_WR_FLUSH_ERR);
            } else if wc.status != IBV_WC_SUCCESS {
                assert!(expected.contains(&wc.status), "status {}", wc.status);
                failed = true;
            }
        }
        assert!(gone.bytes() == before, "touched after it was deregistered");
        drop(stays);
    }
}

#[test]
fn threads_post_and_poll_at_once() {
    // A slot is free when the peer has acknowledged, not only when the program has seen the completion.
    let (a, b) = pair_of(Setup { cqe: 4096, ..Setup::default() }, Setup::default());
    let (from, to) = (a.memory(64), b.memory(64));
    const COUNT: u64 = 2000;
    for _ in 0..32 {
        b.recv(0, &[to.sge(0, 64)]);
    }
    std::thread::scope(|scope| {
        let (qp, cq) = (a.qp, a.send_cq.clone());
        let sge = from.sge(0, 64);
        scope.spawn(move || {
            for wr_id in 0..COUNT {
                loop {
                    let mut locked = engine().lock_to_post();
                    let data = Data::Sges(std::slice::from_ref(&sge));
                    let request = SendRequest { wr_id, operation: Operation::Send, flags: SIGNALED, data };
                    let outcome = locked.post_send(qp, &request);
                    locked.ring(qp);
                    drop(locked);
                    match outcome {
                        Ok(()) => break,
                        Err(error) => assert_eq!(error, Errno::ENOMEM),
                    }
                    std::thread::yield_now();
                }
            }
        });
        scope.spawn(move || {
            let mut next = 0;
            while next < COUNT {
                let mut wcs = [const { MaybeUninit::<ibv_wc>::uninit() }; 8];
                let count = engine().poll_cq(&cq, &mut wcs).unwrap();
                for wc in wcs.into_iter().take(count) {
                    // SAFETY: as many as the poll says are there.
                    let wc = unsafe { wc.assume_init() };
                    assert_eq!((wc.wr_id, wc.status), (next, IBV_WC_SUCCESS));
                    next += 1;
                }
            }
        });
        for _ in 0..COUNT {
            assert_eq!(b.received().status, IBV_WC_SUCCESS);
            b.recv(0, &[to.sge(0, 64)]);
        }
    });
}

#[test]
fn a_child_of_a_fork_has_no_device_and_its_parent_still_has() {
    let (a, b) = pair();
    b.recv(1, &[]);
    a.send(1, &[]);
    b.received();
    a.sent();
    let parent = engine();
    // SAFETY: the child does nothing but call the device, which is what is tested, and leave.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            let mut good = get().is_err_and(|error| error == Errno::ENODEV);
            good &= parent.alloc_pd() == Err(Errno::ENODEV);
            good &= parent.lock_to_post().post_recv(a.qp, 1, &[]) == Err(Errno::ENODEV);
            good &= parent.poll_cq(&a.recv_cq, &mut [MaybeUninit::uninit()]) == Err(Errno::ENODEV);
            good &= a.channel.pop().is_err();
            // SAFETY: leaves at once, as a child of a threaded program must.
            unsafe { libc::_exit(if good { 0 } else { 1 }) };
        }
        nix::unistd::ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None).unwrap();
            assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
        }
    }
    b.recv(2, &[]);
    a.send(2, &[]);
    assert_good(&b.received(), 2, IBV_WC_RECV, 0);
    assert_good(&a.sent(), 2, IBV_WC_SEND, 0);
}

#[test]
fn many_queue_pairs_of_one_process() {
    const PAIRS: usize = 300;
    let pairs: Vec<(Node, Node)> = (0..PAIRS).map(|_| pair()).collect();
    let mut numbers: Vec<u32> = pairs.iter().flat_map(|(a, b)| [a.number, b.number]).collect();
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), 2 * PAIRS);
    for round in 0..3 {
        for (a, b) in &pairs {
            b.recv(round, &[]);
            a.send(round, &[]);
        }
        for (a, b) in &pairs {
            assert_good(&b.received(), round, IBV_WC_RECV, 0);
            assert_good(&a.sent(), round, IBV_WC_SEND, 0);
        }
    }
}

/// A peer that is not the device: it says what it likes on a connection that belongs to a queue pair.
struct Fake {
    socket: std::net::TcpStream,
    node: Node,
}

const FAKE: u32 = 0x01_0001;

impl Fake {
    /// `node` expects the PSN 100.
    fn new() -> Fake {
        let node = Node::new(Setup::default());
        node.init();
        node.rtr_to(FAKE, 100);
        node.rts();
        Fake { socket: Fake::connect(&node, FAKE), node }
    }

    /// A connection for each side: the queue pair's own, which it opens because of what `post` does, and its peer's.
    fn of_both_sides(post: impl FnOnce(&Node)) -> (Fake, Fake) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let number = 0x01_0000 | u32::from(listener.local_addr().unwrap().port());
        let node = Node::new(Setup::default());
        node.init();
        node.rtr_to(number, 100);
        node.rts();
        post(&node);
        let (mut own, _) = listener.accept().unwrap();
        own.set_read_timeout(Some(PATIENCE)).unwrap();
        own.read_exact(&mut [0; rdma_verbs_wire::frame::HELLO_BYTES]).unwrap();
        let own = Fake { socket: own, node: Node::new(Setup::default()) };
        (own, Fake { socket: Fake::connect(&node, number), node })
    }

    /// A connection for the requests of the queue pair `source_qp`.
    fn connect(node: &Node, source_qp: u32) -> std::net::TcpStream {
        let (_, gid) = loopback();
        let socket = std::net::TcpStream::connect(("127.0.0.1", node.number as u16)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let hello = rdma_verbs_wire::frame::Hello::Requests {
            source_qp,
            destination_qp: node.number,
            source_gid: gid,
            destination_gid: gid,
        };
        (&socket).write_all(&hello.encode()).unwrap();
        socket
    }

    fn say(&self, psn: u32, kind: Kind, payload: &[u8]) {
        (&self.socket).write_all(&self.frame(psn, kind, payload)).unwrap();
    }

    fn frame(&self, psn: u32, kind: Kind, payload: &[u8]) -> Vec<u8> {
        let header = Header { kind, solicited: false, ack_request: false, destination_qp: self.node.number, psn };
        let mut buffer = [0; LENGTH_BYTES + MAX_HEADER];
        let length = header.encode(payload.len(), &mut buffer);
        [&buffer[..length], payload].concat()
    }

    /// The next packet; `None`: the device has closed the connection.
    fn hear(&self) -> Option<(Header, Vec<u8>)> {
        let mut socket = &self.socket;
        let mut length = [0; 4];
        socket.read_exact(&mut length).ok()?;
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        socket.read_exact(&mut frame).ok()?;
        let (header, headers) = Header::decode(&frame, frame.len()).unwrap();
        Some((header, frame.split_off(headers)))
    }

    fn assert_closed(&self) {
        assert!(self.hear().is_none());
    }
}

/// Puts another carrier around that of a connection.
pub(super) fn replace_carrier(carrier: &mut Box<dyn Carrier>, wrap: impl FnOnce(Box<dyn Carrier>) -> Box<dyn Carrier>) {
    // SAFETY: the carrier is replaced before anybody sees it again.
    let inner = unsafe { std::ptr::read(carrier) };
    // SAFETY: what was there has been taken out.
    unsafe { std::ptr::write(carrier, wrap(inner)) };
}

const ONLY: Kind = Kind::Send { place: Place::Only, imm: None, invalidate: None };

fn send_in(place: Place) -> Kind {
    Kind::Send { place, imm: None, invalidate: None }
}

#[test]
fn a_packet_out_of_its_order_ends_the_connection_and_harms_nobody() {
    for psn in [101, 100 + (1 << 22)] {
        let fake = Fake::new();
        fake.node.recv(1, &[]);
        fake.say(psn, ONLY, &[]);
        fake.assert_closed();
        assert_eq!(fake.node.state(), IBV_QPS_RTS);
        fake.node.assert_quiet();
    }
    let fake = Fake::new();
    fake.say(90, Kind::ReadRequest(Reth { address: 0, rkey: 0, length: 0 }), &[]);
    fake.assert_closed();
}

#[test]
fn a_duplicate_is_acknowledged_and_not_executed() {
    let fake = Fake::new();
    fake.node.recv(1, &[]);
    fake.node.recv(2, &[]);
    for _ in 0..2 {
        fake.say(100, ONLY, &[]);
        let (header, _) = fake.hear().unwrap();
        let Kind::Acknowledge(Aeth { syndrome: Syndrome::Ack { credits }, msn: 1 }) = header.kind else {
            panic!("{header:?}")
        };
        assert_eq!((header.psn, credits), (100, 1));
    }
    assert_good(&fake.node.received(), 1, IBV_WC_RECV, 0);
    fake.node.assert_quiet();
}

#[test]
fn requests_that_make_no_sense_are_invalid() {
    let full = vec![0; MAX_PAYLOAD];
    let write = |place, length| Kind::Write {
        place,
        reth: matches!(place, Place::First | Place::Only).then_some(Reth { address: 0, rkey: 0, length }),
        imm: None,
    };
    let read = |length| Kind::ReadRequest(Reth { address: 0, rkey: 0, length });
    let cases: [&[(Kind, &[u8])]; 10] = [
        &[(send_in(Place::Middle), &full)],
        &[(send_in(Place::Last), &[1])],
        &[(write(Place::Middle, 0), &full)],
        &[(send_in(Place::First), &full), (ONLY, &[])],
        &[(send_in(Place::First), &full), (write(Place::Last, 0), &[1])],
        &[(send_in(Place::First), &full), (read(0), &[])],
        &[(send_in(Place::First), &[1])],
        &[(write(Place::Only, 0), &[1])],
        &[(write(Place::First, 0), &full)],
        &[(read(u32::MAX), &[])],
    ];
    for case in cases {
        let fake = Fake::new();
        let room = fake.node.memory(4 * MAX_PAYLOAD);
        fake.node.recv(1, &[room.sge(0, 4 * MAX_PAYLOAD)]);
        for (at, (kind, payload)) in case.iter().enumerate() {
            fake.say(100 + at as u32, *kind, payload);
        }
        loop {
            let (header, _) = fake.hear().unwrap();
            let Kind::Acknowledge(aeth) = header.kind else { panic!("{header:?}") };
            if !matches!(aeth.syndrome, Syndrome::Ack { .. }) {
                assert_eq!(aeth.syndrome, Syndrome::Nak(Nak::InvalidRequest), "{case:?}");
                assert_eq!(header.psn, 99 + case.len() as u32);
                break;
            }
        }
        assert_error(&fake.node.received(), 1, IBV_WC_WR_FLUSH_ERR);
    }
}

#[test]
fn more_reads_at_once_than_allowed_are_invalid_and_answered_so_far() {
    let fake = Fake::new();
    let memory = fake.node.memory(4 << 20);
    // Far more than the socket takes while nobody reads.
    let reth = Reth { address: memory.address(0), rkey: memory.keys.rkey, length: 4 << 20 };
    let packets = (4 << 20) / MAX_PAYLOAD as u32;
    for at in 0..20 {
        fake.say(100 + at * packets, Kind::ReadRequest(reth), &[]);
    }
    let mut expected = 100;
    loop {
        let (header, payload) = fake.hear().unwrap();
        assert_eq!(header.psn, expected);
        match header.kind {
            Kind::ReadResponse { .. } => assert_eq!(payload.len(), MAX_PAYLOAD),
            Kind::Acknowledge(Aeth { syndrome: Syndrome::Nak(Nak::InvalidRequest), .. }) => break,
            _ => panic!("{header:?}"),
        }
        expected += 1;
    }
    assert!(expected >= 100 + 4 * packets);
    assert_eq!(fake.node.state(), IBV_QPS_ERR);
}

#[test]
fn a_message_that_finds_no_receive_is_refused_with_what_follows() {
    let fake = Fake::new();
    let refused = |psn| {
        let (header, _) = fake.hear().unwrap();
        let Kind::Acknowledge(Aeth { syndrome: Syndrome::RnrNak { timer: 14 }, .. }) = header.kind else {
            panic!("{header:?}")
        };
        assert_eq!(header.psn, psn);
    };
    fake.say(100, ONLY, &[]);
    fake.say(101, ONLY, &[]);
    fake.say(102, Kind::ReadRequest(Reth { address: 0, rkey: 0, length: 0 }), &[]);
    refused(100);
    // Too early once more.
    fake.say(100, ONLY, &[]);
    refused(100);
    fake.node.recv(1, &[]);
    // The good news.
    let (header, _) = fake.hear().unwrap();
    assert!(
        matches!(header.kind, Kind::Acknowledge(Aeth { syndrome: Syndrome::Ack { credits: 1 }, msn: 0 })),
        "{header:?}"
    );
    assert_eq!(header.psn, 99);
    fake.say(100, ONLY, &[]);
    assert_good(&fake.node.received(), 1, IBV_WC_RECV, 0);
}

#[test]
fn responses_to_nothing_end_the_connection() {
    let aeth = Aeth { syndrome: Syndrome::Ack { credits: 5 }, msn: 1 };
    let sq_psn = Setup::default().sq_psn;
    for kind in [
        Kind::Acknowledge(aeth),
        Kind::Acknowledge(Aeth { syndrome: Syndrome::Nak(Nak::RemoteAccessError), msn: 0 }),
        Kind::ReadResponse { place: Place::Only, aeth: Some(aeth) },
        Kind::AtomicAcknowledge { aeth, original: 0 },
    ] {
        let fake = Fake::new();
        fake.say(sq_psn, kind, &[]);
        fake.assert_closed();
        assert_eq!(fake.node.state(), IBV_QPS_RTS);
    }
    // And to a request of another kind: the request cannot be completed then.
    for kind in [
        Kind::ReadResponse { place: Place::Only, aeth: Some(aeth) },
        Kind::ReadResponse { place: Place::Middle, aeth: None },
        Kind::AtomicAcknowledge { aeth, original: 0 },
    ] {
        let fake = Fake::new();
        // Shows that the connection belongs to the queue pair.
        fake.node.recv(1, &[]);
        fake.say(100, ONLY, &[]);
        fake.node.received();
        fake.node.send(1, &[]);
        let payload = vec![0; if matches!(kind, Kind::ReadResponse { place: Place::Middle, .. }) { 9 } else { 0 }];
        fake.say(sq_psn, kind, &payload);
        assert_error(&fake.node.sent(), 1, IBV_WC_RETRY_EXC_ERR);
    }
}

#[test]
fn an_acknowledgement_that_overtakes_a_read_counts_when_the_read_is_done() {
    let fake = Fake::new();
    let memory = fake.node.memory(8);
    fake.node.recv(1, &[]);
    fake.say(100, ONLY, &[]);
    fake.node.received();
    fake.node.post(1, Operation::Read { address: 0, rkey: 0 }, SIGNALED, &[memory.sge(0, 8)]).unwrap();
    fake.node.post(2, Operation::Write { address: 0, rkey: 0 }, SIGNALED, &[]).unwrap();
    let sq_psn = Setup::default().sq_psn;
    let aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 2 };
    loop {
        if matches!(fake.hear().unwrap().0.kind, Kind::Write { .. }) {
            break;
        }
    }
    fake.say(sq_psn + 1, Kind::Acknowledge(aeth), &[]);
    fake.node.assert_quiet();
    fake.say(sq_psn, Kind::ReadResponse { place: Place::Only, aeth: Some(aeth) }, b"12345678");
    assert_good(&fake.node.sent(), 1, IBV_WC_RDMA_READ, 8);
    assert_good(&fake.node.sent(), 2, IBV_WC_RDMA_WRITE, 0);
    assert_eq!(memory.bytes(), b"12345678");
}

#[test]
fn a_refusal_of_what_has_arrived_ends_the_connection() {
    let fake = Fake::new();
    let memory = fake.node.memory(3 * MAX_PAYLOAD);
    fake.node.recv(1, &[]);
    fake.say(100, ONLY, &[]);
    fake.node.received();
    fake.node.send(1, &[memory.sge(0, 3 * MAX_PAYLOAD)]);
    let sq_psn = Setup::default().sq_psn;
    let tell = |psn, syndrome| fake.say(psn, Kind::Acknowledge(Aeth { syndrome, msn: 0 }), &[]);
    tell(sq_psn, Syndrome::Ack { credits: 5 });
    while !matches!(fake.hear().unwrap().0.kind, Kind::Send { place: Place::Last, .. }) {}
    tell(sq_psn + 1, Syndrome::Ack { credits: 5 });
    tell(sq_psn, Syndrome::RnrNak { timer: 1 });
    fake.assert_closed();
    assert_error(&fake.node.sent(), 1, IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn a_refusal_is_heard_though_a_response_comes_behind_the_wrong_request() {
    let fake = Fake::new();
    let memory = fake.node.memory(8);
    fake.node.recv(1, &[]);
    fake.say(100, ONLY, &[]);
    fake.node.received();
    fake.node.post(1, Operation::Read { address: 0, rkey: 0 }, SIGNALED, &[memory.sge(0, 8)]).unwrap();
    while !matches!(fake.hear().unwrap().0.kind, Kind::ReadRequest(_)) {}
    let aeth = Some(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 1 });
    let mut bytes = fake.frame(101, send_in(Place::Last), &[1]);
    bytes.extend(fake.frame(Setup::default().sq_psn, Kind::ReadResponse { place: Place::Only, aeth }, &[7; 8]));
    (&fake.socket).write_all(&bytes).unwrap();
    let invalid = |(header, _): (Header, Vec<u8>)| match header.kind {
        Kind::Acknowledge(Aeth { syndrome, .. }) => syndrome == Syndrome::Nak(Nak::InvalidRequest),
        _ => false,
    };
    while !invalid(fake.hear().expect("the refusal")) {}
    assert_error(&fake.node.sent(), 1, IBV_WC_WR_FLUSH_ERR);
    assert_eq!(memory.bytes(), [0; 8]);
}

#[test]
fn a_packet_that_was_cut_off_comes_again_over_another_connection() {
    let reth = |memory: &Registered| Reth { address: memory.address(0), rkey: memory.keys.rkey, length: 100 };
    let write = |memory: &Registered| Kind::Write { place: Place::Only, reth: Some(reth(memory)), imm: Some(5) };
    for (of_a_write, opcode) in [(false, IBV_WC_RECV), (true, IBV_WC_RECV_RDMA_WITH_IMM)] {
        let mut fake = Fake::new();
        let memory = fake.node.memory(104);
        fake.node.recv(1, &[memory.sge(0, 100)]);
        let kind = if of_a_write { write(&memory) } else { ONLY };
        let frame = fake.frame(100, kind, &[7; 100]);
        (&fake.socket).write_all(&frame[..frame.len() - 50]).unwrap();
        fake.node.assert_quiet();
        fake.socket = Fake::connect(&fake.node, FAKE);
        (&fake.socket).write_all(&frame).unwrap();
        assert_good(&fake.node.received(), 1, opcode, 100);
        assert_eq!(memory.bytes()[..100], [7; 100]);
    }
}

/// A program must not hear of an answer before its own request has completed.
#[test]
fn an_acknowledgement_comes_before_what_is_posted_after_it() {
    let (own, fake) = Fake::of_both_sides(|node| {
        node.recv(1, &[]);
        node.post(1, Operation::Write { address: 0, rkey: 0 }, 0, &[]).unwrap();
    });
    fake.say(100, ONLY, &[]);
    fake.node.received();
    // It is acknowledged over the peer's connection.
    assert_eq!(fake.hear().unwrap().0.psn, 100);
    fake.node.post(2, Operation::Write { address: 0, rkey: 0 }, 0, &[]).unwrap();
    let kinds: Vec<Kind> = (0..3).map(|_| own.hear().unwrap().0.kind).collect();
    assert!(matches!(kinds[0], Kind::Write { .. }));
    assert!(matches!(kinds[1], Kind::Acknowledge(Aeth { syndrome: Syndrome::Ack { .. }, msn: 1 })), "{kinds:?}");
    assert!(matches!(kinds[2], Kind::Write { .. }));
}

/// With a connection for each side an acknowledgement may come while a read response is half there.
#[test]
fn a_read_response_goes_on_after_an_acknowledgement_over_the_other_connection() {
    let mut to = None;
    let (own, fake) = Fake::of_both_sides(|node| {
        let to = to.insert(node.memory(100));
        node.post(1, Operation::Write { address: 0, rkey: 0 }, 0, &[]).unwrap();
        node.post(2, Operation::Read { address: 0, rkey: 0 }, SIGNALED, &[to.sge(0, 100)]).unwrap();
    });
    let to = to.expect("the memory of the read");
    let (write, _) = own.hear().unwrap();
    let (read, _) = own.hear().unwrap();
    assert!(matches!(read.kind, Kind::ReadRequest(_)));
    // The peer's connection is there when it is heard of.
    fake.node.recv(3, &[]);
    fake.say(100, ONLY, &[]);
    fake.node.received();

    let ack = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 1 };
    let response = Kind::ReadResponse { place: Place::Only, aeth: Some(Aeth { msn: 2, ..ack }) };
    let frame = fake.frame(read.psn, response, &[7; 100]);
    let (begin, rest) = frame.split_at(frame.len() - 50);
    let look = || (0..100).for_each(|_| assert!(fake.node.poll(0).is_none()));
    (&own.socket).write_all(begin).unwrap();
    look();
    fake.say(write.psn, Kind::Acknowledge(ack), &[]);
    look();
    (&own.socket).write_all(rest).unwrap();
    assert_good(&fake.node.sent(), 2, IBV_WC_RDMA_READ, 100);
    assert_eq!(to.bytes()[..100], [7; 100]);
}

/// What a program receives by polling is acknowledged with its next post or its next look; if it does something else, with
/// that.
#[test]
fn a_program_that_stops_polling_leaves_no_acknowledgement_behind() {
    let after: [fn(&Node); 2] =
        [|node| engine().arm(&node.recv_cq, false).unwrap(), |node| assert_eq!(node.state(), IBV_QPS_RTS)];
    for then in after {
        let fake = Fake::new();
        // Sooner than the thread has anything else to do, which is after 5 seconds.
        fake.socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        fake.node.recv(1, &[]);
        // Long enough for the thread to leave the sockets to the program, unless another test keeps it from that.
        for _ in 0..1000 {
            fake.node.poll(1);
        }
        fake.say(100, ONLY, &[]);
        fake.node.received();
        then(&fake.node);
        assert_eq!(fake.hear().unwrap().0.psn, 100);
    }
}

/// Never comes to its end: writes of the longest packets, one behind the other.
struct Endless {
    inner: Box<dyn Carrier>,
    node: u32,
    place: Reth,
    psn: Cell<u32>,
    /// Of the packet that is coming.
    rest: RefCell<VecDeque<u8>>,
}

impl AsFd for Endless {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl Carrier for Endless {
    fn send(&self, places: &[libc::iovec]) -> Result<usize, Errno> {
        self.inner.send(places)
    }

    fn receive(&self, places: &mut [libc::iovec]) -> Result<usize, Errno> {
        let mut rest = self.rest.borrow_mut();
        let mut count = 0;
        for place in places {
            while rest.len() < place.iov_len {
                let kind = Kind::Write { place: Place::Only, reth: Some(self.place), imm: None };
                let psn = self.psn.replace(self.psn.get() + 1);
                let header = Header { kind, solicited: false, ack_request: false, destination_qp: self.node, psn };
                let mut buffer = [0; LENGTH_BYTES + MAX_HEADER];
                let length = header.encode(MAX_PAYLOAD, &mut buffer);
                rest.extend(&buffer[..length]);
                rest.extend(std::iter::repeat_n(7, MAX_PAYLOAD));
            }
            for at in 0..place.iov_len {
                let byte = rest.pop_front().expect("filled up");
                // SAFETY: room that the caller gives.
                unsafe { *place.iov_base.cast::<u8>().wrapping_add(at) = byte };
            }
            count += place.iov_len;
        }
        Ok(count)
    }

    fn moved(&self) -> u64 {
        self.inner.moved()
    }

    fn into_socket(self: Box<Self>) -> Tracked<TcpStream> {
        self.inner.into_socket()
    }
}

#[test]
fn connections_that_always_bring_something_do_not_keep_others_waiting() {
    let busy: Vec<_> = (0..3)
        .map(|_| {
            let fake = Fake::new();
            fake.node.recv(1, &[]);
            fake.say(100, ONLY, &[]);
            fake.node.received();
            let room = fake.node.memory(MAX_PAYLOAD);
            (fake, room)
        })
        .collect();
    let other = Fake::new();
    other.node.recv(1, &[]);
    other.say(100, ONLY, &[]);
    other.node.received();
    other.node.recv(2, &[]);

    let mut locked = engine().lock();
    for (fake, room) in &busy {
        // Readable from now on.
        (&fake.socket).write_all(&[0]).unwrap();
        let c = locked.state.qps[fake.node.qp.0 as usize].responder.link.unwrap();
        let place = Reth { address: room.address(0), rkey: room.keys.rkey, length: MAX_PAYLOAD as u32 };
        replace_carrier(&mut locked.state.streams[c].stream.carrier, |inner| {
            let (psn, rest) = (Cell::new(101), RefCell::default());
            Box::new(Endless { inner, node: fake.node.number, place, psn, rest })
        });
    }
    locked.state.serve();
    other.say(101, ONLY, &[]);
    for _ in 0..100 {
        locked.state.serve();
    }
    assert_eq!(other.node.recv_cq.take(&mut [MaybeUninit::uninit()]), Ok(1));
    // Before anybody else serves them.
    for (fake, _) in &busy {
        locked.state.disconnect(fake.node.qp.0 as usize);
    }
}

/// It may end as soon as it knows.
#[test]
fn a_program_that_waits_is_woken_when_what_it_waits_for_has_been_acknowledged() {
    let fake = Fake::new();
    fake.node.recv(1, &[]);
    fake.say(100, ONLY, &[]);
    fake.node.received();
    fake.node.recv(2, &[]);
    engine().arm(&fake.node.recv_cq, false).unwrap();
    let mut wakes = [PollFd::new(fake.node.channel.as_fd(), PollFlags::POLLIN)];
    let mut woken = move || nix::poll::poll(&mut wakes, PollTimeout::ZERO) == Ok(1);

    let mut locked = engine().lock();
    fake.say(101, ONLY, &[]);
    let deadline = Instant::now() + PATIENCE;
    while fake.node.recv_cq.take(&mut [MaybeUninit::uninit()]) == Ok(0) {
        assert!(Instant::now() < deadline);
        locked.state.serve();
    }
    assert!(!woken());
    drop(locked);
    assert!(woken());
    while fake.hear().unwrap().0.psn != 101 {}
}

#[test]
fn what_is_in_front_of_memory_that_is_gone_is_done() {
    let (a, b) = pair();
    let (own, result, counter) = (a.memory(4096), a.memory(8), b.memory(8));
    let gone = |node: &Node| {
        let length = 64 << 10;
        // SAFETY: new memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let address = start as usize;
        let region = MemoryRegion { address, length, iova: address as u64, access: ALL };
        let keys = engine().reg_mr(node.pd, region).unwrap();
        // Not unmapped: another test might get it. SAFETY: that memory.
        assert_eq!(unsafe { libc::mprotect(start, length, libc::PROT_NONE) }, 0);
        (address as u64, keys)
    };
    let ((mine, mine_keys), (theirs, theirs_keys)) = (gone(&a), gone(&b));
    let post = |requests: &[(u64, Operation, ibv_sge)]| {
        let mut locked = engine().lock_to_post();
        for &(wr_id, operation, sge) in requests {
            let request = SendRequest { wr_id, operation, flags: SIGNALED, data: Data::Sges(&[sge]) };
            locked.post_send(a.qp, &request).unwrap();
        }
        locked.ring(a.qp);
    };
    // An answer that can be given, and one that cannot.
    post(&[
        (1, Operation::FetchAdd { address: counter.address(0), rkey: counter.keys.rkey, add: 1 }, result.sge(0, 8)),
        (2, Operation::Read { address: theirs, rkey: theirs_keys.rkey }, own.sge(0, 4096)),
    ]);
    assert_good(&a.sent(), 1, IBV_WC_FETCH_ADD, 8);
    assert_error(&a.sent(), 2, IBV_WC_REM_ACCESS_ERR);

    // A request that can be sent, and one that cannot.
    let (a, b) = (&a, Node::new(Setup::default()));
    for node in [a, &b] {
        node.set_state(IBV_QPS_RESET).unwrap();
    }
    connect(a, &b);
    let to = b.memory(4096);
    post(&[
        (3, to.write(0), own.sge(0, 8)),
        (4, to.write(0), ibv_sge { addr: mine, length: 4096, lkey: mine_keys.lkey }),
    ]);
    assert_good(&a.sent(), 3, IBV_WC_RDMA_WRITE, 8);
    assert_error(&a.sent(), 4, IBV_WC_LOC_PROT_ERR);
}

#[test]
fn inline_data_needs_no_entry() {
    let cap = ibv_qp_cap { max_send_sge: 0, ..Setup::default().cap };
    let (a, b) = pair_of(Setup { cap, ..Setup::default() }, Setup::default());
    let (from, to) = (a.memory(8), b.memory(8));
    let mut locked = engine().lock_to_post();
    let mut post = |data: Data<'_>| {
        locked.post_send(a.qp, &SendRequest { wr_id: 1, operation: to.write(0), flags: SIGNALED, data })
    };
    assert_eq!(post(Data::Sges(&[from.sge(0, 8)])), Err(Errno::EINVAL));
    assert_eq!(post(Data::InlineSges(&[from.sge(0, 4), from.sge(4, 4)])), Err(Errno::EINVAL));
    post(Data::InlineSges(&[from.sge(0, 8)])).unwrap();
    locked.ring(a.qp);
    drop(locked);
    assert_good(&a.sent(), 1, IBV_WC_RDMA_WRITE, 8);
}

#[test]
fn random_bytes_of_the_peer_end_its_connection_at_most() {
    let mut random = 7u64;
    for _ in 0..200 {
        let fake = Fake::new();
        let room = fake.node.memory(100);
        fake.node.recv(1, &[room.sge(0, 100)]);
        let mut bytes = Vec::new();
        for _ in 0..400 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes.push((random >> 56) as u8);
        }
        // A length and an opcode that are plausible now and then.
        bytes[..4].copy_from_slice(&(12 + random as u32 % 64).to_be_bytes());
        bytes[4] %= 0x18;
        bytes[5..8].copy_from_slice(&[0x40, 0xFF, 0xFF]);
        bytes[8..12].copy_from_slice(&fake.node.number.to_be_bytes());
        bytes[12..16].copy_from_slice(&100u32.to_be_bytes());
        let _ = (&fake.socket).write_all(&bytes);
        while fake.hear().is_some() {}
    }
}
