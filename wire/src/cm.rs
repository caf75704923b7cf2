//! Communication management MADs (chapter 12), and the header in their private data by which IP addresses and ports
//! travel (annex A11, RDMA IP CM Service).
//!
//! On a connection each is a frame of 256 bytes, with its length in front.

use crate::Malformed;
use crate::bytes::ipv6;
use crate::packet::P_KEY;
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
    /// The addressing header. Both addresses are of one family; a mapped address counts as IPv6.
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
    /// Fields that no caller chooses have the values of a RoCE port without an alternate path; the rest is zero.
    pub fn encode(&self) -> [u8; MAD_BYTES] {
        let mut mad = Fields([0; MAD_BYTES]);
        mad.set(mad::BASE_VERSION, 1u8);
        mad.set(mad::CLASS, COMMUNICATION_MANAGEMENT);
        mad.set(mad::CLASS_VERSION, 2u8);
        mad.set(mad::METHOD, SEND);
        mad.set(mad::TRANSACTION_ID, self.transaction_id);
        mad.set(mad::ATTRIBUTE, self.message.attribute());
        match &self.message {
            Message::Req(message) => message.write(&mut mad),
            Message::Mra { local_comm_id, remote_comm_id, message_mraed, service_timeout } => {
                mad.set_ids(*local_comm_id, *remote_comm_id);
                mad.set(mra::MESSAGE_MRAED, *message_mraed);
                mad.set(mra::SERVICE_TIMEOUT, *service_timeout);
            }
            Message::Rej(message) => message.write(&mut mad),
            Message::Rep(message) => message.write(&mut mad),
            Message::Rtu { local_comm_id, remote_comm_id } | Message::Drep { local_comm_id, remote_comm_id } => {
                mad.set_ids(*local_comm_id, *remote_comm_id);
            }
            Message::Dreq { local_comm_id, remote_comm_id, remote_qpn } => {
                mad.set_ids(*local_comm_id, *remote_comm_id);
                mad.set(dreq::REMOTE_QPN, *remote_qpn);
            }
        }
        mad.0
    }

    /// Refuses other classes, versions, methods and attributes, other partitions, and an addressing header that is not
    /// one of IPv4 or IPv6 addresses. Other fields are not looked at.
    pub fn decode(bytes: &[u8; MAD_BYTES]) -> Result<Mad, Malformed> {
        let mad = Fields(*bytes);
        if mad.get(mad::BASE_VERSION) != 1
            || mad.get(mad::CLASS) != COMMUNICATION_MANAGEMENT
            || mad.get(mad::CLASS_VERSION) != 2
            || mad.get(mad::METHOD) != SEND
        {
            return Err(Malformed("a MAD of another class, version or method"));
        }
        let local_comm_id = mad.get(LOCAL_COMM_ID) as u32;
        let remote_comm_id = mad.get(REMOTE_COMM_ID) as u32;
        let message = match mad.get(mad::ATTRIBUTE) {
            attribute::REQ => Message::Req(Box::new(Req::read(&mad)?)),
            attribute::MRA => Message::Mra {
                local_comm_id,
                remote_comm_id,
                message_mraed: mad.get(mra::MESSAGE_MRAED) as u8,
                service_timeout: mad.get(mra::SERVICE_TIMEOUT) as u8,
            },
            attribute::REJ => Message::Rej(Box::new(Rej::read(&mad))),
            attribute::REP => Message::Rep(Box::new(Rep::read(&mad))),
            attribute::RTU => Message::Rtu { local_comm_id, remote_comm_id },
            attribute::DREQ => {
                Message::Dreq { local_comm_id, remote_comm_id, remote_qpn: mad.get(dreq::REMOTE_QPN) as u32 }
            }
            attribute::DREP => Message::Drep { local_comm_id, remote_comm_id },
            _ => return Err(Malformed("a MAD with an unknown attribute")),
        };
        Ok(Mad { transaction_id: mad.get(mad::TRANSACTION_ID), message })
    }
}

impl Message {
    fn attribute(&self) -> u64 {
        match self {
            Message::Req(_) => attribute::REQ,
            Message::Mra { .. } => attribute::MRA,
            Message::Rej(_) => attribute::REJ,
            Message::Rep(_) => attribute::REP,
            Message::Rtu { .. } => attribute::RTU,
            Message::Dreq { .. } => attribute::DREQ,
            Message::Drep { .. } => attribute::DREP,
        }
    }
}

