//! What the calls do on the way to a connection: binding, resolving, asking and accepting.

use super::addrinfo;
use super::channel;
use super::connection::{Offer, reason};
use super::device;
use super::id::{Id, IdRef, Stage, event_outcome};
use super::listen;
use super::port::{self, Port};
use super::qp;
use crate::engine;
use libc::sockaddr;
use nix::errno::Errno;
use rdma_sys::rdma_cm_event_type as event;
use rdma_sys::{ibv_pd, ibv_qp_init_attr, ibv_qp_type, rdma_addrinfo, rdma_cm_event, rdma_conn_param, rdma_port_space};
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr::{self, NonNull};

/// `RDMA_MAX_RESP_RES` and `RDMA_MAX_INIT_DEPTH`: as much as the device, or the peer, can do.
const AS_MUCH_AS_POSSIBLE: u8 = 0xff;

/// Levels and names of rdma_set_option(3).
mod option {
    use std::ffi::c_int;
    pub(super) const LEVEL_ID: c_int = 0;
    pub(super) const TOS: c_int = 0;
    pub(super) const REUSEADDR: c_int = 1;
    pub(super) const AFONLY: c_int = 2;
    pub(super) const ACK_TIMEOUT: c_int = 3;
    pub(super) const LEVEL_IB: c_int = 1;
    pub(super) const PATH: c_int = 1;
    /// `struct ibv_path_data`.
    pub(super) const PATH_BYTES: usize = 72;
}

/// An IP address and port; EINVAL for NULL and other families.
///
/// # Safety
/// * `address` is NULL or as long as its family asks for.
pub(super) unsafe fn read_address(address: *const sockaddr) -> Result<SocketAddr, Errno> {
    if address.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not NULL, and so an object that has this field in front at least.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: what the family stands for, by the caller's promise.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: what the family stands for, by the caller's promise.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Ok(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => Err(Errno::EINVAL),
    }
}

/// rdma_bind_addr(3).
pub(super) fn bind(id: IdRef, address: SocketAddr) -> Result<(), Errno> {
    engine::get()?;
    let core = id.core();
    {
        let mut state = core.lock();
        if state.stage != Stage::Idle {
            return Err(Errno::EINVAL);
        }
        let port = Port::bind(&core, address, &state.options)?;
        state.source = Some(port.address()?);
        state.port = Some(port);
        state.stage = Stage::Bound;
    }
    id.show_addresses()
}

/// rdma_listen(3). An identifier that is not bound listens on a port of the system's choice.
pub(super) fn listen(id: IdRef, backlog: c_int) -> Result<(), Errno> {
    engine::get()?;
    let core = id.core();
    if core.lock().stage == Stage::Idle {
        bind(id, SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0))?;
    }
    listen::start(&core, backlog)
}

