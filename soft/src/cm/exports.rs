//! The names of librdmacm. Each answers NULL and what is out of place with EINVAL, where librdmacm would crash.
//!
//! A "valid object" is one that another of these functions has returned, and that has not been destroyed. Identifiers are
//! looked up, so that those that have been destroyed are answered, too.

use super::addrinfo::{self, Failure};
use super::channel::{self, Channel, EVENT_USER, Params};
use super::connection::reason;
use super::device;
use super::endpoint;
use super::id::{Id, IdRef};
use super::qp;
use crate::descriptors;
use crate::engine;
use libc::sockaddr;
use nix::errno::Errno;
use rdma_sys::rdma_cm_event_type::Type as EventKind;
use rdma_sys::{
    ibv_context, ibv_ece, ibv_event_type, ibv_pd, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_type,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_addrinfo, rdma_cm_event, rdma_cm_id, rdma_cm_join_mc_attr_ex,
    rdma_conn_param, rdma_event_channel, rdma_port_space,
};
use std::ffi::{c_char, c_int, c_void};
use std::net::SocketAddr;
use std::ptr::{self, NonNull};

/// 0, or -1 and `errno`.
fn status(outcome: Result<(), Errno>) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(reason) => {
            reason.set();
            -1
        }
    }
}

/// An object, or NULL and `errno`.
fn pointer<T>(outcome: Result<*mut T, Errno>) -> *mut T {
    outcome.unwrap_or_else(|reason| {
        reason.set();
        ptr::null_mut()
    })
}

/// What rdma_getaddrinfo(3) and its like return.
fn found(outcome: Result<(), Failure>) -> c_int {
    match outcome {
        Err(Failure::Eai(value)) => value,
        Err(Failure::Errno(reason)) => status(Err(reason)),
        Ok(()) => 0,
    }
}