const COMMUNICATION_MANAGEMENT: u64 = 0x07;
const SEND: u64 = 0x03;

/// Attribute IDs (12.6).
mod attribute {
    pub(super) const REQ: u64 = 0x10;
    pub(super) const MRA: u64 = 0x11;
    pub(super) const REJ: u64 = 0x12;
    pub(super) const REP: u64 = 0x13;
    pub(super) const RTU: u64 = 0x14;
    pub(super) const DREQ: u64 = 0x15;
    pub(super) const DREP: u64 = 0x16;
}

/// A field of at most 64 bits: its byte in the MAD, the bit it begins at in this byte, counted from the most
/// significant as the tables of chapter 12 do, and its width.
#[derive(Clone, Copy)]
struct Field {
    byte: usize,
    bit: usize,
    width: usize,
}

const fn header(byte: usize, width: usize) -> Field {
    Field { byte, bit: 0, width }
}

/// A field of a message, which begins behind the MAD header.
const fn field(byte: usize, bit: usize, width: usize) -> Field {
    Field { byte: MAD_HEADER_BYTES + byte, bit, width }
}

const MAD_HEADER_BYTES: usize = 24;

/// The MAD header (13.4.2).
mod mad {
    use super::{Field, header};
    pub(super) const BASE_VERSION: Field = header(0, 8);
    pub(super) const CLASS: Field = header(1, 8);
    pub(super) const CLASS_VERSION: Field = header(2, 8);
    pub(super) const METHOD: Field = header(3, 8);
    pub(super) const TRANSACTION_ID: Field = header(8, 64);
    pub(super) const ATTRIBUTE: Field = header(16, 16);
}

/// The first field of every message, and the second of all but the REQ.
const LOCAL_COMM_ID: Field = field(0, 0, 32);
const REMOTE_COMM_ID: Field = field(4, 0, 32);

/// Table 106, and the addressing header of annex A11.
mod req {
    use super::{Field, field};
    pub(super) const SERVICE_ID: Field = field(8, 0, 64);
    pub(super) const LOCAL_CA_GUID: Field = field(16, 0, 64);
    pub(super) const LOCAL_QPN: Field = field(32, 0, 24);
    pub(super) const RESPONDER_RESOURCES: Field = field(35, 0, 8);
    pub(super) const INITIATOR_DEPTH: Field = field(39, 0, 8);
    pub(super) const REMOTE_CM_RESPONSE_TIMEOUT: Field = field(43, 0, 5);
    pub(super) const TRANSPORT: Field = field(43, 5, 2);
    pub(super) const END_TO_END_FLOW_CONTROL: Field = field(43, 7, 1);
    pub(super) const STARTING_PSN: Field = field(44, 0, 24);
    pub(super) const LOCAL_CM_RESPONSE_TIMEOUT: Field = field(47, 0, 5);
    pub(super) const RETRY_COUNT: Field = field(47, 5, 3);
    pub(super) const PARTITION_KEY: Field = field(48, 0, 16);
    pub(super) const PATH_MTU: Field = field(50, 0, 4);
    pub(super) const RNR_RETRY_COUNT: Field = field(50, 5, 3);
    pub(super) const MAX_CM_RETRIES: Field = field(51, 0, 4);
    pub(super) const SRQ: Field = field(51, 4, 1);
    pub(super) const LOCAL_LID: Field = field(52, 0, 16);
    pub(super) const REMOTE_LID: Field = field(54, 0, 16);
    pub(super) const LOCAL_GID: usize = 56;
    pub(super) const REMOTE_GID: usize = 72;
    pub(super) const TRAFFIC_CLASS: Field = field(92, 0, 8);
    pub(super) const HOP_LIMIT: Field = field(93, 0, 8);
    pub(super) const SUBNET_LOCAL: Field = field(94, 4, 1);
    pub(super) const ACK_TIMEOUT: Field = field(95, 0, 5);
    pub(super) const ADDRESSING_VERSION: Field = field(140, 0, 8);
    pub(super) const IP_VERSION: Field = field(141, 0, 4);
    pub(super) const SOURCE_PORT: Field = field(142, 0, 16);
    pub(super) const SOURCE: usize = 144;
    pub(super) const DESTINATION: usize = 160;
    pub(super) const PRIVATE_DATA: usize = 176;

