//! A frame as a peer sends it: its length, and what of it has arrived. What is accepted has one encoding only.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rdma_verbs_wire::frame::LENGTH_BYTES;
use rdma_verbs_wire::packet::{Header, MAX_HEADER};

fuzz_target!(|input: &[u8]| {
    let Some((length, arrived)) = input.split_first_chunk::<LENGTH_BYTES>() else { return };
    let frame = u32::from_be_bytes(*length) as usize;
    if let Ok((header, headers)) = Header::decode(arrived, frame) {
        let mut again = [0; LENGTH_BYTES + MAX_HEADER];
        assert_eq!(header.encode(frame - headers, &mut again), LENGTH_BYTES + headers);
        assert_eq!(again[..LENGTH_BYTES + headers], input[..LENGTH_BYTES + headers]);
    }
});
