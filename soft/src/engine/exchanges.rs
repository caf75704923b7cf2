//! Random exchanges between two queue pairs, over carriers that move a few bytes at a time.

use super::tests::{Node, PATIENCE, Registered, SIGNALED, Setup, connect, engine, imm, replace_carrier};
use super::transport::Carrier;
use super::*;
use libc::iovec;
use proptest::prelude::*;
use rdma_sys::ibv_send_flags;
use rdma_sys::ibv_wc_opcode::*;
use rdma_sys::ibv_wc_status::IBV_WC_SUCCESS;
use rdma_verbs_wire::frame::MAX_PAYLOAD;
use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};

/// Takes and gives a random part of what it could.
struct Choppy {
    inner: Box<dyn Carrier>,
    random: Cell<u64>,
}

impl Choppy {
    fn random(&self) -> u64 {
        self.random
            .set(self.random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        self.random.get() >> 33
    }

    /// The first bytes of some places.
    fn part(&self, places: &[iovec]) -> Result<Vec<iovec>, Errno> {
        let mut bytes = match self.random() % 16 {
            0 => return Err(Errno::EAGAIN),
            1..6 => 1 + self.random() % 40,
            6..14 => 1 + self.random() % 5000,
            _ => u64::MAX,
        };
        let mut part = Vec::new();
        for place in places {
            let length = place.iov_len.min(bytes as usize);
            part.push(iovec { iov_len: length, ..*place });
            bytes -= length as u64;
            if bytes == 0 {
                break;
            }
        }
        Ok(part)
    }
}

impl AsFd for Choppy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl Carrier for Choppy {
    fn send(&self, places: &[iovec]) -> Result<usize, Errno> {
        self.inner.send(&self.part(places)?)
    }

    fn receive(&self, places: &mut [iovec]) -> Result<usize, Errno> {
        self.inner.receive(&mut self.part(places)?)
    }

    fn moved(&self) -> u64 {
        self.inner.moved()
    }

    fn into_socket(self: Box<Self>) -> Tracked<TcpStream> {
        self.inner.into_socket()
    }
}

#[derive(Clone, Copy, Debug)]
enum What {
    Send,
    SendWithImm,
    Write,
    WriteWithImm,
    Read,
    FetchAdd,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    what: What,
    length: usize,
    flags: u32,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let what = prop_oneof![
        Just(What::Send),
        Just(What::SendWithImm),
        Just(What::Write),
        Just(What::WriteWithImm),
        Just(What::Read),
        Just(What::FetchAdd),
    ];
    let length = prop_oneof![Just(0), 1..200_usize, MAX_PAYLOAD - 2..MAX_PAYLOAD + 3, 0..SLOT];
    let step = (what, length, any::<bool>(), any::<bool>()).prop_map(|(what, length, signaled, fence)| Step {
        what,
        length,
        flags: if signaled { SIGNALED } else { 0 } | if fence { ibv_send_flags::IBV_SEND_FENCE.0 } else { 0 },
    });
    prop::collection::vec(step, 1..16).prop_map(|mut steps| {
        // When it is done, so are those in front.
        steps.last_mut().expect("one at least").flags |= SIGNALED;
        steps
    })
}

const SLOT: usize = 100_000;
const SLOTS: usize = 16;

/// A queue pair, what it does, and its memory: for each step a slot to send from, one to read into, and one for the peer.
struct Side<'a> {
    node: Node,
    steps: &'a [Step],
    from: Registered,
    result: Registered,
    to: Registered,
    counter: Registered,
    sent: usize,
    received: usize,
}

