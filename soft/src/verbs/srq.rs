//! Shared receive queues.

use super::acknowledged::{HandedOut, acknowledged};
use super::object::{self, Room, own};
use super::{memory, outcome};
use crate::engine::{self, SrqKey, limit};
use libc::c_int;
use nix::errno::Errno;
use rdma_sys::{ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr};
use std::mem;

/// What is behind an `ibv_srq`.
pub(super) struct Own {
    pub(super) key: SrqKey,
    pub(super) async_events: HandedOut,
}

/// # Safety
/// * As for `ibv_create_srq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the caller's promise.
    let init = unsafe { &mut *init };
    // SAFETY: as above.
    outcome::object(unsafe { create(pd, init) })
}

/// # Safety
/// * `pd` is a live object.
unsafe fn create(pd: *mut ibv_pd, init: &mut ibv_srq_init_attr) -> Result<*mut ibv_srq, Errno> {
    let attr = &mut init.attr;
    if !(1..=limit::MAX_SRQ_WR).contains(&attr.max_wr) || attr.max_sge > limit::MAX_SGE {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller's promise.
    let context = unsafe { (*pd).context };
    // SAFETY: as above.
    let key = unsafe { memory::key(pd) };
    // SAFETY: as above.
    let events = unsafe { own(context) }.events.clone();
    let engine = engine::get()?;
    let room = Room::<ibv_srq>::new();
    let key = engine.create_srq(key, attr, events, room.cookie())?;
    let actual = engine.query_srq(key)?;
    (attr.max_wr, attr.max_sge) = (actual.max_wr, actual.max_sge);
    // SAFETY: numbers, pointers and locks, whose initial state is all zeros.
    let mut srq: ibv_srq = unsafe { mem::zeroed() };
    srq.context = context;
    srq.srq_context = init.srq_context;
    srq.pd = pd;
    srq.handle = key.0;
    Ok(room.fill(srq, Own { key, async_events: HandedOut::none() }))
}

/// # Safety
/// * As for `ibv_modify_srq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    let known = ibv_srq_attr_mask::IBV_SRQ_MAX_WR | ibv_srq_attr_mask::IBV_SRQ_LIMIT;
    let mask = mask as u32;
    if mask & !known.0 != 0 {
        return outcome::value(Err(Errno::EINVAL));
    }
    // SAFETY: a live object.
    let key = unsafe { own(srq) }.key;
    // SAFETY: the caller's promise.
    let attr = unsafe { &*attr };
    outcome::value(engine::get().and_then(|engine| engine.modify_srq(key, attr, mask)))
}

/// # Safety
/// * As for `ibv_query_srq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: a live object.
    let key = unsafe { own(srq) }.key;
    outcome::value(engine::get().and_then(|engine| engine.query_srq(key)).map(|now| {
        // SAFETY: room for the attributes.
        unsafe { attr.write(now) };
    }))
}

/// # Safety
/// * As for `ibv_destroy_srq(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: a live object.
    let own = unsafe { own(srq) };
    if let Err(errno) = engine::get().and_then(|engine| engine.destroy_srq(own.key)) {
        return outcome::value(Err(errno));
    }
    let acknowledged = acknowledged!(srq, events_completed);
    // SAFETY: a live object.
    unsafe { own.async_events.wait(acknowledged) };
    // SAFETY: nobody uses it any more.
    unsafe { object::free(srq) };
    0
}