/// rdma_resolve_addr(3). Which address leads to the destination is known at once; only a name service takes time, and
/// there is none. ENETUNREACH and others of connect(2).
pub(super) fn resolve(id: IdRef, source: Option<SocketAddr>, mut destination: SocketAddr) -> Result<(), Errno> {
    engine::get()?;
    if destination.ip().is_unspecified() {
        destination.set_ip(match destination {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    if let Some(source) = source
        && core_stage(id) == Stage::Idle
    {
        bind(id, source)?;
    }
    let core = id.core();
    {
        let mut state = core.lock();
        match state.stage {
            Stage::Bound if state.source.is_some_and(|source| source.is_ipv4() == destination.is_ipv4()) => {}
            Stage::Idle => {
                let port = Port::bind(&core, port::any(destination), &state.options)?;
                state.port = Some(port);
            }
            _ => return Err(Errno::EINVAL),
        }
        let Some(port) = &state.port else { return Err(Errno::EINVAL) };
        let resolved = port.connect(destination).and_then(|()| port.address());
        match resolved {
            Ok(source) => state.source = Some(source),
            Err(reason) => {
                if state.stage == Stage::Idle {
                    let port = state.port.take();
                    state.discard(port);
                }
                return Err(reason);
            }
        }
        state.destination = Some(destination);
        id.show_destination(destination);
        state.stage = Stage::AddressResolved;
        state.notify(&core, event::RDMA_CM_EVENT_ADDR_RESOLVED, 0, channel::Params::default());
    }
    id.complete(&core)
}

fn core_stage(id: IdRef) -> Stage {
    id.core().lock().stage
}

/// rdma_resolve_route(3).
pub(super) fn resolve_route(id: IdRef) -> Result<(), Errno> {
    engine::get()?;
    let core = id.core();
    {
        let mut state = core.lock();
        if state.stage != Stage::AddressResolved {
            return Err(Errno::EINVAL);
        }
        state.stage = Stage::RouteResolved;
        state.notify(&core, event::RDMA_CM_EVENT_ROUTE_RESOLVED, 0, channel::Params::default());
    }
    id.complete(&core)
}

/// What a program offers, or accepts: `param`, or what librdmacm takes for a missing one. Reads are not in it yet.
///
/// # Safety
/// * The private data of `param` are as long as it says.
unsafe fn offer(id: IdRef, param: Option<&rdma_conn_param>) -> Result<Offer, Errno> {
    let qp = id.qp();
    let mut offer = match param {
        None if qp.is_null() => return Err(Errno::EINVAL),
        None => Offer { retry_count: 7, rnr_retry_count: 7, ..Offer::default() },
        Some(param) => Offer {
            qp_num: param.qp_num,
            srq: param.srq != 0,
            flow_control: param.flow_control != 0,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            // SAFETY: as the caller promises.
            private_data: unsafe { bytes(param.private_data, param.private_data_len) },
            ..Offer::default()
        },
    };
    // SAFETY: the identifier's queue pair, or NULL.
    if let Some(qp) = unsafe { qp.as_ref() } {
        offer.qp_num = qp.qp_num;
        offer.srq = !qp.srq.is_null();
    }
    Ok(offer)
}

/// # Safety
/// * `data` is NULL or `length` bytes.
pub(super) unsafe fn bytes(data: *const c_void, length: u8) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: not NULL, and as long by the caller's promise.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length.into()) }.to_vec()
}

/// Of a limit that a program has named, and of what applies where it has not. EINVAL beyond what the device can do.
fn reads(named: Option<u8>, otherwise: u8, device: u8) -> Result<u8, Errno> {
    match named {
        None | Some(AS_MUCH_AS_POSSIBLE) => Ok(otherwise.min(device)),
        Some(named) if named > device => Err(Errno::EINVAL),
        Some(named) => Ok(named),
    }
}

/// rdma_connect(3).
///
/// # Safety
/// * The private data of `param` are as long as it says.
pub(super) unsafe fn connect(id: IdRef, param: Option<&rdma_conn_param>) -> Result<(), Errno> {
    engine::get()?;
    if id.verbs().is_null() {
        return Err(Errno::EINVAL);
    }
    let device = device::get()?;
    let most = AS_MUCH_AS_POSSIBLE;
    // SAFETY: as the caller promises.
    let mut offer = unsafe { offer(id, param) }?;
    offer.responder_resources = reads(param.map(|p| p.responder_resources), most, device.max_responder_resources)?;
    offer.initiator_depth = reads(param.map(|p| p.initiator_depth), most, device.max_initiator_depth)?;
    let core = id.core();
    core.connect(device, offer)?;
    id.complete(&core)
}

/// rdma_accept(3).
///
/// # Safety
/// * The private data of `param` are as long as it says.
pub(super) unsafe fn accept(id: IdRef, param: Option<&rdma_conn_param>) -> Result<(), Errno> {
    engine::get()?;
    if id.verbs().is_null() {
        return Err(Errno::EINVAL);
    }
    let device = device::get()?;
    let core = id.core();
    let (asked_resources, asked_depth) = {
        let mut state = core.lock();
        if state.stage != Stage::Connecting {
            return Err(Errno::EINVAL);
        }
        if let Some(timeout) = state.options.ack_timeout {
            state.connection.set_own_ack_timeout(timeout);
        }
        (state.responder_resources, state.initiator_depth)
    };
    // SAFETY: as the caller promises.
    let mut offer = unsafe { offer(id, param) }?;
    offer.responder_resources =
        reads(param.map(|p| p.responder_resources), asked_resources, device.max_responder_resources)?;
    offer.initiator_depth = reads(param.map(|p| p.initiator_depth), asked_depth, device.max_initiator_depth)?;
    qp::ready(id, Some(offer.responder_resources), Some(offer.initiator_depth))?;
    let accepted = {
        let mut state = core.lock();
        state.connection.accept(device.guid, &offer).map(|rep| {
            state.unanswered = false;
            state.say(rep);
        })
    };
    accepted.inspect_err(|_| {
        // Who cannot accept refuses, as the kernel does; what is told is why.
        let _ = qp::error(id);
        let _ = core.reject(reason::CONSUMER, &[]);
    })?;
    id.complete(&core)
}

/// rdma_disconnect(3). The own queue pair is in ERR when this returns, whatever the peer does.
pub(super) fn disconnect(id: IdRef) -> Result<(), Errno> {
    engine::get()?;
    if id.verbs().is_null() {
        return Err(Errno::EINVAL);
    }
    qp::error(id)?;
    // What ended before brings no further event that one could wait for.
    let core = id.core();
    if core.disconnect()? { id.complete(&core) } else { Ok(()) }
}

/// rdma_get_request(3).
pub(super) fn get_request(listener: IdRef) -> Result<IdRef, Errno> {
    engine::get()?;
    {
        let core = listener.core();
        let state = core.lock();
        if !state.synchronous || state.stage != Stage::Listening {
            return Err(Errno::EINVAL);
        }
    }
    listener.acknowledge_event();
    let event = listener.next_event()?;
    request(listener, event).inspect_err(|_| listener.set_event(event.as_ptr()))
}

fn request(listener: IdRef, event: NonNull<rdma_cm_event>) -> Result<IdRef, Errno> {
    event_outcome(event)?;
    // SAFETY: a valid object, from `channel::next`.
    let kind = unsafe { (*event.as_ptr()).event };
    // SAFETY: as above.
    let id = unsafe { (*event.as_ptr()).id };
    // SAFETY: an identifier that lives until the event is acknowledged, at least.
    let id = unsafe { IdRef::new(id) }.filter(|_| kind == event::RDMA_CM_EVENT_CONNECT_REQUEST).ok_or(Errno::EINVAL)?;
    if let Some(mut attr) = listener.qp_init_attr() {
        // SAFETY: what the program gave to rdma_create_ep, and promised to keep.
        unsafe { qp::create(id, listener.pd(), &raw mut attr) }?;
    }
    id.set_event(event.as_ptr());
    Ok(id)
}

/// rdma_set_option(3). EINVAL for a value of another length or out of range, and where it comes too late; ENOSYS for
/// what does not exist, EOPNOTSUPP for a path, of which there is no other.
///
/// # Safety
/// * `value` is NULL or `length` bytes.
pub(super) unsafe fn set_option(
    id: IdRef,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: usize,
) -> Result<(), Errno> {
    engine::get()?;
    let wanted = match (level, name) {
        (option::LEVEL_ID, option::TOS | option::ACK_TIMEOUT) => 1,
        (option::LEVEL_ID, option::REUSEADDR | option::AFONLY) => size_of::<c_int>(),
        (option::LEVEL_IB, option::PATH) if length == 0 || !length.is_multiple_of(option::PATH_BYTES) => {
            return Err(Errno::EINVAL);
        }
        (option::LEVEL_IB, option::PATH) => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::ENOSYS),
    };
    if value.is_null() || length != wanted {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not NULL, and as long by the caller's promise.
    let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), length) };
    let core = id.core();
    let mut state = core.lock();
    let on = value.iter().any(|byte| *byte != 0);
    match name {
        option::TOS => state.options.tos = value[0],
        // 5 bits.
        option::ACK_TIMEOUT if value[0] > 31 => return Err(Errno::EINVAL),
        option::ACK_TIMEOUT => state.options.ack_timeout = Some(value[0]),
        // A port that is shared stays so, and who listens has it alone.
        option::REUSEADDR if state.stage == Stage::Idle || (on && state.stage != Stage::Listening) => {
            state.options.reuse_address = on;
            if let Some(port) = &mut state.port {
                port.share()?;
            }
        }
        option::AFONLY if matches!(state.stage, Stage::Idle | Stage::Bound) => state.options.only_v6 = on,
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}

