//! What a TCP connection carries: frames, each with its length in front.
//!
//! The first frame of a connection says what the connection is for; then come packets (`packet`) or MADs (`cm`).

use crate::Malformed;
use crate::bytes::{MASK_24, Reader, Writer};

/// The length in front of a frame, in network byte order: 4 bytes, not counting themselves.
pub const LENGTH_BYTES: usize = 4;

/// The largest payload of a packet. With its headers it fits into an IP packet, so that a capture can show it.
pub const MAX_PAYLOAD: usize = 32 * 1024;

/// The largest frame: headers and payload.
pub const MAX_FRAME: usize = MAX_PAYLOAD + crate::packet::MAX_HEADER;

/// Bytes of the first frame with its length.
pub const HELLO_BYTES: usize = LENGTH_BYTES + 52;

const MAGIC: &[u8; 8] = b"RDMASOFT";
const VERSION: u8 = 1;
const REQUESTS: u8 = 0;
const MANAGEMENT: u8 = 1;

/// What a connection is for. It begins with a magic number and a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hello {
    /// The requests of one queue pair to another; responses come back. The numbers have 24 bits.
    Requests { source_qp: u32, destination_qp: u32, source_gid: [u8; 16], destination_gid: [u8; 16] },
    /// Connection management: MADs both ways.
    Management { source_gid: [u8; 16], destination_gid: [u8; 16] },
}

impl Hello {
    /// With its length in front.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let (kind, source_qp, destination_qp, source_gid, destination_gid) = match self {
            Hello::Requests { source_qp, destination_qp, source_gid, destination_gid } => {
                (REQUESTS, *source_qp, *destination_qp, source_gid, destination_gid)
            }
            Hello::Management { source_gid, destination_gid } => (MANAGEMENT, 0, 0, source_gid, destination_gid),
        };
        debug_assert!(source_qp <= MASK_24 && destination_qp <= MASK_24);

        let mut bytes = [0; HELLO_BYTES];
        let mut to = Writer::new(&mut bytes);
        to.u32((HELLO_BYTES - LENGTH_BYTES) as u32);
        to.put(MAGIC);
        to.put(&[VERSION, kind, 0, 0]);
        to.u32(source_qp);
        to.u32(destination_qp);
        to.put(source_gid);
        to.put(destination_gid);
        bytes
    }

    /// From exactly [`HELLO_BYTES`] bytes, length included. Reserved fields must be zero, so that a later version can
    /// give them a meaning which this one does not miss.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Hello, Malformed> {
        let mut from = Reader(bytes);
        if from.u32()? as usize != HELLO_BYTES - LENGTH_BYTES {
            return Err(Malformed("the first frame has another length"));
        }
        if from.take()? != *MAGIC {
            return Err(Malformed("the first frame has no magic number"));
        }
        if from.u8()? != VERSION {
            return Err(Malformed("the first frame is of another version"));
        }
        let kind = from.u8()?;
        if from.u16()? != 0 {
            return Err(Malformed("a reserved field of the first frame is not zero"));
        }
        let (source_qp, destination_qp) = (from.u32()?, from.u32()?);
        let (source_gid, destination_gid) = (from.take()?, from.take()?);
        match kind {
            REQUESTS if source_qp <= MASK_24 && destination_qp <= MASK_24 => {
                Ok(Hello::Requests { source_qp, destination_qp, source_gid, destination_gid })
            }
            REQUESTS => Err(Malformed("a queue pair number has more than 24 bits")),
            MANAGEMENT if source_qp == 0 && destination_qp == 0 => {
                Ok(Hello::Management { source_gid, destination_gid })
            }
            MANAGEMENT => Err(Malformed("a management connection names a queue pair")),
            _ => Err(Malformed("a connection of unknown kind")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hellos() -> impl Strategy<Value = Hello> {
        prop_oneof![
            (0..=MASK_24, 0..=MASK_24, any::<[u8; 16]>(), any::<[u8; 16]>()).prop_map(
                |(source_qp, destination_qp, source_gid, destination_gid)| Hello::Requests {
                    source_qp,
                    destination_qp,
                    source_gid,
                    destination_gid
                }
            ),
            (any::<[u8; 16]>(), any::<[u8; 16]>())
                .prop_map(|(source_gid, destination_gid)| Hello::Management { source_gid, destination_gid }),
        ]
    }

    #[test]
    fn layout() {
        let hello = Hello::Requests {
            source_qp: 0x01_0203,
            destination_qp: 0x0A_0B0C,
            source_gid: [0x11; 16],
            destination_gid: [0x22; 16],
        };
        let mut expected = Vec::from(*b"\0\0\0\x34RDMASOFT\x01\0\0\0\0\x01\x02\x03\0\x0A\x0B\x0C");
        expected.extend([0x11; 16]);
        expected.extend([0x22; 16]);
        assert_eq!(hello.encode()[..], expected);

        let management = Hello::Management { source_gid: [1; 16], destination_gid: [2; 16] }.encode();
        assert_eq!(management[12..24], [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    /// GIDs hold any value; every other byte is fixed by the kind, or is part of a number of 24 bits.
    #[test]
    fn refuses_any_other_byte() {
        let requests =
            Hello::Requests { source_qp: 2, destination_qp: 3, source_gid: [1; 16], destination_gid: [2; 16] };
        let management = Hello::Management { source_gid: [1; 16], destination_gid: [2; 16] };
        for (hello, numbers) in [(requests, vec![17, 18, 19, 21, 22, 23]), (management, vec![])] {
            for at in (0..24).filter(|at| !numbers.contains(at)) {
                for other in 0..=u8::MAX {
                    let mut bytes = hello.encode();
                    if bytes[at] == other || (at == 13 && hello == management && other == REQUESTS) {
                        continue;
                    }
                    bytes[at] = other;
                    assert!(Hello::decode(&bytes).is_err(), "{hello:?}: byte {at} = {other:#x}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn round_trip(hello in hellos()) {
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }

        /// What is accepted has one encoding only.
        #[test]
        fn no_bytes_panic(hello in hellos(), at in 0..HELLO_BYTES, byte: u8, other: [u8; 32]) {
            let mut bytes = hello.encode();
            bytes[at] = byte;
            if let Ok(hello) = Hello::decode(&bytes) {
                prop_assert_eq!(hello.encode(), bytes);
            }
            let mut random = [0; HELLO_BYTES];
            random[..32].copy_from_slice(&other);
            let _ = Hello::decode(&random);
        }
    }
}
