//! What moves: connections, their sockets, and time.

use super::cq::News;
use super::qp::Qp;
use super::receive::Srq;
use super::region::{self, Regions};
use super::requester::Mark;
use super::responder::Progress;
use super::transport::listener::{Listener, Ports};
use super::transport::stream::{Batch, Stream};
use super::transport::tcp::Tcp;
use super::{Accepted, Engine};
use crate::descriptors::Tracked;
use crate::reactor::{self, Timer};
use libc::iovec;
use nix::errno::Errno;
use rdma_sys::ibv_qp_state::IBV_QPS_ERR;
use rdma_verbs_wire::Malformed;
use rdma_verbs_wire::frame::{HELLO_BYTES, Hello, LENGTH_BYTES, MAX_FRAME};
use rdma_verbs_wire::packet::{Header, MAX_HEADER};
use slab::Slab;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Bytes that one connection may bring before others have their turn.
const TURN: usize = 256 * 1024;

/// Bytes that all connections together may bring before the lock is given back.
const TURNS: usize = 2 * TURN;

/// Room for what comes behind the payload that goes straight to its place.
const SPILL: usize = 64 * 1024;

/// Of a payload that is at least as long the rest goes straight to its place, and no more than the next headers are read
/// behind it.
const BULK: usize = 8 * 1024;

/// A header, or a hello, that has not come to its end yet.
const BEGUN: usize = 64;

/// For how long a connection may say nothing, or wait for a queue pair that is not there.
const STRANGER: Duration = Duration::from_secs(5);

/// Connections that have no queue pair.
const STRANGERS: usize = 1024;

/// With so few connections each is asked for data, which is quicker than to ask which of them has some.
const FEW: usize = 4;

/// All protocol state.
pub(super) struct State {
    /// By what belongs to each.
    pub(super) pds: Slab<u32>,
    pub(super) regions: Regions,
    pub(super) srqs: Slab<Srq>,
    pub(super) qps: Slab<Qp>,
    pub(super) by_number: HashMap<u32, usize>,
    pub(super) streams: Slab<Connection>,
    listeners: Vec<Listener>,
    /// The listener that gave out the last number.
    last_listener: usize,
    ports: Ports,
    /// Connections without a queue pair, the oldest first.
    strangers: Vec<usize>,
    sweep: Option<Timer>,
    /// For connection management; handed over with no lock held.
    handed: Vec<Accepted>,
    hand_over: Option<Timer>,
    /// Queue pairs that have an answer to give before the lock is given back.
    pub(super) hurried: Vec<usize>,
    /// Queue pairs that owe an acknowledgement, which can wait a little.
    pub(super) deferred: Vec<usize>,
    pub(super) news: News,
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    alarm: Option<(Instant, Timer)>,
    epoll: Tracked<OwnedFd>,
    /// Connections that wait for their socket to take more.
    blocked: usize,
    /// The connection that brought something last.
    hot: usize,
    looks: usize,
    // Kept, so that nothing is allocated for each packet.
    pub(super) places: Vec<iovec>,
    pub(super) requests: Option<Batch<Mark>>,
    pub(super) answers: Option<Batch<Progress>>,
    spill: Box<[u8]>,
}

// SAFETY: the addresses in it are of memory that a program has registered for the device, whichever thread that is.
unsafe impl Send for State {}

/// One TCP connection, and the packet that is coming in.
pub(super) struct Connection {
    pub(super) stream: Stream,
    role: Role,
    since: Instant,
    /// The socket takes nothing for now; epoll will tell.
    pub(super) blocked: bool,
    interest: u32,
    /// The rest of the payload that is coming.
    payload: usize,
    /// It belongs to a response, not to a request.
    is_response: bool,
    /// Whether the last payload was a large one.
    bulk: bool,
    begun: [u8; BEGUN],
    begun_bytes: usize,
    /// The packet as the capture will have it.
    record: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq)]
