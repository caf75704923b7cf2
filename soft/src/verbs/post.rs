//! Posting: lists of work requests, as the operations table of a context takes them.

use super::object::own;
use super::outcome;
use crate::engine::{self, Data, Locked, Operation, SendRequest, limit};
use libc::c_int;
use nix::errno::Errno;
use rdma_sys::{ibv_qp, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_srq, ibv_wr_opcode};
use std::slice;

const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
/// What the engine is told of a request's flags.
pub(super) const ENGINE_FLAGS: u32 =
    ibv_send_flags::IBV_SEND_FENCE.0 | ibv_send_flags::IBV_SEND_SIGNALED.0 | ibv_send_flags::IBV_SEND_SOLICITED.0;

/// A work request of a list.
trait Listed: Sized {
    fn next(&self) -> *mut Self;
}

impl Listed for ibv_send_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl Listed for ibv_recv_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

/// Posts requests until one fails, which `bad` then says; whether there was a first.
///
/// # Safety
/// * `first` is NULL or begins a list, and `bad` has room for a pointer.
#[inline]
unsafe fn each<W: Listed>(
    first: *mut W,
    bad: *mut *mut W,
    mut post: impl FnMut(&W) -> Result<(), Errno>,
) -> (bool, Result<(), Errno>) {
    let mut next = first;
    // SAFETY: the caller's promise.
    while let Some(wr) = unsafe { next.as_ref() } {
        if let Err(errno) = post(wr) {
            // SAFETY: the caller's promise.
            unsafe { *bad = next };
            return (next != first, Err(errno));
        }
        next = wr.next();
    }
    (next != first, Ok(()))
}

/// # Safety
/// * As for `ibv_post_send(3)`.
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a live object.
    let key = unsafe { own(qp) }.key;
    // SAFETY: the caller's promise.
    outcome::value(unsafe { locked(first, bad) }.and_then(|mut engine| {
        // SAFETY: as above, and for the entries.
        let post = |wr: &ibv_send_wr| engine.post_send(key, &unsafe { request(wr) }?);
        // SAFETY: as above.
        let (any, outcome) = unsafe { each(first, bad, post) };
        if any {
            engine.ring(key);
        }
        outcome
    }))
}

/// The engine, or the first request as the one that failed.
///
/// # Safety
/// * `bad` has room for a pointer.
unsafe fn locked<W>(first: *mut W, bad: *mut *mut W) -> Result<Locked<'static>, Errno> {
    engine::get().map(|engine| engine.lock_to_post()).inspect_err(|_| {
        // SAFETY: the caller's promise.
        unsafe { *bad = first };
    })
}

/// # Safety
/// * The pointers in `wr` are what its opcode and its number of entries say.
#[inline]
unsafe fn request(wr: &ibv_send_wr) -> Result<SendRequest<'_>, Errno> {
    // SAFETY: the caller's promise.
    let sges = unsafe { entries(wr.sg_list, wr.num_sge) }?;
    // SAFETY: as above.
    let operation = unsafe { operation(wr) }?;
    let inline = wr.send_flags & INLINE != 0;
    if wr.send_flags & !(ENGINE_FLAGS | INLINE) != 0 || (inline && !takes_data(operation)) {
        return Err(Errno::EINVAL);
    }
    let data = if inline { Data::InlineSges(sges) } else { Data::Sges(sges) };
    Ok(SendRequest { wr_id: wr.wr_id, operation, flags: wr.send_flags & ENGINE_FLAGS, data })
}

/// Whether an operation's entries are where its data comes from, so that they can be inline.
pub(super) fn takes_data(operation: Operation) -> bool {
    !matches!(operation, Operation::Read { .. } | Operation::CompareSwap { .. } | Operation::FetchAdd { .. })
}

/// EINVAL for what is no number of entries, and for entries that are not there.
///
/// # Safety
/// * `list` is NULL or has `number` entries.
#[inline]
pub(super) unsafe fn entries<'a>(list: *const ibv_sge, number: c_int) -> Result<&'a [ibv_sge], Errno> {
    match usize::try_from(number) {
        Ok(0) => Ok(&[]),
        Ok(number) if number <= limit::MAX_SGE as usize && !list.is_null() => {
            // SAFETY: the caller's promise.
            Ok(unsafe { slice::from_raw_parts(list, number) })
        }
        _ => Err(Errno::EINVAL),
    }
}

/// # Safety
/// * The unions in `wr` have the members that its opcode says.
#[inline]
unsafe fn operation(wr: &ibv_send_wr) -> Result<Operation, Errno> {
    use ibv_wr_opcode as opcode;
    // SAFETY: the members are plain numbers: whatever the opcode says, they can be read.
    let imm = unsafe { wr.imm_data_invalidated_rkey_union.imm_data };
    // SAFETY: as above.
    let rdma = unsafe { wr.wr.rdma };
    // SAFETY: as above.
    let atomic = unsafe { wr.wr.atomic };
    let (address, rkey) = (rdma.remote_addr, rdma.rkey);
    Ok(match wr.opcode {
        opcode::IBV_WR_SEND => Operation::Send,
        opcode::IBV_WR_SEND_WITH_IMM => Operation::SendWithImm(imm),
        opcode::IBV_WR_SEND_WITH_INV => Operation::SendWithInv { rkey: imm },
        opcode::IBV_WR_RDMA_WRITE => Operation::Write { address, rkey },
        opcode::IBV_WR_RDMA_WRITE_WITH_IMM => Operation::WriteWithImm { address, rkey, imm },
        opcode::IBV_WR_RDMA_READ => Operation::Read { address, rkey },
        opcode::IBV_WR_ATOMIC_CMP_AND_SWP => Operation::CompareSwap {
            address: atomic.remote_addr,
            rkey: atomic.rkey,
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            Operation::FetchAdd { address: atomic.remote_addr, rkey: atomic.rkey, add: atomic.compare_add }
        }
        _ => return Err(Errno::EINVAL),
    })
}

/// # Safety
/// * As for `ibv_post_recv(3)`.
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a live object.
    let key = unsafe { own(qp) }.key;
    // SAFETY: the caller's promise.
    outcome::value(unsafe { locked(first, bad) }.and_then(|mut engine| {
        // SAFETY: as above, and for the entries.
        let post = |wr: &ibv_recv_wr| engine.post_recv(key, wr.wr_id, unsafe { entries(wr.sg_list, wr.num_sge) }?);
        // SAFETY: as above.
        unsafe { each(first, bad, post) }.1
    }))
}

/// # Safety
/// * As for `ibv_post_srq_recv(3)`.
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a live object.
    let key = unsafe { own(srq) }.key;
    // SAFETY: the caller's promise.
    outcome::value(unsafe { locked(first, bad) }.and_then(|mut engine| {
        // SAFETY: as above, and for the entries.
        let post = |wr: &ibv_recv_wr| engine.post_srq_recv(key, wr.wr_id, unsafe { entries(wr.sg_list, wr.num_sge) }?);
        // SAFETY: as above.
        unsafe { each(first, bad, post) }.1
    }))
}