    /// What stands for "none" in a LID: RoCE has no LIDs.
    pub(super) const PERMISSIVE_LID: u16 = 0xFFFF;
}

/// Table 107.
mod mra {
    use super::{Field, field};
    pub(super) const MESSAGE_MRAED: Field = field(8, 0, 2);
    pub(super) const SERVICE_TIMEOUT: Field = field(9, 0, 5);
}

/// Table 108.
mod rej {
    use super::{Field, field};
    pub(super) const MESSAGE_REJECTED: Field = field(8, 0, 2);
    pub(super) const REASON: Field = field(10, 0, 16);
    pub(super) const PRIVATE_DATA: usize = 84;
}

/// Table 110.
mod rep {
    use super::{Field, field};
    pub(super) const LOCAL_QPN: Field = field(12, 0, 24);
    pub(super) const STARTING_PSN: Field = field(20, 0, 24);
    pub(super) const RESPONDER_RESOURCES: Field = field(24, 0, 8);
    pub(super) const INITIATOR_DEPTH: Field = field(25, 0, 8);
    pub(super) const TARGET_ACK_DELAY: Field = field(26, 0, 5);
    pub(super) const END_TO_END_FLOW_CONTROL: Field = field(26, 7, 1);
    pub(super) const RNR_RETRY_COUNT: Field = field(27, 0, 3);
    pub(super) const SRQ: Field = field(27, 3, 1);
    pub(super) const LOCAL_CA_GUID: Field = field(28, 0, 64);
    pub(super) const PRIVATE_DATA: usize = 36;
}

/// Table 112.
mod dreq {
    use super::{Field, field};
    pub(super) const REMOTE_QPN: Field = field(8, 0, 24);
}

/// A MAD by its fields.
struct Fields([u8; MAD_BYTES]);

impl Fields {
    /// The bytes that a field lies in, how far it is from their end, and its bits. No field lies in more than 8 bytes.
    fn place(field: Field) -> (std::ops::Range<usize>, usize, u64) {
        let bytes = (field.bit + field.width).div_ceil(8);
        (field.byte..field.byte + bytes, 8 * bytes - field.bit - field.width, u64::MAX >> (64 - field.width))
    }

    fn get(&self, field: Field) -> u64 {
        let (bytes, shift, mask) = Self::place(field);
        self.0[bytes].iter().fold(0, |value, &byte| value << 8 | u64::from(byte)) >> shift & mask
    }

    /// Into a field that is zero.
    fn set(&mut self, field: Field, value: impl Into<u64>) {
        let (bytes, shift, mask) = Self::place(field);
        let value = value.into();
        debug_assert!(value <= mask, "{value:#x} in a field of {} bits", field.width);
        let spread = ((value & mask) << shift).to_be_bytes();
        let skipped = spread.len() - bytes.len();
        for (byte, bits) in self.0[bytes].iter_mut().zip(&spread[skipped..]) {
            *byte |= bits;
        }
    }

    fn set_ids(&mut self, local_comm_id: u32, remote_comm_id: u32) {
        self.set(LOCAL_COMM_ID, local_comm_id);
        self.set(REMOTE_COMM_ID, remote_comm_id);
    }

    /// `N` bytes of the message.
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|index| self.0[MAD_HEADER_BYTES + at + index])
    }

    fn set_bytes(&mut self, at: usize, bytes: &[u8]) {
        self.0[MAD_HEADER_BYTES + at..][..bytes.len()].copy_from_slice(bytes);
    }
}

