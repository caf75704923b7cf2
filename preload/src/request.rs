//! Work requests as the rest of the crate sees them, whichever of the interfaces they came through.

use libc::c_uint;
use rdma_sys::{ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge};
use rdma_verbs_options::Op;
use std::slice;

pub(crate) const SIGNALED: c_uint = ibv_send_flags::IBV_SEND_SIGNALED.0;
pub(crate) const INLINE: c_uint = ibv_send_flags::IBV_SEND_INLINE.0;

/// The names of `enum ibv_send_flags`.
pub(crate) const FLAGS: [(c_uint, &str); 5] = [
    (ibv_send_flags::IBV_SEND_FENCE.0, "fence"),
    (SIGNALED, "signaled"),
    (ibv_send_flags::IBV_SEND_SOLICITED.0, "solicited"),
    (INLINE, "inline"),
    (ibv_send_flags::IBV_SEND_IP_CSUM.0, "ip_csum"),
];

/// One request, described.
pub(crate) struct Request<'a> {
    pub(crate) wr_id: u64,
    pub(crate) op: Op,
    pub(crate) flags: c_uint,
    pub(crate) sges: &'a [ibv_sge],
    /// Network byte order; the key to invalidate of a send with invalidate.
    pub(crate) imm: Option<u32>,
    pub(crate) remote: Option<Remote>,
    pub(crate) datagram: Option<Datagram>,
}

/// The peer's memory.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

/// The destination of a datagram.
#[derive(Clone, Copy)]
pub(crate) struct Datagram {
    pub(crate) ah: usize,
    pub(crate) remote_qpn: u32,
}

impl Request<'_> {
    /// Bytes in the message, or room for one.
    pub(crate) fn bytes(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// The two request structs of the verbs, which are lists.
pub(crate) trait WorkRequest {
    fn next(&mut self) -> &mut *mut Self;

    /// # Safety
    /// * The request's list is an array of its number of entries, or the number is not positive, or the list is NULL.
    unsafe fn describe(&self, is_ud: bool) -> Request<'_>;
}

/// # Safety
/// * `list` is NULL or an array of `count`, if that is positive.
unsafe fn entries<'a>(list: *const ibv_sge, count: i32) -> &'a [ibv_sge] {
    match usize::try_from(count) {
        Ok(count) if count > 0 && !list.is_null() => {
            // SAFETY: the caller's promise.
            unsafe { slice::from_raw_parts(list, count) }
        }
        _ => &[],
    }
}

impl WorkRequest for ibv_recv_wr {
    fn next(&mut self) -> &mut *mut Self {
        &mut self.next
    }

    unsafe fn describe(&self, _is_ud: bool) -> Request<'_> {
        // SAFETY: the caller's promise.
        let sges = unsafe { entries(self.sg_list, self.num_sge) };
        Request { wr_id: self.wr_id, op: Op::Recv, flags: 0, sges, imm: None, remote: None, datagram: None }
    }
}

impl WorkRequest for ibv_send_wr {
    fn next(&mut self) -> &mut *mut Self {
        &mut self.next
    }

    unsafe fn describe(&self, is_ud: bool) -> Request<'_> {
        // SAFETY: the caller's promise.
        let sges = unsafe { entries(self.sg_list, self.num_sge) };
        let op = Op::posted(self.opcode);
        let imm = matches!(op, Op::SendImm | Op::SendInv | Op::WriteImm | Op::LocalInv)
            // SAFETY: both members of the union are 32-bit integers.
            .then(|| unsafe { self.imm_data_invalidated_rkey_union.imm_data });
        let remote = match op {
            Op::Write | Op::WriteImm | Op::Read => {
                // SAFETY: integers, which the opcode says were written.
                let rdma = unsafe { self.wr.rdma };
                Some(Remote { addr: rdma.remote_addr, rkey: rdma.rkey })
            }
            Op::CmpSwap | Op::FetchAdd => {
                // SAFETY: integers, which the opcode says were written.
                let atomic = unsafe { self.wr.atomic };
                Some(Remote { addr: atomic.remote_addr, rkey: atomic.rkey })
            }
            _ => None,
        };
        let datagram = (is_ud && remote.is_none()).then(|| {
            // SAFETY: an address and integers, which a UD request has.
            let ud = unsafe { self.wr.ud };
            Datagram { ah: ud.ah.addr(), remote_qpn: ud.remote_qpn }
        });
        Request { wr_id: self.wr_id, op, flags: self.send_flags, sges, imm, remote, datagram }
    }
}
