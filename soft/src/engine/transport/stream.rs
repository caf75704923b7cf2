//! Packets on a carrier: each is a frame with its length in front.

use super::Carrier;
use libc::iovec;
use nix::errno::Errno;
use rdma_verbs_wire::frame::{LENGTH_BYTES, MAX_PAYLOAD};
use rdma_verbs_wire::packet::{Header, MAX_HEADER};
use rdma_verbs_wire::pcap::Way;
use std::net::{IpAddr, SocketAddr};

/// Batches that a queue pair sends before others have their turn.
pub(in crate::engine) const BATCHES: usize = 2;

/// Most packets and bytes of one batch.
const BATCH_PACKETS: usize = 32;
const BATCH_BYTES: usize = 8 * MAX_PAYLOAD;

/// Packets that go out with one call, and after each of them what has been sent by then.
pub(in crate::engine) struct Batch<Mark> {
    headers: Box<[[u8; LENGTH_BYTES + MAX_HEADER]; BATCH_PACKETS]>,
    places: Vec<iovec>,
    bytes: usize,
    packets: Vec<Packet<Mark>>,
}

struct Packet<Mark> {
    /// The first of its places, and the byte of the batch behind its last.
    first_place: usize,
    end: usize,
    mark: Mark,
}

impl<Mark: Copy> Batch<Mark> {
    pub(in crate::engine) fn new() -> Batch<Mark> {
        let headers = Box::new([[0; LENGTH_BYTES + MAX_HEADER]; BATCH_PACKETS]);
        Batch { headers, places: Vec::new(), bytes: 0, packets: Vec::with_capacity(BATCH_PACKETS) }
    }

    pub(in crate::engine) fn clear(&mut self) {
        self.places.clear();
        self.packets.clear();
        self.bytes = 0;
    }

    pub(in crate::engine) fn is_full(&self) -> bool {
        // The kernel takes 1024 places (IOV_MAX); a packet has 33 at most.
        self.packets.len() == BATCH_PACKETS || self.bytes >= BATCH_BYTES || self.places.len() > 1024 - 34
    }

    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Takes away all but the first `packets`.
    fn keep(&mut self, packets: usize) {
        if let Some(first) = self.packets.get(packets) {
            self.places.truncate(first.first_place);
            self.packets.truncate(packets);
            self.bytes = self.packets.last().map_or(0, |last| last.end);
        }
    }

    /// Appends a packet whose `payload` bytes are where `gather` says.
    pub(in crate::engine) fn push<E>(
        &mut self,
        header: &Header,
        payload: usize,
        mark: Mark,
        gather: impl FnOnce(&mut Vec<iovec>) -> Result<(), E>,
    ) -> Result<(), E> {
        let first_place = self.places.len();
        let buffer = &mut self.headers[self.packets.len()];
        let length = header.encode(payload, buffer);
        self.places.push(iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: length });
        if let Err(error) = gather(&mut self.places) {
            self.places.truncate(first_place);
            return Err(error);
        }
        self.bytes += length + payload;
        self.packets.push(Packet { first_place, end: self.bytes, mark });
        Ok(())
    }
}

/// How much of a batch is on its way.
pub(in crate::engine) struct Sent<Mark> {
    /// That of the last packet which need not be sent again.
    pub(in crate::engine) mark: Option<Mark>,
    /// Whether the carrier takes no more for now.
    pub(in crate::engine) blocked: bool,
}

/// Copies what is at a place, without its first `skip` bytes.
///
/// # Safety
/// * `place` is memory that can be read, of at least `skip` bytes.
unsafe fn append(to: &mut Vec<u8>, place: &iovec, skip: usize) {
    let (old, length) = (to.len(), place.iov_len - skip);
    to.resize(old + length, 0);
    // SAFETY: inside of the place, by the caller's promise.
    let from = unsafe { place.iov_base.cast::<u8>().add(skip) };
    // SAFETY: the place can be read, by the caller's promise; the buffer has been made longer by as much.
    unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr().wrapping_add(old), length) };
}

/// One end of a connection.
pub(in crate::engine) struct Stream {
    pub(in crate::engine) carrier: Box<dyn Carrier>,
    peer: SocketAddr,
    local: SocketAddr,
    /// The rest of a packet that the carrier took the beginning of; goes out first.
    rest: Vec<u8>,
    rest_sent: usize,
}

