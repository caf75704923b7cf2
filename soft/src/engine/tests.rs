//! Queue pairs of one process, over the real sockets of 127.0.0.1.

use super::region::{LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use super::*;
use crate::addresses;
use rdma_sys::ibv_qp_state::*;
use rdma_sys::ibv_wc_opcode::*;
use rdma_sys::ibv_wc_status::*;
use rdma_sys::{ibv_mtu, ibv_qp_attr_mask as Mask, ibv_send_flags, ibv_wc_flags};
use rdma_verbs_wire::frame::MAX_PAYLOAD;
use std::collections::VecDeque;
use std::io::Write as _;

const ALL: u32 = LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC;
const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
/// Far longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(30);

fn engine() -> &'static Engine {
    get().unwrap()
}

/// How the queue pairs of a test are made and connected.
#[derive(Clone, Copy)]
struct Setup {
    cap: ibv_qp_cap,
    cqe: u32,
    access: u32,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    /// 14: 1 ms.
    min_rnr_timer: u8,
    max_rd_atomic: u8,
    sq_psn: u32,
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
struct Node {
    setup: Setup,
    pd: PdKey,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    channel: Arc<Channel>,
    events: Arc<AsyncEvents>,
    qp: QpKey,
    number: u32,
    found: std::cell::RefCell<[VecDeque<ibv_wc>; 2]>,
}

const QP_COOKIE: Cookie = 0x1000;
const SRQ_COOKIE: Cookie = 0x2000;
const SEND_CQ_COOKIE: Cookie = 0x3000;
const RECV_CQ_COOKIE: Cookie = 0x4000;

impl Node {
    fn new(setup: Setup) -> Node {
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
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: ibv_mtu::IBV_MTU_1024,
            dest_qp_num: peer.number,
            rq_psn: peer.setup.sq_psn,
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

    fn post(&self, wr_id: u64, operation: Operation, flags: u32, sges: &[ibv_sge]) -> Result<(), Errno> {
        let mut locked = engine().lock();
        let outcome = locked.post_send(self.qp, &SendRequest { wr_id, operation, flags, data: Data::Sges(sges) });
        locked.ring(self.qp);
        outcome
    }

    fn send(&self, wr_id: u64, sges: &[ibv_sge]) {
        self.post(wr_id, Operation::Send, SIGNALED, sges).unwrap();
    }

    fn recv(&self, wr_id: u64, sges: &[ibv_sge]) {
        engine().lock().post_recv(self.qp, wr_id, sges).unwrap();
    }

    /// The next completion of the send queue.
    fn sent(&self) -> ibv_wc {
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

    fn poll(&self, which: usize) -> Option<ibv_wc> {
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
    fn memory(&self, bytes: usize) -> Registered {
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

struct Registered {
    memory: Memory,
    keys: Keys,
}

impl Registered {
    fn sge(&self, offset: usize, length: usize) -> ibv_sge {
        ibv_sge { addr: self.address(offset), length: length as u32, lkey: self.keys.lkey }
    }

    fn address(&self, offset: usize) -> u64 {
        (self.memory.base() + offset) as u64
    }

    fn fill(&mut self, seed: u8) {
        for (at, byte) in self.bytes_mut().iter_mut().enumerate() {
            *byte = (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8).wrapping_add(seed);
        }
    }

    fn bytes(&self) -> &[u8] {
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

fn connect(a: &Node, b: &Node) {
    for node in [a, b] {
        node.init();
    }
    a.rtr(b);
    b.rtr(a);
    a.rts();
    b.rts();
}

fn pair() -> (Node, Node) {
    pair_of(Setup::default(), Setup::default())
}

fn imm(wc: &ibv_wc) -> u32 {
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
        lengths.iter().chain([&rest]).map(|length| {
            offset += length;
            memory.sge(offset - length, *length)
        }).collect::<Vec<_>>()
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
