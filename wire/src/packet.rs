//! Packets of reliable connections: base and extended transport headers (chapter 9). No local or global route header,
//! no padding (the frame has a length; the pad count is 0) and no CRC: TCP carries them.

use crate::Malformed;

/// The largest headers: BTH (12) and what follows it at most, AtomicETH (28).
pub const MAX_HEADER: usize = 40;

/// The place of a packet in its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Only,
    First,
    Middle,
    Last,
}

/// RDMA extended transport header (9.3.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    pub address: u64,
    pub rkey: u32,
    pub length: u32,
}

/// ACK extended transport header (9.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// The encoded end-to-end credit count (9.7.7.2, table 45); 31: there is none.
    Ack { credits: u8 },
    /// The encoded timer (table 46), 0 to 31.
    RnrNak { timer: u8 },
    Nak(Nak),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nak {
    PsnSequenceError,
    InvalidRequest,
    RemoteAccessError,
    RemoteOperationalError,
    InvalidRdRequest,
}

/// What a packet is, with the headers that its opcode has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `imm` and `invalidate` (IETH) only in a last or only packet, and at most one of them. `imm` is as it lies in
    /// `ibv_wc.imm_data`: in network byte order.
    Send { place: Place, imm: Option<u32>, invalidate: Option<u32> },
    /// `reth` in a first or only packet, and only there.
    Write { place: Place, reth: Option<Reth>, imm: Option<u32> },
    ReadRequest(Reth),
    /// `aeth` in all but middle packets.
    ReadResponse { place: Place, aeth: Option<Aeth> },
    Acknowledge(Aeth),
    AtomicAcknowledge { aeth: Aeth, original: u64 },
    CompareSwap { address: u64, rkey: u32, compare: u64, swap: u64 },
    FetchAdd { address: u64, rkey: u32, add: u64 },
}

/// A packet without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub kind: Kind,
    pub solicited: bool,
    pub ack_request: bool,
    /// 24 bits.
    pub destination_qp: u32,
    /// 24 bits.
    pub psn: u32,
}

impl Header {
    /// Writes the frame's length and the headers of a packet with `payload` bytes; returns how many bytes that is.
    pub fn encode(&self, _payload: usize, _to: &mut [u8; crate::frame::LENGTH_BYTES + MAX_HEADER]) -> usize {
        todo!()
    }

    /// The headers at the begin of a frame (behind its length), of which `bytes` has at least the first
    /// min(MAX_HEADER, frame) bytes; and their length. The rest of the frame is the payload. Refuses opcodes of other services, versions other than
    /// 0, pad counts other than 0, and payload where the opcode has none or more than `frame::MAX_PAYLOAD`.
    pub fn decode(_bytes: &[u8], _frame: usize) -> Result<(Header, usize), Malformed> {
        todo!()
    }
}

/// The fewest credits that an encoded count promises (table 45); `None` for 31.
pub fn credits(_encoded: u8) -> Option<u32> {
    todo!()
}

/// The encoded count of the most credits that are no more than `credits`.
pub fn encode_credits(_credits: u32) -> u8 {
    todo!()
}

/// The time that an encoded RNR NAK timer stands for (table 46): 0 is 655.36 ms, 1 is 10 µs, 31 is 491.52 ms.
pub fn rnr_timer(_encoded: u8) -> std::time::Duration {
    todo!()
}

/// `a - b` of PSNs or MSNs (24 bits), as a signed distance.
pub fn distance(a: u32, b: u32) -> i32 {
    ((a.wrapping_sub(b) << 8) as i32) >> 8
}
