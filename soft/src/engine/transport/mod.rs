//! What carries packets between two queue pairs.
//!
//! A [`Stream`](tcp::Stream) takes packets whole and in order, says when it can take more, and gives back what the peer
//! sends, in order. What is in a packet is the business of `requester` and `responder`.

pub(super) mod listener;
pub(super) mod tcp;
