//! Registering a buffer for one purpose, and giving it back.

use crate::errno::Errno;
use crate::provider::Provider;
use crate::sys::ibv_mr;
use crate::view::{CmId, Mr};
use libc::{c_int, c_void};

/// Registers `[addr, addr + length)` in the protection domain of `id`.
pub(crate) fn register(
    id: Option<CmId>,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> Result<*mut ibv_mr, Errno> {
    let pd = id.and_then(CmId::pd).ok_or(Errno::EINVAL)?;
    Provider::get()?.reg_mr(pd, addr, length, access)
}

pub(crate) fn deregister(mr: Option<Mr>) -> Result<(), Errno> {
    let mr = mr.ok_or(Errno::EINVAL)?;
    Provider::get()?.dereg_mr(mr)
}