impl Req {
    fn write(&self, mad: &mut Fields) {
        mad.set(LOCAL_COMM_ID, self.local_comm_id);
        mad.set(req::SERVICE_ID, self.service_id);
        mad.set(req::LOCAL_CA_GUID, self.local_ca_guid);
        mad.set(req::LOCAL_QPN, self.local_qpn);
        mad.set(req::RESPONDER_RESOURCES, self.responder_resources);
        mad.set(req::INITIATOR_DEPTH, self.initiator_depth);
        mad.set(req::REMOTE_CM_RESPONSE_TIMEOUT, self.remote_cm_response_timeout);
        mad.set(req::TRANSPORT, self.transport);
        mad.set(req::END_TO_END_FLOW_CONTROL, self.end_to_end_flow_control);
        mad.set(req::STARTING_PSN, self.starting_psn);
        mad.set(req::LOCAL_CM_RESPONSE_TIMEOUT, self.local_cm_response_timeout);
        mad.set(req::RETRY_COUNT, self.retry_count);
        mad.set(req::PARTITION_KEY, P_KEY);
        mad.set(req::PATH_MTU, self.path_mtu);
        mad.set(req::RNR_RETRY_COUNT, self.rnr_retry_count);
        mad.set(req::MAX_CM_RETRIES, self.max_cm_retries);
        mad.set(req::SRQ, self.srq);
        mad.set(req::LOCAL_LID, req::PERMISSIVE_LID);
        mad.set(req::REMOTE_LID, req::PERMISSIVE_LID);
        mad.set_bytes(req::LOCAL_GID, &self.local_gid);
        mad.set_bytes(req::REMOTE_GID, &self.remote_gid);
        mad.set(req::TRAFFIC_CLASS, self.traffic_class);
        mad.set(req::HOP_LIMIT, self.hop_limit);
        mad.set(req::SUBNET_LOCAL, self.hop_limit <= 1);
        mad.set(req::ACK_TIMEOUT, self.ack_timeout);

        debug_assert_eq!(self.source.is_ipv4(), self.destination.is_ipv4(), "addresses of two families");
        let (version, source, destination) = match (self.source, self.destination) {
            // Right-aligned in fields of 16 bytes.
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                (4u8, source.to_ipv6_compatible(), destination.to_ipv6_compatible())
            }
            (source, destination) => (6, ipv6(source), ipv6(destination)),
        };
        mad.set(req::IP_VERSION, version);
        mad.set(req::SOURCE_PORT, self.source_port);
        mad.set_bytes(req::SOURCE, &source.octets());
        mad.set_bytes(req::DESTINATION, &destination.octets());
        mad.set_bytes(req::PRIVATE_DATA, &self.private_data);
    }

    fn read(mad: &Fields) -> Result<Req, Malformed> {
        if mad.get(req::PARTITION_KEY) != u64::from(P_KEY) {
            return Err(Malformed("a REQ for another partition"));
        }
        if mad.get(req::ADDRESSING_VERSION) != 0 {
            return Err(Malformed("an addressing header of another version"));
        }
        let address: fn([u8; 16]) -> Result<IpAddr, Malformed> = match mad.get(req::IP_VERSION) {
            4 => |bytes| match bytes {
                [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] => Ok(IpAddr::from([a, b, c, d])),
                _ => Err(Malformed("an IPv4 address of more than 4 bytes")),
            },
            6 => |bytes| Ok(IpAddr::from(bytes)),
            _ => return Err(Malformed("an addressing header of another IP version")),
        };
        Ok(Req {
            local_comm_id: mad.get(LOCAL_COMM_ID) as u32,
            service_id: mad.get(req::SERVICE_ID),
            local_ca_guid: mad.get(req::LOCAL_CA_GUID),
            local_qpn: mad.get(req::LOCAL_QPN) as u32,
            responder_resources: mad.get(req::RESPONDER_RESOURCES) as u8,
            initiator_depth: mad.get(req::INITIATOR_DEPTH) as u8,
            remote_cm_response_timeout: mad.get(req::REMOTE_CM_RESPONSE_TIMEOUT) as u8,
            transport: mad.get(req::TRANSPORT) as u8,
            end_to_end_flow_control: mad.get(req::END_TO_END_FLOW_CONTROL) != 0,
            starting_psn: mad.get(req::STARTING_PSN) as u32,
            local_cm_response_timeout: mad.get(req::LOCAL_CM_RESPONSE_TIMEOUT) as u8,
            retry_count: mad.get(req::RETRY_COUNT) as u8,
            path_mtu: mad.get(req::PATH_MTU) as u8,
            rnr_retry_count: mad.get(req::RNR_RETRY_COUNT) as u8,
            max_cm_retries: mad.get(req::MAX_CM_RETRIES) as u8,
            srq: mad.get(req::SRQ) != 0,
            local_gid: mad.bytes(req::LOCAL_GID),
            remote_gid: mad.bytes(req::REMOTE_GID),
            hop_limit: mad.get(req::HOP_LIMIT) as u8,
            traffic_class: mad.get(req::TRAFFIC_CLASS) as u8,
            ack_timeout: mad.get(req::ACK_TIMEOUT) as u8,
            source_port: mad.get(req::SOURCE_PORT) as u16,
            source: address(mad.bytes(req::SOURCE))?,
            destination: address(mad.bytes(req::DESTINATION))?,
            private_data: mad.bytes(req::PRIVATE_DATA),
        })
    }
}

