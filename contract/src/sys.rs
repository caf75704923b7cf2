//! The C types and constants that the crate touches, and no others.
//!
//! `tests/layout.rs` holds each struct, field by field, against the installed headers.

pub use rdma_sys::{
    RDMA_UDP_QKEY, ibv_ah, ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_state, ibv_qp_type,
    ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_transport_type, ibv_wc, ibv_wr_opcode, rdma_cm_id,
};

use libc::c_int;

/// `IBV_SEND_INLINE` as the functions' `int flags` carries it.
pub const SEND_INLINE: c_int = rdma_sys::ibv_send_flags::IBV_SEND_INLINE.0 as c_int;

/// Access rights of a memory region, as `ibv_reg_mr(3)` takes them.
pub mod access {
    use libc::c_int;
    use rdma_sys::ibv_access_flags as flags;

    pub const LOCAL_WRITE: c_int = flags::IBV_ACCESS_LOCAL_WRITE.0 as c_int;
    pub const REMOTE_READ: c_int = flags::IBV_ACCESS_REMOTE_READ.0 as c_int;
    pub const REMOTE_WRITE: c_int = flags::IBV_ACCESS_REMOTE_WRITE.0 as c_int;
}
