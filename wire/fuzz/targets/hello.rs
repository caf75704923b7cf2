//! The first frame of a connection. What is accepted has one encoding only.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rdma_verbs_wire::frame::{HELLO_BYTES, Hello};

fuzz_target!(|input: &[u8]| {
    let Some(bytes) = input.first_chunk::<HELLO_BYTES>() else { return };
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(hello.encode(), *bytes);
    }
});