impl Rep {
    fn write(&self, mad: &mut Fields) {
        mad.set_ids(self.local_comm_id, self.remote_comm_id);
        mad.set(rep::LOCAL_QPN, self.local_qpn);
        mad.set(rep::STARTING_PSN, self.starting_psn);
        mad.set(rep::RESPONDER_RESOURCES, self.responder_resources);
        mad.set(rep::INITIATOR_DEPTH, self.initiator_depth);
        mad.set(rep::TARGET_ACK_DELAY, self.target_ack_delay);
        mad.set(rep::END_TO_END_FLOW_CONTROL, self.end_to_end_flow_control);
        mad.set(rep::RNR_RETRY_COUNT, self.rnr_retry_count);
        mad.set(rep::SRQ, self.srq);
        mad.set(rep::LOCAL_CA_GUID, self.local_ca_guid);
        mad.set_bytes(rep::PRIVATE_DATA, &self.private_data);
    }

    fn read(mad: &Fields) -> Rep {
        Rep {
            local_comm_id: mad.get(LOCAL_COMM_ID) as u32,
            remote_comm_id: mad.get(REMOTE_COMM_ID) as u32,
            local_qpn: mad.get(rep::LOCAL_QPN) as u32,
            starting_psn: mad.get(rep::STARTING_PSN) as u32,
            responder_resources: mad.get(rep::RESPONDER_RESOURCES) as u8,
            initiator_depth: mad.get(rep::INITIATOR_DEPTH) as u8,
            target_ack_delay: mad.get(rep::TARGET_ACK_DELAY) as u8,
            end_to_end_flow_control: mad.get(rep::END_TO_END_FLOW_CONTROL) != 0,
            rnr_retry_count: mad.get(rep::RNR_RETRY_COUNT) as u8,
            srq: mad.get(rep::SRQ) != 0,
            local_ca_guid: mad.get(rep::LOCAL_CA_GUID),
            private_data: mad.bytes(rep::PRIVATE_DATA),
        }
    }
}

impl Rej {
    fn write(&self, mad: &mut Fields) {
        mad.set_ids(self.local_comm_id, self.remote_comm_id);
        mad.set(rej::MESSAGE_REJECTED, self.message_rejected);
        mad.set(rej::REASON, self.reason);
        mad.set_bytes(rej::PRIVATE_DATA, &self.private_data);
    }

