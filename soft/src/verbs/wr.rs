//! Posting by `ibv_wr_start(3)`, one function for each part of a request, and `ibv_wr_complete`.

use super::object::own;
use super::outcome;
use super::post::{ENGINE_FLAGS, takes_data};
use crate::engine::{self, Data, Operation, SendRequest};
use libc::{c_int, c_void, size_t};
use nix::errno::Errno;
use rdma_sys::{ibv_data_buf, ibv_qp_cap, ibv_qp_ex, ibv_send_flags, ibv_sge};
use std::cell::UnsafeCell;
use std::ops::Range;
use std::slice;

/// What is between `ibv_wr_start` and `ibv_wr_complete` or `ibv_wr_abort`.
pub(super) struct Batch {
    /// Held from one to the other. The C library's: those are two calls.
    started: UnsafeCell<libc::pthread_mutex_t>,
    requests: UnsafeCell<Requests>,
}

/// All of it keeps its room from batch to batch.
#[derive(Default)]
struct Requests {
    requests: Vec<Request>,
    sges: Vec<ibv_sge>,
    inline_data: Vec<u8>,
    /// The first thing that was wrong: then nothing will be posted.
    wrong: Option<Errno>,
}

struct Request {
    wr_id: u64,
    flags: u32,
    operation: Operation,
    /// In `sges`, all of them or, for inline data, the one whose address is an index in `inline_data`.
    sges: Range<usize>,
    is_inline: bool,
}

impl Batch {
    pub(super) fn new() -> Batch {
        Batch {
            started: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            requests: UnsafeCell::new(Requests::default()),
        }
    }
}

impl Requests {
    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline_data.clear();
        self.wrong = None;
    }

    fn note(&mut self, errno: Errno) {
        self.wrong.get_or_insert(errno);
    }

    fn begin(&mut self, wr_id: u64, flags: u32, operation: Operation) {
        // Data is inline if it is set so; the flag itself has no meaning here.
        let flags = flags & !ibv_send_flags::IBV_SEND_INLINE.0;
        if flags & !ENGINE_FLAGS != 0 {
            self.note(Errno::EINVAL);
        }
        let end = self.sges.len();
        self.requests.push(Request { wr_id, flags, operation, sges: end..end, is_inline: false });
    }

    /// The entries of the request that was begun last. EINVAL where there is none or too many entries.
    fn set_sges(&mut self, sges: &[ibv_sge], cap: &ibv_qp_cap) {
        let fits = sges.len() <= cap.max_send_sge as usize;
        match self.requests.last_mut().filter(|_| fits) {
            Some(request) => {
                let start = self.sges.len();
                self.sges.extend_from_slice(sges);
                request.sges = start..self.sges.len();
                request.is_inline = false;
            }
            None => self.note(Errno::EINVAL),
        }
    }

    /// Copies the data of the request that was begun last. EINVAL where there is none, or its operation sends nothing.
    fn set_inline<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>) {
        let start = self.inline_data.len();
        for part in parts {
            self.inline_data.extend_from_slice(part);
        }
        let length = self.inline_data.len() - start;
        match self.requests.last_mut().filter(|request| takes_data(request.operation)) {
            Some(request) => {
                let index = self.sges.len();
                self.sges.push(ibv_sge { addr: start as u64, length: length as u32, lkey: 0 });
                request.sges = index..index + 1;
                request.is_inline = true;
            }
            None => self.note(Errno::EINVAL),
        }
    }

    /// Makes addresses of the indices of inline data, which does not move any more.
    fn resolve(&mut self) {
        let data = self.inline_data.as_ptr().expose_provenance() as u64;
        for request in self.requests.iter().filter(|request| request.is_inline) {
            self.sges[request.sges.start].addr += data;
        }
    }

    fn iter(&self) -> impl Iterator<Item = SendRequest<'_>> {
        self.requests.iter().map(|request| {
            let sges = &self.sges[request.sges.clone()];
            SendRequest {
                wr_id: request.wr_id,
                operation: request.operation,
                flags: request.flags,
                data: if request.is_inline { Data::InlineSges(sges) } else { Data::Sges(sges) },
            }
        })
    }
}

/// Puts the functions into a queue pair that is made for them. All that there are, whichever are asked for.
pub(super) fn set_functions(qp: &mut ibv_qp_ex) {
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
    qp.wr_send = Some(send);
    qp.wr_send_imm = Some(send_imm);
    qp.wr_send_inv = Some(send_inv);
    qp.wr_rdma_write = Some(rdma_write);
    qp.wr_rdma_write_imm = Some(rdma_write_imm);
    qp.wr_rdma_read = Some(rdma_read);
    qp.wr_atomic_cmp_swp = Some(atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(atomic_fetch_add);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
}

/// # Safety
/// * `qp` is a live object that was made with [`Batch`].
unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> &'a Batch {
    // SAFETY: the caller's promise.
    let batch = unsafe { own(qp) }.batch.as_ref();
    // SAFETY: as above: only such a queue pair has these functions.
    unsafe { batch.unwrap_unchecked() }
}

/// # Safety
/// * As for [`batch`], by the thread that has called `ibv_wr_start`; nothing else of it is borrowed.
unsafe fn requests<'a>(qp: *mut ibv_qp_ex) -> &'a mut Requests {
    // SAFETY: the caller's promise.
    let requests = unsafe { batch(qp) }.requests.get();
    // SAFETY: as above: the lock is held.
    unsafe { &mut *requests }
}

