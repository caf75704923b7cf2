//! The device's GIDs: the addresses of this host.

use std::net::{IpAddr, SocketAddr};

/// An entry of the port's GID table. Its index is the entry's position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// IPv4 addresses as `::ffff:a.b.c.d` (RoCE v2).
    pub(crate) gid: [u8; 16],
    pub(crate) address: IpAddr,
    /// Of a link-local address; 0 otherwise.
    pub(crate) scope_id: u32,
    pub(crate) ifindex: u32,
}

/// The table as it is now: routable IPv4 first, then routable IPv6, link-local IPv6, and loopback last.
pub(crate) fn table() -> Vec<Entry> {
    todo!()
}

/// The GID of an address.
pub(crate) fn gid(_address: IpAddr) -> [u8; 16] {
    todo!()
}

/// The address of a GID, with the scope of the local entry that it is reached from.
pub(crate) fn socket_address(_gid: [u8; 16], _port: u16, _scope_id: u32) -> SocketAddr {
    todo!()
}