    fn read(mad: &Fields) -> Rej {
        Rej {
            local_comm_id: mad.get(LOCAL_COMM_ID) as u32,
            remote_comm_id: mad.get(REMOTE_COMM_ID) as u32,
            message_rejected: mad.get(rej::MESSAGE_REJECTED) as u8,
            reason: mad.get(rej::REASON) as u16,
            private_data: mad.bytes(rej::PRIVATE_DATA),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::bytes::MASK_24;
    use proptest::prelude::*;

    fn addresses() -> impl Strategy<Value = (IpAddr, IpAddr)> {
        prop_oneof![
            any::<[[u8; 4]; 2]>().prop_map(|[source, destination]| (source.into(), destination.into())),
            any::<[[u8; 16]; 2]>().prop_map(|[source, destination]| (source.into(), destination.into())),
        ]
    }

    fn messages() -> impl Strategy<Value = Message> {
        let private = || proptest::collection::vec(any::<u8>(), 196);
        let ids = || (any::<u32>(), any::<u32>());
        let req = (ids(), any::<[u64; 2]>(), (0..=MASK_24, 0..=MASK_24), any::<[u8; 13]>(), any::<[bool; 2]>());
        let req = (req, any::<[[u8; 16]; 2]>(), addresses(), any::<u16>(), private()).prop_map(
            |((ids, wide, numbers, bytes, flags), gids, (source, destination), source_port, private)| {
                Message::Req(Box::new(Req {
                    local_comm_id: ids.0,
                    service_id: wide[0],
                    local_ca_guid: wide[1],
                    local_qpn: numbers.0,
                    responder_resources: bytes[0],
                    initiator_depth: bytes[1],
                    remote_cm_response_timeout: bytes[2] % 32,
                    transport: bytes[3] % 4,
                    end_to_end_flow_control: flags[0],
                    starting_psn: numbers.1,
                    local_cm_response_timeout: bytes[4] % 32,
                    retry_count: bytes[5] % 8,
                    path_mtu: bytes[6] % 16,
                    rnr_retry_count: bytes[7] % 8,
                    max_cm_retries: bytes[8] % 16,
                    srq: flags[1],
                    local_gid: gids[0],
                    remote_gid: gids[1],
                    hop_limit: bytes[9],
                    traffic_class: bytes[10],
                    ack_timeout: bytes[11] % 32,
                    source_port,
                    source,
                    destination,
                    private_data: *private.first_chunk().unwrap(),
                }))
            },
        );
        let rep = (ids(), (0..=MASK_24, 0..=MASK_24), any::<[u8; 4]>(), any::<[bool; 2]>(), any::<u64>(), private())
            .prop_map(|(ids, numbers, bytes, flags, local_ca_guid, private)| {
                Message::Rep(Box::new(Rep {
                    local_comm_id: ids.0,
                    remote_comm_id: ids.1,
                    local_qpn: numbers.0,
                    starting_psn: numbers.1,
                    responder_resources: bytes[0],
                    initiator_depth: bytes[1],
                    target_ack_delay: bytes[2] % 32,
                    end_to_end_flow_control: flags[0],
                    rnr_retry_count: bytes[3] % 8,
                    srq: flags[1],
                    local_ca_guid,
                    private_data: *private.first_chunk().unwrap(),
                }))
            });
        let rej = (ids(), 0..4u8, any::<u16>(), private()).prop_map(|(ids, message_rejected, reason, private)| {
            Message::Rej(Box::new(Rej {
                local_comm_id: ids.0,
                remote_comm_id: ids.1,
                message_rejected,
                reason,
                private_data: *private.first_chunk().unwrap(),
            }))
        });
        prop_oneof![
            req,
            rep,
            rej,
            (ids(), 0..4u8, 0..32u8).prop_map(|((local_comm_id, remote_comm_id), message_mraed, service_timeout)| {
                Message::Mra { local_comm_id, remote_comm_id, message_mraed, service_timeout }
            }),
            ids().prop_map(|(local_comm_id, remote_comm_id)| Message::Rtu { local_comm_id, remote_comm_id }),
            (ids(), 0..=MASK_24).prop_map(|((local_comm_id, remote_comm_id), remote_qpn)| Message::Dreq {
                local_comm_id,
                remote_comm_id,
                remote_qpn
            }),
            ids().prop_map(|(local_comm_id, remote_comm_id)| Message::Drep { local_comm_id, remote_comm_id }),
        ]
    }

    const LOCAL: u32 = 0x0102_0304;
    const REMOTE: u32 = 0x0506_0708;

    pub(crate) fn req() -> Req {
        Req {
            local_comm_id: LOCAL,
            service_id: 0x0106_1CEB,
            local_ca_guid: 0x1011_1213_1415_1617,
            local_qpn: 0x21_2223,
            responder_resources: 0x24,
            initiator_depth: 0x25,
            remote_cm_response_timeout: 20,
            transport: 0,
            end_to_end_flow_control: true,
            starting_psn: 0x31_3233,
            local_cm_response_timeout: 21,
            retry_count: 7,
            path_mtu: 3,
            rnr_retry_count: 6,
            max_cm_retries: 15,
            srq: true,
            local_gid: [0x41; 16],
            remote_gid: [0x42; 16],
            hop_limit: 64,
            traffic_class: 0x43,
            ack_timeout: 19,
            source_port: 0x4445,
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            private_data: [0x46; private_data::REQ],
        }
    }

    pub(crate) fn one_of_each() -> Vec<Message> {
        let (local_comm_id, remote_comm_id) = (LOCAL, REMOTE);
        vec![
            Message::Req(Box::new(req())),
            Message::Mra { local_comm_id, remote_comm_id, message_mraed: 1, service_timeout: 18 },
            Message::Rej(Box::new(Rej {
                local_comm_id,
                remote_comm_id,
                message_rejected: 1,
                reason: 28,
                private_data: [0x51; private_data::REJ],
            })),
            Message::Rep(Box::new(Rep {
                local_comm_id,
                remote_comm_id,
                local_qpn: 0x61_6263,
                starting_psn: 0x64_6566,
                responder_resources: 0x67,
                initiator_depth: 0x68,
                target_ack_delay: 22,
                end_to_end_flow_control: true,
                rnr_retry_count: 5,
                srq: true,
                local_ca_guid: 0x7071_7273_7475_7677,
                private_data: [0x78; private_data::REP],
            })),
            Message::Rtu { local_comm_id, remote_comm_id },
            Message::Dreq { local_comm_id, remote_comm_id, remote_qpn: 0x79_7A7B },
            Message::Drep { local_comm_id, remote_comm_id },
        ]
    }

    /// The bytes that are not zero, by the tables of chapter 12: offsets are from the begin of the message.
    #[test]
    fn layout() {
        type Place<'a> = (usize, &'a [u8]);
        let ids: [Place<'_>; 2] = [(0, b"\x01\x02\x03\x04"), (4, b"\x05\x06\x07\x08")];
        let tables: [(u8, Vec<Place<'_>>); 7] = [
            (
                0x10,
                vec![
                    ids[0],
                    (8, b"\0\0\0\0\x01\x06\x1C\xEB"),
                    (16, b"\x10\x11\x12\x13\x14\x15\x16\x17"),
                    (32, b"\x21\x22\x23\x24"),
                    (39, b"\x25"),
                    (43, &[20 << 3 | 1]),
                    (44, &[0x31, 0x32, 0x33, 21 << 3 | 7]),
                    (48, &[0xFF, 0xFF, 3 << 4 | 6, 15 << 4 | 1 << 3]),
                    (52, &[0xFF; 4]),
                    (56, &[0x41; 16]),
                    (72, &[0x42; 16]),
                    (92, &[0x43, 64]),
                    (95, &[19 << 3]),
                    (140, &[0, 4 << 4, 0x44, 0x45]),
                    (156, &[10, 0, 0, 1]),
                    (172, &[10, 0, 0, 2]),
                    (176, &[0x46; 56]),
                ],
            ),
            (0x11, vec![ids[0], ids[1], (8, &[1 << 6, 18 << 3])]),
            (0x12, vec![ids[0], ids[1], (8, &[1 << 6]), (10, &[0, 28]), (84, &[0x51; 148])]),
            (
                0x13,
                vec![
                    ids[0],
                    ids[1],
                    (12, b"\x61\x62\x63"),
                    (20, b"\x64\x65\x66"),
                    (24, &[0x67, 0x68, 22 << 3 | 1, 5 << 5 | 1 << 4]),
                    (28, b"\x70\x71\x72\x73\x74\x75\x76\x77"),
                    (36, &[0x78; 196]),
                ],
            ),
            (0x14, vec![ids[0], ids[1]]),
            (0x15, vec![ids[0], ids[1], (8, b"\x79\x7A\x7B")]),
            (0x16, vec![ids[0], ids[1]]),
        ];
        for (message, (attribute, fields)) in one_of_each().into_iter().zip(tables) {
            let mut expected = [0; MAD_BYTES];
            expected[..4].copy_from_slice(&[1, 7, 2, 3]);
            expected[8..16].copy_from_slice(b"\x81\x82\x83\x84\x85\x86\x87\x88");
            expected[17] = attribute;
            for (at, bytes) in fields {
                expected[24 + at..][..bytes.len()].copy_from_slice(bytes);
            }
            let mad = Mad { transaction_id: 0x8182_8384_8586_8788, message };
            assert_eq!(mad.encode(), expected, "{mad:?}");
            assert_eq!(Mad::decode(&expected), Ok(mad));
        }
    }

    #[test]
    fn layout_of_ipv6_addresses() {
        let (source, destination) = ([0x91; 16].into(), [0x92; 16].into());
        let req = Req { source, destination, hop_limit: 1, transport: 2, ..req() };
        let bytes = Mad { transaction_id: 0, message: Message::Req(Box::new(req)) }.encode();
        assert_eq!(bytes[24 + 43], 20 << 3 | 2 << 1 | 1);
        assert_eq!(bytes[24 + 94], 1 << 3);
        assert_eq!(bytes[24 + 140..][..36], [&[0, 6 << 4, 0x44, 0x45], &[0x91; 16][..], &[0x92; 16]].concat());
    }

    /// Private data ends where the MAD does.
    #[test]
    fn private_data_fills_the_message() {
        assert_eq!(24 + req::PRIVATE_DATA + private_data::REQ, MAD_BYTES);
        assert_eq!(24 + rep::PRIVATE_DATA + private_data::REP, MAD_BYTES);
        assert_eq!(24 + rej::PRIVATE_DATA + private_data::REJ, MAD_BYTES);
        assert_eq!(24 + 8 + private_data::RTU, MAD_BYTES);
        assert_eq!(24 + 12 + private_data::DREQ, MAD_BYTES);
        assert_eq!(24 + 8 + private_data::DREP, MAD_BYTES);
        assert_eq!(24 + 10 + private_data::MRA, MAD_BYTES);
    }

    #[test]
    fn refuses_every_other_kind_of_mad() {
        let bytes = Mad { transaction_id: 1, message: Message::Req(Box::new(req())) }.encode();
        // Byte, and the values that it may have.
        let fixed: [(usize, &[u8]); 8] = [
            (0, &[1]),
            (1, &[7]),
            (2, &[2]),
            (3, &[3]),
            (16, &[0]),
            (24 + 48, &[0xFF]),
            (24 + 49, &[0xFF]),
            (24 + 140, &[0]),
        ];
        for (at, accepted) in fixed {
            for value in 0..=u8::MAX {
                let mut bytes = bytes;
                bytes[at] = value;
                assert_eq!(Mad::decode(&bytes).is_ok(), accepted.contains(&value), "byte {at} = {value:#x}");
            }
        }
        for value in 0..=u8::MAX {
            let mut bytes = bytes;
            bytes[17] = value;
            assert_eq!(Mad::decode(&bytes).is_ok(), (0x10..=0x16).contains(&value), "attribute {value:#x}");
        }
        for version in 0..16 {
            let mut bytes = bytes;
            bytes[24 + 141] = version << 4;
            assert_eq!(Mad::decode(&bytes).is_ok(), version == 4 || version == 6, "IP version {version}");
        }
        for at in (144..156).chain(160..172) {
            let mut bytes = bytes;
            bytes[24 + at] = 1;
            assert!(Mad::decode(&bytes).is_err(), "byte {at} of an IPv4 address");
        }
    }

    proptest! {
        #[test]
        fn round_trip(transaction_id: u64, message in messages()) {
            let mad = Mad { transaction_id, message };
            prop_assert_eq!(Mad::decode(&mad.encode()), Ok(mad));
        }

        /// What is accepted means the same when it is written again.
        #[test]
        fn no_bytes_panic(
            message in messages(),
            changes in proptest::collection::vec((0..MAD_BYTES, any::<u8>()), 1..8),
            random in proptest::collection::vec(any::<u8>(), MAD_BYTES),
        ) {
            let mut bytes = Mad { transaction_id: 1, message }.encode();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            if let Ok(mad) = Mad::decode(&bytes) {
                prop_assert_eq!(Mad::decode(&mad.encode()), Ok(mad));
            }
            let mut random: [u8; MAD_BYTES] = random.try_into().unwrap();
            let _ = Mad::decode(&random);
            random[..24].copy_from_slice(&bytes[..24]);
            let _ = Mad::decode(&random);
        }
    }
}
