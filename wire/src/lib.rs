//! The packets of InfiniBand's reliable connections and of its connection management, as bytes.
//!
//! Chapter and clause numbers are those of the InfiniBand Architecture Specification, volume 1.

#![forbid(unsafe_code)]

mod bytes;
pub mod cm;
pub mod frame;
pub mod packet;
pub mod pcap;
pub mod port_query;

/// Why bytes are not what they should be: a short text for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}
