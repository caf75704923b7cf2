//! Being asked for connections.

use super::connection::{Connection, reason};
use super::id::{Core, Stage, State};
use super::link::Link;
use super::port::Port;
use crate::addresses;
use crate::engine::Accepted;
use crate::uncancelled;
use nix::errno::Errno;
use rdma_sys::{rdma_cm_event_type, rdma_port_space};
use rdma_verbs_wire::cm::{Mad, Message, Req};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Requests that wait to be fetched where rdma_listen(3) does not say how many may.
const MAX_BACKLOG: usize = 1024;
/// Streams that have not said yet what they want, and how long they may take.
const MAX_SILENT: usize = 256;
const SILENCE: Duration = Duration::from_secs(10);

const RC: u8 = 0;

struct Listener {
    port_space: rdma_port_space::Type,
    address: SocketAddr,
    only_v6: bool,
    core: Weak<Core>,
}

/// Both are the last locks to be taken.
static LISTENERS: Mutex<Vec<Listener>> = Mutex::new(Vec::new());
static SILENT: Mutex<VecDeque<Arc<Core>>> = Mutex::new(VecDeque::new());

fn listeners() -> uncancelled::Guard<'static, Vec<Listener>> {
    uncancelled::lock(&LISTENERS)
}

fn silent() -> uncancelled::Guard<'static, VecDeque<Arc<Core>>> {
    uncancelled::lock(&SILENT)
}

/// rdma_listen(3), of a port that is bound. EINVAL unless it is, EADDRINUSE where another identifier of the process
/// shares it.
pub(super) fn start(core: &Arc<Core>, backlog: i32) -> Result<(), Errno> {
    let mut state = core.lock();
    let (Stage::Bound, Some(address)) = (state.stage, state.source.map(canonical)) else { return Err(Errno::EINVAL) };
    state.port.as_ref().map_or(Err(Errno::EINVAL), Port::keep)?;
    listeners().push(Listener {
        port_space: state.port_space,
        address,
        only_v6: state.options.only_v6,
        core: Arc::downgrade(core),
    });
    state.backlog = usize::try_from(backlog).ok().filter(|n| (1..MAX_BACKLOG).contains(n)).unwrap_or(MAX_BACKLOG);
    state.stage = Stage::Listening;
    Ok(())
}

pub(super) fn stop(core: &Arc<Core>) {
    listeners().retain(|listener| !std::ptr::eq(listener.core.as_ptr(), Arc::as_ptr(core)));
}

/// Who listens at an address: an exact one goes before a wildcard, IPv4's own wildcard before that of both families.
fn find(req: &Req) -> Option<Arc<Core>> {
    let port_space = u32::try_from(req.service_id >> 16).ok()?;
    // The low half.
    let port = req.service_id as u16;
    let fits = |listener: &Listener| {
        let ip = listener.address.ip();
        if listener.port_space != port_space || listener.address.port() != port {
            None
        } else if ip == req.destination {
            Some(0)
        } else if !ip.is_unspecified() {
            None
        } else if ip.is_ipv4() == req.destination.is_ipv4() {
            Some(1)
        } else {
            (ip.is_ipv6() && !listener.only_v6).then_some(2)
        }
    };
    let listeners = listeners();
    let best = listeners.iter().filter_map(|listener| Some((fits(listener)?, listener))).min_by_key(|(rank, _)| *rank);
    best?.1.core.upgrade()
}

/// A connection that a peer has opened to the process's listener in order to talk about connections.
pub(crate) fn accepted(connection: Accepted) {
    // Where its events go is known when somebody has fetched the request.
    let core = Core::new(rdma_port_space::RDMA_PS_TCP, None);
    let oldest = {
        let mut waiting = silent();
        waiting.push_back(Arc::clone(&core));
        if waiting.len() > MAX_SILENT { waiting.pop_front() } else { None }
    };
    // Who has something to say has said it at once: silence must not keep others out.
    if let Some(oldest) = oldest {
        oldest.lock().lost(&oldest);
    }
    {
        let mut state = core.lock();
        state.unanswered = true;
        state.source = Some(canonical(connection.local));
        state.destination = Some(canonical(connection.peer));
        match Link::accepted(&core, connection) {
            Ok(link) => state.link = Some(link),
            Err(_) => return state.lost(&core),
        }
        state.start_timer(&core, SILENCE, |core, state| state.lost(core));
    }
    // It may have said all already.
    core.link_ready();
}

/// Without the disguise in which IPv4 comes to a socket of both families.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip if ip == address.ip() => address,
        ip => SocketAddr::new(ip, address.port()),
    }
}

/// Does not keep a stream's identifier alive any longer on its own account.
pub(super) fn forget(core: &Arc<Core>) {
    let mut silent = silent();
    let forgotten = silent.iter().position(|other| Arc::ptr_eq(other, core)).and_then(|at| silent.remove(at));
    drop(silent);
    drop(forgotten);
}

/// The first message on a stream that a peer has opened: a REQ, or nothing that is worth keeping the stream.
pub(super) fn heard(core: &Arc<Core>, state: &mut State, mad: Mad) {
    let Message::Req(req) = mad.message else { return state.lost(core) };
    state.stop_timer();
    forget(core);
    let refused = match find(&req) {
        // Else a peer could have the queue pair connect to whomever it names.
        _ if !speaks_for_itself(state, &req) => reason::INVALID_GID,
        None => reason::INVALID_SERVICE_ID,
        Some(_) if req.transport != RC => reason::INVALID_TRANSPORT_TYPE,
        Some(listener) => match Connection::requested(mad.transaction_id, &req) {
            Err(reason) => reason,
            Ok((connection, params)) => {
                state.connection = connection;
                state.stage = Stage::Connecting;
                state.source = state.source.map(|local| at_port(local, req.service_id as u16));
                state.destination = state.destination.map(|peer| at_port(peer, req.source_port));
                state.responder_resources = params.responder_resources;
                state.initiator_depth = params.initiator_depth;
                // Bound first, so that the lock is released before what it guards is used.
                let mut listening = listener.lock();
                state.port_space = listening.port_space;
                // Without a word where there is no room: the peer asks again.
                if !listening.notify_request(&listener, params, Arc::clone(core)) {
                    drop(listening);
                    state.lost(core);
                }
                return;
            }
        },
    };
    if let Some(link) = &mut state.link {
        link.send(&Connection::refusal(mad.transaction_id, &req, refused));
    }
    state.close();
}

/// Whether a REQ has the addresses of the stream on which it came.
fn speaks_for_itself(state: &State, req: &Req) -> bool {
    let is = |end: Option<SocketAddr>, ip: IpAddr, gid: [u8; 16]| {
        end.is_some_and(|end| end.ip() == ip.to_canonical() && addresses::gid(end.ip()) == gid)
    };
    is(state.source, req.destination, req.remote_gid) && is(state.destination, req.source, req.local_gid)
}

fn at_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

impl Core {
    /// rdma_reject(3).
    pub(super) fn reject(self: &Arc<Core>, reason: u16, data: &[u8]) -> Result<(), Errno> {
        let mut state = self.lock();
        let rej = state.connection.reject(reason, data)?;
        state.say(rej);
        state.close();
        Ok(())
    }

    /// rdma_notify(3) of `IBV_EVENT_COMM_EST`.
    pub(super) fn communication_established(self: &Arc<Core>) -> Result<(), Errno> {
        let mut state = self.lock();
        state.connection.heard()?;
        let established = rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED;
        state.notify(self, established, 0, super::channel::Params::default());
        Ok(())
    }
}
