//! A carrier over TCP.

use super::Carrier;
use crate::descriptors::Tracked;
use libc::iovec;
use nix::errno::Errno;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// A connection of TCP.
pub(in crate::engine) struct Tcp(Tracked<TcpStream>);

pub(in crate::engine) fn errno(error: std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

impl Tcp {
    /// Begins to connect.
    pub(in crate::engine) fn connect(source: SocketAddr, to: SocketAddr) -> Result<Tcp, Errno> {
        let socket = Tracked::open(|| {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
            socket.set_tcp_nodelay(true)?;
            // The port is chosen when the peer is known, so that connections to different peers may share it.
            nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::IpBindAddressNoPort, &true)?;
            socket.bind(&SockAddr::from(source))?;
            match socket.connect(&SockAddr::from(to)) {
                Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
                _ => {}
            }
            Ok(TcpStream::from(socket))
        });
        socket.map(Tcp).map_err(errno)
    }

    /// One that a listener has accepted, and its own address.
    pub(in crate::engine) fn accepted(socket: Tracked<TcpStream>) -> Result<(Tcp, SocketAddr), Errno> {
        socket.set_nodelay(true).map_err(errno)?;
        let local = socket.local_addr().map_err(errno)?;
        Ok((Tcp(socket), local))
    }
}

impl AsFd for Tcp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Carrier for Tcp {
    fn send(&self, places: &[iovec]) -> Result<usize, Errno> {
        // SAFETY: all zeros is a message without anything.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = places.as_ptr().cast_mut();
        message.msg_iovlen = places.len();
        // SAFETY: the message has places that are there, or the kernel answers EFAULT.
        let taken = unsafe { libc::sendmsg(self.0.as_raw_fd(), &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
        Errno::result(taken).map(|taken| taken as usize)
    }

    fn receive(&self, places: &mut [iovec]) -> Result<usize, Errno> {
        // SAFETY: all zeros is a message without anything.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = places.as_mut_ptr();
        message.msg_iovlen = places.len();
        // SAFETY: the message has places that are there, or the kernel answers EFAULT.
        let taken = unsafe { libc::recvmsg(self.0.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
        Errno::result(taken).map(|taken| taken as usize)
    }

    fn into_socket(self: Box<Self>) -> TcpStream {
        self.0.into_inner()
    }
}
