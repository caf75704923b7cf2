//! The functions of libibverbs, and the operations of its contexts.
//!
//! C objects are thin: each holds a key of the engine's, which has the state. Programs read and write the public part;
//! what is ours lies behind it (`object`).
//!
//! Names have the version nodes of libibverbs, from `soft.map`. Not here are four that copy between the kernel's structs
//! and libibverbs's, and one for its drivers: they take none of our objects, and who calls them has the real library.

mod acknowledged;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod memory;
mod object;
mod outcome;
mod post;
pub(crate) mod qp;
pub(crate) mod srq;
mod unsupported;
mod values;
mod wr;
