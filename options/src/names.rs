//! The names of errors: errno values and the status of a completion.

use std::borrow::Cow;

macro_rules! errnos {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

/// The names of Linux. The last ones are further names of values that have another already.
const ERRNOS: &[(&str, i32)] = errnos! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY EEXIST
    EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE
    EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP ENOMSG EIDRM ECHRNG EL2NSYNC EL3HLT EL3RST ELNRNG EUNATCH
    ENOCSI EL2HLT EBADE EBADR EXFULL ENOANO EBADRQC EBADSLT EBFONT ENOSTR ENODATA ETIME ENOSR ENONET ENOPKG EREMOTE
    ENOLINK EADV ESRMNT ECOMM EPROTO EMULTIHOP EDOTDOT EBADMSG EOVERFLOW ENOTUNIQ EBADFD EREMCHG ELIBACC ELIBBAD
    ELIBSCN ELIBMAX ELIBEXEC EILSEQ ERESTART ESTRPIPE EUSERS ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT
    EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH
    ENETRESET ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT ECONNREFUSED EHOSTDOWN
    EHOSTUNREACH EALREADY EINPROGRESS ESTALE EUCLEAN ENOTNAM ENAVAIL EISNAM EREMOTEIO EDQUOT ENOMEDIUM EMEDIUMTYPE
    ECANCELED ENOKEY EKEYEXPIRED EKEYREVOKED EKEYREJECTED EOWNERDEAD ENOTRECOVERABLE ERFKILL EHWPOISON
    EWOULDBLOCK EDEADLOCK ENOTSUP
};

/// `IBV_WC_...` without the prefix, in lower case, by value.
const STATUSES: [&str; 24] = [
    "success",
    "loc_len_err",
    "loc_qp_op_err",
    "loc_eec_op_err",
    "loc_prot_err",
    "wr_flush_err",
    "mw_bind_err",
    "bad_resp_err",
    "loc_access_err",
    "rem_inv_req_err",
    "rem_access_err",
    "rem_op_err",
    "retry_exc_err",
    "rnr_retry_exc_err",
    "loc_rdd_viol_err",
    "rem_inv_rd_req_err",
    "rem_abort_err",
    "inv_eecn_err",
    "inv_eec_state_err",
    "fatal_err",
    "resp_timeout_err",
    "general_err",
    "tm_err",
    "tm_rndv_incomplete",
];

/// The name of a positive errno; `errno524` for a value without one.
pub fn errno_name(errno: i32) -> Cow<'static, str> {
    match ERRNOS.iter().find(|(_, value)| *value == errno) {
        Some((name, _)) => Cow::Borrowed(name),
        None => Cow::Owned(format!("errno{errno}")),
    }
}

/// From what [`errno_name`] gives for a positive value, or from another name that the value has.
pub fn errno_from_name(name: &str) -> Option<i32> {
    let named = ERRNOS.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    let numbered = || name.strip_prefix("errno")?.parse().ok();
    named.or_else(numbered).filter(|errno| *errno > 0)
}

/// The name of a completion's status; `status99` for a value without one.
pub fn status_name(status: u32) -> Cow<'static, str> {
    match usize::try_from(status).ok().and_then(|status| STATUSES.get(status)) {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(format!("status{status}")),
    }
}

/// From what [`status_name`] gives.
pub fn status_from_name(name: &str) -> Option<u32> {
    let named = (0..).zip(STATUSES).find(|(_, known)| *known == name).map(|(status, _)| status);
    let numbered = || name.strip_prefix("status")?.parse().ok();
    named.or_else(numbered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Error;

    /// The C library describes a value that it does not know as "Unknown error N".
    #[test]
    fn the_errnos_are_those_of_the_c_library() {
        for errno in 1..4096 {
            let described = !Error::from_raw_os_error(errno).to_string().starts_with("Unknown error");
            let named = errno_name(errno) != format!("errno{errno}");
            assert_eq!(named, described, "{errno}");
        }
    }

    #[test]
    fn errnos_are_read_back() {
        for errno in 1..=4096 {
            assert_eq!(errno_from_name(&errno_name(errno)), Some(errno));
        }
        for (name, errno) in ERRNOS {
            assert_eq!(errno_from_name(name), Some(*errno));
        }
    }

    #[test]
    fn a_value_is_shown_under_its_usual_name() {
        assert_eq!(errno_name(libc::EWOULDBLOCK), "EAGAIN");
        assert_eq!(errno_name(libc::ENOTSUP), "EOPNOTSUPP");
        assert_eq!(errno_name(libc::EDEADLOCK), "EDEADLK");
    }

    #[test]
    fn what_is_no_positive_errno_is_refused() {
        for name in ["", "ENOSUCH", "enomem", "ENOMEM ", "12", "0", "errno", "errno0", "errno-12", "errno99999999999"] {
            assert_eq!(errno_from_name(name), None, "{name}");
        }
        assert_eq!(errno_name(i32::MIN), "errno-2147483648");
    }

    #[test]
    fn statuses_are_read_back() {
        for status in (0..100).chain([u32::MAX]) {
            assert_eq!(status_from_name(&status_name(status)), Some(status));
        }
        for name in ["", "IBV_WC_SUCCESS", "SUCCESS", "12", "status", "status-1", "status99999999999"] {
            assert_eq!(status_from_name(name), None, "{name}");
        }
    }
}
