//! A MAD as a peer sends it. What is accepted means the same when it is written again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rdma_verbs_wire::cm::{MAD_BYTES, Mad};

fuzz_target!(|input: &[u8]| {
    let mut bytes = [0; MAD_BYTES];
    let given = input.len().min(MAD_BYTES);
    bytes[..given].copy_from_slice(&input[..given]);
    if let Ok(mad) = Mad::decode(&bytes) {
        assert_eq!(Mad::decode(&mad.encode()), Ok(mad));
    }
});
