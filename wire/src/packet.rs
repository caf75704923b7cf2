//! Packets of reliable connections: base and extended transport headers (chapter 9). No local or global route header,
//! no padding (the frame has a length; the pad count is 0) and no CRC: TCP carries them.

use crate::Malformed;
use crate::bytes::{MASK_24, Reader, Writer};
use crate::frame::{LENGTH_BYTES, MAX_PAYLOAD};
use std::time::Duration;

/// Bytes of the base transport header (9.2).
pub(crate) const BTH_BYTES: usize = 12;

/// The second byte of a BTH: no solicited event, MigReq, no padding, version 0.
pub(crate) const MIG_REQ: u8 = 0x40;

/// The default partition, with full membership: the only one of a RoCE port.
pub(crate) const P_KEY: u16 = 0xFFFF;

const SOLICITED: u8 = 0x80;
const ACK_REQUEST: u32 = 0x8000_0000;

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
    Ack {
        credits: u8,
    },
    /// The encoded timer (table 46), 0 to 31.
    RnrNak {
        timer: u8,
    },
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
    Send {
        place: Place,
        imm: Option<u32>,
        invalidate: Option<u32>,
    },
    /// `reth` in a first or only packet, and only there.
    Write {
        place: Place,
        reth: Option<Reth>,
        imm: Option<u32>,
    },
    ReadRequest(Reth),
    /// `aeth` in all but middle packets.
    ReadResponse {
        place: Place,
        aeth: Option<Aeth>,
    },
    Acknowledge(Aeth),
    AtomicAcknowledge {
        aeth: Aeth,
        original: u64,
    },
    CompareSwap {
        address: u64,
        rkey: u32,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        address: u64,
        rkey: u32,
        add: u64,
    },
}

/// A packet without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub kind: Kind,
    /// Only in the last or only packet of a send, or of a write with immediate data (9.2.3).
    pub solicited: bool,
    /// Only in a request.
    pub ack_request: bool,
    /// 24 bits.
    pub destination_qp: u32,
    /// 24 bits.
    pub psn: u32,
}

impl Header {
    /// Writes the frame's length and the headers of a packet with `payload` bytes; returns how many bytes that is.
    pub fn encode(&self, payload: usize, to: &mut [u8; LENGTH_BYTES + MAX_HEADER]) -> usize {
        debug_assert_eq!(self.check(payload), Ok(()), "{self:?}");
        let mut to = Writer::new(to);
        to.u32(0);
        to.put(&[self.kind.opcode(), if self.solicited { MIG_REQ | SOLICITED } else { MIG_REQ }]);
        to.put(&P_KEY.to_be_bytes());
        to.u32(self.destination_qp & MASK_24);
        to.u32(self.psn & MASK_24 | if self.ack_request { ACK_REQUEST } else { 0 });
        self.kind.write(&mut to);
        let headers = to.written();
        to.length(headers - LENGTH_BYTES + payload);
        headers
    }

    /// Whether a responder sends it, not a requester.
    pub fn is_response(&self) -> bool {
        matches!(self.kind, Kind::ReadResponse { .. } | Kind::Acknowledge(_) | Kind::AtomicAcknowledge { .. })
    }

    /// Whether it acknowledges requests, and does nothing else.
    pub fn is_ack(&self) -> bool {
        matches!(self.kind, Kind::Acknowledge(Aeth { syndrome: Syndrome::Ack { .. }, .. }))
    }

