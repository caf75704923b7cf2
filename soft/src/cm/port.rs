//! An RDMA port: a UDP socket of the same number.
//!
//! It keeps others from the port, answers where this process is reached, and asks that of the peer.

use super::id::{Core, Options};
use super::link::to_errno;
use crate::descriptors::Tracked;
use crate::engine;
use crate::reactor::{self, Registration, Source};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt, sockopt,
};
use rdma_verbs_wire::port_query;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Datagrams that are looked at before others have their turn.
const AT_ONCE: usize = 64;

pub(super) struct Port {
    // Goes before the descriptor that it waits for.
    _registration: Registration,
    socket: Tracked<Socket>,
    /// The program has asked for this number, and keeps it as long as the identifier.
    pub(super) chosen: bool,
    /// `RDMA_OPTION_ID_REUSEADDR`: its entry in [`SHARED`].
    shared: Option<Arc<SocketAddr>>,
}

/// The ports of the process that are, or may be, of several identifiers.
static SHARED: Mutex<Vec<Weak<SocketAddr>>> = Mutex::new(Vec::new());

fn shared() -> MutexGuard<'static, Vec<Weak<SocketAddr>>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who asked, and the address of ours that it asked: an answer from another one would not be heard.
struct Question {
    nonce: u64,
    from: SocketAddr,
    to: Option<Asked>,
}

enum Asked {
    V4(libc::in_pktinfo),
    V6(libc::in6_pktinfo),
}

enum Datagram {
    Question(Question),
    Answer { nonce: u64, tcp_port: u16 },
    Other,
}

/// Brings datagrams to the identifier that the port belongs to.
struct ToCore(Weak<Core>);

impl Source for ToCore {
    fn ready(&self, _: EpollFlags) {
        if let Some(core) = self.0.upgrade() {
            core.port_ready();
        }
    }
}

impl Core {
    fn port_ready(self: &Arc<Core>) {
        let mut state = self.lock();
        for _ in 0..AT_ONCE {
            let Some(port) = &state.port else { return };
            match port.receive() {
                Ok(Datagram::Question(question)) => port.answer(&question),
                Ok(Datagram::Answer { nonce, tcp_port }) => state.answered(self, nonce, tcp_port),
                Ok(Datagram::Other) => {}
                Err(Errno::EAGAIN) => return,
                Err(reason) => state.asking_failed(self, reason),
            }
        }
    }
}

