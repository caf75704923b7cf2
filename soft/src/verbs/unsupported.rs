//! Functions for what the device does not have. They are here so that none of our objects reaches the real library.

use super::outcome;
use libc::c_int;
use nix::errno::Errno;
use std::ffi::c_void;

/// Functions that look at no argument, so that none is declared: the C calling conventions of Linux leave arguments to
/// the caller.
macro_rules! functions {
    ($result:ty, $answer:expr; $($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name() -> $result {
            $answer
        }
    )*};
}

// Nothing of this kind was ever made, so there is nothing to end.
functions! { (), (); ibv_free_buf ibv_unimport_dm ibv_unimport_mr ibv_unimport_pd }

functions! {
    *mut c_void, outcome::object(Err(Errno::EOPNOTSUPP));
    ibv_alloc_buf ibv_alloc_dmah ibv_create_ah ibv_create_ah_from_wc ibv_create_comp_cntr ibv_import_device ibv_import_dm
    ibv_import_mr ibv_import_pd ibv_reg_buf_mr ibv_reg_dmabuf_mr ibv_reg_mr_ex
}

functions! {
    c_int, outcome::value(Err(Errno::EOPNOTSUPP));
    _ibv_query_comp_cntr_caps ibv_attach_mcast ibv_dealloc_dmah ibv_destroy_ah ibv_destroy_comp_cntr ibv_detach_mcast
    ibv_inc_comp_cntr ibv_inc_err_comp_cntr ibv_qp_attach_comp_cntr ibv_read_comp_cntr ibv_read_err_comp_cntr
    ibv_set_comp_cntr ibv_set_err_comp_cntr
}

functions! {
    c_int, outcome::status(Err(Errno::EOPNOTSUPP));
    ibv_dm_export_dmabuf_fd ibv_export_buf_dmabuf_fd ibv_init_ah_from_wc ibv_resolve_eth_l2_from_gid
}
