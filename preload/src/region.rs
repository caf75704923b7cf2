//! Memory regions by their local key, for the rules about buffers.

use std::collections::HashMap;
use std::sync::Mutex;

/// What a key gives access to: `[iova, iova + length)`, the addresses that scatter/gather entries use.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub(crate) iova: u64,
    pub(crate) length: u64,
    pub(crate) registered: bool,
}

impl Region {
    pub(crate) fn covers(&self, addr: u64, length: u64) -> bool {
        let end = |addr: u64, length: u64| u128::from(addr) + u128::from(length);
        addr >= self.iova && end(addr, length) <= end(self.iova, self.length)
    }
}

/// The regions that were seen being made. A key that is not here was made elsewhere, and nothing is said of it.
#[derive(Default)]
pub(crate) struct Regions(Mutex<HashMap<u32, Region>>);

impl Regions {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Region>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn registered(&self, lkey: u32, iova: u64, length: u64) {
        self.lock().insert(lkey, Region { iova, length, registered: true });
    }

    /// The key is remembered as that of a region that was there.
    pub(crate) fn deregistered(&self, lkey: u32) {
        if let Some(region) = self.lock().get_mut(&lkey) {
            region.registered = false;
        }
    }

    /// The key may mean something that was not seen being made.
    pub(crate) fn forget(&self, lkey: u32) {
        self.lock().remove(&lkey);
    }

    pub(crate) fn get(&self, lkey: u32) -> Option<Region> {
        self.lock().get(&lkey).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_covers_what_lies_inside_it() {
        let region = Region { iova: 0x1000, length: 0x100, registered: true };
        assert!(region.covers(0x1000, 0x100));
        assert!(region.covers(0x1100, 0));
        assert!(!region.covers(0xfff, 1));
        assert!(!region.covers(0x10ff, 2));
        assert!(!region.covers(u64::MAX, u64::from(u32::MAX)));
    }
}
