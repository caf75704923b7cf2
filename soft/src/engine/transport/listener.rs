//! The process's TCP listeners: where peers reach its queue pairs. The port of one is the low half of the numbers of its
//! queue pairs.

use super::super::Engine;
use super::tcp::errno;
use crate::descriptors::Tracked;
use crate::reactor::{self, Registration, Source};
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// The ports that may be used; `None`: any.
pub(in crate::engine) type Ports = Option<RangeInclusive<u16>>;

/// `RDMA_SOFT_PORTS=LOW-HIGH`, or one port.
pub(in crate::engine) fn parse(text: &str) -> Option<RangeInclusive<u16>> {
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let (low, high): (u16, u16) = (number(low)?, number(high)?);
    // 0 is no port, and 1 would make the number of a queue pair that is reserved.
    (2 <= low && low <= high).then_some(low..=high)
}

/// Queue pairs of one listener: their numbers have 1 to 255 in front of the port.
const INDICES: usize = 256;

/// A listener, for as long as the process runs.
pub(in crate::engine) struct Listener {
    pub(in crate::engine) port: u16,
    /// By what is in front of the port.
    used: [bool; INDICES],
    /// The last that was given out; the search goes on behind it, so that a number comes back as late as possible.
    last: usize,
}

impl Listener {
    pub(in crate::engine) fn open(ports: &Ports) -> Result<Listener, Errno> {
        let socket = Tracked::open(|| match ports {
            None => listen(0),
            Some(ports) => {
                let in_use = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
                let mut attempts = ports.clone().map(listen);
                attempts.find(|attempt| !attempt.as_ref().is_err_and(in_use)).unwrap_or(Err(Errno::EADDRINUSE.into()))
            }
        })
        .map_err(errno)?;
        let port = socket.local_addr().map_err(errno)?.port();
        let accept = Arc::new_cyclic(|this| Accept {
            this: this.clone(),
            socket,
            registration: OnceLock::new(),
            pause: Mutex::new(None),
        });
        let registration = reactor::register(accept.socket.as_fd(), EpollFlags::EPOLLIN, accept.clone())?;
        let _ = accept.registration.set(registration);
        Ok(Listener { port, used: [false; INDICES], last: 0 })
    }

    /// A number for a queue pair; none where all are in use.
    pub(in crate::engine) fn issue(&mut self) -> Option<u32> {
        let after = (1..=INDICES).map(|step| (self.last + step) % INDICES);
        let index = { after }.find(|&index| {
            let reserved = index == 0 || number(index, self.port) == 0xFF_FFFF;
            !reserved && !self.used[index]
        })?;
        self.used[index] = true;
        self.last = index;
        Some(number(index, self.port))
    }

    pub(in crate::engine) fn take_back(&mut self, qp_num: u32) {
        self.used[(qp_num >> 16) as usize % INDICES] = false;
    }
}

fn number(index: usize, port: u16) -> u32 {
    (index as u32) << 16 | u32::from(port)
}

/// All addresses of the host; those of IPv4 alone where it has no IPv6.
fn listen(port: u16) -> io::Result<TcpListener> {
    let open = |domain, address: SocketAddr| {
        let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        if domain == Domain::IPV6 {
            socket.set_only_v6(false)?;
        }
        // Connections of an earlier process may still be winding up.
        socket.set_reuse_address(port != 0)?;
        socket.bind(&SockAddr::from(address))?;
        socket.listen(1024)?;
        io::Result::Ok(TcpListener::from(socket))
    };
    let unsupported = [Some(libc::EAFNOSUPPORT), Some(libc::EADDRNOTAVAIL)];
    match open(Domain::IPV6, (Ipv6Addr::UNSPECIFIED, port).into()) {
        Err(error) if unsupported.contains(&error.raw_os_error()) => {
            open(Domain::IPV4, (Ipv4Addr::UNSPECIFIED, port).into())
        }
        result => result,
    }
}

struct Accept {
    this: Weak<Accept>,
    socket: Tracked<TcpListener>,
    registration: OnceLock<Registration>,
    /// Runs while nothing is accepted because there is no descriptor left.
    pause: Mutex<Option<reactor::Timer>>,
}

/// Connections accepted in one turn.
const TURN: usize = 64;

impl Source for Accept {
    fn ready(&self, _events: EpollFlags) {
        let Some(engine) = Engine::started() else { return };
        for _ in 0..TURN {
            let accept = || -> io::Result<(TcpStream, SocketAddr)> {
                let (socket, peer) = self.socket.accept()?;
                socket.set_nonblocking(true)?;
                Ok((socket, peer))
            };
            let mut peer = None;
            let socket = Tracked::open(|| {
                let (socket, address) = accept()?;
                peer = Some(address);
                io::Result::Ok(socket)
            });
            match (socket, peer) {
                (Ok(socket), Some(peer)) => engine.lock().state.accepted(socket, peer),
                (Err(error), _) => match error.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => return self.pause(),
                    Some(libc::EAGAIN) | None => return,
                    // That one connection is gone already.
                    _ => {}
                },
                (Ok(_), None) => {}
            }
        }
    }
}

impl Accept {
    /// Accepts nothing for a moment: others may close what they have.
    fn pause(&self) {
        let this = self.this.clone();
        let resume = reactor::after(Duration::from_millis(100), move || {
            if let Some(this) = this.upgrade() {
                this.wait_for(EpollFlags::EPOLLIN);
            }
        });
        if let Ok(timer) = resume {
            self.wait_for(EpollFlags::empty());
            *self.pause.lock().unwrap_or_else(PoisonError::into_inner) = Some(timer);
        }
    }

    fn wait_for(&self, events: EpollFlags) {
        if let Some(registration) = self.registration.get() {
            let _ = registration.modify(events);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_a_range() {
        assert_eq!(parse("7000-7010"), Some(7000..=7010));
        assert_eq!(parse("7000"), Some(7000..=7000));
        for wrong in ["", "-", "7000-", "-7000", "7010-7000", "1-5", "70000", "7000-7010-7020", " 7000", "+7000-7001"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn numbers_come_back_late_and_none_is_reserved() {
        let mut listener = Listener { port: 0xFFFF, used: [false; INDICES], last: 0 };
        let first = listener.issue().unwrap();
        listener.take_back(first);
        let mut all = vec![];
        while let Some(number) = listener.issue() {
            assert!(number > 1 && number != 0xFF_FFFF && number & 0xFFFF == 0xFFFF);
            all.push(number);
        }
        assert_eq!(all.last(), Some(&first));
        assert_eq!(all.len(), 254);
    }
}
