//! What carries packets between two queue pairs.
//!
//! A [`Stream`](stream::Stream) takes packets whole and in order, says when it can take more, and gives back what the peer
//! sends, in order. What is in a packet is the business of `requester` and `responder`; how bytes travel is that of its
//! [`Carrier`].

pub(super) mod listener;
pub(super) mod stream;
pub(super) mod tcp;

use crate::descriptors::Tracked;
use libc::iovec;
use nix::errno::Errno;
use std::net::TcpStream;
use std::os::fd::AsFd;

/// One end of a connection that carries bytes, in order, and never waits: EAGAIN where there is nothing to do now, and
/// its descriptor tells epoll when there is.
pub(super) trait Carrier: AsFd + Send {
    /// Takes as many of the bytes as it likes, 1 at least; how many.
    ///
    /// EFAULT: a place cannot be read, and none of its bytes has been taken.
    fn send(&self, places: &[iovec]) -> Result<usize, Errno>;

    /// As much as there is and fits. 0: the peer will send no more.
    ///
    /// EFAULT: a place cannot be written.
    fn receive(&self, places: &mut [iovec]) -> Result<usize, Errno>;

    /// Bytes that the peer's system has, and that have come from it: while they grow, it is there.
    fn moved(&self) -> u64;

    /// Given away, to connection management, which came to the same listener.
    fn into_socket(self: Box<Self>) -> Tracked<TcpStream>;
}
