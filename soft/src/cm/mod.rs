//! Connection management: the functions of librdmacm.
//!
//!     exports (C on the outside)  →  endpoint, qp, addrinfo, channel  →  id  →  connect, listen  →  port, link
//!                                                                         connection: what the messages mean
//!
//! An identifier has a lock of its own. It is never held while verbs run; a connection that is being asked for locks the
//! one who listens, never the other way.

mod addrinfo;
mod channel;
mod connect;
mod connection;
mod device;
mod endpoint;
mod exports;
mod id;
mod link;
mod listen;
mod port;
mod qp;

pub(crate) use listen::accepted;
