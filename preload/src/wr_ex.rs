//! Posts through `ibv_qp_ex`: `ibv_wr_start`, `ibv_wr_send`, … `ibv_wr_complete`, whose functions the object itself holds.
//!
//! A request is what was set since its `wr_` function; the batch is known when it is completed. `wr_atomic_write` is not
//! wrapped: objects of older libraries end before it.

use crate::check;
use crate::config;
use crate::device::Device;
use crate::post::{self, Failure, SendQueue, Target as _};
use crate::record::{Record, State};
use crate::request::{Datagram, INLINE, Remote, Request};
use crate::rules;
use crate::trace::Outcome;
use libc::{c_int, c_uint, c_void, size_t};
use rdma_sys::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex, ibv_sge};
use rdma_verbs_contract::errno::{self, Call, Errno};
use rdma_verbs_contract::refusal;
use rdma_verbs_contract::view::Qp;
use rdma_verbs_options::{Check, Op};
use std::ptr::NonNull;
use std::slice;

/// The functions that the provider put into the object. `None`: it has none, and the program cannot call it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Functions {
    atomic_cmp_swp: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>,
    atomic_fetch_add: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
    bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info)>,
    local_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    rdma_read: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    rdma_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    rdma_write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    send: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    send_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    send_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    send_tso: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, u16, u16)>,
    set_ud_addr: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>,
    set_inline_data: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, size_t)>,
    set_inline_data_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, size_t, *const ibv_data_buf)>,
    set_sge: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    set_sge_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, size_t, *const ibv_sge)>,
    start: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    complete: Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>,
    abort: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
}

/// The requests between `ibv_wr_start` and `ibv_wr_complete`.
pub(crate) type Batch = Vec<Pending>;

pub(crate) struct Pending {
    wr_id: u64,
    op: Op,
    flags: c_uint,
    imm: Option<u32>,
    remote: Option<Remote>,
    datagram: Option<Datagram>,
    sges: Vec<ibv_sge>,
}

impl Pending {
    fn request(&self) -> Request<'_> {
        Request {
            wr_id: self.wr_id,
            op: self.op,
            flags: self.flags,
            sges: &self.sges,
            imm: self.imm,
            remote: self.remote,
            datagram: self.datagram,
        }
    }
}

/// Puts our functions into the object, unless they are there.
///
/// # Safety
/// * `extended` is the extended part of the queue pair of `record`.
pub(crate) unsafe fn wrap(record: &'static Record, extended: NonNull<ibv_qp_ex>) {
    let mut state = record.lock();
    // SAFETY: the caller's promise; nobody posts before the program has got the object.
    let qp = unsafe { &mut *extended.as_ptr() };
    macro_rules! exchange {
        ($($field:ident = $ours:ident => $saved:ident),* $(,)?) => {$(
            // A second call finds ours there already.
            if qp.$field.is_some_and(|theirs| theirs as usize != $ours as *const () as usize) {
                state.functions.$saved = qp.$field.replace($ours);
            }
        )*};
    }
    exchange!(
        wr_atomic_cmp_swp = wr_atomic_cmp_swp => atomic_cmp_swp,
        wr_atomic_fetch_add = wr_atomic_fetch_add => atomic_fetch_add,
        wr_bind_mw = wr_bind_mw => bind_mw,
        wr_local_inv = wr_local_inv => local_inv,
        wr_rdma_read = wr_rdma_read => rdma_read,
        wr_rdma_write = wr_rdma_write => rdma_write,
        wr_rdma_write_imm = wr_rdma_write_imm => rdma_write_imm,
        wr_send = wr_send => send,
        wr_send_imm = wr_send_imm => send_imm,
        wr_send_inv = wr_send_inv => send_inv,
        wr_send_tso = wr_send_tso => send_tso,
        wr_set_ud_addr = wr_set_ud_addr => set_ud_addr,
        wr_set_inline_data = wr_set_inline_data => set_inline_data,
        wr_set_inline_data_list = wr_set_inline_data_list => set_inline_data_list,
        wr_set_sge = wr_set_sge => set_sge,
        wr_set_sge_list = wr_set_sge_list => set_sge_list,
        wr_start = wr_start => start,
        wr_complete = wr_complete => complete,
        wr_abort = wr_abort => abort,
    );
}

/// The record of the queue pair, which was found when its functions were wrapped.
///
/// # Safety
/// * `qp` is an extended queue pair.
unsafe fn record(qp: *mut ibv_qp_ex) -> Option<&'static Record> {
    // SAFETY: an extended queue pair begins with the plain one.
    let plain = unsafe { &*qp.cast::<ibv_qp>() };
    let device = Device::of(plain.context)?;
    Some(device.records.qp(device, plain.qp_num))
}

