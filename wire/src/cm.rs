//! Communication management MADs (chapter 12), and the header in their private data by which IP addresses and ports
//! travel (annex A11, RDMA IP CM Service).
//!
//! On a connection each is a frame of 256 bytes, with its length in front.

use crate::Malformed;
use std::net::IpAddr;

pub const MAD_BYTES: usize = 256;

/// Bytes of private data in each message.
pub mod private_data {
    /// 92, less the 36 of the IP addressing header.
    pub const REQ: usize = 56;
    pub const REP: usize = 196;
    pub const REJ: usize = 148;
    pub const RTU: usize = 224;
    pub const DREQ: usize = 220;
    pub const DREP: usize = 224;
    pub const MRA: usize = 222;
}

/// A message: common MAD header (method Send, class 0x07, version 2), attribute, and its fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mad {
    pub transaction_id: u64,
    pub message: Message,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    Req(Box<Req>),
    Mra { local_comm_id: u32, remote_comm_id: u32, message_mraed: u8, service_timeout: u8 },
    Rej(Box<Rej>),
    Rep(Box<Rep>),
    Rtu { local_comm_id: u32, remote_comm_id: u32 },
    Dreq { local_comm_id: u32, remote_comm_id: u32, remote_qpn: u32 },
    Drep { local_comm_id: u32, remote_comm_id: u32 },
}

/// REQ (12.6.5) with the addressing header in its private data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Req {
    pub local_comm_id: u32,
    /// `0x0000_0000_01pp_nnnn`: port space and port.
    pub service_id: u64,
    pub local_ca_guid: u64,
    pub local_qpn: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub remote_cm_response_timeout: u8,
    /// 0: RC.
    pub transport: u8,
    pub end_to_end_flow_control: bool,
    pub starting_psn: u32,
    pub local_cm_response_timeout: u8,
    /// 0 to 7.
    pub retry_count: u8,
    pub path_mtu: u8,
    pub rnr_retry_count: u8,
    pub max_cm_retries: u8,
    pub srq: bool,
    pub local_gid: [u8; 16],
    pub remote_gid: [u8; 16],
    pub hop_limit: u8,
    pub traffic_class: u8,
    /// 5 bits: the primary path's local ACK timeout.
    pub ack_timeout: u8,
    /// The addressing header. Both addresses are of one family.
    pub source_port: u16,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub private_data: [u8; private_data::REQ],
}

/// REP (12.6.8).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rep {
    pub local_comm_id: u32,
    pub remote_comm_id: u32,
    pub local_qpn: u32,
    pub starting_psn: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub target_ack_delay: u8,
    pub end_to_end_flow_control: bool,
    pub rnr_retry_count: u8,
    pub srq: bool,
    pub local_ca_guid: u64,
    pub private_data: [u8; private_data::REP],
}

/// REJ (12.6.7).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rej {
    pub local_comm_id: u32,
    pub remote_comm_id: u32,
    /// Which message is rejected: 0 REQ, 1 REP, 2 none.
    pub message_rejected: u8,
    /// 12.6.7.2; 8: invalid service ID, 28: consumer reject.
    pub reason: u16,
    pub private_data: [u8; private_data::REJ],
}

impl Mad {
    pub fn encode(&self) -> [u8; MAD_BYTES] {
        todo!()
    }

    pub fn decode(_bytes: &[u8; MAD_BYTES]) -> Result<Mad, Malformed> {
        todo!()
    }
}