    /// The headers at the begin of a frame (behind its length), of which `bytes` has at least the first
    /// min(MAX_HEADER, frame) bytes; and their length. The rest of the frame is the payload.
    ///
    /// Refuses what no correct sender sends: opcodes of other services; versions, pad counts and reserved fields other
    /// than 0; other partitions; payload where the opcode has none, none in a part of a message, or more than
    /// [`MAX_PAYLOAD`]. Whether a payload is as long as its message or its RETH says is for the responder to tell,
    /// which has a NAK for it.
    pub fn decode(bytes: &[u8], frame: usize) -> Result<(Header, usize), Malformed> {
        let available = bytes.len().min(frame);
        let mut from = Reader(&bytes[..available]);
        let opcode = from.u8()?;
        let flags = from.u8()?;
        if flags & !SOLICITED != MIG_REQ {
            return Err(Malformed("a packet with padding, of another version or of an alternate path"));
        }
        if from.u16()? != P_KEY {
            return Err(Malformed("a packet of another partition"));
        }
        let destination_qp = from.u32()?;
        let psn = from.u32()?;
        if destination_qp > MASK_24 || psn & !ACK_REQUEST > MASK_24 {
            return Err(Malformed("a reserved field of a packet is not zero"));
        }
        let header = Header {
            kind: Kind::read(opcode, &mut from)?,
            solicited: flags & SOLICITED != 0,
            ack_request: psn & ACK_REQUEST != 0,
            destination_qp,
            psn: psn & MASK_24,
        };
        let headers = available - from.0.len();
        header.check(frame - headers)?;
        Ok((header, headers))
    }

    /// Refuses what could be written but is no packet.
    fn check(&self, payload: usize) -> Result<(), Malformed> {
        let ends = |place| matches!(place, Place::Last | Place::Only);
        let begins = |place| matches!(place, Place::First | Place::Only);
        let (whole, place, request) = match self.kind {
            Kind::Send { place, imm, invalidate } => {
                let extended = usize::from(imm.is_some()) + usize::from(invalidate.is_some());
                (extended <= usize::from(ends(place)), Some(place), true)
            }
            Kind::Write { place, reth, imm } => {
                (reth.is_some() == begins(place) && (imm.is_none() || ends(place)), Some(place), true)
            }
            Kind::ReadResponse { place, aeth } => (aeth.is_some() == (place != Place::Middle), Some(place), false),
            Kind::ReadRequest(_) | Kind::CompareSwap { .. } | Kind::FetchAdd { .. } => (true, None, true),
            Kind::Acknowledge(_) | Kind::AtomicAcknowledge { .. } => (true, None, false),
        };
        if !whole || self.destination_qp > MASK_24 || self.psn > MASK_24 {
            return Err(Malformed("a packet whose headers are not those of its opcode"));
        }
        match (place, payload) {
            (None, 1..) => return Err(Malformed("a packet with payload that its opcode does not have")),
            (Some(Place::First | Place::Middle | Place::Last), 0) => {
                return Err(Malformed("a part of a message without payload"));
            }
            (Some(_), _) if payload > MAX_PAYLOAD => return Err(Malformed("a packet with too much payload")),
            _ => {}
        }
        let wakes = match self.kind {
            Kind::Send { place, .. } => ends(place),
            Kind::Write { imm, .. } => imm.is_some(),
            _ => false,
        };
        if self.solicited && !wakes {
            return Err(Malformed("a solicited event without a completion at the receiver"));
        }
        if self.ack_request && !request {
            return Err(Malformed("a response that asks for an acknowledgement"));
        }
        match self.kind {
            Kind::Acknowledge(aeth) => aeth.check(),
            Kind::ReadResponse { aeth: Some(aeth), .. } | Kind::AtomicAcknowledge { aeth, .. } => match aeth.syndrome {
                Syndrome::Ack { .. } => aeth.check(),
                _ => Err(Malformed("a response with data that refuses its request")),
            },
            _ => Ok(()),
        }
    }
}

impl Kind {
    /// The opcodes of reliable connections (9.2.1).
    fn opcode(&self) -> u8 {
        use Place::*;
        match self {
            Kind::Send { place: First, .. } => 0x00,
            Kind::Send { place: Middle, .. } => 0x01,
            Kind::Send { place: Last, imm: None, invalidate: None } => 0x02,
            Kind::Send { place: Last, imm: Some(_), .. } => 0x03,
            Kind::Send { place: Only, imm: None, invalidate: None } => 0x04,
            Kind::Send { place: Only, imm: Some(_), .. } => 0x05,
            Kind::Write { place: First, .. } => 0x06,
            Kind::Write { place: Middle, .. } => 0x07,
            Kind::Write { place: Last, imm: None, .. } => 0x08,
            Kind::Write { place: Last, imm: Some(_), .. } => 0x09,
            Kind::Write { place: Only, imm: None, .. } => 0x0A,
            Kind::Write { place: Only, imm: Some(_), .. } => 0x0B,
            Kind::ReadRequest(_) => 0x0C,
            Kind::ReadResponse { place: First, .. } => 0x0D,
            Kind::ReadResponse { place: Middle, .. } => 0x0E,
            Kind::ReadResponse { place: Last, .. } => 0x0F,
            Kind::ReadResponse { place: Only, .. } => 0x10,
            Kind::Acknowledge(_) => 0x11,
            Kind::AtomicAcknowledge { .. } => 0x12,
            Kind::CompareSwap { .. } => 0x13,
            Kind::FetchAdd { .. } => 0x14,
            Kind::Send { place: Last, invalidate: Some(_), .. } => 0x16,
            Kind::Send { place: Only, invalidate: Some(_), .. } => 0x17,
        }
    }

