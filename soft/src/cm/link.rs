//! The stream on which two processes talk about one connection: MADs, each with its length in front.

use super::id::Core;
use crate::capture;
use crate::descriptors::Tracked;
use crate::engine::{self, Accepted};
use crate::reactor::{self, Registration, Source};
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use rdma_verbs_wire::cm::{MAD_BYTES, Mad};
use rdma_verbs_wire::frame::{Hello, LENGTH_BYTES};
use rdma_verbs_wire::pcap::Way;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

const FRAME_BYTES: usize = LENGTH_BYTES + MAD_BYTES;

pub(super) struct Link {
    // Goes before the descriptor that it waits for.
    registration: Registration,
    stream: Tracked<TcpStream>,
    /// At most one frame.
    inbox: Vec<u8>,
    /// What the socket has not taken yet; nothing of it before the stream is connected.
    outbox: Vec<u8>,
    connected: bool,
    interest: EpollFlags,
    local: SocketAddr,
    peer: SocketAddr,
}

/// Where captures have the packets of connection management come from.
const CAPTURED_PORT: u16 = 0xc000;

/// The stream is of no use any more: closed, broken, or no MADs.
#[derive(Debug)]
pub(super) struct Lost;

impl From<io::Error> for Lost {
    fn from(_: io::Error) -> Lost {
        Lost
    }
}

/// Brings what happens on a stream to the identifier that it belongs to.
struct ToCore(Weak<Core>);

impl Source for ToCore {
    fn ready(&self, _: EpollFlags) {
        if let Some(core) = self.0.upgrade() {
            core.link_ready();
        }
    }
}

impl Link {
    fn register(core: &Arc<Core>, stream: &TcpStream, interest: EpollFlags) -> Result<Registration, Errno> {
        reactor::register(stream.as_fd(), interest, Arc::new(ToCore(Arc::downgrade(core))))
    }

    /// Begins to connect; says `hello` and then `request` when that is done.
    pub(super) fn connect(
        core: &Arc<Core>,
        source: SocketAddr,
        peer: SocketAddr,
        hello: &Hello,
        request: &Mad,
    ) -> Result<Link, Errno> {
        let stream = engine::connect_tcp(source, peer)?;
        let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT;
        let mut link = Link {
            registration: Link::register(core, &stream, interest)?,
            stream,
            inbox: Vec::new(),
            outbox: hello.encode().to_vec(),
            connected: false,
            interest,
            local: source,
            peer,
        };
        link.send(request);
        Ok(link)
    }

    pub(super) fn accepted(core: &Arc<Core>, accepted: Accepted) -> Result<Link, Errno> {
        let stream = accepted.stream;
        let interest = EpollFlags::EPOLLIN;
        Ok(Link {
            registration: Link::register(core, &stream, interest)?,
            stream,
            inbox: accepted.rest,
            outbox: Vec::new(),
            connected: true,
            interest,
            local: accepted.local,
            peer: accepted.peer,
        })
    }

    /// A stream that breaks meanwhile tells so when it is read.
    pub(super) fn send(&mut self, mad: &Mad) {
        let bytes = mad.encode();
        if capture::on() {
            capture::mad(way(self.local, self.peer), &bytes);
        }
        self.outbox.extend_from_slice(&(MAD_BYTES as u32).to_be_bytes());
        self.outbox.extend_from_slice(&bytes);
        if self.connected {
            let _ = self.flush();
        }
    }

    /// Whether the stream stands now, where it did not before.
    pub(super) fn finish_connecting(&mut self) -> Result<bool, Lost> {
        if self.connected {
            self.flush()?;
            return Ok(false);
        }
        if let Some(error) = self.stream.take_error()? {
            return Err(error.into());
        }
        match self.stream.peer_addr() {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotConnected => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        self.connected = true;
        self.flush()?;
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), Lost> {
        while !self.outbox.is_empty() {
            match (&*self.stream).write(&self.outbox) {
                Ok(0) => return Err(Lost),
                Ok(written) => drop(self.outbox.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut interest = EpollFlags::EPOLLIN;
        interest.set(EpollFlags::EPOLLOUT, !self.outbox.is_empty());
        if interest != self.interest {
            self.registration.modify(interest).map_err(|_| Lost)?;
            self.interest = interest;
        }
        Ok(())
    }

    /// The next message, if all of it is there.
    pub(super) fn receive(&mut self) -> Result<Option<Mad>, Lost> {
        if !self.connected {
            return Ok(None);
        }
        while self.inbox.len() < FRAME_BYTES {
            let mut room = [0; FRAME_BYTES];
            let wanted = FRAME_BYTES - self.inbox.len();
            match (&*self.stream).read(&mut room[..wanted]) {
                Ok(0) => return Err(Lost),
                Ok(read) => self.inbox.extend_from_slice(&room[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        let (length, rest) = self.inbox.split_first_chunk::<LENGTH_BYTES>().ok_or(Lost)?;
        let mad = rest.first_chunk::<MAD_BYTES>().ok_or(Lost)?;
        if u32::from_be_bytes(*length) as usize != MAD_BYTES {
            return Err(Lost);
        }
        if capture::on() {
            capture::mad(way(self.peer, self.local), mad);
        }
        let decoded = Mad::decode(mad).map_err(|_| Lost)?;
        // Bytes behind the first frame may have come with the connection.
        self.inbox.drain(..FRAME_BYTES);
        Ok(Some(decoded))
    }
}

fn way(source: SocketAddr, destination: SocketAddr) -> Way {
    Way { source: source.ip(), destination: destination.ip(), source_port: CAPTURED_PORT }
}

pub(super) fn to_errno(error: io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}