impl<'a> Side<'a> {
    fn new(steps: &'a [Step], seed: u8) -> Side<'a> {
        let node = Node::new(Setup::default());
        let memory = || node.memory(SLOTS * SLOT);
        let (mut from, result, to, counter) = (memory(), memory(), memory(), node.memory(8));
        from.fill(seed);
        Side { node, steps, from, result, to, counter, sent: 0, received: 0 }
    }

    /// The peer's steps that take a receive, with their slots.
    fn arrivals(peer: &'a [Step]) -> impl Iterator<Item = (usize, Step)> + 'a {
        let takes = |step: &Step| matches!(step.what, What::Send | What::SendWithImm | What::WriteWithImm);
        peer.iter().copied().enumerate().filter(move |(_, step)| takes(step))
    }

    fn post_receives(&self, peer: &[Step]) {
        for (slot, _) in Side::arrivals(peer) {
            self.node.recv(slot as u64, &[self.to.sge(slot * SLOT, SLOT)]);
        }
    }

    fn post(&self, at: usize, peer: &Side<'_>) {
        let step = self.steps[at];
        let (offset, imm) = (at * SLOT, at as u32);
        let place = |memory: &Registered| (memory.address(offset), memory.keys.rkey);
        let mut sge = self.from.sge(offset, step.length);
        let operation = match step.what {
            What::Send => Operation::Send,
            What::SendWithImm => Operation::SendWithImm(imm),
            What::Write => {
                let (address, rkey) = place(&peer.to);
                Operation::Write { address, rkey }
            }
            What::WriteWithImm => {
                let (address, rkey) = place(&peer.to);
                Operation::WriteWithImm { address, rkey, imm }
            }
            What::Read => {
                sge = self.result.sge(offset, step.length);
                let (address, rkey) = place(&peer.from);
                Operation::Read { address, rkey }
            }
            What::FetchAdd => {
                sge = self.result.sge(offset, 8);
                Operation::FetchAdd { address: peer.counter.address(0), rkey: peer.counter.keys.rkey, add: 1 }
            }
        };
        self.node.post(at as u64, operation, step.flags, &[sge]).unwrap();
    }

    /// Takes completions, which must be the next ones.
    fn poll(&mut self, peer: &[Step]) {
        while let Some(wc) = self.node.poll(0) {
            let at = (self.sent..).find(|at| self.steps[*at].flags & SIGNALED != 0).expect("endless");
            let step = self.steps[at];
            let (opcode, length) = match step.what {
                What::Send | What::SendWithImm => (IBV_WC_SEND, step.length),
                What::Write | What::WriteWithImm => (IBV_WC_RDMA_WRITE, step.length),
                What::Read => (IBV_WC_RDMA_READ, step.length),
                What::FetchAdd => (IBV_WC_FETCH_ADD, 8),
            };
            let seen = (wc.status, wc.wr_id, wc.opcode, wc.byte_len);
            assert_eq!(seen, (IBV_WC_SUCCESS, at as u64, opcode, length as u32));
            self.sent = at + 1;
        }
        while let Some(wc) = self.node.poll(1) {
            let (slot, step) = Side::arrivals(peer).nth(self.received).expect("no more than were posted");
            let (opcode, has_imm) = match step.what {
                What::WriteWithImm => (IBV_WC_RECV_RDMA_WITH_IMM, true),
                what => (IBV_WC_RECV, matches!(what, What::SendWithImm)),
            };
            // Receives are in the order of the slots.
            let seen = (wc.status, wc.wr_id, wc.opcode, wc.byte_len);
            assert_eq!(seen, (IBV_WC_SUCCESS, slot as u64, opcode, step.length as u32));
            if has_imm {
                assert_eq!(imm(&wc), slot as u32);
            }
            self.received += 1;
        }
    }

    fn is_done(&self, peer: &[Step]) -> bool {
        self.sent == self.steps.len() && self.received == Side::arrivals(peer).count()
    }

    /// What its steps were to do has been done, once and in order.
    fn check(&self, peer: &Side<'_>) {
        let mut count = 0u64;
        for (at, step) in self.steps.iter().enumerate() {
            let slot = |memory: &Registered, length| memory.bytes()[at * SLOT..at * SLOT + length].to_vec();
            match step.what {
                What::Read => assert!(slot(&self.result, step.length) == slot(&peer.from, step.length), "step {at}"),
                What::FetchAdd => {
                    assert_eq!(slot(&self.result, 8), count.to_ne_bytes());
                    count += 1;
                }
                _ => assert!(slot(&peer.to, step.length) == slot(&self.from, step.length), "step {at}"),
            }
        }
        assert_eq!(peer.counter.bytes(), count.to_ne_bytes());
    }

    /// The connections for its own requests and for those of its peer.
    fn links(&self) -> [Option<usize>; 2] {
        let locked = engine().lock();
        let qp = &locked.state.qps[self.node.qp.0 as usize];
        [qp.requester.link, qp.responder.link]
    }

    fn make_choppy(&self, seed: u64) {
        let [own, peers] = self.links();
        let mut locked = engine().lock();
        for c in [own, peers.filter(|c| own != Some(*c))].into_iter().flatten() {
            replace_carrier(&mut locked.state.streams[c].stream.carrier, |inner| {
                Box::new(Choppy { inner, random: Cell::new(seed ^ c as u64) })
            });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Whoever opened the connections, and whatever they take at once: each step is done once, in order, and reported.
    #[test]
    fn what_is_posted_on_both_sides_is_done_once_and_in_order(
        steps in [steps(), steps()],
        both_connect: bool,
        receives_first: bool,
        seed: u64,
    ) {
        let [mut a, mut b] = [Side::new(&steps[0], 1), Side::new(&steps[1], 2)];
        connect(&a.node, &b.node);
        let nothing = |side: &Side<'_>, locked: &mut Locked<'_>| {
            let operation = Operation::Write { address: 0, rkey: 0 };
            let request = SendRequest { wr_id: 0, operation, flags: SIGNALED, data: Data::Sges(&[]) };
            locked.post_send(side.node.qp, &request).unwrap();
            locked.ring(side.node.qp);
        };
        let mut locked = engine().lock_to_post();
        nothing(&a, &mut locked);
        if both_connect {
            // Neither has heard of the other's connection yet.
            nothing(&b, &mut locked);
        }
        drop(locked);
        a.node.sent();
        if !both_connect {
            nothing(&b, &mut engine().lock_to_post());
        }
        b.node.sent();
        for side in [&a, &b] {
            let [own, peers] = side.links();
            prop_assert_eq!(own != peers, both_connect);
        }

        for side in [&a, &b] {
            side.make_choppy(seed);
        }
        if receives_first {
            a.post_receives(b.steps);
            b.post_receives(a.steps);
        }
        for at in 0..SLOTS {
            for (side, peer) in [(&a, &b), (&b, &a)] {
                if at < side.steps.len() {
                    side.post(at, peer);
                }
            }
        }
        if !receives_first {
            a.post_receives(b.steps);
            b.post_receives(a.steps);
        }
        let deadline = Instant::now() + PATIENCE;
        while !a.is_done(b.steps) || !b.is_done(a.steps) {
            prop_assert!(Instant::now() < deadline, "{} and {} steps done", a.sent, b.sent);
            a.poll(b.steps);
            b.poll(a.steps);
        }
        a.check(&b);
        b.check(&a);
    }
}
