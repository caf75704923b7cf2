//! The functions that rdma-core keeps as `static inline` in `<rdma/rdma_verbs.h>`, as symbols of a library.
//!
//! # Drop-in
//!
//! A program that includes `<rdma/rdma_verbs.h>` compiles unchanged against this library's header and behaves
//! as before wherever it behaved before. What changes is failure: each call returns 0 (or 1, or a region) and
//! leaves `errno` alone, or returns -1 (or NULL) and sets `errno` to a positive reason that belongs to this
//! call. `rdma_verbs(7)` has the whole table.
//!
//! # Layers
//!
//! ```text
//! ffi  →  post, completion, registration  →  provider  →  contract (refusal, errno, view, …)
//! ```
//!
//! An arrow points at what a layer may use; nothing uses `ffi`. `unsafe` is found in `ffi` (pointers that C
//! hands in), `provider` (calls into another library), and in the crate `contract`: `view` (fields of C objects), `errno`
//! (the thread's variable) and `output` (messages).
//!
//! # Safety vocabulary
//!
//! The `# Safety` sections of the entries use three words:
//!
//! * **valid object**: NULL, or a pointer to an initialised object of that type which nobody destroys before the
//!   call returns, and whose pointer fields are NULL or valid objects themselves. Other threads may use it as far as
//!   the verbs allow.
//! * **valid array** of n: NULL, or a pointer to n readable elements that nobody changes before the call returns.
//! * **device memory**: bytes that the device reads or writes after the call has returned, until the
//!   completion of the request; the library itself never touches them.
//!
//! # Panics and errno
//!
//! No entry panics, and `panic = "abort"` keeps a mistake about that from unwinding into C. What the layers below do to
//! `errno` is undone around each call into them ([`errno::Call`]); a reason gets there in one place, with the -1.

mod completion;
mod ffi;
mod post;
mod provider;
mod registration;

use rdma_verbs_contract::{environment, errno, output, refusal, sys, view};

/// The ABI on one screen: what `src/rdma_verbs.map` exports, in the order of the header.
pub use ffi::{
    rdma_dereg_mr, rdma_get_recv_comp, rdma_get_send_comp, rdma_post_read, rdma_post_readv, rdma_post_recv,
    rdma_post_recvv, rdma_post_send, rdma_post_sendv, rdma_post_ud_send, rdma_post_write, rdma_post_writev,
    rdma_reg_msgs, rdma_reg_read, rdma_reg_write,
};
