//! A capture that Wireshark reads as RoCEv2: what is on the TCP connections, as if it had been on the wire.
//!
//! Each packet gets Ethernet, IP and UDP (port 4791) headers, padding with its count in the BTH, and the invariant CRC
//! (annex A17); MADs also a DETH, to queue pair 1.

use crate::bytes::{Writer, ipv6};
use crate::cm::MAD_BYTES;
use crate::frame::MAX_FRAME;
use crate::packet::{BTH_BYTES, MIG_REQ, P_KEY};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{SystemTime, UNIX_EPOCH};

/// The largest packet of a record: more than any IP packet in Ethernet.
const SNAP_LENGTH: u32 = 0x4_0000;

/// The file's header (pcap, nanoseconds).
pub fn file_header() -> [u8; 24] {
    const NANOSECONDS: u32 = 0xA1B2_3C4D;
    const VERSION: [u16; 2] = [2, 4];
    const ETHERNET: u32 = 1;
    let mut header = [0; 24];
    header[0..4].copy_from_slice(&NANOSECONDS.to_le_bytes());
    header[4..6].copy_from_slice(&VERSION[0].to_le_bytes());
    header[6..8].copy_from_slice(&VERSION[1].to_le_bytes());
    header[16..20].copy_from_slice(&SNAP_LENGTH.to_le_bytes());
    header[20..24].copy_from_slice(&ETHERNET.to_le_bytes());
    header
}

/// From whom to whom. Mapped addresses are IPv4; if only one is IPv4, both are shown as IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// The UDP source port; the queue pair's number chooses it, so that flows can be told apart.
    pub source_port: u16,
}

/// A record of one packet of a reliable connection: `packet` is its headers and its payload, without the length in
/// front; at most [`MAX_FRAME`] bytes.
pub fn packet(way: Way, time: SystemTime, packet: &[u8]) -> Vec<u8> {
    debug_assert!(packet.len() <= MAX_FRAME);
    let pad = packet.len().wrapping_neg() % 4;
    let mut padded = packet.to_vec();
    padded.resize(packet.len() + pad, 0);
    if let Some(flags) = padded.get_mut(1) {
        *flags |= (pad as u8) << 4;
    }
    record(way, time, &padded)
}

/// A record of one MAD.
pub fn mad(way: Way, time: SystemTime, mad: &[u8; MAD_BYTES]) -> Vec<u8> {
    const UD_SEND_ONLY: u8 = 0x64;
    /// The general service interface: its queue pair number, and the queue key by which one asks for it.
    const GSI: u32 = 1;
    const GSI_QKEY: u32 = 0x8001_0000;
    const DETH_BYTES: usize = 8;

    let mut packet = [0; BTH_BYTES + DETH_BYTES + MAD_BYTES];
    let mut to = Writer::new(&mut packet);
    to.put(&[UD_SEND_ONLY, MIG_REQ]);
    to.put(&P_KEY.to_be_bytes());
    to.u32(GSI);
    to.u32(0);
    to.u32(GSI_QKEY);
    to.u32(GSI);
    to.put(mad);
    record(way, time, &packet)
}

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;
const ICRC_BYTES: usize = 4;
const ROCE_PORT: u16 = 4791;
const UDP: u8 = 17;
const TTL: u8 = 64;

// The lengths in IP and UDP headers have 16 bits.
const _: () = assert!(IPV4_HEADER + UDP_HEADER + MAX_FRAME.next_multiple_of(4) + ICRC_BYTES <= u16::MAX as usize);

/// `transport` is a packet from its BTH to its padding.
fn record(way: Way, time: SystemTime, transport: &[u8]) -> Vec<u8> {
    let udp_bytes = UDP_HEADER + transport.len() + ICRC_BYTES;
    let ip = match (way.source.to_canonical(), way.destination.to_canonical()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => ipv4_header(source, destination, udp_bytes).to_vec(),
        (source, destination) => ipv6_header(ipv6(source), ipv6(destination), udp_bytes).to_vec(),
    };
    let ethertype: u16 = if ip.len() == IPV4_HEADER { 0x0800 } else { 0x86DD };

    let mut frame = Vec::with_capacity(14 + ip.len() + udp_bytes);
    frame.extend(mac(way.destination));
    frame.extend(mac(way.source));
    frame.extend(ethertype.to_be_bytes());
    let ip_at = frame.len();
    frame.extend(&ip);
    frame.extend(way.source_port.to_be_bytes());
    frame.extend(ROCE_PORT.to_be_bytes());
    frame.extend((udp_bytes as u16).to_be_bytes());
    let udp_checksum_at = frame.len();
    frame.extend([0, 0]);
    frame.extend(transport);
    frame.extend(icrc(&frame[ip_at..], ip.len()));
    // Adapters leave it out over IPv4, where 0 says so; over IPv6 there is no leaving out (RFC 8200, 8.1).
    if ip.len() == IPV6_HEADER {
        let [length_high, length_low] = (udp_bytes as u16).to_be_bytes();
        let checksum = checksum(&[&ip[8..], &[length_high, length_low, 0, UDP], &frame[ip_at + ip.len()..]].concat());
        frame[udp_checksum_at..][..2].copy_from_slice(&if checksum == [0, 0] { [0xFF; 2] } else { checksum });
    }

    let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let length = frame.len() as u32;
    let mut record = Vec::with_capacity(16 + frame.len());
    for field in [time.as_secs() as u32, time.subsec_nanos(), length, length] {
        record.extend(field.to_le_bytes());
    }
    record.extend(frame);
    record
}

