//! A datagram, as a query and as an answer. What is accepted has one encoding only.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rdma_verbs_wire::port_query;

fuzz_target!(|input: &[u8]| {
    let query = port_query::decode_query(input);
    let answer = port_query::decode_answer(input);
    assert!(query.is_err() || answer.is_err());
    if let Ok(nonce) = query {
        assert_eq!(port_query::encode_query(nonce), input);
    }
    if let Ok((nonce, tcp_port)) = answer {
        assert_eq!(port_query::encode_answer(nonce, tcp_port), input);
    }
});