impl Port {
    /// EADDRINUSE, EADDRNOTAVAIL and others of bind(2).
    pub(super) fn bind(core: &Arc<Core>, address: SocketAddr, options: &Options) -> Result<Port, Errno> {
        let wildcard = address.ip().is_unspecified();
        let open = || Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking(), Some(Protocol::UDP));
        let socket = Tracked::open(open).map_err(to_errno)?;
        socket.set_reuse_address(options.reuse_address).map_err(to_errno)?;
        if address.is_ipv6() {
            socket.set_only_v6(options.only_v6).map_err(to_errno)?;
            setsockopt(&*socket, sockopt::Ipv6RecvPacketInfo, &wildcard)?;
        } else {
            setsockopt(&*socket, sockopt::Ipv4PacketInfo, &wildcard)?;
        }
        socket.bind(&SockAddr::from(address)).map_err(to_errno)?;
        let registration =
            reactor::register(socket.as_fd(), EpollFlags::EPOLLIN, Arc::new(ToCore(Arc::downgrade(core))))?;
        let mut port = Port { _registration: registration, socket, chosen: address.port() != 0, shared: None };
        if options.reuse_address {
            port.share()?;
        }
        Ok(port)
    }

    /// From now on others may have the port, too, if they say so.
    pub(super) fn share(&mut self) -> Result<(), Errno> {
        self.socket.set_reuse_address(true).map_err(to_errno)?;
        let address = Arc::new(self.address()?);
        let mut shared = shared();
        shared.retain(|other| other.strong_count() > 0);
        shared.push(Arc::downgrade(&address));
        self.shared = Some(address);
        Ok(())
    }

    /// From now on nobody else may have the port. EADDRINUSE where another identifier of the process has it.
    pub(super) fn keep(&self) -> Result<(), Errno> {
        let Some(own) = &self.shared else { return Ok(()) };
        let clashes = |other: Arc<SocketAddr>| {
            let same_ip = other.ip() == own.ip() || other.ip().is_unspecified() || own.ip().is_unspecified();
            !Arc::ptr_eq(&other, own) && same_ip && other.port() == own.port()
        };
        if shared().iter().filter_map(Weak::upgrade).any(clashes) {
            return Err(Errno::EADDRINUSE);
        }
        self.socket.set_reuse_address(false).map_err(to_errno)
    }

    pub(super) fn address(&self) -> Result<SocketAddr, Errno> {
        self.socket.local_addr().map_err(to_errno)?.as_socket().ok_or(Errno::EAFNOSUPPORT)
    }

    /// From now on the port talks to `peer` alone; its address becomes the one from which that is reached. ENETUNREACH
    /// and others of connect(2).
    pub(super) fn connect(&self, peer: SocketAddr) -> Result<(), Errno> {
        self.socket.connect(&SockAddr::from(peer)).map_err(to_errno)
    }

    /// Asks the peer at which TCP port it is reached.
    pub(super) fn ask(&self, nonce: u64) -> Result<(), Errno> {
        self.socket.send(&port_query::encode_query(nonce)).map_err(to_errno)?;
        Ok(())
    }

    fn receive(&self) -> Result<Datagram, Errno> {
        // One more than any datagram of ours has, so that a longer one is not mistaken for one.
        let mut bytes = [0; port_query::QUERY_BYTES + 1];
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let mut control = cmsg_space!(libc::in_pktinfo, libc::in6_pktinfo);
        let received = recvmsg::<SockaddrStorage>(
            self.socket.as_raw_fd(),
            &mut parts,
            Some(&mut control),
            MsgFlags::MSG_DONTWAIT,
        )?;
        let from = received.address.as_ref().and_then(to_socket_address);
        let to = received.cmsgs().ok().and_then(|mut messages| {
            messages.find_map(|message| match message {
                ControlMessageOwned::Ipv4PacketInfo(info) => Some(Asked::V4(info)),
                ControlMessageOwned::Ipv6PacketInfo(info) => Some(Asked::V6(info)),
                _ => None,
            })
        });
        let length = received.bytes;
        let datagram = bytes.get(..length).unwrap_or_default();
        if let Ok((nonce, tcp_port)) = port_query::decode_answer(datagram) {
            return Ok(Datagram::Answer { nonce, tcp_port });
        }
        Ok(match (port_query::decode_query(datagram), from) {
            (Ok(nonce), Some(from)) => Datagram::Question(Question { nonce, from, to }),
            _ => Datagram::Other,
        })
    }

    /// Whether anybody listens is told there. An answer that cannot be sent is asked for again.
    fn answer(&self, question: &Question) {
        let Ok(engine) = engine::get() else { return };
        let bytes = port_query::encode_answer(question.nonce, engine.port());
        let parts = [IoSlice::new(&bytes)];
        let fd = self.socket.as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let to = SockaddrStorage::from(question.from);
        let _ = match &question.to {
            None => sendmsg(fd, &parts, &[], flags, Some(&to)),
            Some(Asked::V4(info)) => {
                let info = libc::in_pktinfo { ipi_ifindex: 0, ..*info };
                sendmsg(fd, &parts, &[ControlMessage::Ipv4PacketInfo(&info)], flags, Some(&to))
            }
            Some(Asked::V6(info)) => {
                // Only a link-local address needs its interface said.
                let link_local = Ipv6Addr::from(info.ipi6_addr.s6_addr).is_unicast_link_local();
                let ipi6_ifindex = if link_local { info.ipi6_ifindex } else { 0 };
                let info = libc::in6_pktinfo { ipi6_ifindex, ..*info };
                sendmsg(fd, &parts, &[ControlMessage::Ipv6PacketInfo(&info)], flags, Some(&to))
            }
        };
    }
}

fn to_socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
}

/// The address of any interface, of the family of `like`.
pub(super) fn any(like: SocketAddr) -> SocketAddr {
    let ip = match like {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(ip, 0)
}