/// rdma_create_ep(3).
///
/// # Safety
/// * The addresses and the private data in `info` are as long as it says; `pd` and what `attr` names are valid objects.
pub(super) unsafe fn create(
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<IdRef, Errno> {
    let (ps, qp_type) = (info.ai_port_space as rdma_port_space::Type, info.ai_qp_type as ibv_qp_type::Type);
    // SAFETY: NULL stands for a channel of its own.
    let id = unsafe { Id::create(ptr::null_mut(), ptr::null_mut(), ps, qp_type) }?;
    // SAFETY: as the caller promises.
    let prepared = unsafe { prepare(id, info, pd, attr) };
    match prepared {
        Ok(()) => Ok(id),
        Err(reason) => {
            // SAFETY: made above, and nobody else's.
            let _ = unsafe { destroy(id) };
            Err(reason)
        }
    }
}

/// # Safety
/// * As for [`create`].
unsafe fn prepare(id: IdRef, info: &rdma_addrinfo, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> Result<(), Errno> {
    let qp_type = info.ai_qp_type as ibv_qp_type::Type;
    if addrinfo::is_passive(info) {
        // SAFETY: as the caller promises.
        bind(id, unsafe { read_address(info.ai_src_addr) }?)?;
        if !pd.is_null() {
            id.set_pd(pd);
        }
        // SAFETY: a valid object or NULL, by the caller's promise.
        if let Some(attr) = unsafe { attr.as_ref() } {
            id.set_qp_init_attr(ibv_qp_init_attr { qp_type, ..*attr });
        }
        return Ok(());
    }
    let source = match info.ai_src_addr.is_null() {
        true => None,
        // SAFETY: as the caller promises.
        false => Some(unsafe { read_address(info.ai_src_addr) }?),
    };
    // SAFETY: as the caller promises.
    resolve(id, source, unsafe { read_address(info.ai_dst_addr) }?)?;
    resolve_route(id)?;
    // SAFETY: a valid object or NULL, by the caller's promise.
    if let Some(attr) = unsafe { attr.as_mut() } {
        attr.qp_type = qp_type;
        // SAFETY: as the caller promises.
        unsafe { qp::create(id, pd, attr) }?;
    }
    if !info.ai_connect.is_null() {
        // SAFETY: as long by the caller's promise.
        let data = unsafe { std::slice::from_raw_parts(info.ai_connect.cast::<u8>(), info.ai_connect_len) };
        id.core().lock().connect_data = data.to_vec();
    }
    Ok(())
}

/// rdma_destroy_ep(3).
///
/// # Safety
/// * As for [`Id::destroy`].
pub(super) unsafe fn destroy(id: IdRef) -> Result<(), Errno> {
    qp::destroy(id);
    qp::destroy_srq(id);
    // SAFETY: as the caller promises.
    unsafe { Id::destroy(id) }
}

/// rdma_resolve_addrinfo(3): the answer waits for rdma_query_addrinfo(3). EBUSY while one is there already.
///
/// # Safety
/// * As for [`addrinfo::get`].
pub(super) unsafe fn resolve_addrinfo(
    id: IdRef,
    node: *const std::ffi::c_char,
    service: *const std::ffi::c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<(), addrinfo::Failure> {
    let core = id.core();
    if std::mem::replace(&mut core.lock().resolving, true) {
        return Err(Errno::EBUSY.into());
    }
    // SAFETY: as the caller promises.
    let found = unsafe { addrinfo::get(node, service, hints) }.inspect_err(|_| core.lock().resolving = false)?;
    {
        let mut state = core.lock();
        id.replace_resolved(found);
        state.notify(&core, channel::EVENT_ADDRINFO_RESOLVED, 0, channel::Params::default());
    }
    Ok(id.complete(&core)?)
}

/// rdma_query_addrinfo(3). ENOENT where nothing was found, or it was fetched already.
pub(super) fn query_addrinfo(id: IdRef) -> Result<*mut rdma_addrinfo, Errno> {
    let core = id.core();
    let mut state = core.lock();
    let found = id.replace_resolved(ptr::null_mut());
    if found.is_null() {
        return Err(Errno::ENOENT);
    }
    state.resolving = false;
    Ok(found)
}
