//! `RDMA_SOFT_PCAP`: what is sent and received, into a file.

use rdma_verbs_wire::{cm::MAD_BYTES, pcap::Way};
use std::io::IoSlice;

/// Whether there is a capture at all; asked before anything is prepared.
pub(crate) fn on() -> bool {
    todo!()
}

/// A packet of a reliable connection, in parts: headers (without the frame's length) and payload.
pub(crate) fn packet(_way: Way, _parts: &[IoSlice<'_>]) {
    todo!()
}

pub(crate) fn mad(_way: Way, _mad: &[u8; MAD_BYTES]) {
    todo!()
}
