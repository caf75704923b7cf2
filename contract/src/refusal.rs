//! The calls that are answered before the provider sees them: those whose documented contract is already broken
//! and which would crash, be silently altered, or certainly fail.
//!
//! The order of the checks is part of the contract: where several apply, the first decides.

use crate::errno::Errno;
use crate::sys::{SEND_INLINE, ibv_ah, ibv_qp_state, ibv_qp_type, ibv_sge};
use crate::view::{CmId, Mr, Qp, Srq};
use libc::{c_int, c_void};

/// Where a receive goes.
#[derive(Clone, Copy)]
pub enum ReceiveQueue {
    Srq(Srq),
    Qp(Qp),
}

/// The queue that a receive on `id` goes to: its shared receive queue, or else its queue pair.
#[inline]
pub fn receive_queue(id: Option<CmId>) -> Result<ReceiveQueue, Errno> {
    let id = id.ok_or(Errno::EINVAL)?;
    if let Some(srq) = id.srq() {
        return srq.map(ReceiveQueue::Srq).ok_or(Errno::EINVAL);
    }
    match id.qp() {
        // A queue pair that takes its receives from a shared queue has none of its own.
        Some(qp) if !qp.has_srq() => Ok(ReceiveQueue::Qp(qp)),
        _ => Err(Errno::EINVAL),
    }
}

/// The queue pair that a send, read or write on `id` goes to, if it is ready for one.
#[inline]
pub fn send_queue(id: Option<CmId>) -> Result<Qp, Errno> {
    let qp = id.and_then(CmId::qp).ok_or(Errno::EINVAL)?;
    ready_to_send(qp)?;
    Ok(qp)
}

/// A queue pair in a state that takes sends, as far as `ibv_qp::state` can tell: libibverbs keeps it up to date on
/// InfiniBand and RoCE devices; elsewhere the provider decides.
#[inline]
pub fn ready_to_send(qp: Qp) -> Result<(), Errno> {
    if before_ready_to_send(qp.state()) && qp.context().is_ib() {
        return Err(Errno::ENOTCONN);
    }
    Ok(())
}

/// RESET, INIT, RTR. A post in SQD waits, in SQE and ERR it is flushed: those are answers, not mistakes.
#[inline]
fn before_ready_to_send(state: ibv_qp_state::Type) -> bool {
    matches!(state, ibv_qp_state::IBV_QPS_RESET | ibv_qp_state::IBV_QPS_INIT | ibv_qp_state::IBV_QPS_RTR)
}