/// # Safety
/// * As for `ibv_wr_start(3)`.
unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    let started = unsafe { batch(qp) }.started.get();
    // SAFETY: a lock of a live object.
    unsafe { libc::pthread_mutex_lock(started) };
    // SAFETY: locked just now.
    unsafe { requests(qp) }.clear();
}

/// # Safety
/// * As for `ibv_wr_complete(3)`.
unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller's promise, here and below.
    let key = unsafe { own(qp) }.key;
    // SAFETY: as above.
    let requests = unsafe { requests(qp) };
    let posted = post_all(key, requests);
    // SAFETY: as above.
    unsafe { abort(qp) };
    outcome::value(posted)
}

/// All requests or none.
fn post_all(key: engine::QpKey, requests: &mut Requests) -> Result<(), Errno> {
    if let Some(errno) = requests.wrong {
        return Err(errno);
    }
    requests.resolve();
    let mut engine = engine::get()?.lock_to_post();
    if engine.send_room(key)? < requests.requests.len() {
        return Err(Errno::ENOMEM);
    }
    // Sizes were looked at when they were set, and there is room: what else can be wrong, is so with the first.
    for request in requests.iter() {
        engine.post_send(key, &request)?;
    }
    if !requests.requests.is_empty() {
        engine.ring(key);
    }
    Ok(())
}

/// # Safety
/// * As for `ibv_wr_abort(3)`.
unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    let started = unsafe { batch(qp) }.started.get();
    // SAFETY: locked by `ibv_wr_start`.
    unsafe { libc::pthread_mutex_unlock(started) };
}

/// # Safety
/// * Called between `ibv_wr_start(3)` and `ibv_wr_complete`.
unsafe fn begin(qp: *mut ibv_qp_ex, operation: Operation) {
    // SAFETY: a live object.
    let wr_id = unsafe { (*qp).wr_id };
    // SAFETY: as above.
    let flags = unsafe { (*qp).wr_flags };
    // SAFETY: the caller's promise.
    unsafe { requests(qp) }.begin(wr_id, flags, operation);
}

/// Functions that begin a request.
macro_rules! operations {
    ($($name:ident($($argument:ident: $type:ty),*) $operation:expr;)*) => {$(
        /// # Safety
        /// * Called between `ibv_wr_start(3)` and `ibv_wr_complete`.
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $argument: $type)*) {
            // SAFETY: the caller's promise.
            unsafe { begin(qp, $operation) }
        }
    )*};
}

operations! {
    send() Operation::Send;
    send_imm(imm: u32) Operation::SendWithImm(imm);
    send_inv(rkey: u32) Operation::SendWithInv { rkey };
    rdma_write(rkey: u32, address: u64) Operation::Write { address, rkey };
    rdma_write_imm(rkey: u32, address: u64, imm: u32) Operation::WriteWithImm { address, rkey, imm };
    rdma_read(rkey: u32, address: u64) Operation::Read { address, rkey };
    atomic_cmp_swp(rkey: u32, address: u64, compare: u64, swap: u64)
        Operation::CompareSwap { address, rkey, compare, swap };
    atomic_fetch_add(rkey: u32, address: u64, add: u64) Operation::FetchAdd { address, rkey, add };
}

/// # Safety
/// * As for `ibv_wr_set_sge(3)`.
unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: a live object.
    let cap = &unsafe { own(qp) }.cap;
    // SAFETY: the caller's promise.
    unsafe { requests(qp) }.set_sges(&[ibv_sge { addr, length, lkey }], cap);
}

/// # Safety
/// * As for `ibv_wr_set_sge_list(3)`.
unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, number: size_t, list: *const ibv_sge) {
    // SAFETY: a live object.
    let cap = &unsafe { own(qp) }.cap;
    // SAFETY: the caller's promise.
    let sges = if number == 0 { &[] } else { unsafe { slice::from_raw_parts(list, number) } };
    // SAFETY: as above.
    unsafe { requests(qp) }.set_sges(sges, cap);
}

/// # Safety
/// * As for `ibv_wr_set_inline_data(3)`.
unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: size_t) {
    // SAFETY: the caller's promise.
    unsafe { set_inline_data_list(qp, 1, &ibv_data_buf { addr, length }) }
}

/// # Safety
/// * As for `ibv_wr_set_inline_data_list(3)`.
unsafe extern "C" fn set_inline_data_list(qp: *mut ibv_qp_ex, number: size_t, list: *const ibv_data_buf) {
    // SAFETY: a live object.
    let cap = &unsafe { own(qp) }.cap;
    // SAFETY: the caller's promise.
    let list = if number == 0 { &[] } else { unsafe { slice::from_raw_parts(list, number) } };
    let total = list.iter().fold(0_usize, |total, part| total.saturating_add(part.length));
    // SAFETY: as above.
    let requests = unsafe { requests(qp) };
    if total > cap.max_inline_data as usize {
        requests.note(Errno::EINVAL);
        return;
    }
    let parts = list.iter().filter(|part| part.length != 0).map(|part| {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts(part.addr.cast::<u8>(), part.length) }
    });
    requests.set_inline(parts);
}
