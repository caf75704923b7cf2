//! A carrier over TCP.

use super::Carrier;
use crate::descriptors::Tracked;
use libc::iovec;
use nix::errno::Errno;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use std::ffi::c_int;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// A connection of TCP.
pub(in crate::engine) struct Tcp(Tracked<TcpStream>);

pub(in crate::engine) fn errno(error: io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Begins to connect, from the address of `source`.
pub(crate) fn connect(mut source: SocketAddr, to: SocketAddr) -> Result<Tracked<TcpStream>, Errno> {
    source.set_port(0);
    Tracked::open(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        set_options(&socket)?;
        // The port is chosen when the peer is known, so that connections to different peers may share it.
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::IpBindAddressNoPort, &true)?;
        socket.bind(&SockAddr::from(source))?;
        match socket.connect(&SockAddr::from(to)) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        Ok(TcpStream::from(socket))
    })
    .map_err(errno)
}

fn set_options(socket: &impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    // A peer that has vanished with its host is missed after tcp_keepalive_time, see tcp(7); a network that is cut for less
    // is no disconnect.
    socket.set_keepalive(true)?;
    // Milliseconds between two tries of the kernel's: queue pairs whose retries span a cut of the network hear in time when it
    // is over. Linux 6.15; before, the times double each time.
    const TCP_RTO_MAX_MS: c_int = 44;
    let most: c_int = 1000;
    let length = size_of_val(&most) as libc::socklen_t;
    // SAFETY: a descriptor, and a number of that length.
    unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, TCP_RTO_MAX_MS, (&raw const most).cast(), length)
    };
    Ok(())
}

impl Tcp {
    /// Begins to connect.
    pub(in crate::engine) fn connect(source: SocketAddr, to: SocketAddr) -> Result<Tcp, Errno> {
        connect(source, to).map(Tcp)
    }

    /// One that a listener has accepted, and its own address.
    pub(in crate::engine) fn accepted(socket: Tracked<TcpStream>) -> Result<(Tcp, SocketAddr), Errno> {
        set_options(&*socket).map_err(errno)?;
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

    fn moved(&self) -> u64 {
        // SAFETY: integers.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = size_of_val(&info) as libc::socklen_t;
        // SAFETY: a descriptor, and room for as many bytes. What a kernel does not know stays 0.
        unsafe {
            libc::getsockopt(self.0.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &mut length)
        };
        info.tcpi_bytes_acked + info.tcpi_bytes_received
    }

    fn into_socket(self: Box<Self>) -> Tracked<TcpStream> {
        self.0
    }
}
