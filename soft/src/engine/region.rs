//! Memory regions: who may touch which bytes. Everything that reads or writes a program's memory asks here first, while
//! the engine is locked, so that nothing touches a region that has been deregistered.

use super::{Keys, MemoryRegion, PdKey};
use libc::iovec;
use nix::errno::Errno;
use rdma_sys::{ibv_access_flags as Access, ibv_sge};
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::atomic::{Ordering, fence};

pub(super) struct Region {
    pub(super) pd: PdKey,
    memory: MemoryRegion,
}

#[derive(Default)]
pub(super) struct Regions {
    by_key: HashMap<u32, Region, BuildHasherDefault<KeyHasher>>,
    /// Keys are a keyed hash of a counter: a peer cannot guess those that it was not told.
    random: RandomState,
    counter: u64,
}

/// Keys are random already.
#[derive(Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }
    fn write_u32(&mut self, value: u32) {
        // Spreads it over the high bits, which the table looks at as well.
        self.0 = (self.0 ^ u64::from(value)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// What a request asks for is not there, or not allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Refused;

pub(super) const LOCAL_WRITE: u32 = Access::IBV_ACCESS_LOCAL_WRITE.0;
pub(super) const REMOTE_WRITE: u32 = Access::IBV_ACCESS_REMOTE_WRITE.0;
pub(super) const REMOTE_READ: u32 = Access::IBV_ACCESS_REMOTE_READ.0;
pub(super) const REMOTE_ATOMIC: u32 = Access::IBV_ACCESS_REMOTE_ATOMIC.0;
const REMOTE: u32 = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;

impl Regions {
    pub(super) fn insert(&mut self, pd: PdKey, memory: MemoryRegion) -> Result<Keys, Errno> {
        if memory.access & (REMOTE_WRITE | REMOTE_ATOMIC) != 0 && memory.access & LOCAL_WRITE == 0 {
            return Err(Errno::EINVAL);
        }
        let end = (memory.length as u64).checked_sub(1).ok_or(Errno::EINVAL)?;
        if memory.address.checked_add(memory.length).is_none() || memory.iova.checked_add(end).is_none() {
            return Err(Errno::EINVAL);
        }
        let key = loop {
            self.counter += 1;
            let key = self.random.hash_one(self.counter) as u32;
            // 0 means "none" to programs.
            if key != 0 && !self.by_key.contains_key(&key) {
                break key;
            }
        };
        let rkey = if memory.access & REMOTE != 0 { key } else { 0 };
        self.by_key.insert(key, Region { pd, memory });
        Ok(Keys { lkey: key, rkey })
    }

    pub(super) fn remove(&mut self, key: u32) -> Option<Region> {
        self.by_key.remove(&key)
    }

    /// Takes the rights of peers away (send with invalidate).
    pub(super) fn invalidate(&mut self, pd: PdKey, rkey: u32) -> Result<(), Refused> {
        let region = self.by_key.get_mut(&rkey).filter(|region| region.pd == pd).ok_or(Refused)?;
        if region.memory.access & REMOTE == 0 {
            return Err(Refused);
        }
        region.memory.access &= !REMOTE;
        Ok(())
    }

    /// Where `length` bytes at `address` are, if all `rights` are granted.
    pub(super) fn find(
        &self,
        pd: PdKey,
        key: u32,
        address: u64,
        length: usize,
        rights: u32,
    ) -> Result<*mut u8, Refused> {
        let Region { pd: owner, memory } = self.by_key.get(&key).ok_or(Refused)?;
        let offset = address.checked_sub(memory.iova).ok_or(Refused)?;
        let end = offset.checked_add(length as u64).ok_or(Refused)?;
        if *owner != pd || memory.access & rights != rights || end > memory.length as u64 {
            return Err(Refused);
        }
        Ok((memory.address + offset as usize) as *mut u8)
    }

    /// The places of bytes `offset..offset + length` of a scatter/gather list, appended to `to`.
    pub(super) fn gather(
        &self,
        pd: PdKey,
        sges: &[ibv_sge],
        mut offset: usize,
        mut length: usize,
        rights: u32,
        to: &mut Vec<iovec>,
    ) -> Result<(), Refused> {
        for sge in sges {
            if length == 0 {
                break;
            }
            let whole = sge.length as usize;
            if offset >= whole {
                offset -= whole;
                continue;
            }
            let part = (whole - offset).min(length);
            let address = sge.addr.checked_add(offset as u64).ok_or(Refused)?;
            let base = self.find(pd, sge.lkey, address, part, rights)?;
            to.push(iovec { iov_base: base.cast(), iov_len: part });
            offset = 0;
            length -= part;
        }
        if length == 0 { Ok(()) } else { Err(Refused) }
    }

    /// Whether all of a scatter/gather list may be used. Entries without length are never looked at.
    pub(super) fn check(&self, pd: PdKey, sges: &[ibv_sge], rights: u32) -> Result<(), Refused> {
        sges.iter()
            .filter(|sge| sge.length > 0)
            .try_for_each(|sge| self.find(pd, sge.lkey, sge.addr, sge.length as usize, rights).map(drop))
    }
}

/// The sum of the lengths.
pub(super) fn total(sges: &[ibv_sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// Copies `bytes` to the places, which have room for them. The last byte of each comes last: programs wait for it in
/// order to know that the others are there.
pub(super) fn scatter(mut bytes: &[u8], places: &[iovec]) {
    for place in places {
        let (part, rest) = bytes.split_at(bytes.len().min(place.iov_len));
        let Some((last, most)) = part.split_last() else { return };
        let to = place.iov_base.cast::<u8>();
        // SAFETY: the place is in a region that the program has registered, found while the engine is locked, and no
        // shorter than the part. The program may touch it meanwhile, as it may with a device.
        unsafe { std::ptr::copy_nonoverlapping(most.as_ptr(), to, most.len()) };
        fence(Ordering::Release);
        // SAFETY: as above.
        unsafe { to.wrapping_add(most.len()).write_volatile(*last) };
        bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: PdKey = PdKey(1);

    fn regions(memory: &mut [u8], iova: u64, access: u32) -> (Regions, Keys) {
        let mut regions = Regions::default();
        let memory = MemoryRegion { address: memory.as_mut_ptr() as usize, length: memory.len(), iova, access };
        let keys = regions.insert(PD, memory).unwrap();
        (regions, keys)
    }

    #[test]
    fn a_region_has_bounds_an_owner_and_rights() {
        let mut memory = [0; 100];
        let base = memory.as_mut_ptr();
        let (mut regions, keys) = regions(&mut memory, 0x1000, LOCAL_WRITE | REMOTE_READ);
        assert_eq!(keys.lkey, keys.rkey);
        let find = |regions: &Regions, pd, key, address, length, rights| regions.find(pd, key, address, length, rights);
        assert_eq!(find(&regions, PD, keys.lkey, 0x1000, 100, LOCAL_WRITE), Ok(base));
        assert_eq!(find(&regions, PD, keys.lkey, 0x1063, 1, 0), Ok(base.wrapping_add(99)));
        assert_eq!(find(&regions, PD, keys.lkey, 0x1064, 0, 0), Ok(base.wrapping_add(100)));
        for (pd, key, address, length, rights) in [
            (PD, keys.lkey, 0x0FFF, 1, 0),
            (PD, keys.lkey, 0x1001, 100, 0),
            (PD, keys.lkey, 0x1065, 0, 0),
            (PD, keys.lkey, u64::MAX, 2, 0),
            (PD, keys.lkey, 0x1000, usize::MAX, 0),
            (PD, keys.lkey ^ 1, 0x1000, 1, 0),
            (PdKey(2), keys.lkey, 0x1000, 1, 0),
            (PD, keys.lkey, 0x1000, 1, REMOTE_WRITE),
        ] {
            assert_eq!(find(&regions, pd, key, address, length, rights), Err(Refused));
        }
        assert_eq!(regions.invalidate(PdKey(2), keys.rkey), Err(Refused));
        assert_eq!(regions.invalidate(PD, keys.rkey), Ok(()));
        assert_eq!(find(&regions, PD, keys.lkey, 0x1000, 1, REMOTE_READ), Err(Refused));
        assert_eq!(regions.invalidate(PD, keys.rkey), Err(Refused));
        assert!(regions.remove(keys.lkey).is_some());
        assert_eq!(find(&regions, PD, keys.lkey, 0x1000, 1, 0), Err(Refused));
    }

    #[test]
    fn rights_must_not_contradict_each_other() {
        let mut regions = Regions::default();
        let memory = |access| MemoryRegion { address: 0x1000, length: 1, iova: 0, access };
        assert_eq!(regions.insert(PD, memory(REMOTE_WRITE)).unwrap_err(), Errno::EINVAL);
        assert_eq!(regions.insert(PD, memory(REMOTE_ATOMIC)).unwrap_err(), Errno::EINVAL);
        assert_eq!(regions.insert(PD, memory(0)).unwrap().rkey, 0);
        assert_ne!(regions.insert(PD, memory(REMOTE_READ)).unwrap().rkey, 0);
    }

    #[test]
    fn a_list_is_cut_to_what_is_asked_for() {
        let mut memory = [0; 100];
        let base = memory.as_mut_ptr() as usize;
        let (regions, keys) = regions(&mut memory, 0, LOCAL_WRITE);
        let sge = |addr, length| ibv_sge { addr, length, lkey: keys.lkey };
        // The entry of length 0 has no key that is any good.
        let sges = [sge(10, 5), ibv_sge { addr: 7, length: 0, lkey: 0 }, sge(50, 20), sge(99, 1)];
        assert_eq!(regions.check(PD, &sges, LOCAL_WRITE), Ok(()));
        let gather = |offset, length| {
            let mut to = Vec::new();
            regions.gather(PD, &sges, offset, length, 0, &mut to)?;
            Ok(to.iter().map(|part| (part.iov_base as usize - base, part.iov_len)).collect::<Vec<_>>())
        };
        assert_eq!(gather(0, 26), Ok(vec![(10, 5), (50, 20), (99, 1)]));
        assert_eq!(gather(3, 4), Ok(vec![(13, 2), (50, 2)]));
        assert_eq!(gather(5, 20), Ok(vec![(50, 20)]));
        assert_eq!(gather(26, 0), Ok(vec![]));
        assert_eq!(gather(26, 1), Err(Refused));
    }
}
