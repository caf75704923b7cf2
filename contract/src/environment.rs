//! Variables of the environment, as a library reads them.

use libc::c_char;
use std::ffi::{CStr, CString};
use std::ptr::NonNull;

unsafe extern "C" {
    /// `secure_getenv(3)`, which the libc crate does not declare for Linux.
    fn secure_getenv(name: *const c_char) -> *mut c_char;
}

/// The value of a variable, unless it is empty or the program runs with privileges of its file.
pub fn value(name: &CStr) -> Option<CString> {
    // SAFETY: a C string. A program that changes its environment while threads read it is on its own, as in C.
    let value = NonNull::new(unsafe { secure_getenv(name.as_ptr()) })?;
    // SAFETY: a C string of the environment, copied at once.
    let value = unsafe { CStr::from_ptr(value.as_ptr()) };
    (!value.is_empty()).then(|| value.to_owned())
}
