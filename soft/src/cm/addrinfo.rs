//! rdma_getaddrinfo(3): getaddrinfo(3), with its answer in the words of librdmacm.

use nix::errno::Errno;
use rdma_sys::{ibv_qp_type, rdma_addrinfo, rdma_port_space};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

const RAI_PASSIVE: c_int = 0x1;
const RAI_NUMERICHOST: c_int = 0x2;
const RAI_FAMILY: c_int = 0x8;
const RAI_SA: c_int = 0x10;
const AF_IB: c_int = 27;

pub(super) fn is_passive(info: &rdma_addrinfo) -> bool {
    info.ai_flags & RAI_PASSIVE != 0
}

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// -1, with `errno`.
    Errno(Errno),
    /// `EAI_*`, itself.
    Eai(c_int),
}

impl From<Errno> for Failure {
    fn from(reason: Errno) -> Failure {
        Failure::Errno(reason)
    }
}

/// What is asked of getaddrinfo(3).
fn to_libc(hints: &rdma_addrinfo) -> libc::addrinfo {
    let (stream, datagram) = (libc::SOCK_STREAM, libc::SOCK_DGRAM);
    let ai_socktype = match hints.ai_qp_type as u32 {
        ibv_qp_type::IBV_QPT_RC
        | ibv_qp_type::IBV_QPT_UC
        | ibv_qp_type::IBV_QPT_XRC_SEND
        | ibv_qp_type::IBV_QPT_XRC_RECV => stream,
        ibv_qp_type::IBV_QPT_UD => datagram,
        _ => 0,
    };
    let ai_protocol = match hints.ai_port_space as u32 {
        rdma_port_space::RDMA_PS_TCP => libc::IPPROTO_TCP,
        rdma_port_space::RDMA_PS_IPOIB | rdma_port_space::RDMA_PS_UDP => libc::IPPROTO_UDP,
        rdma_port_space::RDMA_PS_IB if ai_socktype == stream => libc::IPPROTO_TCP,
        rdma_port_space::RDMA_PS_IB if ai_socktype == datagram => libc::IPPROTO_UDP,
        _ => 0,
    };
    let mut ai_flags = 0;
    if hints.ai_flags & RAI_PASSIVE != 0 {
        ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        ai_flags |= libc::AI_NUMERICHOST;
    }
    libc::addrinfo {
        ai_flags,
        ai_family: if hints.ai_family == AF_IB { libc::AF_UNSPEC } else { hints.ai_family },
        ai_socktype,
        ai_protocol,
        ai_addrlen: 0,
        ai_addr: ptr::null_mut(),
        ai_canonname: ptr::null_mut(),
        ai_next: ptr::null_mut(),
    }
}

/// The kind of queue pair and the port space that go with an answer, unless the hints name them.
fn kind(hints: Option<&rdma_addrinfo>, socktype: c_int, protocol: c_int) -> (c_int, c_int) {
    let qp_type = match (hints.map_or(0, |hints| hints.ai_qp_type), socktype) {
        (0, libc::SOCK_STREAM) => ibv_qp_type::IBV_QPT_RC as c_int,
        (0, libc::SOCK_DGRAM) => ibv_qp_type::IBV_QPT_UD as c_int,
        (given, _) => given,
    };
    let port_space = match (hints.map_or(0, |hints| hints.ai_port_space), protocol) {
        (0, libc::IPPROTO_TCP) => rdma_port_space::RDMA_PS_TCP as c_int,
        (0, libc::IPPROTO_UDP) => rdma_port_space::RDMA_PS_UDP as c_int,
        (given, _) => given,
    };
    (qp_type, port_space)
}

/// A copy that free(3) takes back.
///
/// # Safety
/// * `from` is `length` bytes, or NULL and `length` is 0.
unsafe fn copy<T>(from: *const T, length: usize) -> Result<*mut T, Errno> {
    // SAFETY: has no preconditions.
    let to = unsafe { libc::malloc(length.max(1)) };
    if to.is_null() {
        return Err(Errno::ENOMEM);
    }
    // SAFETY: as many bytes as were just allocated.
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), length) };
    Ok(to.cast())
}