fn valid(id: *mut rdma_cm_id) -> Result<IdRef, Errno> {
    // A child of a fork must not wait for a lock that a thread of its parent had.
    if descriptors::in_child() {
        return Err(Errno::ENODEV);
    }
    IdRef::find(id).ok_or(Errno::EINVAL)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(Channel::create().map(NonNull::as_ptr))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if let Some(channel) = NonNull::new(channel) {
        // SAFETY: a valid object, which the caller gives up.
        unsafe { Channel::destroy(channel) };
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space::Type,
) -> c_int {
    if id.is_null() {
        return status(Err(Errno::EINVAL));
    }
    // SAFETY: a valid object or NULL.
    let created = unsafe { Id::create(channel, context, ps, ibv_qp_type::IBV_QPT_RC) };
    // SAFETY: not NULL, and so room for a pointer.
    status(created.map(|created| unsafe { id.write(created.as_ptr()) }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    let id = valid(id);
    // SAFETY: a valid object, which the caller gives up.
    status(id.and_then(|id| unsafe { Id::destroy(id) }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    status((|| {
        let id = valid(id)?;
        // SAFETY: an address or NULL.
        endpoint::bind(id, unsafe { endpoint::read_address(addr) }?)
    })())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    status((|| {
        let id = valid(id)?;
        let read = |address: *mut sockaddr| -> Result<SocketAddr, Errno> {
            // SAFETY: an address or NULL.
            unsafe { endpoint::read_address(address) }
        };
        let source = if src_addr.is_null() { None } else { Some(read(src_addr)?) };
        endpoint::resolve(id, source, read(dst_addr)?)
    })())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    status(valid(id).and_then(endpoint::resolve_route))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    status((|| {
        let id = valid(id)?;
        if qp_init_attr.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: valid objects.
        unsafe { qp::create(id, pd, qp_init_attr) }
    })())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    qp_init_attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    status((|| {
        let id = valid(id)?;
        // SAFETY: a valid object or NULL.
        let attr = unsafe { qp_init_attr.as_mut() }.ok_or(Errno::EINVAL)?;
        // SAFETY: valid objects.
        unsafe { qp::create_ex(id, attr) }
    })())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    if let Ok(id) = valid(id) {
        qp::destroy(id);
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    status((|| {
        let id = valid(id)?;
        if attr.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: valid objects.
        unsafe { qp::create_srq(id, pd, attr) }
    })())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    status((|| {
        let id = valid(id)?;
        // SAFETY: a valid object or NULL.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::EINVAL)?;
        // SAFETY: valid objects.
        unsafe { qp::create_srq_ex(id, attr) }
    })())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    if let Ok(id) = valid(id) {
        qp::destroy_srq(id);
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    status((|| {
        let id = valid(id)?;
        // SAFETY: a valid object or NULL.
        let param = unsafe { conn_param.as_ref() };
        // SAFETY: valid objects.
        unsafe { endpoint::connect(id, param) }
    })())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    status(valid(id).and_then(|id| endpoint::listen(id, backlog)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    if id.is_null() {
        return status(Err(Errno::EINVAL));
    }
    let request = valid(listen).and_then(endpoint::get_request);
    // SAFETY: not NULL, and so room for a pointer.
    status(request.map(|request| unsafe { id.write(request.as_ptr()) }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    status((|| {
        let id = valid(id)?;
        // SAFETY: a valid object or NULL.
        let param = unsafe { conn_param.as_ref() };
        // SAFETY: valid objects.
        unsafe { endpoint::accept(id, param) }
    })())
}

/// # Safety
/// * `id` is NULL or a valid object; `data` is NULL or `length` bytes.
unsafe fn reject(id: *mut rdma_cm_id, reason: u16, data: *const c_void, length: u8) -> c_int {
    status((|| {
        engine::get()?;
        let id = valid(id)?;
        // SAFETY: as the caller promises.
        let data = unsafe { endpoint::bytes(data, length) };
        id.core().reject(reason, &data)
    })())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: a valid object or NULL, and its data.
    unsafe { reject(id, reason::CONSUMER, private_data, private_data_len) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: a valid object or NULL, and its data.
    unsafe { reject(id, reason::VENDOR_OPTION_NOT_SUPPORTED, private_data, private_data_len) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: c_int) -> c_int {
    status((|| {
        engine::get()?;
        let id = valid(id)?;
        if event != ibv_event_type::IBV_EVENT_COMM_EST as c_int {
            return Err(Errno::EINVAL);
        }
        id.core().communication_established()
    })())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    status((|| {
        engine::get()?;
        let id = valid(id)?;
        // A queue pair of the identifier's own has been brought there with the event.
        if !id.qp().is_null() {
            return Err(Errno::EINVAL);
        }
        // What cannot be established is refused, as the kernel does.
        id.core().establish().inspect_err(|_| {
            let _ = id.core().reject(reason::CONSUMER, &[]);
        })
    })())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    status(valid(id).and_then(endpoint::disconnect))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    let (Some(channel), false) = (NonNull::new(channel), event.is_null()) else {
        return status(Err(Errno::EINVAL));
    };
    // SAFETY: a valid object.
    let queue = unsafe { Channel::queue(channel) };
    // SAFETY: not NULL, and so room for a pointer.
    status(channel::next(&queue).map(|next| unsafe { event.write(next.as_ptr()) }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    status((|| {
        engine::get()?;
        let event = NonNull::new(event).ok_or(Errno::EINVAL)?;
        // SAFETY: a valid object, which the caller gives up.
        unsafe { channel::acknowledge(event) };
        Ok(())
    })())
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdma_event_str(event: EventKind) -> *const c_char {
    channel::name(event).as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    let id = valid(id);
    // SAFETY: a value of this length, or NULL.
    status(id.and_then(|id| unsafe { endpoint::set_option(id, level, optname, optval, optlen) }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    let id = valid(id);
    // SAFETY: valid objects.
    status(id.and_then(|id| unsafe { Id::migrate(id, channel) }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    if res.is_null() {
        return status(Err(Errno::EINVAL));
    }
    // SAFETY: a valid object or NULL.
    let hints = unsafe { hints.as_ref() };
    // SAFETY: C strings or NULL.
    let info = unsafe { addrinfo::get(node, service, hints) };
    // SAFETY: not NULL, and so room for a pointer.
    found(info.map(|info| unsafe { res.write(info) }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    // SAFETY: a valid object, which the caller gives up.
    unsafe { addrinfo::free(res) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    found((|| {
        let id = valid(id)?;
        // SAFETY: a valid object or NULL.
        let hints = unsafe { hints.as_ref() };
        // SAFETY: C strings or NULL.
        unsafe { endpoint::resolve_addrinfo(id, node, service, hints) }
    })())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int {
    if info.is_null() {
        return status(Err(Errno::EINVAL));
    }
    let answer = valid(id).and_then(endpoint::query_addrinfo);
    // SAFETY: not NULL, and so room for a pointer.
    status(answer.map(|answer| unsafe { info.write(answer) }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: EventKind,
    event_status: c_int,
    arg: u64,
) -> c_int {
    status((|| {
        engine::get()?;
        let id = valid(id)?;
        if event != EVENT_USER {
            return Err(Errno::EINVAL);
        }
        let core = id.core();
        core.lock().notify(&core, event, event_status, Params { arg, ..Params::default() });
        Ok(())
    })())
}

/// # Safety
/// * `info` is NULL or a valid object.
unsafe fn endpoint_of(
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<*mut rdma_cm_id, Errno> {
    // SAFETY: as the caller promises.
    let info = unsafe { info.as_ref() }.ok_or(Errno::EINVAL)?;
    // SAFETY: valid objects.
    Ok(unsafe { endpoint::create(info, pd, attr) }?.as_ptr())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    if id.is_null() {
        return status(Err(Errno::EINVAL));
    }
    // SAFETY: valid objects.
    let created = unsafe { endpoint_of(res, pd, qp_init_attr) };
    // SAFETY: not NULL, and so room for a pointer.
    status(created.map(|created| unsafe { id.write(created) }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    if let Ok(id) = valid(id) {
        // SAFETY: a valid object, which the caller gives up; there is nobody to tell of a failure.
        let _ = unsafe { endpoint::destroy(id) };
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    status((|| {
        let id = valid(id)?;
        // SAFETY: a valid object or NULL.
        let attr = unsafe { qp_attr.as_mut() }.ok_or(Errno::EINVAL)?;
        // SAFETY: room for a number, or NULL.
        let mask = unsafe { qp_attr_mask.as_mut() }.ok_or(Errno::EINVAL)?;
        (*attr, *mask) = qp::attributes(id, attr.qp_state)?;
        Ok(())
    })())
}

fn port(address: Result<SocketAddr, Errno>) -> u16 {
    address.map_or(0, |address| address.port().to_be())
}

/// In network byte order.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    port(valid(id).and_then(|id| id.core().lock().source.ok_or(Errno::EINVAL)))
}

/// In network byte order.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    port(valid(id).and_then(|id| id.core().lock().destination.ok_or(Errno::EINVAL)))
}

/// The list has one entry.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let list = device::get().and_then(|device| {
        // SAFETY: has no preconditions.
        let list = unsafe { libc::calloc(2, size_of::<*mut ibv_context>()) }.cast::<*mut ibv_context>();
        // SAFETY: just allocated; NULL stays behind the entry.
        let first = unsafe { list.as_mut() }.ok_or(Errno::ENOMEM)?;
        *first = device.context;
        Ok(list)
    });
    // SAFETY: room for a number, or NULL.
    if let Some(count) = unsafe { num_devices.as_mut() } {
        *count = list.is_ok().into();
    }
    pointer(list)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: from `rdma_get_devices`, or NULL.
    unsafe { libc::free(list.cast()) };
}

/// The device has no options of connections that vendors agree on with themselves. EINVAL where it would be too late.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    let in_time = valid(id).is_ok_and(|id| id.qp().is_null() && !ece.is_null());
    status(Err(if in_time { Errno::EOPNOTSUPP } else { Errno::EINVAL }))
}

/// None: 0 stands for no vendor.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    status((|| {
        let id = valid(id)?;
        // SAFETY: a valid object or NULL.
        let ece = unsafe { ece.as_mut() }.ok_or(Errno::EINVAL)?;
        if !id.qp().is_null() {
            return Err(Errno::EINVAL);
        }
        *ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
        Ok(())
    })())
}

/// Groups are for datagrams, which no identifier has: EINVAL, and EADDRNOTAVAIL for one that was not joined.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_join_multicast(_: *mut rdma_cm_id, _: *mut sockaddr, _: *mut c_void) -> c_int {
    status(Err(Errno::EINVAL))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    _: *mut rdma_cm_id,
    _: *mut rdma_cm_join_mc_attr_ex,
    _: *mut c_void,
) -> c_int {
    status(Err(Errno::EINVAL))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_leave_multicast(_: *mut rdma_cm_id, _: *mut sockaddr) -> c_int {
    status(Err(Errno::EADDRNOTAVAIL))
}

/// rsockets are not there: -1, which fits into every type that they return. What a caller passes does not matter to
/// the function that is called.
macro_rules! rsockets {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub(crate) extern "C" fn $name() -> isize {
                Errno::EOPNOTSUPP.set();
                -1
            }
        )*
    };
}

rsockets! {
    rsocket rbind rlisten raccept rconnect rshutdown rclose
    rrecv rrecvfrom rrecvmsg rsend rsendto rsendmsg rread rreadv rwrite rwritev
    rselect rgetpeername rgetsockname rsetsockopt rgetsockopt rfcntl
    riomap riounmap riowrite
    repoll_create repoll_ctl repoll_wait
}

/// poll(2): no descriptor is an rsocket. Programs link to it for other files' sake.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rpoll(fds: *mut libc::pollfd, nfds: libc::nfds_t, timeout: c_int) -> c_int {
    // SAFETY: as many entries, by the caller's promise.
    unsafe { libc::poll(fds, nfds, timeout) }
}
