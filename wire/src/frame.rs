//! What a TCP connection carries: frames, each with its length in front.
//!
//! The first frame of a connection says what the connection is for; then come packets (`packet`) or MADs (`cm`).

use crate::Malformed;

/// The length in front of a frame, in network byte order: 4 bytes, not counting themselves.
pub const LENGTH_BYTES: usize = 4;

/// The largest payload of a packet. With its headers it fits into an IP packet, so that a capture can show it.
pub const MAX_PAYLOAD: usize = 32 * 1024;

/// The largest frame: headers and payload.
pub const MAX_FRAME: usize = MAX_PAYLOAD + crate::packet::MAX_HEADER;

/// Bytes of the first frame with its length.
pub const HELLO_BYTES: usize = LENGTH_BYTES + 52;

/// What a connection is for. It begins with a magic number and a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hello {
    /// The requests of one queue pair to another; responses come back.
    Requests { source_qp: u32, destination_qp: u32, source_gid: [u8; 16], destination_gid: [u8; 16] },
    /// Connection management: MADs both ways.
    Management { source_gid: [u8; 16], destination_gid: [u8; 16] },
}

impl Hello {
    /// With its length in front.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        todo!()
    }

    /// From exactly [`HELLO_BYTES`] bytes, length included.
    pub fn decode(_bytes: &[u8; HELLO_BYTES]) -> Result<Hello, Malformed> {
        todo!()
    }
}
