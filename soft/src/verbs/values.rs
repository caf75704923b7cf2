//! Functions on plain values: names for people, and rates.

use libc::{c_char, c_int};
use rdma_sys::{ibv_event_type, ibv_node_type, ibv_port_state, ibv_rate, ibv_wc_status};
use std::ffi::CStr;

/// The text at `value`, or "unknown".
fn text(texts: &[&'static CStr], value: c_int) -> *const c_char {
    let text = usize::try_from(value).ok().and_then(|value| texts.get(value));
    text.unwrap_or(&c"unknown").as_ptr()
}

const NODE_TYPES: [&CStr; 8] = [
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];
const _: () = assert!(ibv_node_type::IBV_NODE_UNSPECIFIED as usize == NODE_TYPES.len() - 1);

const PORT_STATES: [&CStr; 6] = [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
const _: () = assert!(ibv_port_state::IBV_PORT_ACTIVE_DEFER as usize == PORT_STATES.len() - 1);

/// One more than rdma-core 44 has: a change of speed.
const EVENT_TYPES: [&CStr; 21] = [
    c"CQ error",
    c"QP fatal error",
    c"QP request error",
    c"QP access violation",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration error",
    c"device fatal error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal error",
    c"device speed change",
];
const _: () = assert!(ibv_event_type::IBV_EVENT_WQ_FATAL as usize == EVENT_TYPES.len() - 2);

const WC_STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"work request flushed",
    c"memory window bind error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"remote aborted",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"tag matching error",
    c"tag matching rendezvous incomplete",
];
const _: () = assert!(ibv_wc_status::IBV_WC_TM_RNDV_INCOMPLETE as usize == WC_STATUSES.len() - 1);

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    text(&NODE_TYPES, node_type)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_port_state_str(port_state: c_int) -> *const c_char {
    text(&PORT_STATES, port_state)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    text(&EVENT_TYPES, event)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    text(&WC_STATUSES, status)
}

/// A rate: its code, its multiple of 2.5 Gbit/s where libibverbs has one, and Mbit/s as they are on the wire.
struct Rate {
    code: ibv_rate::Type,
    multiple: Option<c_int>,
    mbps: c_int,
}

const fn rate(code: ibv_rate::Type, multiple: Option<c_int>, mbps: c_int) -> Rate {
    Rate { code, multiple, mbps }
}

const RATES: [Rate; 23] = [
    rate(ibv_rate::IBV_RATE_2_5_GBPS, Some(1), 2500),
    rate(ibv_rate::IBV_RATE_5_GBPS, Some(2), 5000),
    rate(ibv_rate::IBV_RATE_10_GBPS, Some(4), 10000),
    rate(ibv_rate::IBV_RATE_14_GBPS, None, 14062),
    rate(ibv_rate::IBV_RATE_20_GBPS, Some(8), 20000),
    rate(ibv_rate::IBV_RATE_25_GBPS, None, 25781),
    rate(ibv_rate::IBV_RATE_28_GBPS, Some(11), 28125),
    rate(ibv_rate::IBV_RATE_30_GBPS, Some(12), 30000),
    rate(ibv_rate::IBV_RATE_40_GBPS, Some(16), 40000),
    rate(ibv_rate::IBV_RATE_50_GBPS, Some(20), 53125),
    rate(ibv_rate::IBV_RATE_56_GBPS, None, 56250),
    rate(ibv_rate::IBV_RATE_60_GBPS, Some(24), 60000),
    rate(ibv_rate::IBV_RATE_80_GBPS, Some(32), 80000),
    rate(ibv_rate::IBV_RATE_100_GBPS, None, 103125),
    rate(ibv_rate::IBV_RATE_112_GBPS, None, 112500),
    rate(ibv_rate::IBV_RATE_120_GBPS, Some(48), 120000),
    rate(ibv_rate::IBV_RATE_168_GBPS, None, 168750),
    rate(ibv_rate::IBV_RATE_200_GBPS, None, 206250),
    rate(ibv_rate::IBV_RATE_300_GBPS, None, 309375),
    rate(ibv_rate::IBV_RATE_400_GBPS, Some(160), 425000),
    rate(ibv_rate::IBV_RATE_600_GBPS, Some(240), 637500),
    rate(ibv_rate::IBV_RATE_800_GBPS, Some(320), 850000),
    rate(ibv_rate::IBV_RATE_1200_GBPS, Some(480), 1275000),
];

fn find(which: impl Fn(&Rate) -> bool) -> Option<&'static Rate> {
    RATES.iter().find(|rate| which(rate))
}

/// -1 for a rate that is no multiple.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_rate_to_mult(code: ibv_rate::Type) -> c_int {
    find(|rate| rate.code == code).and_then(|rate| rate.multiple).unwrap_or(-1)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn mult_to_ibv_rate(multiple: c_int) -> ibv_rate::Type {
    find(|rate| rate.multiple == Some(multiple)).map_or(ibv_rate::IBV_RATE_MAX, |rate| rate.code)
}

/// -1 for what is no rate.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_rate_to_mbps(code: ibv_rate::Type) -> c_int {
    find(|rate| rate.code == code).map_or(-1, |rate| rate.mbps)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate::Type {
    find(|rate| rate.mbps == mbps).map_or(ibv_rate::IBV_RATE_MAX, |rate| rate.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: *const c_char) -> &'static str {
        // SAFETY: one of the texts above.
        unsafe { CStr::from_ptr(text) }.to_str().expect("ASCII")
    }

    #[test]
    fn every_value_has_a_text_and_no_other_has() {
        let functions: [(extern "C" fn(c_int) -> *const c_char, usize); 4] = [
            (ibv_node_type_str, NODE_TYPES.len()),
            (ibv_port_state_str, PORT_STATES.len()),
            (ibv_event_type_str, EVENT_TYPES.len()),
            (ibv_wc_status_str, WC_STATUSES.len()),
        ];
        for (function, length) in functions {
            let length = c_int::try_from(length).expect("few");
            let mut texts: Vec<_> = (1..length).map(|value| read(function(value))).collect();
            texts.sort_unstable();
            texts.dedup();
            assert_eq!(texts.len(), (length - 1) as usize, "all different: {texts:?}");
            assert!(!texts.contains(&"unknown"));
            for beyond in [-1, length, c_int::MIN, c_int::MAX] {
                assert_eq!(read(function(beyond)), "unknown");
            }
        }
        assert_eq!(read(ibv_wc_status_str(12)), "transport retry counter exceeded");
        assert_eq!(read(ibv_event_type_str(15)), "SRQ limit reached");
    }

    #[test]
    fn rates_are_converted_and_back() {
        for rate in &RATES {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(rate.code)), rate.code);
            if let Some(multiple) = rate.multiple {
                assert_eq!(ibv_rate_to_mult(rate.code), multiple);
                assert_eq!(mult_to_ibv_rate(multiple), rate.code);
            }
        }
        assert_eq!(ibv_rate_to_mbps(ibv_rate::IBV_RATE_MAX), -1);
        assert_eq!(ibv_rate_to_mult(ibv_rate::IBV_RATE_14_GBPS), -1);
        assert_eq!(mult_to_ibv_rate(3), ibv_rate::IBV_RATE_MAX);
        assert_eq!(mbps_to_ibv_rate(0), ibv_rate::IBV_RATE_MAX);
    }
}