    /// The extended headers, in the order of 9.3.
    fn write(&self, to: &mut Writer<'_>) {
        match *self {
            Kind::Send { imm, invalidate, .. } => {
                imm.inspect(|imm| to.put(&imm.to_ne_bytes()));
                invalidate.inspect(|rkey| to.u32(*rkey));
            }
            Kind::Write { reth, imm, .. } => {
                reth.inspect(|reth| reth.write(to));
                imm.inspect(|imm| to.put(&imm.to_ne_bytes()));
            }
            Kind::ReadRequest(reth) => reth.write(to),
            Kind::ReadResponse { aeth, .. } => {
                aeth.inspect(|aeth| aeth.write(to));
            }
            Kind::Acknowledge(aeth) => aeth.write(to),
            Kind::AtomicAcknowledge { aeth, original } => {
                aeth.write(to);
                to.u64(original);
            }
            Kind::CompareSwap { address, rkey, compare, swap } => write_atomic(to, address, rkey, swap, compare),
            Kind::FetchAdd { address, rkey, add } => write_atomic(to, address, rkey, add, 0),
        }
    }

    fn read(opcode: u8, from: &mut Reader<'_>) -> Result<Kind, Malformed> {
        use Place::*;
        let send = |place, imm, invalidate| Kind::Send { place, imm, invalidate };
        let write = |place, reth, imm| Kind::Write { place, reth, imm };
        let response = |place, aeth| Kind::ReadResponse { place, aeth };
        let immediate = |from: &mut Reader<'_>| from.take().map(u32::from_ne_bytes);
        Ok(match opcode {
            0x00 => send(First, None, None),
            0x01 => send(Middle, None, None),
            0x02 => send(Last, None, None),
            0x03 => send(Last, Some(immediate(from)?), None),
            0x04 => send(Only, None, None),
            0x05 => send(Only, Some(immediate(from)?), None),
            0x06 => write(First, Some(Reth::read(from)?), None),
            0x07 => write(Middle, None, None),
            0x08 => write(Last, None, None),
            0x09 => write(Last, None, Some(immediate(from)?)),
            0x0A => write(Only, Some(Reth::read(from)?), None),
            0x0B => write(Only, Some(Reth::read(from)?), Some(immediate(from)?)),
            0x0C => Kind::ReadRequest(Reth::read(from)?),
            0x0D => response(First, Some(Aeth::read(from)?)),
            0x0E => response(Middle, None),
            0x0F => response(Last, Some(Aeth::read(from)?)),
            0x10 => response(Only, Some(Aeth::read(from)?)),
            0x11 => Kind::Acknowledge(Aeth::read(from)?),
            0x12 => Kind::AtomicAcknowledge { aeth: Aeth::read(from)?, original: from.u64()? },
            0x13 => {
                let (address, rkey, swap, compare) = read_atomic(from)?;
                Kind::CompareSwap { address, rkey, compare, swap }
            }
            0x14 => match read_atomic(from)? {
                (address, rkey, add, 0) => Kind::FetchAdd { address, rkey, add },
                _ => return Err(Malformed("an addition that compares")),
            },
            0x16 => send(Last, None, Some(from.u32()?)),
            0x17 => send(Only, None, Some(from.u32()?)),
            _ => return Err(Malformed("an opcode that a reliable connection does not have")),
        })
    }
}

impl Reth {
    fn write(&self, to: &mut Writer<'_>) {
        to.u64(self.address);
        to.u32(self.rkey);
        to.u32(self.length);
    }

