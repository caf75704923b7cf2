//! The functions that ours stand in front of.

use libc::c_void;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A versioned function of libibverbs, of type `F`, found at its first use.
pub(crate) struct Next<F> {
    name: &'static CStr,
    version: &'static CStr,
    found: AtomicPtr<c_void>,
    of: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    /// # Safety
    /// * `F` is the function pointer type of every definition of that name and version.
    pub(crate) const unsafe fn new(name: &'static CStr, version: &'static CStr) -> Next<F> {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Next { name, version, found: AtomicPtr::new(ptr::null_mut()), of: PhantomData }
    }

    /// `None` where the installed libibverbs is too old to have it.
    pub(crate) fn get(&self) -> Option<F> {
        let mut address = self.found.load(Ordering::Acquire);
        if address.is_null() {
            address = self.find();
            self.found.store(address, Ordering::Release);
        }
        // SAFETY: POSIX lets dlsym's result be used as a function pointer; its type is the promise of `new`.
        (!address.is_null()).then(|| unsafe { mem::transmute_copy(&address) })
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: C strings.
        let next = unsafe { libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), self.version.as_ptr()) };
        if !next.is_null() {
            return next;
        }
        // A plug-in that was opened RTLD_LOCAL brought libibverbs with it: it is loaded, but in nobody's sight.
        // SAFETY: a C string.
        let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if library.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: C strings, and a handle that is kept open, since the function is kept.
        unsafe { libc::dlvsym(library, self.name.as_ptr(), self.version.as_ptr()) }
    }
}
