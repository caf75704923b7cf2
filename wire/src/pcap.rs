//! A capture that Wireshark reads as RoCEv2: what is on the TCP connections, as if it had been on the wire.
//!
//! Each packet gets Ethernet, IP and UDP (port 4791) headers, padding with its count in the BTH, and the invariant CRC
//! (annex A17); MADs also a DETH, to queue pair 1.

use std::net::IpAddr;

/// The file's header (pcap, nanoseconds).
pub fn file_header() -> [u8; 24] {
    todo!()
}

/// From whom to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// The UDP source port; the queue pair's number chooses it, so that flows can be told apart.
    pub source_port: u16,
}

/// A record of one packet of a reliable connection: `packet` is its headers and its payload, without the length in front.
pub fn packet(_way: Way, _time: std::time::SystemTime, _packet: &[u8]) -> Vec<u8> {
    todo!()
}

/// A record of one MAD.
pub fn mad(_way: Way, _time: std::time::SystemTime, _mad: &[u8; crate::cm::MAD_BYTES]) -> Vec<u8> {
    todo!()
}
