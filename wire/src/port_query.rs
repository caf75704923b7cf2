//! How a peer learns at which TCP port the process that listens on an RDMA port is reached: a datagram to the UDP port
//! of the same number, and its answer.

use crate::Malformed;

pub const QUERY_BYTES: usize = 24;
pub const ANSWER_BYTES: usize = 24;

/// `nonce` comes back in the answer.
pub fn encode_query(_nonce: u64) -> [u8; QUERY_BYTES] {
    todo!()
}

/// The nonce. An answer is no longer than its query, so nobody is amplified.
pub fn decode_query(_bytes: &[u8]) -> Result<u64, Malformed> {
    todo!()
}

pub fn encode_answer(_nonce: u64, _tcp_port: u16) -> [u8; ANSWER_BYTES] {
    todo!()
}

/// The nonce and the TCP port.
pub fn decode_answer(_bytes: &[u8]) -> Result<(u64, u16), Malformed> {
    todo!()
}