impl Stream {
    /// `hello` will be the first to be sent.
    pub(in crate::engine) fn new(
        carrier: Box<dyn Carrier>,
        local: SocketAddr,
        peer: SocketAddr,
        hello: &[u8],
    ) -> Stream {
        Stream { carrier, peer, local, rest: hello.to_vec(), rest_sent: 0 }
    }

    pub(in crate::engine) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(in crate::engine) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Whether something waits that is not part of a batch any more.
    pub(in crate::engine) fn has_rest(&self) -> bool {
        self.rest_sent < self.rest.len()
    }

    /// What was left, and then as much of the batch as the carrier takes. Of the last packet that it takes a part of,
    /// the rest is kept here: it counts as sent.
    pub(in crate::engine) fn send<Mark: Copy>(&mut self, batch: &mut Batch<Mark>) -> Result<Sent<Mark>, Errno> {
        let left = self.rest.len() - self.rest_sent;
        let mut places = std::mem::take(&mut batch.places);
        let result = if left > 0 {
            // SAFETY: inside of the buffer.
            let rest = unsafe { self.rest.as_mut_ptr().add(self.rest_sent) };
            places.insert(0, iovec { iov_base: rest.cast(), iov_len: left });
            let result = self.carrier.send(&places);
            places.remove(0);
            result
        } else {
            self.carrier.send(&places)
        };
        batch.places = places;
        let taken = match result {
            Ok(taken) => taken,
            // Nothing has been taken, though what is in front may be there: that goes alone, so that who is to blame is first.
            Err(Errno::EFAULT) if left > 0 && !batch.is_empty() || batch.packets.len() > 1 => {
                batch.keep(usize::from(left == 0));
                return self.send(batch);
            }
            Err(Errno::EAGAIN | Errno::ENOTCONN | Errno::EINTR) => return Ok(Sent { mark: None, blocked: true }),
            Err(error) => return Err(error),
        };
        if taken < left {
            self.rest_sent += taken;
            return Ok(Sent { mark: None, blocked: true });
        }
        self.rest.clear();
        self.rest_sent = 0;
        let mut taken = taken - left;
        let blocked = taken < batch.bytes;
        let whole = batch.packets.partition_point(|packet| packet.end <= taken);
        let mut sent = whole;
        let begin = whole.checked_sub(1).map_or(0, |last| batch.packets[last].end);
        if taken > begin {
            let packet = &batch.packets[whole];
            let end = batch.packets.get(whole + 1).map_or(batch.places.len(), |next| next.first_place);
            taken -= begin;
            for place in &batch.places[packet.first_place..end] {
                let skip = taken.min(place.iov_len);
                taken -= skip;
                // SAFETY: the place is a header or registered memory, found under the lock that is still held.
                unsafe { append(&mut self.rest, place, skip) };
            }
            sent += 1;
        }
        if crate::capture::on() {
            self.capture(batch, sent);
        }
        Ok(Sent { mark: sent.checked_sub(1).map(|last| batch.packets[last].mark), blocked })
    }

    /// For the capture. `qp` is the number of the sender.
    pub(in crate::engine) fn way(&self, sent: bool, qp: u32) -> Way {
        let address = |address: SocketAddr| match address.ip() {
            IpAddr::V6(ip) => ip.to_canonical(),
            ip => ip,
        };
        let (local, peer) = (address(self.local), address(self.peer));
        let (source, destination) = if sent { (local, peer) } else { (peer, local) };
        // In the range that RoCE v2 uses (annex A17.9.2).
        Way { source, destination, source_port: 0xC000 | qp as u16 & 0x3FFF }
    }

    fn capture<Mark>(&self, batch: &Batch<Mark>, packets: usize) {
        for at in 0..packets {
            let first = batch.packets[at].first_place;
            let end = batch.packets.get(at + 1).map_or(batch.places.len(), |next| next.first_place);
            let mut bytes = Vec::new();
            for place in &batch.places[first..end] {
                // SAFETY: as in `send`.
                unsafe { append(&mut bytes, place, 0) };
            }
            let packet = &bytes[LENGTH_BYTES..];
            let destination_qp = u32::from_be_bytes([0, packet[5], packet[6], packet[7]]);
            crate::capture::packet(self.way(true, destination_qp), packet);
        }
    }
}