/// Does `note` to the state and returns the provider's functions.
///
/// # Safety
/// * `qp` is an extended queue pair.
unsafe fn noting(qp: *mut ibv_qp_ex, note: impl FnOnce(&mut State)) -> Functions {
    // SAFETY: the caller's promise.
    let Some(record) = (unsafe { record(qp) }) else { return Functions::default() };
    let mut state = record.lock();
    if !config::in_forked_child() {
        note(&mut state);
    }
    state.functions
}

/// Begins a request with the id and the flags that the object has now.
///
/// # Safety
/// * `qp` is an extended queue pair.
unsafe fn begin(qp: *mut ibv_qp_ex, op: Op, imm: Option<u32>, remote: Option<Remote>) -> Functions {
    // SAFETY: the caller's promise.
    let wr_id = unsafe { (*qp).wr_id };
    // SAFETY: the caller's promise.
    let flags = unsafe { (*qp).wr_flags };
    let pending = Pending { wr_id, op, flags, imm, remote, datagram: None, sges: Vec::new() };
    // SAFETY: the caller's promise.
    unsafe { noting(qp, |state| state.batch.push(pending)) }
}

/// Adds to the request that was begun last.
///
/// # Safety
/// * `qp` is an extended queue pair.
unsafe fn add(qp: *mut ibv_qp_ex, to: impl FnOnce(&mut Pending)) -> Functions {
    // SAFETY: the caller's promise.
    unsafe { noting(qp, |state| state.batch.last_mut().map_or((), to)) }
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, compare: u64, swap: u64) {
    // SAFETY: as for `ibv_wr_atomic_cmp_swp(3)`; so in the functions below.
    let functions = unsafe { begin(qp, Op::CmpSwap, None, Some(Remote { addr, rkey })) };
    if let Some(real) = functions.atomic_cmp_swp {
        // SAFETY: as above.
        unsafe { real(qp, rkey, addr, compare, swap) };
    }
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, value: u64) {
    // SAFETY: the caller's promise.
    let functions = unsafe { begin(qp, Op::FetchAdd, None, Some(Remote { addr, rkey })) };
    if let Some(real) = functions.atomic_fetch_add {
        // SAFETY: as above.
        unsafe { real(qp, rkey, addr, value) };
    }
}

unsafe extern "C" fn wr_bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: the caller's promise.
    let functions = unsafe { begin(qp, Op::BindMw, None, None) };
    if let Some(real) = functions.bind_mw {
        // SAFETY: as above.
        unsafe { real(qp, mw, rkey, info) };
    }
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the caller's promise.
    let functions = unsafe { begin(qp, Op::LocalInv, Some(rkey), None) };
    if let Some(real) = functions.local_inv {
        // SAFETY: as above.
        unsafe { real(qp, rkey) };
    }
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: the caller's promise.
    let functions = unsafe { begin(qp, Op::Read, None, Some(Remote { addr, rkey })) };
    if let Some(real) = functions.rdma_read {
        // SAFETY: as above.
        unsafe { real(qp, rkey, addr) };
    }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: the caller's promise.
    let functions = unsafe { begin(qp, Op::Write, None, Some(Remote { addr, rkey })) };
    if let Some(real) = functions.rdma_write {
        // SAFETY: as above.
        unsafe { real(qp, rkey, addr) };
    }
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    // SAFETY: the caller's promise.
    let functions = unsafe { begin(qp, Op::WriteImm, Some(imm), Some(Remote { addr, rkey })) };
    if let Some(real) = functions.rdma_write_imm {
        // SAFETY: as above.
        unsafe { real(qp, rkey, addr, imm) };
    }
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    let functions = unsafe { begin(qp, Op::Send, None, None) };
    if let Some(real) = functions.send {
        // SAFETY: as above.
        unsafe { real(qp) };
    }
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: the caller's promise.
    let functions = unsafe { begin(qp, Op::SendImm, Some(imm), None) };
    if let Some(real) = functions.send_imm {
        // SAFETY: as above.
        unsafe { real(qp, imm) };
    }
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the caller's promise.
    let functions = unsafe { begin(qp, Op::SendInv, Some(rkey), None) };
    if let Some(real) = functions.send_inv {
        // SAFETY: as above.
        unsafe { real(qp, rkey) };
    }
}

unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, header: *mut c_void, header_size: u16, mss: u16) {
    // SAFETY: the caller's promise.
    let functions = unsafe { begin(qp, Op::Tso, None, None) };
    if let Some(real) = functions.send_tso {
        // SAFETY: as above.
        unsafe { real(qp, header, header_size, mss) };
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    let datagram = Datagram { ah: ah.addr(), remote_qpn };
    // SAFETY: the caller's promise.
    let functions = unsafe { add(qp, |pending| pending.datagram = Some(datagram)) };
    if let Some(real) = functions.set_ud_addr {
        // SAFETY: as above.
        unsafe { real(qp, ah, remote_qpn, remote_qkey) };
    }
}

fn add_inline(pending: &mut Pending, addr: *mut c_void, length: size_t) {
    pending.flags |= INLINE;
    // More than the field holds is more than any device takes inline.
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    pending.sges.push(ibv_sge { addr: addr.addr() as u64, length, lkey: 0 });
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: size_t) {
    // SAFETY: the caller's promise.
    let functions = unsafe { add(qp, |pending| add_inline(pending, addr, length)) };
    if let Some(real) = functions.set_inline_data {
        // SAFETY: as above.
        unsafe { real(qp, addr, length) };
    }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: size_t, list: *const ibv_data_buf) {
    let buffers = if list.is_null() {
        &[]
    } else {
        // SAFETY: an array of that many, by the caller's promise.
        unsafe { slice::from_raw_parts(list, count) }
    };
    // SAFETY: the caller's promise.
    let functions =
        unsafe { add(qp, |pending| buffers.iter().for_each(|buffer| add_inline(pending, buffer.addr, buffer.length))) };
    if let Some(real) = functions.set_inline_data_list {
        // SAFETY: as above.
        unsafe { real(qp, count, list) };
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the caller's promise.
    let functions = unsafe { add(qp, |pending| pending.sges.push(ibv_sge { addr, length, lkey })) };
    if let Some(real) = functions.set_sge {
        // SAFETY: as above.
        unsafe { real(qp, lkey, addr, length) };
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: size_t, list: *const ibv_sge) {
    let sges = if list.is_null() {
        &[]
    } else {
        // SAFETY: an array of that many, by the caller's promise.
        unsafe { slice::from_raw_parts(list, count) }
    };
    // SAFETY: the caller's promise.
    let functions = unsafe { add(qp, |pending| pending.sges.extend_from_slice(sges)) };
    if let Some(real) = functions.set_sge_list {
        // SAFETY: as above.
        unsafe { real(qp, count, list) };
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    let functions = unsafe { noting(qp, |_| ()) };
    if let Some(real) = functions.start {
        // SAFETY: as above.
        unsafe { real(qp) };
    }
    // After the provider has let this thread in: another one may have a batch until then.
    // SAFETY: as above.
    unsafe { noting(qp, |state| state.batch.clear()) };
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    let functions = unsafe { noting(qp, |state| state.batch.clear()) };
    if let Some(real) = functions.abort {
        // SAFETY: as above.
        unsafe { real(qp) };
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let call = Call::begin();
    let mut batch = Batch::new();
    // SAFETY: the caller's promise.
    let functions = unsafe { noting(qp, |state| std::mem::swap(&mut batch, &mut state.batch)) };
    // SAFETY: as above.
    let (Some(real), Some(record)) = (functions.complete, unsafe { record(qp) }) else {
        return errno::verb(Err(Errno::EOPNOTSUPP));
    };
    let config = config::get();
    // SAFETY: an extended queue pair begins with the plain one.
    let stop = unsafe { stop(record, qp.cast(), &batch) };
    let result = if let Some((_, outcome)) = &stop {
        if let Some(abort) = functions.abort {
            // SAFETY: as above.
            unsafe { abort(qp) };
        }
        Err(Failure::of_ours(outcome))
    } else {
        if config.check == Check::Full {
            batch.iter().for_each(|pending| rules::before_post(record, &pending.request()));
        }
        let sequences = post::remember(config, record, SendQueue::queue, batch.iter().map(Pending::request));
        // SAFETY: as above.
        let result = post::ask(|| unsafe { real(qp) });
        if result.is_err() {
            post::withdraw(config, record, SendQueue::queue, sequences);
        }
        result
    };
    let left_by_provider = Call::begin();
    for (index, pending) in batch.iter().enumerate() {
        // A batch goes as a whole: where it fails none of it was posted.
        let outcome = match (&stop, &result) {
            (_, Ok(())) => Outcome::ACCEPTED,
            (Some((at, outcome)), _) if *at == index => *outcome,
            (_, Err(failure)) => Outcome::failed(failure.errno),
        };
        post::tell(config, record, &pending.request(), outcome);
    }
    // Writing a trace uses errno.
    call.restore();
    post::answer(config, result, left_by_provider)
}

/// Why a batch does not get to the provider, and by which of its requests.
///
/// # Safety
/// * `qp` is a queue pair.
unsafe fn stop(record: &'static Record, qp: *mut ibv_qp, batch: &Batch) -> Option<(usize, Outcome)> {
    if config::in_forked_child() {
        return None;
    }
    let config = config::get();
    if config.check != Check::Off {
        // SAFETY: the caller's promise.
        let qp = unsafe { Qp::new(qp) }?;
        if let Err(errno) = refusal::ready_to_send(qp) {
            return Some((0, check::not_ready(errno).into()));
        }
    }
    batch.iter().enumerate().find_map(|(index, pending)| {
        let errno = config.faults.post(pending.op, record.qp_number())?;
        Some((index, Outcome::injected(errno)))
    })
}