/// Whether a request can name all that its queue pair's type needs: a datagram an address handle, which only one
/// function takes; an XRC send the number of a shared receive queue, which none does.
#[inline]
pub fn addressed(qp: Qp, ah: *mut ibv_ah) -> Result<(), Errno> {
    match qp.qp_type() {
        ibv_qp_type::IBV_QPT_UD if ah.is_null() => Err(Errno::EINVAL),
        ibv_qp_type::IBV_QPT_XRC_SEND => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// A scatter/gather list that the provider can walk.
#[inline]
pub fn entries(sgl: *mut ibv_sge, nsge: c_int) -> Result<(), Errno> {
    if nsge < 0 || (nsge > 0 && sgl.is_null()) { Err(Errno::EINVAL) } else { Ok(()) }
}

/// The buffer of one of the simple functions.
pub struct Buffer {
    pub addr: *mut c_void,
    pub length: usize,
    pub mr: Option<Mr>,
}

impl Buffer {
    /// The entry for a buffer that the device reaches through its region.
    #[inline]
    pub fn registered(self) -> Result<ibv_sge, Errno> {
        let length = self.message_length()?;
        if length > 0 {
            let mr = self.mr.ok_or(Errno::EINVAL)?;
            let region = Range { addr: mr.addr(), length: mr.length() };
            Range { addr: self.addr.addr(), length: self.length }.fits(region)?;
        }
        Ok(self.entry(length))
    }

    /// The entry for a buffer of a send or write: with `IBV_SEND_INLINE` the provider copies it from `addr`
    /// during the post, and no region is involved.
    #[inline]
    pub fn outgoing(self, flags: c_int) -> Result<ibv_sge, Errno> {
        if flags & SEND_INLINE == 0 {
            return self.registered();
        }
        let length = self.message_length()?;
        if length > 0 && self.addr.is_null() {
            return Err(Errno::EINVAL);
        }
        Ok(self.entry(length))
    }

    /// The length as a scatter/gather entry can say it.
    #[inline]
    fn message_length(&self) -> Result<u32, Errno> {
        u32::try_from(self.length).map_err(|_| Errno::EINVAL)
    }

    #[inline]
    fn entry(&self, length: u32) -> ibv_sge {
        ibv_sge { addr: self.addr.expose_provenance() as u64, length, lkey: self.mr.map_or(0, Mr::lkey) }
    }
}

/// The bytes `[addr, addr + length)`.
#[derive(Clone, Copy, Debug)]
struct Range {
    addr: usize,
    length: usize,
}

impl Range {
    /// Refuses a buffer, of at least one byte, that wraps around the address space or lies partly inside `region`.
    ///
    /// One that does not touch the region is not refused: entries count from the region's iova, which need not be
    /// its address (`ibv_reg_mr_iova(3)`), and `struct ibv_mr` does not tell.
    #[inline]
    fn fits(self, region: Range) -> Result<(), Errno> {
        let last = self.addr.checked_add(self.length - 1).ok_or(Errno::EINVAL)?;
        let inside = self.addr >= region.addr && last - region.addr < region.length;
        if inside || self.is_apart(last, region) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    #[cold]
    fn is_apart(self, last: usize, region: Range) -> bool {
        let behind = self.addr >= region.addr && self.addr - region.addr >= region.length;
        last < region.addr || behind || region.length == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The rule in the words of the contract, in arithmetic that cannot overflow.
    fn model(buffer: Range, region: Range) -> bool {
        let (start, end) = (buffer.addr as u128, buffer.addr as u128 + buffer.length as u128);
        let (first, past) = (region.addr as u128, region.addr as u128 + region.length as u128);
        let wraps = end > usize::MAX as u128 + 1;
        let overlaps = start < past && first < end && region.length > 0;
        let inside = first <= start && end <= past;
        !wraps && (!overlaps || inside)
    }

    /// Addresses and lengths around the places where something changes.
    fn edge() -> impl Strategy<Value = usize> {
        prop_oneof![0..8usize, 4090..4102usize, (usize::MAX - 8)..=usize::MAX, any::<usize>()]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn ranges_agree_with_the_model(
            addr in edge(), length in 1..=u32::MAX as usize, short in 1..16usize, narrow: bool,
            region_addr in edge(), region_length in edge(),
        ) {
            let buffer = Range { addr, length: if narrow { short } else { length } };
            let region = Range { addr: region_addr, length: region_length };
            prop_assert_eq!(buffer.fits(region).is_ok(), model(buffer, region));
        }
    }

    #[test]
    fn a_region_that_wraps_ends_with_the_address_space() {
        let region = Range { addr: 0x1000, length: usize::MAX };
        assert!(Range { addr: 0x2000, length: 16 }.fits(region).is_ok());
        assert!(Range { addr: 0xff8, length: 16 }.fits(region).is_err());
    }

    #[test]
    fn only_the_states_before_rts_are_early() {
        let early: Vec<u32> = (0..=255).chain([u32::MAX]).filter(|&state| before_ready_to_send(state)).collect();
        assert_eq!(early, [0, 1, 2]);
    }

    #[test]
    fn negative_counts_and_missing_lists_are_refused() {
        let mut sge = ibv_sge { addr: 0, length: 0, lkey: 0 };
        let null = std::ptr::null_mut();
        for nsge in [c_int::MIN, -1] {
            assert!(entries(&mut sge, nsge).is_err());
            assert!(entries(null, nsge).is_err());
        }
        assert!(entries(null, 0).is_ok());
        assert!(entries(null, 1).is_err());
        assert!(entries(&mut sge, 1).is_ok());
    }

    #[cfg(target_pointer_width = "64")]
    #[test]
    fn a_length_past_32_bits_is_refused_before_anything_else_is_looked_at() {
        for length in [u32::MAX as usize + 1, usize::MAX] {
            let buffer = || Buffer { addr: std::ptr::null_mut(), length, mr: None };
            assert!(buffer().registered().is_err());
            assert!(buffer().outgoing(SEND_INLINE).is_err());
        }
    }
}
