//! Fields in network byte order, read and written one after the other, and what several formats share.

use crate::Malformed;
use std::net::{IpAddr, Ipv6Addr};

/// The low 24 bits: queue pair numbers, PSNs and MSNs.
pub(crate) const MASK_24: u32 = 0xFF_FFFF;

/// Takes fields off the front.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Malformed("shorter than its fields"))?;
        self.0 = rest;
        Ok(*field)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.take().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_be_bytes)
    }
}

/// Appends fields to a buffer that holds the largest message of its kind.
pub(crate) struct Writer<'a> {
    to: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(to: &'a mut [u8]) -> Self {
        Writer { to, at: 0 }
    }

    pub(crate) fn written(&self) -> usize {
        self.at
    }

    /// Puts the length of what follows into the first 4 bytes.
    pub(crate) fn length(&mut self, length: usize) {
        self.to[..4].copy_from_slice(&(length as u32).to_be_bytes());
    }

    pub(crate) fn put(&mut self, field: &[u8]) {
        self.to[self.at..][..field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.put(&value.to_be_bytes());
    }
}

/// An address in 16 bytes; an IPv4 address is mapped.
pub(crate) fn ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}
