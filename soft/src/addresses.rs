//! The device's GIDs: the addresses of this host.

use crate::descriptors;
use crate::uncancelled;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Mutex;

/// Entries of the port's GID table. More addresses than that are not listed: `sgid_index` has eight bits.
pub(crate) const GID_TABLE_LENGTH: usize = 256;

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

impl Entry {
    /// What stands where an address has gone: the zero GID.
    const GONE: Entry = Entry { gid: [0; 16], address: IpAddr::V6(Ipv6Addr::UNSPECIFIED), scope_id: 0, ifindex: 0 };

    fn is_gone(&self) -> bool {
        self.gid == Entry::GONE.gid
    }
}

/// An address that has, or had, an index.
struct Slot {
    entry: Entry,
    present: bool,
}

static SLOTS: Mutex<Vec<Slot>> = Mutex::new(Vec::new());

fn slots() -> uncancelled::Guard<'static, Vec<Slot>> {
    uncancelled::lock(&SLOTS)
}

/// Brings the table up to date. The system's error where the addresses cannot be listed.
pub(crate) fn look() -> Result<(), Errno> {
    let mut slots = slots();
    update(&mut slots, addresses()?);
    Ok(())
}

/// The table as it is now. At the process's first look: routable IPv4 first, then routable IPv6, link-local IPv6, and
/// loopback last. From then on an address keeps its index, as in the kernel's tables: what is new comes last, and
/// where one has gone there is the zero GID.
pub(crate) fn table() -> Vec<Entry> {
    // What was there at the last look, where a look is refused.
    let _ = look();
    slots().iter().map(|slot| if slot.present { slot.entry.clone() } else { Entry::GONE }).collect()
}

/// Brings the table up to date with the addresses that there are `now`.
fn update(slots: &mut Vec<Slot>, mut now: Vec<Entry>) {
    for slot in slots.iter_mut() {
        let found = now.iter().position(|entry| *entry == slot.entry);
        slot.present = found.is_some();
        if let Some(found) = found {
            now.remove(found);
        }
    }
    now.sort_by_key(rank);
    for entry in now {
        let slot = Slot { entry, present: true };
        if slots.len() < GID_TABLE_LENGTH {
            slots.push(slot);
        } else if let Some(free) = slots.iter_mut().find(|slot| !slot.present) {
            *free = slot;
        }
    }
}

/// The place of an address in a new table.
fn rank(entry: &Entry) -> u8 {
    match entry.address {
        address if address.is_loopback() => 3,
        IpAddr::V6(address) if address.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 1,
        IpAddr::V4(_) => 0,
    }
}

/// The addresses of the interfaces that are up, in the kernel's order.
fn addresses() -> Result<Vec<Entry>, Errno> {
    let interfaces = descriptors::with_room(getifaddrs)?;
    let mut entries = Vec::new();
    for interface in interfaces.filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP)) {
        let Some(storage) = interface.address else { continue };
        let (address, scope_id) = if let Some(v4) = storage.as_sockaddr_in() {
            (IpAddr::V4(v4.ip()), 0)
        } else if let Some(v6) = storage.as_sockaddr_in6() {
            (IpAddr::V6(v6.ip()), v6.scope_id())
        } else {
            continue;
        };
        let ifindex = if_nametoindex(interface.interface_name.as_str())?;
        let entry = Entry { gid: gid(address), address, scope_id, ifindex };
        if !entry.is_gone() && !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    Ok(entries)
}

/// The hardware address of the first interface that has one. It stays the same whatever addresses come and go.
pub(crate) fn hardware_address() -> Option<[u8; 6]> {
    let mut interfaces = getifaddrs().ok()?;
    interfaces.find_map(|interface| interface.address?.as_link_addr()?.addr().filter(|address| *address != [0; 6]))
}

/// The GID of an address.
pub(crate) fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The address of a GID, with the scope of the local entry that it is reached from.
pub(crate) fn socket_address(gid: [u8; 16], port: u16, scope_id: u32) -> SocketAddr {
    let v6 = Ipv6Addr::from(gid);
    match v6.to_ipv4_mapped() {
        Some(v4) => SocketAddr::new(v4.into(), port),
        None => SocketAddrV6::new(v6, port, 0, if v6.is_unicast_link_local() { scope_id } else { 0 }).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(addresses: &[&str]) -> Vec<Entry> {
        let entry = |text: &&str| {
            let address: IpAddr = text.parse().expect("an address");
            Entry { gid: gid(address), address, scope_id: 0, ifindex: 1 }
        };
        addresses.iter().map(entry).collect()
    }

    fn shown(slots: &[Slot]) -> Vec<String> {
        slots.iter().map(|slot| if slot.present { slot.entry.address.to_string() } else { "-".into() }).collect()
    }

    #[test]
    fn a_new_table_has_routable_addresses_first_and_loopback_last() {
        let mut slots = Vec::new();
        update(&mut slots, entries(&["127.0.0.1", "::1", "fe80::1", "2001:db8::1", "192.0.2.1", "198.51.100.1"]));
        assert_eq!(shown(&slots), ["192.0.2.1", "198.51.100.1", "2001:db8::1", "fe80::1", "127.0.0.1", "::1"]);
    }

    #[test]
    fn an_index_is_one_address_for_ever() {
        let mut slots = Vec::new();
        update(&mut slots, entries(&["192.0.2.1", "192.0.2.2", "127.0.0.1"]));
        update(&mut slots, entries(&["127.0.0.1", "192.0.2.3", "192.0.2.2"]));
        assert_eq!(shown(&slots), ["-", "192.0.2.2", "127.0.0.1", "192.0.2.3"]);
        update(&mut slots, entries(&["192.0.2.1"]));
        assert_eq!(shown(&slots), ["192.0.2.1", "-", "-", "-"]);
    }

    #[test]
    fn a_full_table_takes_the_place_of_what_has_gone() {
        let many = |third: u8| (0..=255).map(|last| format!("10.0.{third}.{last}")).collect::<Vec<_>>();
        let of = |texts: &[String]| entries(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let mut slots = Vec::new();
        update(&mut slots, of(&many(1)));
        let mut now = many(1);
        now.remove(7);
        now.extend(many(2));
        update(&mut slots, of(&now));
        assert_eq!(slots.len(), GID_TABLE_LENGTH);
        assert_eq!(slots[7].entry.address.to_string(), "10.0.2.0");
        assert!(slots.iter().all(|slot| slot.present));
    }

    #[test]
    fn what_is_up_here_is_listed_at_the_same_index_twice() {
        let first = table();
        assert!(first.iter().any(|entry| entry.address.is_loopback()));
        let second = table();
        assert!(first.iter().zip(&second).all(|(one, other)| one == other || one.is_gone() || other.is_gone()));
    }

    #[test]
    fn a_gid_is_an_address_and_back() {
        for text in ["192.0.2.1:7", "[2001:db8::1]:7"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(socket_address(gid(address.ip()), 7, 3), address);
        }
        let local = socket_address(gid("fe80::1".parse().expect("an address")), 7, 3);
        assert_eq!(local.to_string(), "[fe80::1%3]:7");
    }
}
