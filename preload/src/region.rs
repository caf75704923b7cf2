//! Memory regions by their local key, for the rules about buffers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

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
pub(crate) struct Regions(Mutex<Known>);

#[derive(Default)]
struct Known {
    regions: HashMap<u32, Region>,
    /// The keys of regions that were deregistered, oldest first; some may have been given to new ones.
    gone: VecDeque<u32>,
}

/// So many keys of regions that are gone are remembered.
const GONE: usize = 4096;

impl Regions {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn registered(&self, lkey: u32, iova: u64, length: u64) {
        self.lock().regions.insert(lkey, Region { iova, length, registered: true });
    }

    /// The key is remembered as that of a region that was there; or it is there still.
    pub(crate) fn set_registered(&self, lkey: u32, registered: bool) {
        let mut known = self.lock();
        let Some(region) = known.regions.get_mut(&lkey) else { return };
        region.registered = registered;
        if registered {
            return;
        }
        known.gone.push_back(lkey);
        if known.gone.len() > GONE
            && let Some(oldest) = known.gone.pop_front()
            && known.regions.get(&oldest).is_some_and(|region| !region.registered)
        {
            known.regions.remove(&oldest);
        }
    }

    /// The key may mean something that was not seen being made.
    pub(crate) fn forget(&self, lkey: u32) {
        self.lock().regions.remove(&lkey);
    }

    /// The device is closed.
    pub(crate) fn clear(&self) {
        *self.lock() = Known::default();
    }

    pub(crate) fn get(&self, lkey: u32) -> Option<Region> {
        self.lock().regions.get(&lkey).copied()
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

    #[test]
    fn of_the_keys_that_are_gone_the_last_are_remembered() {
        let regions = Regions::default();
        regions.registered(1, 0, 8);
        for lkey in 0x100..0x100 + 3 * GONE as u32 {
            regions.registered(lkey, 0, 8);
            regions.set_registered(lkey, false);
        }
        assert_eq!(regions.lock().regions.len(), GONE + 1);
        assert_eq!(regions.get(1).map(|region| region.registered), Some(true));
        assert_eq!(regions.get(0x100 + 3 * GONE as u32 - 1).map(|region| region.registered), Some(false));
        assert!(regions.get(0x100).is_none());
    }

    #[test]
    fn a_key_that_came_back_stays() {
        let regions = Regions::default();
        regions.registered(1, 0, 8);
        regions.set_registered(1, false);
        regions.registered(1, 0, 8);
        for lkey in 0x100..0x100 + 2 * GONE as u32 {
            regions.registered(lkey, 0, 8);
            regions.set_registered(lkey, false);
        }
        assert_eq!(regions.get(1).map(|region| region.registered), Some(true));
    }
}