/// The answer, which [`free`] takes back.
///
/// # Safety
/// * `node` and `service` are C strings or NULL; the addresses in `hints` are as long as it says.
pub(super) unsafe fn get(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<*mut rdma_addrinfo, Failure> {
    if node.is_null() && service.is_null() && hints.is_none() {
        return Err(Errno::EINVAL.into());
    }
    crate::engine::get()?;
    let flags = hints.map_or(0, |hints| hints.ai_flags);
    if flags & RAI_SA != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if flags & RAI_FAMILY != 0 && hints.is_some_and(|hints| hints.ai_family == AF_IB) {
        // There are no InfiniBand addresses here.
        return Err(Failure::Eai(libc::EAI_FAMILY));
    }
    // SAFETY: one object of this size, which `free` takes back.
    let room = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) }.cast::<rdma_addrinfo>();
    // SAFETY: just allocated, and all zero; nobody else has it.
    let Some(info) = (unsafe { room.as_mut() }) else { return Err(Errno::ENOMEM.into()) };
    // SAFETY: as the caller promises.
    let filled = unsafe { fill(node, service, hints, info) };
    filled.map(|()| room).inspect_err(|_| {
        // SAFETY: allocated above, with what `fill` has put into it.
        unsafe { free(room) };
    })
}

/// # Safety
/// * As for [`get`].
unsafe fn fill(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
    info: &mut rdma_addrinfo,
) -> Result<(), Failure> {
    if !node.is_null() || !service.is_null() {
        let wanted = hints.map(to_libc);
        let mut found = ptr::null_mut();
        // SAFETY: C strings or NULL, by the caller's promise, and room for a pointer.
        let failed =
            unsafe { libc::getaddrinfo(node, service, wanted.as_ref().map_or(ptr::null(), ptr::from_ref), &mut found) };
        if failed != 0 {
            return Err(Failure::Eai(failed));
        }
        // SAFETY: a list with one entry at least.
        let first = unsafe { &*found };
        // SAFETY: an entry of getaddrinfo's.
        let taken = unsafe { take(first, hints, info) };
        // SAFETY: from getaddrinfo, and not used again.
        unsafe { libc::freeaddrinfo(found) };
        taken?;
    } else if let Some(hints) = hints {
        info.ai_flags = hints.ai_flags;
        info.ai_family = hints.ai_family;
        info.ai_qp_type = hints.ai_qp_type;
        info.ai_port_space = hints.ai_port_space;
        if hints.ai_dst_len > 0 {
            // SAFETY: an address of this length, by the caller's promise.
            info.ai_dst_addr = unsafe { copy(hints.ai_dst_addr, hints.ai_dst_len as usize) }?;
            info.ai_dst_len = hints.ai_dst_len;
        }
    }
    if let Some(hints) = hints.filter(|hints| info.ai_src_len == 0 && hints.ai_src_len > 0) {
        // SAFETY: an address of this length, by the caller's promise.
        info.ai_src_addr = unsafe { copy(hints.ai_src_addr, hints.ai_src_len as usize) }?;
        info.ai_src_len = hints.ai_src_len;
    }
    Ok(())
}

/// # Safety
/// * `from` came from getaddrinfo(3).
unsafe fn take(from: &libc::addrinfo, hints: Option<&rdma_addrinfo>, info: &mut rdma_addrinfo) -> Result<(), Errno> {
    (info.ai_qp_type, info.ai_port_space) = kind(hints, from.ai_socktype, from.ai_protocol);
    info.ai_family = from.ai_family;
    // SAFETY: an address of this length.
    let address = unsafe { copy(from.ai_addr, from.ai_addrlen as usize) }?;
    let name = if from.ai_canonname.is_null() {
        ptr::null_mut()
    } else {
        // SAFETY: a C string.
        unsafe { libc::strdup(from.ai_canonname) }
    };
    if from.ai_flags & libc::AI_PASSIVE != 0 {
        info.ai_flags = RAI_PASSIVE;
        (info.ai_src_addr, info.ai_src_len, info.ai_src_canonname) = (address, from.ai_addrlen, name);
    } else {
        (info.ai_dst_addr, info.ai_dst_len, info.ai_dst_canonname) = (address, from.ai_addrlen, name);
    }
    Ok(())
}