    fn read(from: &mut Reader<'_>) -> Result<Reth, Malformed> {
        Ok(Reth { address: from.u64()?, rkey: from.u32()?, length: from.u32()? })
    }
}

/// Atomic extended transport header (9.3.4): address, key, swap or add data, compare data.
fn write_atomic(to: &mut Writer<'_>, address: u64, rkey: u32, swap_or_add: u64, compare: u64) {
    to.u64(address);
    to.u32(rkey);
    to.u64(swap_or_add);
    to.u64(compare);
}

fn read_atomic(from: &mut Reader<'_>) -> Result<(u64, u32, u64, u64), Malformed> {
    Ok((from.u64()?, from.u32()?, from.u64()?, from.u64()?))
}

/// The syndrome's low bits are a credit count, a timer or a NAK code (9.3.5), its next two say which.
const FIVE_BITS: u8 = 0x1F;
const ACK: u8 = 0x00;
const RNR_NAK: u8 = 0x20;
const NAK: u8 = 0x60;

/// By their codes.
const NAKS: [Nak; 5] = [
    Nak::PsnSequenceError,
    Nak::InvalidRequest,
    Nak::RemoteAccessError,
    Nak::RemoteOperationalError,
    Nak::InvalidRdRequest,
];

impl Aeth {
    fn write(&self, to: &mut Writer<'_>) {
        let syndrome = match self.syndrome {
            Syndrome::Ack { credits } => ACK | credits & FIVE_BITS,
            Syndrome::RnrNak { timer } => RNR_NAK | timer & FIVE_BITS,
            Syndrome::Nak(nak) => NAK | nak as u8,
        };
        to.u32(u32::from(syndrome) << 24 | self.msn & MASK_24);
    }

    fn read(from: &mut Reader<'_>) -> Result<Aeth, Malformed> {
        let word = from.u32()?;
        let [syndrome, ..] = word.to_be_bytes();
        let value = syndrome & FIVE_BITS;
        let syndrome = match syndrome & !FIVE_BITS {
            ACK => Syndrome::Ack { credits: value },
            RNR_NAK => Syndrome::RnrNak { timer: value },
            NAK => Syndrome::Nak(*NAKS.get(usize::from(value)).ok_or(Malformed("an unknown NAK code"))?),
            _ => return Err(Malformed("an unknown syndrome")),
        };
        Ok(Aeth { syndrome, msn: word & MASK_24 })
    }

    fn check(&self) -> Result<(), Malformed> {
        match self.syndrome {
            _ if self.msn > MASK_24 => Err(Malformed("an MSN of more than 24 bits")),
            Syndrome::Ack { credits: value } | Syndrome::RnrNak { timer: value } if value > FIVE_BITS => {
                Err(Malformed("a credit count or timer of more than 5 bits"))
            }
            _ => Ok(()),
        }
    }
}

/// Credits (table 45), and RNR NAK timers in units of 10 µs (table 46) but for the first: the encodings are the same.
const STEPS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 12288, 16384, 24576, 32768,
];

/// The fewest credits that an encoded count promises (table 45); `None` for 31.
pub fn credits(encoded: u8) -> Option<u32> {
    STEPS.get(usize::from(encoded)).copied()
}

/// The encoded count of the most credits that are no more than `credits`.
pub fn encode_credits(credits: u32) -> u8 {
    (STEPS.partition_point(|&step| step <= credits) - 1) as u8
}

/// The time that an encoded RNR NAK timer stands for (table 46): 0 is 655.36 ms, 1 is 10 µs, 31 is 491.52 ms. Only the
/// low 5 bits count.
pub fn rnr_timer(encoded: u8) -> Duration {
    let steps = match encoded & FIVE_BITS {
        0 => 65536,
        31 => 49152,
        within => STEPS[usize::from(within)],
    };
    Duration::from_micros(10 * u64::from(steps))
}

