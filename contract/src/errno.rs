//! `errno`: the error type, what a provider's result means, and the value that the caller must find again.

use libc::c_int;
use std::num::NonZeroI32;

/// A reason for failure: a positive errno value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(NonZeroI32);

impl Errno {
    pub const EINVAL: Errno = Errno::known(libc::EINVAL);
    pub const EIO: Errno = Errno::known(libc::EIO);
    pub const ELIBACC: Errno = Errno::known(libc::ELIBACC);
    pub const ENOMEM: Errno = Errno::known(libc::ENOMEM);
    pub const ENOTCONN: Errno = Errno::known(libc::ENOTCONN);
    pub const EOPNOTSUPP: Errno = Errno::known(libc::EOPNOTSUPP);

    /// Evaluated at compile time only.
    const fn known(value: c_int) -> Errno {
        match NonZeroI32::new(value) {
            Some(value) => Errno(value),
            None => panic!("no errno value is 0"),
        }
    }

    /// The errno in a value that is neither 0 nor -1, whichever sign it was given. `INT_MIN` is nobody's errno: EIO.
    pub fn from_value(value: NonZeroI32) -> Errno {
        value.checked_abs().map_or(Errno::EIO, Errno)
    }

    /// The errno of a positive value; EIO for another.
    pub fn from_positive(value: c_int) -> Errno {
        NonZeroI32::new(value).filter(|value| value.get() > 0).map_or(Errno::EIO, Errno)
    }

    /// The value, always positive.
    #[inline]
    pub fn get(self) -> c_int {
        self.0.get()
    }
}

/// Where this thread's `errno` is.
fn location() -> *mut c_int {
    // SAFETY: has no preconditions.
    unsafe { libc::__errno_location() }
}

/// The `errno` of one call into another library: 0 when it begins, and after a success what it was before.
pub struct Call {
    errno: *mut c_int,
    before: c_int,
}

impl Call {
    /// Right before the call. From 0 one can tell whether a provider that reports -1 has set a reason.
    #[inline]
    pub fn begin() -> Call {
        let errno = location();
        // SAFETY: the C library keeps a thread's errno for as long as the thread runs.
        let before = unsafe { *errno };
        // SAFETY: as above.
        unsafe { *errno = 0 };
        Call { errno, before }
    }

    /// What a verb's integer result means, by value, whatever the provider's convention is: 0 is success; another
    /// value is an errno of either sign; a bare -1 leaves the reason in `errno`, or is the reason `otherwise`.
    #[inline]
    pub fn check(self, result: c_int, otherwise: Errno) -> Result<(), Errno> {
        if result == 0 {
            self.restore();
            Ok(())
        } else {
            Err(reason(result, otherwise))
        }
    }

    /// The object that a verb returned; a NULL leaves the reason as a bare -1 does.
    #[inline]
    pub fn object<T>(self, result: *mut T, otherwise: Errno) -> Result<*mut T, Errno> {
        if result.is_null() {
            Err(left_by_provider(otherwise))
        } else {
            self.restore();
            Ok(result)
        }
    }

    /// After a call whose result says nothing about `errno`.
    #[inline]
    pub fn restore(self) {
        // SAFETY: `begin` ran on this thread (a raw pointer keeps `Call` from leaving it), whose errno this is.
        unsafe { *self.errno = self.before };
    }
}

#[cold]
#[inline(never)]
fn reason(result: c_int, otherwise: Errno) -> Errno {
    match NonZeroI32::new(result) {
        Some(value) if value.get() != -1 => Errno::from_value(value),
        _ => left_by_provider(otherwise),
    }
}

/// What a provider that reported failure without naming a reason left in `errno` since [`Call::begin`];
/// `otherwise` where that is nothing an errno can be.
#[cold]
fn left_by_provider(otherwise: Errno) -> Errno {
    let errno = location();
    // SAFETY: the C library keeps a thread's errno for as long as the thread runs.
    let value = unsafe { *errno };
    match NonZeroI32::new(value) {
        None => otherwise,
        Some(value) if value.get() == -1 || value.get() == c_int::MIN => otherwise,
        Some(value) => Errno::from_value(value),
    }
}

