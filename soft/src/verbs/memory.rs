//! Protection domains and memory regions.

use super::object::{self, own};
use super::outcome;
use crate::descriptors;
use crate::engine::{self, Keys, MemoryRegion, PdKey};
use libc::{c_int, c_uint, c_void, size_t};
use nix::errno::Errno;
use rdma_sys::{
    ib_uverbs_access_flags, ibv_access_flags, ibv_context, ibv_mr, ibv_pd, ibv_rereg_mr_err_code, ibv_rereg_mr_flags,
};
use std::fs::File;
use std::io::{BufRead as _, BufReader};

/// What is behind an `ibv_mr`.
pub(super) struct Own {
    iova: u64,
    access: u32,
}

/// # Safety
/// * As for `ibv_alloc_pd(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let pd = engine::get().and_then(|engine| engine.alloc_pd());
    outcome::object(pd.map(|key| object::make::<ibv_pd>(ibv_pd { context, handle: key.0 }, key)))
}

/// # Safety
/// * As for `ibv_dealloc_pd(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: a live object.
    let key = unsafe { key(pd) };
    outcome::value(engine::get().and_then(|engine| engine.dealloc_pd(key)).map(|()| {
        // SAFETY: nobody uses it any more.
        unsafe { object::free(pd) };
    }))
}

/// # Safety
/// * `pd` is a live object.
pub(super) unsafe fn key(pd: *mut ibv_pd) -> PdKey {
    // SAFETY: the caller's promise.
    *unsafe { own(pd) }
}

/// # Safety
/// * As for `ibv_reg_mr(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut ibv_mr {
    let zero_based = access as c_uint & ibv_access_flags::IBV_ACCESS_ZERO_BASED.0 != 0;
    let iova = if zero_based { 0 } else { addr.addr() as u64 };
    // SAFETY: the caller's promise.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access as c_uint) }
}

/// # Safety
/// * As for `ibv_reg_mr_iova(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access as c_uint) }
}

/// What `ibv_reg_mr(3)` and `ibv_reg_mr_iova(3)` become in programs whose access flags are not constant.
///
/// # Safety
/// * As for `ibv_reg_mr_iova(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: a live object.
    let context = unsafe { (*pd).context };
    // SAFETY: as above.
    let key = unsafe { key(pd) };
    let region = region(addr.addr(), length, iova, access);
    let registered = region.and_then(|region| Ok((region, register(key, region)?)));
    outcome::object(registered.map(|(region, Keys { lkey, rkey })| {
        let mr = ibv_mr { context, pd, addr, length, handle: lkey, lkey, rkey };
        object::make::<ibv_mr>(mr, Own { iova, access: region.access })
    }))
}

/// A region that can be registered, as `ibv_reg_mr(3)` on Soft-RoCE has it: EINVAL for no memory, EFAULT for memory that
/// is not there or may not be written.
fn region(address: usize, length: usize, iova: u64, access: u32) -> Result<MemoryRegion, Errno> {
    use ibv_access_flags as flags;
    let optional = ib_uverbs_access_flags::IB_UVERBS_ACCESS_OPTIONAL_RANGE.0;
    let known = flags::IBV_ACCESS_LOCAL_WRITE
        | flags::IBV_ACCESS_REMOTE_WRITE
        | flags::IBV_ACCESS_REMOTE_READ
        | flags::IBV_ACCESS_REMOTE_ATOMIC
        | flags::IBV_ACCESS_MW_BIND
        | flags::IBV_ACCESS_ZERO_BASED
        | flags::IBV_ACCESS_HUGETLB;
    let access = access & !optional;
    if access & flags::IBV_ACCESS_ON_DEMAND.0 != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let end = address.checked_add(length).filter(|_| length > 0 && access & !known.0 == 0).ok_or(Errno::EINVAL)?;
    if !is_mapped(address, end, access & flags::IBV_ACCESS_LOCAL_WRITE.0 != 0) {
        return Err(Errno::EFAULT);
    }
    Ok(MemoryRegion { address, length, iova, access })
}

fn register(pd: PdKey, region: MemoryRegion) -> Result<Keys, Errno> {
    engine::get()?.reg_mr(pd, region)
}

/// Whether all of a range may be read, or written. The memory itself is not touched: that would make pages of it.
/// Where there is no `/proc`, this cannot be known, and the program is believed.
fn is_mapped(start: usize, end: usize, for_writing: bool) -> bool {
    let Ok(maps) = descriptors::with_room(|| File::open("/proc/self/maps")) else { return true };
    let mut maps = BufReader::new(maps);
    let mut reached = start;
    let mut line = Vec::with_capacity(256);
    // In the order of addresses, see proc_pid_maps(5).
    while reached < end {
        line.clear();
        match maps.read_until(b'\n', &mut line) {
            Ok(1..) => {}
            _ => return false,
        }
        let Some(mapping) = Mapping::parse(&line) else { return false };
        if mapping.end <= reached {
            continue;
        }
        if mapping.start > reached || !mapping.readable || (for_writing && !mapping.writable) {
            return false;
        }
        reached = mapping.end;
    }
    true
}