/// A locally administered address that ends as the IP address does.
fn mac(address: IpAddr) -> [u8; 6] {
    let [.., a, b, c, d] = ipv6(address).octets();
    [0x02, 0, a, b, c, d]
}

fn ipv4_header(source: Ipv4Addr, destination: Ipv4Addr, payload: usize) -> [u8; IPV4_HEADER] {
    const DO_NOT_FRAGMENT: u8 = 0x40;
    let [length_high, length_low] = ((IPV4_HEADER + payload) as u16).to_be_bytes();
    let mut header = [0; IPV4_HEADER];
    header[..12].copy_from_slice(&[0x45, 0, length_high, length_low, 0, 0, DO_NOT_FRAGMENT, 0, TTL, UDP, 0, 0]);
    header[12..16].copy_from_slice(&source.octets());
    header[16..].copy_from_slice(&destination.octets());
    let checksum = checksum(&header);
    header[10..12].copy_from_slice(&checksum);
    header
}

fn ipv6_header(source: Ipv6Addr, destination: Ipv6Addr, payload: usize) -> [u8; IPV6_HEADER] {
    let [length_high, length_low] = (payload as u16).to_be_bytes();
    let mut header = [0; IPV6_HEADER];
    header[..8].copy_from_slice(&[0x60, 0, 0, 0, length_high, length_low, UDP, TTL]);
    header[8..24].copy_from_slice(&source.octets());
    header[24..].copy_from_slice(&destination.octets());
    header
}

/// The Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let sum: u32 = bytes.chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let folded = (sum & 0xFFFF) + (sum >> 16);
    (!(folded + (folded >> 16)) as u16).to_be_bytes()
}

