// SPDX-License-Identifier: MIT OR Apache-2.0

//! A program in another language, which cannot use inline functions of C.

use std::ffi::{c_int, c_void};
use std::io::Error;
use std::ptr::null_mut;

unsafe extern "C" {
    fn rdma_dereg_mr(mr: *mut c_void) -> c_int;
    fn rdma_post_recvv(id: *mut c_void, context: *mut c_void, sgl: *mut c_void, nsge: c_int) -> c_int;
    fn rdma_reg_msgs(id: *mut c_void, addr: *mut c_void, length: usize) -> *mut c_void;
}

const EINVAL: i32 = 22;

fn main() {
    assert_eq!(unsafe { rdma_dereg_mr(null_mut()) }, -1);
    assert_eq!(Error::last_os_error().raw_os_error(), Some(EINVAL));
    assert_eq!(unsafe { rdma_post_recvv(null_mut(), null_mut(), null_mut(), 0) }, -1);
    assert_eq!(Error::last_os_error().raw_os_error(), Some(EINVAL));
    assert!(unsafe { rdma_reg_msgs(null_mut(), null_mut(), 0) }.is_null());
    assert_eq!(Error::last_os_error().raw_os_error(), Some(EINVAL));
}
