//! How a peer learns at which TCP port the process that listens on an RDMA port is reached: a datagram to the UDP port
//! of the same number, and its answer.

use crate::Malformed;
use crate::bytes::{Reader, Writer};

pub const QUERY_BYTES: usize = 24;
pub const ANSWER_BYTES: usize = 24;

const MAGIC: &[u8; 8] = b"RDMAPORT";
const VERSION: u8 = 1;
const QUERY: u8 = 0;
const ANSWER: u8 = 1;

/// `nonce` comes back in the answer.
pub fn encode_query(nonce: u64) -> [u8; QUERY_BYTES] {
    encode(QUERY, 0, nonce)
}

/// The nonce. An answer is no longer than its query, so nobody is amplified.
pub fn decode_query(bytes: &[u8]) -> Result<u64, Malformed> {
    match decode(bytes, QUERY)? {
        (0, nonce) => Ok(nonce),
        _ => Err(Malformed("a query that names a port")),
    }
}

pub fn encode_answer(nonce: u64, tcp_port: u16) -> [u8; ANSWER_BYTES] {
    debug_assert!(tcp_port != 0);
    encode(ANSWER, tcp_port, nonce)
}

/// The nonce and the TCP port, which is not 0.
pub fn decode_answer(bytes: &[u8]) -> Result<(u64, u16), Malformed> {
    match decode(bytes, ANSWER)? {
        (0, _) => Err(Malformed("an answer that names no port")),
        (tcp_port, nonce) => Ok((nonce, tcp_port)),
    }
}

/// Magic number (8), version, kind, port (2), reserved (4), nonce (8).
fn encode(kind: u8, port: u16, nonce: u64) -> [u8; QUERY_BYTES] {
    let mut bytes = [0; QUERY_BYTES];
    let mut to = Writer::new(&mut bytes);
    to.put(MAGIC);
    to.put(&[VERSION, kind]);
    to.put(&port.to_be_bytes());
    to.u32(0);
    to.u64(nonce);
    bytes
}

fn decode(bytes: &[u8], kind: u8) -> Result<(u16, u64), Malformed> {
    let mut from = Reader(bytes);
    if bytes.len() != QUERY_BYTES {
        return Err(Malformed("a datagram of another length"));
    }
    if from.take()? != *MAGIC {
        return Err(Malformed("a datagram without the magic number"));
    }
    if from.take()? != [VERSION, kind] {
        return Err(Malformed("a datagram of another version or kind"));
    }
    let port = from.u16()?;
    if from.u32()? != 0 {
        return Err(Malformed("a reserved field is not zero"));
    }
    Ok((port, from.u64()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn layout() {
        let nonce = 0x0102_0304_0506_0708;
        assert_eq!(encode_query(nonce), *b"RDMAPORT\x01\0\0\0\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08");
        assert_eq!(encode_answer(nonce, 0xABCD), *b"RDMAPORT\x01\x01\xAB\xCD\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08");
    }

    #[test]
    fn refuses_a_port_in_the_wrong_place() {
        let mut query = encode_query(1);
        query[11] = 1;
        assert!(decode_query(&query).is_err());
        let mut answer = encode_answer(1, 1);
        answer[11] = 0;
        assert!(decode_answer(&answer).is_err());
    }

    proptest! {
        #[test]
        fn round_trip(nonce: u64, tcp_port in 1u16..) {
            prop_assert_eq!(decode_query(&encode_query(nonce)), Ok(nonce));
            prop_assert_eq!(decode_answer(&encode_answer(nonce, tcp_port)), Ok((nonce, tcp_port)));
            prop_assert!(decode_answer(&encode_query(nonce)).is_err());
            prop_assert!(decode_query(&encode_answer(nonce, tcp_port)).is_err());
        }

        /// What is accepted has one encoding only.
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), at in 0..QUERY_BYTES, byte: u8) {
            prop_assert!(decode_query(&bytes).is_err() && decode_answer(&bytes).is_err());
            let mut query = encode_query(1);
            query[at] = byte;
            if let Ok(nonce) = decode_query(&query) {
                prop_assert_eq!(encode_query(nonce), query);
            }
            let mut answer = encode_answer(1, 1);
            answer[at] = byte;
            if let Ok((nonce, tcp_port)) = decode_answer(&answer) {
                prop_assert_eq!(encode_answer(nonce, tcp_port), answer);
            }
        }
    }
}