enum Role {
    /// Has not said what it is for.
    New,
    /// Names a queue pair that is not ready for it.
    Waiting { qp: u32, from: u32, source_gid: [u8; 16] },
    /// Of this queue pair and its peer. Who opened it sends its requests here and gets the responses; so does the other
    /// one, unless it has opened one as well.
    Bound(usize),
}

impl Connection {
    fn new(stream: Stream, role: Role) -> Connection {
        Connection {
            stream,
            role,
            since: Instant::now(),
            blocked: false,
            interest: 0,
            payload: 0,
            is_response: false,
            bulk: false,
            begun: [0; BEGUN],
            begun_bytes: 0,
            record: Vec::new(),
        }
    }

    fn interest(&self) -> u32 {
        let reads = match self.role {
            // Its packets wait in the socket.
            Role::Waiting { .. } => libc::EPOLLRDHUP,
            _ => libc::EPOLLIN,
        };
        (reads | if self.blocked { libc::EPOLLOUT } else { 0 }) as u32
    }
}

/// Whether a connection may have more.
#[derive(PartialEq)]
enum Turn {
    Empty,
    More,
}

impl State {
    pub(super) fn new(ports: Ports) -> Result<State, Errno> {
        let epoll = Tracked::open(|| {
            nix::sys::epoll::Epoll::new(nix::sys::epoll::EpollCreateFlags::EPOLL_CLOEXEC).map(|epoll| epoll.0)
        })?;
        Ok(State {
            pds: Slab::new(),
            regions: Regions::default(),
            srqs: Slab::new(),
            qps: Slab::new(),
            by_number: HashMap::new(),
            streams: Slab::new(),
            listeners: vec![Listener::open(&ports)?],
            last_listener: 0,
            ports,
            strangers: Vec::new(),
            sweep: None,
            handed: Vec::new(),
            hand_over: None,
            hurried: Vec::new(),
            deferred: Vec::new(),
            news: News::default(),
            timers: BinaryHeap::new(),
            alarm: None,
            epoll,
            blocked: 0,
            hot: 0,
            looks: 0,
            places: Vec::new(),
            requests: None,
            answers: None,
            spill: vec![0; SPILL].into_boxed_slice(),
        })
    }

    /// The first listener's.
    pub(super) fn port(&self) -> u16 {
        self.listeners[0].port
    }

    /// Readable when a connection has something to do.
    pub(super) fn epoll(&self) -> &Tracked<OwnedFd> {
        &self.epoll
    }

    /// A number for a new queue pair.
    pub(super) fn issue_number(&mut self) -> Result<u32, Errno> {
        for step in 0..self.listeners.len() {
            let at = (self.last_listener + step) % self.listeners.len();
            if let Some(number) = self.listeners[at].issue() {
                self.last_listener = at;
                return Ok(number);
            }
        }
        self.listeners.push(Listener::open(&self.ports).map_err(|_| Errno::ENOMEM)?);
        self.last_listener = self.listeners.len() - 1;
        self.listeners[self.last_listener].issue().ok_or(Errno::ENOMEM)
    }

    pub(super) fn take_back_number(&mut self, number: u32) {
        if let Some(listener) = self.listeners.iter_mut().find(|listener| u32::from(listener.port) == number & 0xFFFF) {
            listener.take_back(number);
        }
    }

    // Connections