/// rdma_freeaddrinfo(3).
///
/// # Safety
/// * `list` came from [`get`], or is NULL; what its entries point to, free(3) takes back.
pub(super) unsafe fn free(mut list: *mut rdma_addrinfo) {
    // SAFETY: an entry of the list, by the caller's promise.
    while let Some(info) = unsafe { list.as_ref() } {
        let parts: [*mut c_void; 6] = [
            info.ai_connect,
            info.ai_route,
            info.ai_src_canonname.cast(),
            info.ai_dst_canonname.cast(),
            info.ai_src_addr.cast(),
            info.ai_dst_addr.cast(),
        ];
        let next = info.ai_next;
        for part in parts {
            // SAFETY: from malloc or NULL, by the caller's promise.
            unsafe { libc::free(part) };
        }
        // SAFETY: as above.
        unsafe { libc::free(list.cast()) };
        list = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hints without any addresses.
    fn hints(flags: c_int, port_space: rdma_port_space::Type) -> rdma_addrinfo {
        // SAFETY: numbers and pointers, for all of which zero is a value.
        let mut hints: rdma_addrinfo = unsafe { std::mem::zeroed() };
        hints.ai_flags = flags;
        hints.ai_port_space = port_space as c_int;
        hints
    }

    fn filled(
        node: Option<&std::ffi::CStr>,
        service: Option<&std::ffi::CStr>,
        hints: Option<&rdma_addrinfo>,
        check: impl FnOnce(&rdma_addrinfo),
    ) -> Result<(), Failure> {
        let pointer = |text: Option<&std::ffi::CStr>| text.map_or(ptr::null(), std::ffi::CStr::as_ptr);
        // SAFETY: as above.
        let mut info: rdma_addrinfo = unsafe { std::mem::zeroed() };
        // SAFETY: C strings, and hints without addresses.
        let outcome = unsafe { fill(pointer(node), pointer(service), hints, &mut info) };
        check(&info);
        for part in [info.ai_src_addr, info.ai_dst_addr] {
            // SAFETY: from `fill`.
            unsafe { libc::free(part.cast()) };
        }
        outcome
    }

    #[test]
    fn a_passive_answer_is_a_source() {
        let hints = hints(RAI_PASSIVE, rdma_port_space::RDMA_PS_TCP);
        filled(None, Some(c"7471"), Some(&hints), |info| {
            assert!(is_passive(info));
            assert!(!info.ai_src_addr.is_null() && info.ai_dst_addr.is_null());
            assert_eq!(info.ai_port_space, rdma_port_space::RDMA_PS_TCP as c_int);
            assert_eq!(info.ai_qp_type, ibv_qp_type::IBV_QPT_RC as c_int);
        })
        .unwrap();
    }

    #[test]
    fn an_active_answer_is_a_destination() {
        let hints = hints(RAI_NUMERICHOST, rdma_port_space::RDMA_PS_TCP);
        filled(Some(c"127.0.0.1"), Some(c"7471"), Some(&hints), |info| {
            assert!(!is_passive(info));
            assert!(info.ai_src_addr.is_null() && !info.ai_dst_addr.is_null());
            assert_eq!(info.ai_family, libc::AF_INET);
            assert_eq!(info.ai_dst_len as usize, size_of::<libc::sockaddr_in>());
        })
        .unwrap();
    }

    #[test]
    fn the_port_space_decides_what_a_datagram_is() {
        let hints = hints(RAI_NUMERICHOST, rdma_port_space::RDMA_PS_UDP);
        filled(Some(c"::1"), Some(c"7471"), Some(&hints), |info| {
            assert_eq!(info.ai_qp_type, ibv_qp_type::IBV_QPT_UD as c_int);
            assert_eq!(info.ai_port_space, rdma_port_space::RDMA_PS_UDP as c_int);
            assert_eq!(info.ai_family, libc::AF_INET6);
        })
        .unwrap();
    }

    #[test]
    fn failures_are_those_of_getaddrinfo() {
        let numeric = hints(RAI_NUMERICHOST, rdma_port_space::RDMA_PS_TCP);
        assert_eq!(filled(Some(c"no.number"), None, Some(&numeric), |_| {}), Err(Failure::Eai(libc::EAI_NONAME)));
        assert_eq!(
            filled(Some(c"127.0.0.1"), Some(c"no such service"), Some(&numeric), |_| {}),
            Err(Failure::Eai(libc::EAI_SERVICE))
        );
    }
}