#[derive(PartialEq, Eq, Debug)]
struct Mapping {
    start: usize,
    end: usize,
    readable: bool,
    writable: bool,
}

impl Mapping {
    /// Of a line that begins `55d0c0000000-55d0c0021000 rw-p `.
    fn parse(line: &[u8]) -> Option<Mapping> {
        // What follows the first two words may be any bytes of a file's name.
        let mut words = line.splitn(3, |byte| *byte == b' ');
        let (start, end) = std::str::from_utf8(words.next()?).ok()?.split_once('-')?;
        let rights = words.next()?;
        Some(Mapping {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            readable: *rights.first()? == b'r',
            writable: *rights.get(1)? == b'w',
        })
    }
}

/// # Safety
/// * As for `ibv_rereg_mr(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { reregister(mr, flags as c_uint, pd, addr, length, access as c_uint) } {
        Ok(()) => 0,
        Err((code, errno)) => {
            errno.set();
            code
        }
    }
}

/// The region as it is stays registered where this fails.
///
/// # Safety
/// * As for `ibv_rereg_mr(3)`.
unsafe fn reregister(
    mr: *mut ibv_mr,
    flags: u32,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: u32,
) -> Result<(), (c_int, Errno)> {
    let input = |errno| (ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT, errno);
    let command = |errno| (ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_CMD, errno);
    let asked = |flag: ibv_rereg_mr_flags| flags & flag.0 != 0;
    let known = ibv_rereg_mr_flags::IBV_REREG_MR_FLAGS_SUPPORTED.0;
    if flags == 0 || flags & !known != 0 {
        return Err(input(Errno::EINVAL));
    }
    // SAFETY: a live object.
    let mut new = unsafe { *mr };
    // SAFETY: as above.
    let Own { mut iova, access: mut rights } = *unsafe { own(mr) };
    if asked(ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_TRANSLATION) {
        (new.addr, new.length, iova) = (addr, length, addr.addr() as u64);
    }
    if asked(ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_PD) {
        new.pd = pd;
    }
    if asked(ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_ACCESS) {
        rights = access;
    }
    if new.pd.is_null() {
        return Err(input(Errno::EINVAL));
    }
    let region = region(new.addr.addr(), new.length, iova, rights).map_err(input)?;
    // SAFETY: a live object, by the caller's promise.
    let keys = register(unsafe { key(new.pd) }, region).map_err(command)?;
    engine::get().and_then(|engine| engine.dereg_mr(new.lkey)).map_err(command)?;
    (new.lkey, new.rkey, new.handle) = (keys.lkey, keys.rkey, keys.lkey);
    // SAFETY: nobody else may use it meanwhile.
    unsafe { object::replace(mr, new, Own { iova, access: region.access }) };
    Ok(())
}

/// # Safety
/// * As for `ibv_dereg_mr(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: a live object.
    let lkey = unsafe { (*mr).lkey };
    outcome::value(engine::get().and_then(|engine| engine.dereg_mr(lkey)).map(|()| {
        // SAFETY: nobody uses it any more.
        unsafe { object::free(mr) };
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;

    const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;

    #[test]
    fn a_line_of_maps_is_read_whatever_the_file_is_called() {
        let line = b"7f0012340000-7f0012342000 r--p 00000000 fe:01 12  /a \xff b\n";
        let mapping = Mapping { start: 0x7f0012340000, end: 0x7f0012342000, readable: true, writable: false };
        assert_eq!(Mapping::parse(line), Some(mapping));
        assert_eq!(Mapping::parse(b""), None);
        assert_eq!(Mapping::parse(b"7f0012340000 rw-p"), None);
    }

    #[test]
    fn memory_must_be_there_and_as_writable_as_asked() {
        let mut bytes = vec![0; 100_000];
        let address = bytes.as_mut_ptr().addr();
        assert!(region(address, bytes.len(), 0, LOCAL_WRITE).is_ok());
        let constant = b"constant".as_ptr().addr();
        assert!(region(constant, 8, 0, 0).is_ok());
        let refused = |address, length, access| region(address, length, 0, access).err();
        assert_eq!(refused(constant, 8, LOCAL_WRITE), Some(Errno::EFAULT));
        assert_eq!(refused(0, 8, LOCAL_WRITE), Some(Errno::EFAULT));
        assert_eq!(refused(address, 1 << 40, LOCAL_WRITE), Some(Errno::EFAULT));
        assert_eq!(refused(address, 0, LOCAL_WRITE), Some(Errno::EINVAL));
        assert_eq!(refused(address, usize::MAX, LOCAL_WRITE), Some(Errno::EINVAL));
        assert_eq!(refused(address, 8, 1 << 12), Some(Errno::EINVAL));
        assert_eq!(refused(address, 8, ibv_access_flags::IBV_ACCESS_ON_DEMAND.0), Some(Errno::EOPNOTSUPP));
        let relaxed = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
        assert_eq!(region(address, 8, 0, LOCAL_WRITE | relaxed).map(|region| region.access), Ok(LOCAL_WRITE));
    }
}