/// What an entry returns: 0, and `errno` is as the caller left it; or -1 and the reason.
#[inline]
pub fn status(outcome: Result<(), Errno>) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(reason) => leave(reason, -1),
    }
}

/// As [`status`], for the functions that return how many completions they found, which is 1.
#[inline]
pub fn one(outcome: Result<(), Errno>) -> c_int {
    match outcome {
        Ok(()) => 1,
        Err(reason) => leave(reason, -1),
    }
}

/// As [`status`], for the verbs, which return the errno itself. Programs look at `errno`, too.
#[inline]
pub fn verb(outcome: Result<(), Errno>) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(reason) => leave(reason, reason.0.get()),
    }
}

/// As [`status`], for the functions that return an object, or NULL and the reason.
#[inline]
pub fn object<T>(outcome: Result<*mut T, Errno>) -> *mut T {
    match outcome {
        Ok(object) => object,
        Err(reason) => leave(reason, std::ptr::null_mut()),
    }
}

#[cold]
#[inline(never)]
fn leave<T>(reason: Errno, result: T) -> T {
    let errno = location();
    // SAFETY: the C library keeps a thread's errno for as long as the thread runs.
    unsafe { *errno = reason.0.get() };
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(value: c_int) {
        // SAFETY: this thread's own errno.
        unsafe { *location() = value }
    }

    fn get() -> c_int {
        // SAFETY: this thread's own errno.
        unsafe { *location() }
    }

    fn checked(result: c_int, left: c_int, otherwise: Errno) -> Result<(), c_int> {
        let call = Call::begin();
        set(left);
        call.check(result, otherwise).map_err(Errno::get)
    }

    #[test]
    fn zero_is_success_whatever_errno_says() {
        assert_eq!(checked(0, libc::EBADF, Errno::EIO), Ok(()));
    }

    #[test]
    fn bare_minus_one_takes_errno_or_the_given_reason() {
        assert_eq!(checked(-1, libc::EAGAIN, Errno::ENOMEM), Err(libc::EAGAIN));
        assert_eq!(checked(-1, 0, Errno::ENOMEM), Err(libc::ENOMEM));
        assert_eq!(checked(-1, 0, Errno::EIO), Err(libc::EIO));
    }

    #[test]
    fn errno_left_negative_is_made_positive_and_nonsense_is_replaced() {
        assert_eq!(checked(-1, -libc::EINVAL, Errno::ENOMEM), Err(libc::EINVAL));
        assert_eq!(checked(-1, -1, Errno::ENOMEM), Err(libc::ENOMEM));
        assert_eq!(checked(-1, c_int::MIN, Errno::ENOMEM), Err(libc::ENOMEM));
    }

    #[test]
    fn int_min_is_eio() {
        assert_eq!(checked(c_int::MIN, libc::EBADF, Errno::ENOMEM), Err(libc::EIO));
    }

    proptest! {
        #[test]
        fn a_named_reason_is_taken_by_its_absolute_value(result in 1..=c_int::MAX, left: c_int) {
            prop_assert_eq!(checked(result, left, Errno::ENOMEM), Err(result));
            if result > 1 {
                prop_assert_eq!(checked(-result, left, Errno::ENOMEM), Err(result));
            }
        }

        #[test]
        fn every_failure_has_a_positive_errno(result: c_int, left: c_int) {
            if let Err(reason) = checked(result, left, Errno::ENOMEM) {
                prop_assert!(reason > 0);
            }
        }

        #[test]
        fn success_leaves_errno_as_it_was(before: c_int, scribble: c_int) {
            set(before);
            let call = Call::begin();
            prop_assert_eq!(get(), 0);
            set(scribble);
            prop_assert_eq!(call.check(0, Errno::EIO), Ok(()));
            prop_assert_eq!(status(Ok(())), 0);
            prop_assert_eq!(get(), before);
        }

        #[test]
        fn failure_sets_the_reason(before: c_int) {
            set(before);
            prop_assert_eq!(status(Err(Errno::ENOTCONN)), -1);
            prop_assert_eq!(get(), libc::ENOTCONN);
        }
    }
}
