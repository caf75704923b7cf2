//! Waiting for one completion: poll, arm, poll again, wait, acknowledge, repeat.

use crate::errno::Errno;
use crate::provider::Provider;
use crate::sys::{ibv_comp_channel, ibv_wc};
use crate::view::Cq;
use libc::c_int;
use std::num::NonZeroI32;
use std::ptr::NonNull;

/// Fills `wc` with the next completion of `cq`, waiting on `channel` where there is none yet.
#[inline(always)]
pub(crate) fn next(cq: Option<Cq>, channel: Option<NonNull<ibv_comp_channel>>, wc: *mut ibv_wc) -> Result<(), Errno> {
    let wc = NonNull::new(wc).ok_or(Errno::EINVAL)?;
    let cq = cq.ok_or(Errno::EINVAL)?;
    let provider = Provider::get()?;
    if found(provider.poll_cq(cq, wc)?)? { Ok(()) } else { wait(provider, cq, channel, wc) }
}

/// As [`next`], where the first look found nothing.
#[cold]
fn wait(
    provider: &Provider,
    cq: Cq,
    channel: Option<NonNull<ibv_comp_channel>>,
    wc: NonNull<ibv_wc>,
) -> Result<(), Errno> {
    loop {
        provider.req_notify_cq(cq)?;
        // What came between the first look and the arming raises no event.
        if found(provider.poll_cq(cq, wc)?)? {
            return Ok(());
        }
        // An event of another queue on a shared channel is acknowledged as that queue's, and the wait goes on.
        provider.wait_for_cq_event(channel.ok_or(Errno::EINVAL)?)?;
        if found(provider.poll_cq(cq, wc)?)? {
            return Ok(());
        }
    }
}

/// What `ibv_poll_cq`, asked for one entry, answered: whether there is one. More than was asked for is an errno
/// (libibverbs answers so for a device that has no such operation); -1 and -2 are failures without a reason.
fn found(polled: c_int) -> Result<bool, Errno> {
    match polled {
        0 => Ok(false),
        1 => Ok(true),
        -2 | -1 => Err(Errno::EIO),
        other => Err(NonZeroI32::new(other).map_or(Errno::EIO, Errno::from_value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_small_numbers() {
        assert_eq!(found(0), Ok(false));
        assert_eq!(found(1), Ok(true));
        assert_eq!(found(-1), Err(Errno::EIO));
        assert_eq!(found(-2), Err(Errno::EIO));
        assert_eq!(found(c_int::MIN), Err(Errno::EIO));
    }

    proptest! {
        #[test]
        fn other_numbers_are_errno_values(polled: c_int) {
            prop_assume!(!(-2..=1).contains(&polled) && polled != c_int::MIN);
            prop_assert_eq!(found(polled).map_err(Errno::get), Err(polled.abs()));
        }
    }
}