    fn add(&mut self, connection: Connection) -> Result<usize, Errno> {
        let c = self.streams.insert(connection);
        let connection = &mut self.streams[c];
        connection.interest = connection.interest();
        let mut event = libc::epoll_event { events: connection.interest, u64: c as u64 };
        let fd = connection.stream.carrier.as_fd().as_raw_fd();
        // SAFETY: two descriptors and an event.
        let added =
            Errno::result(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) });
        if let Err(error) = added {
            self.streams.remove(c);
            return Err(error);
        }
        Ok(c)
    }

    fn update_interest(&mut self, c: usize) {
        let Some(connection) = self.streams.get_mut(c) else { return };
        let interest = connection.interest();
        if interest != connection.interest {
            connection.interest = interest;
            let mut event = libc::epoll_event { events: interest, u64: c as u64 };
            let fd = connection.stream.carrier.as_fd().as_raw_fd();
            // SAFETY: two descriptors and an event.
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_MOD, fd, &mut event) };
        }
    }

    /// The socket has taken all it takes.
    pub(super) fn block(&mut self, c: usize) {
        let connection = &mut self.streams[c];
        if !connection.blocked {
            connection.blocked = true;
            self.blocked += 1;
        }
        self.update_interest(c);
    }

    /// A connection of the own side of its queue pair ends. Nobody is told.
    pub(super) fn drop_stream(&mut self, c: usize) -> Option<Connection> {
        let connection = self.streams.try_remove(c)?;
        self.blocked -= usize::from(connection.blocked);
        self.strangers.retain(|stranger| *stranger != c);
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let fd = connection.stream.carrier.as_fd().as_raw_fd();
        // SAFETY: two descriptors and an event.
        unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, &mut event) };
        Some(connection)
    }

    /// Both connections of a queue pair end, after what is owed has been said.
    pub(super) fn disconnect(&mut self, q: usize) {
        self.answer(q);
        let qp = &mut self.qps[q];
        // Most often it is one.
        for c in [qp.requester.link.take(), qp.responder.link.take()].into_iter().flatten() {
            self.drop_stream(c);
        }
    }

    /// A connection has ended, or has to.
    fn lost(&mut self, c: usize) {
        let Some(connection) = self.drop_stream(c) else { return };
        let Role::Bound(q) = connection.role else { return };
        if self.qps[q].responder.link == Some(c) {
            self.responder_lost(q);
            self.bind_waiting(q);
        }
        if self.qps[q].requester.link == Some(c) {
            self.requester_lost(q);
        }
    }

    /// Finds or opens the connection for a queue pair's requests.
    pub(super) fn connect(&mut self, q: usize) -> Option<usize> {
        let qp = &mut self.qps[q];
        if let Some(c) = qp.responder.link {
            // The peer's own serves both ways: TCP's acknowledgements travel with what goes the other way.
            qp.requester.link = Some(c);
            return Some(c);
        }
        let path = qp.path?;
        let hello = Hello::Requests {
            source_qp: qp.number,
            destination_qp: qp.attr.dest_qp_num,
            source_gid: path.source_gid,
            destination_gid: path.destination_gid,
        };
        let hello = hello.encode();
        let stream = Tcp::connect(path.source, path.destination)
            .map(|carrier| Stream::new(Box::new(carrier), path.source, path.destination, &hello));
        match stream.and_then(|stream| self.add(Connection::new(stream, Role::Bound(q)))) {
            Ok(c) => {
                self.qps[q].requester.link = Some(c);
                Some(c)
            }
            Err(reason) => {
                self.connect_later(q);
                if reason == Errno::ECONNREFUSED {
                    self.peer_gone(q);
                }
                None
            }
        }
    }

    /// From a listener.
    pub(super) fn accepted(&mut self, socket: Tracked<TcpStream>, peer: SocketAddr) {
        let Ok((carrier, local)) = Tcp::accepted(socket) else { return };
        let stream = Stream::new(Box::new(carrier), local, peer, &[]);
        while self.strangers.len() >= STRANGERS {
            // Rather one that has said nothing than one that waits for a queue pair.
            let silent = self.strangers.iter().find(|c| self.streams[**c].role == Role::New);
            self.lost(*silent.unwrap_or(&self.strangers[0]));
        }
        if let Ok(c) = self.add(Connection::new(stream, Role::New)) {
            self.strangers.push(c);
            self.sweep_later();
        }
    }

    /// What a connection is for.
    fn hello(&mut self, c: usize, hello: &[u8; HELLO_BYTES]) -> Result<(), Malformed> {
        let connection = &mut self.streams[c];
        match Hello::decode(hello)? {
            Hello::Requests { source_qp, destination_qp, source_gid, .. } => {
                if crate::addresses::gid(connection.stream.peer().ip()) != source_gid {
                    return Err(Malformed("a connection of somebody else"));
                }
                connection.role = Role::Waiting { qp: destination_qp, from: source_qp, source_gid };
                if let Some(&q) = self.by_number.get(&destination_qp) {
                    self.bind(q, c);
                }
                self.update_interest(c);
            }
            Hello::Management { .. } => {
                let Some(connection) = self.drop_stream(c) else { return Ok(()) };
                let (peer, local) = (connection.stream.peer(), connection.stream.local());
                let stream = connection.stream.carrier.into_socket();
                self.handed.push(Accepted { stream, peer, local, rest: Vec::new() });
                let hand_over = reactor::after(Duration::ZERO, || {
                    let Some(engine) = Engine::started() else { return };
                    let handed = std::mem::take(&mut engine.lock().state.handed);
                    handed.into_iter().for_each(crate::cm::accepted);
                });
                self.hand_over = hand_over.ok();
            }
        }
        Ok(())
    }

    /// Gives a waiting connection to its queue pair, if that is ready for it and has none.
    fn bind(&mut self, q: usize, c: usize) {
        let (qp, connection) = (&mut self.qps[q], &mut self.streams[c]);
        let Role::Waiting { from, source_gid, .. } = connection.role else { return };
        let matches = qp.attr.dest_qp_num == from && qp.path.is_some_and(|path| path.destination_gid == source_gid);
        if qp.receives_requests() && qp.responder.link.is_none() && matches {
            qp.responder.link = Some(c);
            connection.role = Role::Bound(q);
            self.strangers.retain(|stranger| *stranger != c);
            self.update_interest(c);
        }
    }

    /// A queue pair has become ready, or has lost its connection: another may be waiting.
    pub(super) fn bind_waiting(&mut self, q: usize) {
        let number = self.qps[q].number;
        let waits = |c: &usize| matches!(self.streams[*c].role, Role::Waiting { qp, .. } if qp == number);
        let waiting: Vec<usize> = self.strangers.iter().copied().filter(waits).collect();
        waiting.into_iter().for_each(|c| self.bind(q, c));
    }

    fn sweep_later(&mut self) {
        if self.sweep.is_none() && !self.strangers.is_empty() {
            let sweep = reactor::after(STRANGER, || {
                if let Some(engine) = Engine::started() {
                    engine.lock().state.sweep();
                }
            });
            self.sweep = sweep.ok();
        }
    }

    /// Closes connections that have waited long enough; one for a queue pair on its way to RTR may wait longer.
    fn sweep(&mut self) {
        self.sweep = None;
        let now = Instant::now();
        let useless = |c: &usize| {
            let connection = &self.streams[*c];
            let comes = match connection.role {
                Role::Waiting { qp, .. } => self.by_number.get(&qp).is_some_and(|q| !self.qps[*q].receives_requests()),
                _ => false,
            };
            !comes && now.saturating_duration_since(connection.since) >= STRANGER
        };
        let useless: Vec<usize> = self.strangers.iter().copied().filter(useless).collect();
        useless.into_iter().for_each(|c| self.lost(c));
        self.sweep_later();
    }

    // Sockets

    /// Looks at the sockets once, without waiting. Whether anything was there.
    pub(super) fn look(&mut self) -> bool {
        if self.streams.len() <= FEW && self.blocked == 0 {
            // The one that brought something last brings the next as well, more often than not.
            let mut found = self.receive(self.hot) > 0;
            self.looks = self.looks.wrapping_add(1);
            // One that always has something must not keep the others waiting.
            if !self.looks.is_multiple_of(if found { 16 } else { 4 }) {
                return found;
            }
            for c in 0..self.streams.capacity() {
                found |= c != self.hot && self.receive(c) > 0;
            }
            return found;
        }
        self.serve()
    }

    /// Serves the connections that epoll names.
    pub(super) fn serve(&mut self) -> bool {
        let (mut bytes, mut first) = (0, None);
        // As many at a time as have their turn for certain: epoll puts whom it has named behind the others, and so nobody
        // is passed over for ever.
        while bytes < TURNS {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; TURNS / TURN];
            let room = events.len() as i32;
            // SAFETY: a descriptor, and room for as many events.
            let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), room, 0) };
            for event in &events[..count.max(0) as usize] {
                let (c, events) = (event.u64 as usize, event.events as i32);
                if first == Some(c) {
                    // All have had theirs.
                    return true;
                }
                first.get_or_insert(c);
                bytes += self.serve_one(c, events);
            }
            if count < room {
                break;
            }
        }
        first.is_some()
    }

    /// How many bytes it has brought.
    fn serve_one(&mut self, c: usize, events: i32) -> usize {
        let mut bytes = 0;
        if events & (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) != 0 {
            match self.streams.get(c).map(|connection| connection.role) {
                // It has not waited long enough.
                Some(Role::Waiting { .. }) => self.lost(c),
                _ => bytes = self.receive(c),
            }
        }
        if events & libc::EPOLLOUT != 0 {
            self.unblock(c);
        }
        bytes
    }

    /// Whether epoll names any connection.
    pub(super) fn anything(&self) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: a descriptor, and room for an event.
        unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), &mut event, 1, 0) == 1 }
    }

    fn unblock(&mut self, c: usize) {
        let Some(connection) = self.streams.get_mut(c) else { return };
        if std::mem::take(&mut connection.blocked) {
            self.blocked -= 1;
            if let Role::Bound(q) = connection.role {
                self.answer(q);
                self.pump(q);
            }
            self.update_interest(c);
        }
    }

    /// Reads and executes what a connection brings; how many bytes.
    pub(super) fn receive(&mut self, c: usize) -> usize {
        let mut spill = std::mem::take(&mut self.spill);
        let mut bytes = 0;
        let outcome = loop {
            match self.receive_some(c, &mut spill) {
                Ok((count, Turn::More)) if bytes + count < TURN => bytes += count,
                Ok((count, _)) => {
                    bytes += count;
                    break Ok(());
                }
                Err(end) => break Err(end),
            }
        };
        self.spill = spill;
        if bytes > 0 {
            self.hot = c;
        }
        if outcome.is_err() {
            self.lost(c);
        }
        bytes
    }

    /// One read. An error ends the connection.
    fn receive_some(&mut self, c: usize, spill: &mut [u8]) -> Result<(usize, Turn), Malformed> {
        const END: Malformed = Malformed("the end of the connection");
        let Some(connection) = self.streams.get(c) else { return Ok((0, Turn::Empty)) };
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        self.places = places;
        let (role, is_response) = (connection.role, connection.is_response);
        let (payload, begun) = (connection.payload, connection.begun_bytes);
        if payload > 0 {
            self.find_places(role, is_response, payload);
        }
        let Some(connection) = self.streams.get(c) else { return Ok((0, Turn::Empty)) };
        let direct: usize = self.places.iter().map(|place| place.iov_len).sum();
        let limit = match role {
            // Its packets stay in the socket.
            Role::Waiting { .. } => return Ok((0, Turn::Empty)),
            // What comes behind may be for somebody else.
            Role::New => HELLO_BYTES,
            _ if direct >= BULK || direct == payload && connection.bulk => begun + BEGUN.min(MAX_HEADER + LENGTH_BYTES),
            _ => spill.len(),
        };
        spill[..begun].copy_from_slice(&connection.begun[..begun]);
        let room = &mut spill[begun..limit];
        let wanted = direct + room.len();
        self.places.push(iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() });
        let mut places = std::mem::take(&mut self.places);
        let result = connection.stream.carrier.receive(&mut places);
        self.places = places;
        let count = match result {
            Ok(0) => return Err(END),
            Ok(count) => count,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok((0, Turn::Empty)),
            Err(Errno::EFAULT) if direct > 0 => {
                match role {
                    Role::Bound(q) if is_response => self.response_fault(q),
                    Role::Bound(q) => self.request_fault(q),
                    _ => return Err(END),
                }
                return Ok((0, Turn::More));
            }
            Err(reason) => {
                if let (Errno::ECONNREFUSED, Role::Bound(q)) = (reason, role) {
                    self.peer_gone(q);
                }
                return Err(END);
            }
        };
        let placed = count.min(direct);
        if placed > 0 {
            if crate::capture::on() {
                self.record_places(c, placed);
            }
            self.received(c, placed);
        }
        self.parse(c, &spill[..begun + count - placed])?;
        Ok((count, if count == wanted { Turn::More } else { Turn::Empty }))
    }

    /// Where the next `length` bytes of the current payload go; nothing: they are dropped.
    fn find_places(&mut self, role: Role, is_response: bool, length: usize) {
        match role {
            Role::Bound(q) if is_response => self.response_places(q, length),
            Role::Bound(q) => self.request_places(q, length),
            Role::New | Role::Waiting { .. } => {}
        }
    }

    /// So much more of the current payload is where it belongs.
    fn received(&mut self, c: usize, length: usize) {
        let Some(connection) = self.streams.get_mut(c) else { return };
        connection.payload -= length;
        let Role::Bound(q) = connection.role else { return };
        let done = connection.payload == 0;
        if done && !connection.record.is_empty() {
            let way = connection.stream.way(false, self.qps[q].number);
            crate::capture::packet(way, &connection.record);
            connection.record.clear();
        }
        if connection.is_response {
            self.response_received(q, length);
            if done {
                self.response_done(q);
            }
        } else {
            self.request_received(q, length);
            if done {
                self.request_done(q);
            }
        }
    }

    /// Takes apart what has come, but for what has no place yet.
    fn parse(&mut self, c: usize, mut bytes: &[u8]) -> Result<(), Malformed> {
        loop {
            // Executing a packet may have ended the connection.
            let Some(connection) = self.streams.get_mut(c) else { return Ok(()) };
            connection.begun_bytes = 0;
            if connection.payload > 0 {
                if bytes.is_empty() {
                    return Ok(());
                }
                let (part, rest) = bytes.split_at(bytes.len().min(connection.payload));
                if crate::capture::on() {
                    connection.record.extend_from_slice(part);
                }
                let (role, is_response) = (connection.role, connection.is_response);
                self.places.clear();
                self.find_places(role, is_response, part.len());
                region::scatter(part, &self.places);
                self.received(c, part.len());
                bytes = rest;
                continue;
            }
            let begun = match connection.role {
                Role::New => match bytes.first_chunk() {
                    Some(hello) => return self.hello(c, hello),
                    None => bytes.len(),
                },
                Role::Waiting { .. } => return Ok(()),
                Role::Bound(q) => {
                    let Some((length, rest)) = bytes.split_first_chunk() else { return self.keep(c, bytes) };
                    let frame = u32::from_be_bytes(*length) as usize;
                    if frame > MAX_FRAME {
                        return Err(Malformed("a frame that is too long"));
                    }
                    if rest.len() < frame.min(MAX_HEADER) {
                        bytes.len()
                    } else {
                        let (header, headers) = Header::decode(&rest[..frame.min(rest.len())], frame)?;
                        let payload = frame - headers;
                        connection.payload = payload;
                        connection.bulk = payload >= BULK;
                        if crate::capture::on() {
                            connection.record.clear();
                            connection.record.extend_from_slice(&rest[..headers]);
                        }
                        bytes = &rest[headers..];
                        connection.is_response = header.is_response();
                        self.packet(q, c, &header, payload)?;
                        // Nothing belongs to an acknowledgement; a read response that it overtakes goes on.
                        if payload == 0 && !header.is_ack() {
                            self.received(c, 0);
                        }
                        continue;
                    }
                }
            };
            return self.keep(c, &bytes[..begun]);
        }
    }

    /// A packet's header has come.
    fn packet(&mut self, q: usize, c: usize, header: &Header, payload: usize) -> Result<(), Malformed> {
        let qp = &mut self.qps[q];
        let own = qp.requester.link == Some(c);
        if header.is_response() {
            if qp.state == IBV_QPS_ERR {
                // Nothing waits for it. What is still to be said here must not be cut off.
                return Ok(());
            }
            // The peer's responder may add its acknowledgements to its requests.
            if !own && !header.is_ack() {
                return Err(Malformed("a response on a connection of the peer's"));
            }
            return self.response(q, header, payload);
        }
        if own && qp.responder.link != Some(c) {
            // The peer makes use of this connection. If it had another, that is gone.
            if let Some(other) = qp.responder.link {
                self.drop_stream(other);
                self.responder_lost(q);
            }
            self.qps[q].responder.link = Some(c);
        }
        self.request(q, header, payload)
    }

    /// Keeps what has begun and not ended.
    fn keep(&mut self, c: usize, bytes: &[u8]) -> Result<(), Malformed> {
        let connection = &mut self.streams[c];
        let begun = connection.begun.get_mut(..bytes.len()).ok_or(Malformed("a header that is too long"))?;
        begun.copy_from_slice(bytes);
        connection.begun_bytes = bytes.len();
        Ok(())
    }

    fn record_places(&mut self, c: usize, mut length: usize) {
        let record = &mut self.streams[c].record;
        for place in &self.places {
            let part = place.iov_len.min(length);
            length -= part;
            let old = record.len();
            record.resize(old + part, 0);
            // SAFETY: the kernel has just written these bytes there.
            unsafe { std::ptr::copy_nonoverlapping(place.iov_base.cast::<u8>(), record[old..].as_mut_ptr(), part) };
        }
    }

    // Time

    /// Sees to it that the queue pair's timers are looked at in time.
    pub(super) fn schedule(&mut self, q: usize) {
        let qp = &mut self.qps[q];
        let Some(at) = qp.requester.deadline.into_iter().chain(qp.requester.resume).min() else { return };
        if qp.timer.is_none_or(|timer| at < timer) {
            qp.timer = Some(at);
            self.timers.push(Reverse((at, q)));
            if self.timers.len() > 64 + 4 * self.qps.len() {
                // Those of queue pairs that are gone may be hours away.
                let qps = &self.qps;
                self.timers.retain(|Reverse((at, q))| qps.get(*q).is_some_and(|qp| qp.timer == Some(*at)));
            }
            self.set_alarm();
        }
    }

    fn set_alarm(&mut self) {
        let Some(&Reverse((first, _))) = self.timers.peek() else { return };
        if self.alarm.as_ref().is_none_or(|(at, _)| first < *at) {
            let delay = first.saturating_duration_since(Instant::now());
            let alarm = reactor::after(delay, || {
                if let Some(engine) = Engine::started() {
                    engine.lock().state.run_timers();
                }
            });
            self.alarm = alarm.ok().map(|timer| (first, timer));
        }
    }

    fn run_timers(&mut self) {
        self.alarm = None;
        let now = Instant::now();
        while let Some(&Reverse((at, q))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            // Others have been overtaken by an earlier one, or their queue pair is gone.
            if let Some(qp) = self.qps.get_mut(q).filter(|qp| qp.timer == Some(at)) {
                qp.timer = None;
                self.expire(q, now);
            }
        }
        self.set_alarm();
    }

    // Before the lock is given back

    /// Gives the answers that do not wait.
    pub(super) fn settle(&mut self) {
        while let Some(q) = self.hurried.pop() {
            self.answer(q);
        }
        while std::mem::take(&mut self.news.overrun) {
            let is_over = |(_, qp): &(usize, &Qp)| qp.send_cq.is_overrun() || qp.recv_cq.is_overrun();
            let over: Vec<usize> = self.qps.iter().filter(is_over).map(|(q, _)| q).collect();
            over.into_iter().for_each(|q| self.enter_error(q, None));
        }
    }

    /// Sends the acknowledgements that have waited.
    pub(super) fn acknowledge(&mut self) {
        let mut deferred = std::mem::take(&mut self.deferred);
        for q in deferred.drain(..) {
            let Some(qp) = self.qps.get_mut(q) else { continue };
            qp.responder.deferred = false;
            if qp.responder.owes_ack() {
                self.answer(q);
            }
        }
        self.deferred = deferred;
    }
}