/// `a - b` of PSNs or MSNs (24 bits), as a signed distance.
pub fn distance(a: u32, b: u32) -> i32 {
    ((a.wrapping_sub(b) << 8) as i32) >> 8
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::option;
    use proptest::prelude::*;

    /// The frame behind its length, with a payload of `payload` bytes 0xDA.
    pub(crate) fn frame(header: &Header, payload: usize) -> Vec<u8> {
        let mut bytes = [0; LENGTH_BYTES + MAX_HEADER];
        let written = header.encode(payload, &mut bytes);
        let mut frame = bytes[LENGTH_BYTES..written].to_vec();
        frame.resize(frame.len() + payload, 0xDA);
        assert_eq!(bytes[..LENGTH_BYTES], (frame.len() as u32).to_be_bytes());
        frame
    }

    fn reths() -> impl Strategy<Value = Reth> {
        (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(address, rkey, length)| Reth { address, rkey, length })
    }

    fn acks() -> impl Strategy<Value = Aeth> {
        (0..=31u8, 0..=MASK_24).prop_map(|(credits, msn)| Aeth { syndrome: Syndrome::Ack { credits }, msn })
    }

    fn aeths() -> impl Strategy<Value = Aeth> {
        let syndromes = prop_oneof![
            (0..=31u8).prop_map(|credits| Syndrome::Ack { credits }),
            (0..=31u8).prop_map(|timer| Syndrome::RnrNak { timer }),
            prop::sample::select(&NAKS[..]).prop_map(Syndrome::Nak),
        ];
        (syndromes, 0..=MASK_24).prop_map(|(syndrome, msn)| Aeth { syndrome, msn })
    }

    fn kinds() -> impl Strategy<Value = Kind> {
        let ends = || prop::sample::select(&[Place::Only, Place::Last][..]);
        let parts = || prop::sample::select(&[Place::First, Place::Middle][..]);
        prop_oneof![
            (ends(), option::of(any::<u32>())).prop_map(|(place, imm)| Kind::Send { place, imm, invalidate: None }),
            (ends(), any::<u32>()).prop_map(|(place, rkey)| Kind::Send { place, imm: None, invalidate: Some(rkey) }),
            parts().prop_map(|place| Kind::Send { place, imm: None, invalidate: None }),
            (reths(), option::of(any::<u32>())).prop_map(|(reth, imm)| Kind::Write {
                place: Place::Only,
                reth: Some(reth),
                imm
            }),
            reths().prop_map(|reth| Kind::Write { place: Place::First, reth: Some(reth), imm: None }),
            Just(Kind::Write { place: Place::Middle, reth: None, imm: None }),
            option::of(any::<u32>()).prop_map(|imm| Kind::Write { place: Place::Last, reth: None, imm }),
            reths().prop_map(Kind::ReadRequest),
            (prop::sample::select(&[Place::Only, Place::First, Place::Last][..]), acks())
                .prop_map(|(place, aeth)| Kind::ReadResponse { place, aeth: Some(aeth) }),
            Just(Kind::ReadResponse { place: Place::Middle, aeth: None }),
            aeths().prop_map(Kind::Acknowledge),
            (acks(), any::<u64>()).prop_map(|(aeth, original)| Kind::AtomicAcknowledge { aeth, original }),
            (any::<u64>(), any::<u32>(), any::<u64>(), any::<u64>())
                .prop_map(|(address, rkey, compare, swap)| Kind::CompareSwap { address, rkey, compare, swap }),
            (any::<u64>(), any::<u32>(), any::<u64>()).prop_map(|(address, rkey, add)| Kind::FetchAdd {
                address,
                rkey,
                add
            }),
        ]
    }

    /// Headers, each with the length of a payload that they may have.
    pub(crate) fn packets() -> impl Strategy<Value = (Header, usize)> {
        let lengths = prop_oneof![Just(0), Just(1), Just(MAX_PAYLOAD), 0..=MAX_PAYLOAD];
        (kinds(), any::<bool>(), any::<bool>(), 0..=MASK_24, 0..=MASK_24, lengths)
            .prop_map(|(kind, solicited, ack_request, destination_qp, psn, payload)| {
                (Header { kind, solicited, ack_request, destination_qp, psn }, payload)
            })
            .prop_map(|(mut header, mut payload)| {
                // Each repair undoes one of the combinations that `check` refuses.
                if header.check(payload).is_err() {
                    header.solicited = false;
                }
                if header.check(payload).is_err() {
                    header.ack_request = false;
                }
                if header.check(payload).is_err() {
                    payload = usize::from(payload == 0);
                }
                if header.check(payload).is_err() {
                    payload = 0;
                }
                (header, payload)
            })
    }

    const RETH: Reth = Reth { address: 0x0102_0304_0506_0708, rkey: 0x1122_3344, length: 0x5566_7788 };
    const AETH: Aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 0x0A_0B0C };
    const RETH_BYTES: &[u8] = b"\x01\x02\x03\x04\x05\x06\x07\x08\x11\x22\x33\x44\x55\x66\x77\x88";
    const AETH_BYTES: &[u8] = b"\x1F\x0A\x0B\x0C";

    /// Each opcode with its extended headers.
    fn every_opcode() -> Vec<(u8, Kind, Vec<u8>)> {
        use Place::*;
        let imm = Some(u32::from_ne_bytes(*b"\xDE\xAD\xBE\xEF"));
        let imm_bytes = b"\xDE\xAD\xBE\xEF";
        let send = |place, imm, invalidate| Kind::Send { place, imm, invalidate };
        let write = |place, reth, imm| Kind::Write { place, reth, imm };
        let response = |place, aeth| Kind::ReadResponse { place, aeth };
        let (address, rkey) = (RETH.address, RETH.rkey);
        vec![
            (0, send(First, None, None), vec![]),
            (1, send(Middle, None, None), vec![]),
            (2, send(Last, None, None), vec![]),
            (3, send(Last, imm, None), imm_bytes.to_vec()),
            (4, send(Only, None, None), vec![]),
            (5, send(Only, imm, None), imm_bytes.to_vec()),
            (6, write(First, Some(RETH), None), RETH_BYTES.to_vec()),
            (7, write(Middle, None, None), vec![]),
            (8, write(Last, None, None), vec![]),
            (9, write(Last, None, imm), imm_bytes.to_vec()),
            (10, write(Only, Some(RETH), None), RETH_BYTES.to_vec()),
            (11, write(Only, Some(RETH), imm), [RETH_BYTES, imm_bytes].concat()),
            (12, Kind::ReadRequest(RETH), RETH_BYTES.to_vec()),
            (13, response(First, Some(AETH)), AETH_BYTES.to_vec()),
            (14, response(Middle, None), vec![]),
            (15, response(Last, Some(AETH)), AETH_BYTES.to_vec()),
            (16, response(Only, Some(AETH)), AETH_BYTES.to_vec()),
            (17, Kind::Acknowledge(AETH), AETH_BYTES.to_vec()),
            (18, Kind::AtomicAcknowledge { aeth: AETH, original: 0x21 }, [AETH_BYTES, b"\0\0\0\0\0\0\0\x21"].concat()),
            (
                19,
                Kind::CompareSwap { address, rkey, compare: 0xC0, swap: 0x50 },
                [&RETH_BYTES[..12], b"\0\0\0\0\0\0\0\x50", b"\0\0\0\0\0\0\0\xC0"].concat(),
            ),
            (
                20,
                Kind::FetchAdd { address, rkey, add: 0xAD },
                [&RETH_BYTES[..12], b"\0\0\0\0\0\0\0\xAD", &[0; 8]].concat(),
            ),
            (22, send(Last, None, Some(0x1122_3344)), b"\x11\x22\x33\x44".to_vec()),
            (23, send(Only, None, Some(0x1122_3344)), b"\x11\x22\x33\x44".to_vec()),
        ]
    }

    /// A packet of each kind, with a payload where it may have one.
    pub(crate) fn one_of_each() -> Vec<(u8, Header, usize)> {
        let each = every_opcode().into_iter().enumerate();
        each.map(|(psn, (opcode, kind, _))| {
            let header = Header {
                kind,
                solicited: false,
                ack_request: false,
                destination_qp: 0x11_2233,
                psn: psn as u32 + 0x80_0000,
            };
            let payload = if header.check(5).is_ok() { 5 } else { 0 };
            (opcode, header, payload)
        })
        .collect()
    }

    #[test]
    fn every_opcode_is_written_as_specified() {
        for ((opcode, _, extended), (_, header, payload)) in every_opcode().into_iter().zip(one_of_each()) {
            let bytes = frame(&header, payload);
            let psn = header.psn.to_be_bytes();
            let base = [opcode, 0x40, 0xFF, 0xFF, 0, 0x11, 0x22, 0x33, 0, psn[1], psn[2], psn[3]];
            assert_eq!(bytes, [&base[..], &extended, &vec![0xDA; payload]].concat(), "opcode {opcode:#x}");
            assert_eq!(Header::decode(&bytes, bytes.len()), Ok((header, 12 + extended.len())));
            for short in 0..12 + extended.len() {
                assert!(Header::decode(&bytes[..short], bytes.len()).is_err(), "opcode {opcode:#x}, {short} bytes");
                assert!(Header::decode(&bytes, short).is_err(), "opcode {opcode:#x}, frame of {short} bytes");
            }
        }
    }

    #[test]
    fn every_other_opcode_is_refused() {
        let known: Vec<u8> = every_opcode().into_iter().map(|(opcode, ..)| opcode).collect();
        for opcode in (0..=u8::MAX).filter(|opcode| !known.contains(opcode)) {
            let mut bytes = [0; MAX_HEADER];
            bytes[..4].copy_from_slice(&[opcode, 0x40, 0xFF, 0xFF]);
            assert!(Header::decode(&bytes, MAX_HEADER).is_err(), "opcode {opcode:#x}");
        }
    }

    #[test]
    fn flags_are_written_as_specified() {
        let kind = Kind::Send { place: Place::Only, imm: None, invalidate: None };
        let header = Header { kind, solicited: true, ack_request: true, destination_qp: 2, psn: MASK_24 };
        assert_eq!(frame(&header, 0), [0x04, 0xC0, 0xFF, 0xFF, 0, 0, 0, 2, 0x80, 0xFF, 0xFF, 0xFF]);
    }

    /// Each bit that a correct sender leaves alone: padding, version, MigReq, partition, both reserved fields.
    #[test]
    fn every_other_base_header_is_refused() {
        for (opcode, header, payload) in one_of_each() {
            let bytes = frame(&header, payload);
            let bits = [(1, 0x7F), (2, 0xFF), (3, 0xFF), (4, 0xFF), (8, 0x7F)];
            for (at, mask) in bits.iter().flat_map(|(at, bits)| (0..8).map(move |bit| (*at, bits & 1 << bit))) {
                let mut bytes = bytes.clone();
                bytes[at] ^= mask;
                assert_eq!(Header::decode(&bytes, bytes.len()).is_err(), mask != 0, "{opcode:#x}: {at}, {mask:#x}");
            }
        }
    }

    #[test]
    fn payloads_have_the_length_that_their_place_allows() {
        for (opcode, header, payload) in one_of_each() {
            let headers = frame(&header, payload);
            let headers = &headers[..headers.len() - payload];
            let accepts = |payload: usize| Header::decode(headers, headers.len() + payload).is_ok();
            let (empty, full) = match opcode {
                0x00..=0x03 | 0x06..=0x09 | 0x0D..=0x0F | 0x16 => (false, true),
                0x04 | 0x05 | 0x0A | 0x0B | 0x10 | 0x17 => (true, true),
                _ => (true, false),
            };
            assert_eq!(accepts(0), empty, "{opcode:#x}");
            assert_eq!(accepts(1), full, "{opcode:#x}");
            assert_eq!(accepts(MAX_PAYLOAD), full, "{opcode:#x}");
            assert!(!accepts(MAX_PAYLOAD + 1), "{opcode:#x}");
            assert!(!accepts(u32::MAX as usize), "{opcode:#x}");
        }
    }

    #[test]
    fn only_completions_are_solicited_and_only_requests_acknowledged() {
        for (opcode, header, payload) in one_of_each() {
            let bytes = frame(&header, payload);
            let mut solicited = bytes.clone();
            solicited[1] |= 0x80;
            let wakes = [2, 3, 4, 5, 9, 11, 22, 23].contains(&opcode);
            assert_eq!(Header::decode(&solicited, bytes.len()).is_ok(), wakes, "{opcode:#x}");
            let mut ack_request = bytes.clone();
            ack_request[8] |= 0x80;
            let request = !(0x0D..=0x12).contains(&opcode);
            assert_eq!(Header::decode(&ack_request, bytes.len()).is_ok(), request, "{opcode:#x}");
        }
    }

    #[test]
    fn every_syndrome() {
        for byte in 0..=u8::MAX {
            let expected = match byte {
                0x00..=0x1F => Some(Syndrome::Ack { credits: byte }),
                0x20..=0x3F => Some(Syndrome::RnrNak { timer: byte - 0x20 }),
                0x60 => Some(Syndrome::Nak(Nak::PsnSequenceError)),
                0x61 => Some(Syndrome::Nak(Nak::InvalidRequest)),
                0x62 => Some(Syndrome::Nak(Nak::RemoteAccessError)),
                0x63 => Some(Syndrome::Nak(Nak::RemoteOperationalError)),
                0x64 => Some(Syndrome::Nak(Nak::InvalidRdRequest)),
                _ => None,
            };
            let bytes = [0x11, 0x40, 0xFF, 0xFF, 0, 0, 0, 1, 0, 0, 0, 1, byte, 0, 0, 5];
            let decoded = Header::decode(&bytes, bytes.len()).map(|(header, _)| header.kind);
            let kind = expected.map(|syndrome| Kind::Acknowledge(Aeth { syndrome, msn: 5 }));
            assert_eq!(decoded.ok(), kind, "{byte:#x}");

            let mut response = bytes;
            response[0] = 0x10;
            assert_eq!(Header::decode(&response, response.len()).is_ok(), byte < 0x20, "{byte:#x}");
        }
    }

    #[test]
    fn credit_table() {
        let table = [
            0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
            4096, 6144, 8192, 12288, 16384, 24576, 32768,
        ];
        for (encoded, count) in table.into_iter().enumerate() {
            assert_eq!(credits(encoded as u8), Some(count));
            assert_eq!(encode_credits(count), encoded as u8);
            let next = table.get(encoded + 1).copied().unwrap_or(u32::MAX);
            assert_eq!(encode_credits(next - 1), encoded as u8);
        }
        assert!((31..=u8::MAX).all(|encoded| credits(encoded).is_none()));
        assert_eq!(encode_credits(u32::MAX), 30);
    }

    #[test]
    fn timer_table() {
        let milliseconds = [
            655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92, 2.56,
            3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
        ];
        for (encoded, time) in milliseconds.into_iter().enumerate() {
            assert_eq!(rnr_timer(encoded as u8), Duration::from_micros((time * 1000.0f64).round() as u64));
        }
    }

    #[test]
    fn distances_wrap_at_24_bits() {
        assert_eq!(distance(0, MASK_24), 1);
        assert_eq!(distance(MASK_24, 0), -1);
        assert_eq!(distance(5, 5), 0);
        assert_eq!(distance(0x7F_FFFF, 0), 0x7F_FFFF);
        assert_eq!(distance(0x80_0000, 0), -0x80_0000);
    }

    proptest! {
        #[test]
        fn round_trip((header, payload) in packets()) {
            let mut bytes = [0; LENGTH_BYTES + MAX_HEADER];
            let written = header.encode(payload, &mut bytes);
            let frame = u32::from_be_bytes(*bytes.first_chunk().unwrap()) as usize;
            prop_assert_eq!(frame, written - LENGTH_BYTES + payload);
            prop_assert_eq!(Header::decode(&bytes[LENGTH_BYTES..], frame), Ok((header, written - LENGTH_BYTES)));
        }

        /// What is accepted has one encoding only.
        #[test]
        fn no_bytes_panic(
            (header, payload) in packets(),
            at in 0..MAX_HEADER,
            byte: u8,
            random in proptest::collection::vec(any::<u8>(), 0..64),
            frame: u32,
        ) {
            let mut bytes = [0; LENGTH_BYTES + MAX_HEADER];
            let written = header.encode(payload, &mut bytes);
            bytes[LENGTH_BYTES + at] = byte;
            let length = written - LENGTH_BYTES + payload;
            if let Ok((header, headers)) = Header::decode(&bytes[LENGTH_BYTES..], length) {
                let mut again = bytes;
                prop_assert_eq!(header.encode(length - headers, &mut again), headers + LENGTH_BYTES);
                prop_assert_eq!(again, bytes);
            }
            let _ = Header::decode(&random, frame as usize);
            let _ = Header::decode(&random, random.len());
        }
    }
}