/// The invariant CRC of an IP packet up to its padding, as it lies on the wire. What routers may change counts
/// as all ones: the absent local route header, traffic class, flow label, TTL, checksums, and the BTH's byte with the
/// congestion marks.
fn icrc(ip: &[u8], ip_header: usize) -> [u8; ICRC_BYTES] {
    let (variant, rest) = ip.split_at(ip.len().min(ip_header + UDP_HEADER + BTH_BYTES));
    let mut masked = variant.to_vec();
    let mut mask = |at: usize, bits: u8| {
        if let Some(byte) = masked.get_mut(at) {
            *byte |= bits;
        }
    };
    let in_ip: &[(usize, u8)] = match ip_header {
        IPV4_HEADER => &[(1, 0xFF), (8, 0xFF), (10, 0xFF), (11, 0xFF)],
        _ => &[(0, 0x0F), (1, 0xFF), (2, 0xFF), (3, 0xFF), (7, 0xFF)],
    };
    let behind_ip = [(6, 0xFF), (7, 0xFF), (UDP_HEADER + 4, 0xFF)].map(|(at, bits)| (ip_header + at, bits));
    for &(at, bits) in in_ip.iter().chain(&behind_ip) {
        mask(at, bits);
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[0xFF; 8]);
    crc.update(&masked);
    crc.update(rest);
    crc.finalize().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::{Mad, tests as cm};
    use crate::packet::tests as packets;
    use proptest::prelude::*;
    use std::time::Duration;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
        digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    /// From IP header to ICRC: an unreliable send, and a congestion notification that a ConnectX-4 sent. Both vectors are
    /// those of Scapy.
    #[test]
    fn icrc_of_known_packets() {
        let unreliable = bytes(
            "45010040 04784000 4011b4d5 c0a80007 c0a80007 c00012b7 002caca2 2460ffff 000000d3 00cf1710
             4630818b e28935d9 0e9a9550 5401be88 5e500000 78f353f3",
        );
        let notification = bytes(
            "45c2003c 718c4000 40119161 0a001101 0a001201 000012b7 00280000 8100ffff 40000118 00000000
             00000000 00000000 00000000 00000000 82fd002a",
        );
        for packet in [unreliable, notification] {
            let (covered, expected) = packet.split_at(packet.len() - ICRC_BYTES);
            assert_eq!(icrc(covered, IPV4_HEADER), expected);
        }
    }

    #[test]
    fn layout_over_ipv4() {
        // A mapped address is IPv4.
        let way =
            Way { source: "::ffff:10.0.0.1".parse().unwrap(), destination: [10, 0, 0, 2].into(), source_port: 0xC001 };
        let time = UNIX_EPOCH + Duration::new(0x0102_0304, 5);
        let send = bytes("0440ffff 00000002 80000007 aabbcc");
        let mut expected = bytes(
            "04030201 05000000 3e000000 3e000000
             0200 0a000002 0200 0a000001 0800
             45000030 00004000 401126bb 0a000001 0a000002 c00112b7 001c0000
             0450ffff 00000002 80000007 aabbcc00",
        );
        expected.extend(bytes("0ac1733e"));
        assert_eq!(packet(way, time, &send), expected);
    }

    #[test]
    fn layout_over_ipv6() {
        let way =
            Way { source: "fd00::1".parse().unwrap(), destination: "fd00::2".parse().unwrap(), source_port: 0xC001 };
        let record = mad(way, UNIX_EPOCH, &[0xDA; MAD_BYTES]);
        let mut expected = bytes(
            "00000000 00000000 56010000 56010000
             0200 00000002 0200 00000001 86dd
             60000000 01201140 fd000000 00000000 00000000 00000001 fd000000 00000000 00000000 00000002
             c00112b7 0120bcf1 6440ffff 00000001 00000000 80010000 00000001",
        );
        expected.extend([0xDA; MAD_BYTES]);
        expected.extend(bytes("ca6e57df"));
        assert_eq!(record, expected);
    }

    proptest! {
        /// Whatever bytes a peer has sent, and whatever the clock says.
        #[test]
        fn lengths_and_checksums_agree(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            source: [u8; 16],
            destination: [u8; 16],
            v4: bool,
            seconds: u32,
        ) {
            let address = |bytes: [u8; 16]| match v4 {
                true => IpAddr::from(*bytes.first_chunk::<4>().unwrap()),
                false => IpAddr::from(bytes),
            };
            let way = Way { source: address(source), destination: address(destination), source_port: 1 };
            let before = UNIX_EPOCH.checked_sub(Duration::from_secs(seconds.into())).unwrap_or(UNIX_EPOCH);
            let record = packet(way, before, &bytes);
            let captured = u32::from_le_bytes(record[8..12].try_into().unwrap()) as usize;
            prop_assert_eq!(record.len(), 16 + captured);
            let ip = if v4 { IPV4_HEADER } else { IPV6_HEADER };
            let udp = UDP_HEADER + bytes.len().next_multiple_of(4) + ICRC_BYTES;
            prop_assert_eq!(captured, 14 + ip + udp);

            // A receiver's sum over what a checksum covers, itself included, is zero.
            let packet = &record[16 + 14..];
            let covered = match v4 {
                true => packet[..IPV4_HEADER].to_vec(),
                false => [&packet[8..], &[0, udp as u8, 0, UDP]].concat(),
            };
            prop_assert_eq!(checksum(&covered), [0, 0]);
        }
    }

    /// Writes a capture with a packet of each kind to the file that `WIRE_PCAP` names, for `tshark` to read.
    #[test]
    #[ignore = "a capture to look at"]
    fn write_capture() {
        let file = std::env::var_os("WIRE_PCAP").expect("WIRE_PCAP names no file");
        let mut capture = file_header().to_vec();
        let ways: [[IpAddr; 2]; 2] =
            [[[10, 0, 0, 1].into(), [10, 0, 0, 2].into()], ["fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()]];
        for [source, destination] in ways {
            let way = Way { source, destination, source_port: 0xC001 };
            for message in cm::one_of_each() {
                capture.extend(mad(way, SystemTime::now(), &Mad { transaction_id: 7, message }.encode()));
            }
            for (_, header, payload) in packets::one_of_each() {
                capture.extend(packet(way, SystemTime::now(), &packets::frame(&header, payload)));
            }
        }
        std::fs::write(file, capture).unwrap();
    }
}
