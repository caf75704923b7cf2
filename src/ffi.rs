//! The entries of the C ABI, in the order of upstream's header: pointers come in, are looked at once, and the
//! outcome becomes a return value and `errno` in the last expression.
//!
//! The documentation of each entry is what cbindgen copies into `include/rdma/rdma_verbs.h`, so it speaks C.

use crate::completion;
use crate::errno;
use crate::post::{self, Datagram, Operation, Remote};
use crate::refusal::Buffer;
use crate::registration;
use crate::sys::{access, ibv_ah, ibv_mr, ibv_sge, ibv_wc, rdma_cm_id};
use crate::view::{CmId, Mr};
use libc::{c_int, c_void, size_t};

/// Registers a buffer for sending from and receiving into, with local access only.
///
/// @param id      identifier whose protection domain (`id->pd`) the region belongs to
/// @param addr    first byte of the buffer
/// @param length  bytes in the buffer
///
/// Returns the memory region, to be given back by rdma_dereg_mr(); or NULL with errno set.
///
/// # Errors
/// - EINVAL: `id` or `id->pd` is NULL, or the provider refused the arguments
/// - ELIBACC: the provider library cannot be loaded
/// - EOPNOTSUPP: the provider does not export ibv_reg_mr
/// - EIO: the provider gave no reason
/// - any other: the provider's own, as of ibv_reg_mr(3) (ENOMEM: often the limit on locked memory)
///
/// # Safety
/// - `id` is a valid object.
/// - `addr` is device memory of `length` bytes until the region is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reg_msgs(id: *mut rdma_cm_id, addr: *mut c_void, length: size_t) -> *mut ibv_mr {
    // SAFETY: `id` is a valid object.
    let id = unsafe { CmId::new(id) };
    errno::object(registration::register(id, addr, length, access::LOCAL_WRITE))
}

/// Registers a buffer that the peer may read by RDMA.
///
/// @param id      identifier whose protection domain (`id->pd`) the region belongs to
/// @param addr    first byte of the buffer
/// @param length  bytes in the buffer
///
/// The peer needs the address and the region's `rkey`. Local access is granted as by rdma_reg_msgs().
/// Returns the memory region, to be given back by rdma_dereg_mr(); or NULL with errno set.
///
/// # Errors
/// - as rdma_reg_msgs()
///
/// # Safety
/// - `id` is a valid object.
/// - `addr` is device memory of `length` bytes until the region is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reg_read(id: *mut rdma_cm_id, addr: *mut c_void, length: size_t) -> *mut ibv_mr {
    // SAFETY: `id` is a valid object.
    let id = unsafe { CmId::new(id) };
    errno::object(registration::register(id, addr, length, access::LOCAL_WRITE | access::REMOTE_READ))
}

/// Registers a buffer that the peer may write by RDMA.
///
/// @param id      identifier whose protection domain (`id->pd`) the region belongs to
/// @param addr    first byte of the buffer
/// @param length  bytes in the buffer
///
/// The peer needs the address and the region's `rkey`. Local access is granted as by rdma_reg_msgs().
/// Returns the memory region, to be given back by rdma_dereg_mr(); or NULL with errno set.
///
/// # Errors
/// - as rdma_reg_msgs()
///
/// # Safety
/// - `id` is a valid object.
/// - `addr` is device memory of `length` bytes until the region is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reg_write(id: *mut rdma_cm_id, addr: *mut c_void, length: size_t) -> *mut ibv_mr {
    // SAFETY: `id` is a valid object.
    let id = unsafe { CmId::new(id) };
    errno::object(registration::register(id, addr, length, access::LOCAL_WRITE | access::REMOTE_WRITE))
}

/// Gives a memory region back. No posted request may still use it.
///
/// @param mr  region made by one of the rdma_reg functions or by ibv_reg_mr()
///
/// Returns 0; or -1 with errno set, and the region still stands.
///
/// # Errors
/// - EINVAL: `mr` is NULL, or the provider refused it
/// - ELIBACC: the provider library cannot be loaded
/// - EOPNOTSUPP: the provider does not export ibv_dereg_mr
/// - EIO: the provider gave no reason
/// - any other: the provider's own, as of ibv_dereg_mr(3) (EBUSY: memory windows are bound to it)
///
/// # Safety
/// - `mr` is a valid object, and nobody uses it during or after a call that returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: `mr` is a valid object.
    let mr = unsafe { Mr::new(mr) };
    errno::status(registration::deregister(mr))
}

/// Posts a receive into several buffers.
///
/// @param id       identifier with a shared receive queue (used first) or a queue pair
/// @param context  comes back bit for bit in `wr_id` of the completion; may be NULL
/// @param sgl      the buffers, filled in order; may be NULL where `nsge` is 0
/// @param nsge     number of entries, 0 up to the queue's `max_recv_sge`
///
/// Returns 0, and errno is untouched; or -1 with errno set.
///
/// # Errors
/// - EINVAL: `id` is NULL; it has neither a shared receive queue nor a queue pair, or that has no device context;
///   it has no shared receive queue but its queue pair was made with one; `nsge` is negative, or positive
///   with `sgl` NULL; or the provider refused the request
/// - ENOMEM: the queue is full, or the provider had no resources or gave no reason
/// - EOPNOTSUPP: the provider has no such operation
/// - ELIBACC: the library that RDMA_VERBS_PROVIDER names cannot be loaded
/// - any other: the provider's own
///
/// # Safety
/// - `id` is a valid object.
/// - `sgl` is a valid array of `nsge`; its entries describe device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_post_recvv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
) -> c_int {
    // SAFETY: `id` is a valid object.
    let id = unsafe { CmId::new(id) };
    errno::status(post::recvv(id, context, sgl, nsge))
}

/// Posts a send from several buffers.
///
/// @param id       identifier with a connected queue pair
/// @param context  comes back bit for bit in `wr_id` of the completion; may be NULL
/// @param sgl      the buffers, sent in order; may be NULL where `nsge` is 0
/// @param nsge     number of entries, 0 up to the queue pair's `max_send_sge`
/// @param flags    any of enum ibv_send_flags, or 0
///
/// Returns 0, and errno is untouched; or -1 with errno set.
///
/// # Errors
/// - EINVAL: `id` is NULL; it has no queue pair, or that has no device context; `nsge` is negative, or positive with
///   `sgl` NULL; the queue pair is of type UD (use rdma_post_ud_send()) or XRC_SEND (use ibv_post_send());
///   or the provider refused the request
/// - ENOTCONN: the queue pair, of an InfiniBand or RoCE device, is in state RESET, INIT or RTR
/// - ENOMEM: the queue is full, or the provider had no resources or gave no reason
/// - EOPNOTSUPP: the provider has no such operation
/// - ELIBACC: the library that RDMA_VERBS_PROVIDER names cannot be loaded
/// - any other: the provider's own
///
/// # Safety
/// - `id` is a valid object.
/// - `sgl` is a valid array of `nsge`; its entries describe device memory, or with IBV_SEND_INLINE readable memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_post_sendv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: `id` is a valid object.
    let id = unsafe { CmId::new(id) };
    errno::status(post::vectored(id, context, sgl, nsge, flags, Operation::Send))
}

/// Posts an RDMA read of the peer's memory into several buffers.
///
/// @param id           identifier with a connected queue pair
/// @param context      comes back bit for bit in `wr_id` of the completion; may be NULL
/// @param sgl          the buffers, filled in order; may be NULL where `nsge` is 0
/// @param nsge         number of entries, 0 up to the queue pair's `max_send_sge`
/// @param flags        any of enum ibv_send_flags, or 0
/// @param remote_addr  first byte to read, as the peer registered it
/// @param rkey         remote key of the peer's region
///
/// Returns 0, and errno is untouched; or -1 with errno set.
///
/// # Errors
/// - as rdma_post_sendv()
///
/// # Safety
/// - `id` is a valid object.
/// - `sgl` is a valid array of `nsge`; its entries describe device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_post_readv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: `id` is a valid object.
    let id = unsafe { CmId::new(id) };
    let operation = Operation::Read(Remote { addr: remote_addr, rkey });
    errno::status(post::vectored(id, context, sgl, nsge, flags, operation))
}

/// Posts an RDMA write from several buffers to the peer's memory.
///
/// @param id           identifier with a connected queue pair
/// @param context      comes back bit for bit in `wr_id` of the completion; may be NULL
/// @param sgl          the buffers, written in order; may be NULL where `nsge` is 0
/// @param nsge         number of entries, 0 up to the queue pair's `max_send_sge`
/// @param flags        any of enum ibv_send_flags, or 0
/// @param remote_addr  first byte to write, as the peer registered it
/// @param rkey         remote key of the peer's region
///
/// Returns 0, and errno is untouched; or -1 with errno set.
///
/// # Errors
/// - as rdma_post_sendv()
///
/// # Safety
/// - `id` is a valid object.
/// - `sgl` is a valid array of `nsge`; its entries describe device memory, or with IBV_SEND_INLINE readable memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_post_writev(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: `id` is a valid object.
    let id = unsafe { CmId::new(id) };
    let operation = Operation::Write(Remote { addr: remote_addr, rkey });
    errno::status(post::vectored(id, context, sgl, nsge, flags, operation))
}

/// Posts a receive into one buffer.
///
/// @param id       identifier with a shared receive queue (used first) or a queue pair
/// @param context  comes back bit for bit in `wr_id` of the completion; may be NULL
/// @param addr     first byte of the buffer
/// @param length   bytes in the buffer, 0 to UINT32_MAX
/// @param mr       region that covers the buffer; may be NULL where `length` is 0
///
/// Returns 0, and errno is untouched; or -1 with errno set.
///
/// # Errors
/// - EINVAL: `id` is NULL; it has neither a shared receive queue nor a queue pair, or that has no device context;
///   it has no shared receive queue but its queue pair was made with one; `length` is more than UINT32_MAX;
///   `mr` is NULL and `length` is not 0; the buffer wraps around the address space, or lies partly inside and
///   partly outside the memory of `mr`; or the provider refused the request
/// - ENOMEM: the queue is full, or the provider had no resources or gave no reason
/// - EOPNOTSUPP: the provider has no such operation
/// - ELIBACC: the library that RDMA_VERBS_PROVIDER names cannot be loaded
/// - any other: the provider's own
///
/// # Safety
/// - `id` and `mr` are valid objects.
/// - `addr` is device memory of `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_post_recv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: size_t,
    mr: *mut ibv_mr,
) -> c_int {
    // SAFETY: `id` is a valid object.
    let id = unsafe { CmId::new(id) };
    // SAFETY: `mr` is a valid object.
    let mr = unsafe { Mr::new(mr) };
    errno::status(post::recv(id, context, Buffer { addr, length, mr }))
}

/// Posts a send from one buffer.
///
/// @param id       identifier with a connected queue pair
/// @param context  comes back bit for bit in `wr_id` of the completion; may be NULL
/// @param addr     first byte of the message
/// @param length   bytes in the message, 0 to UINT32_MAX (a device's `max_msg_sz` is less)
/// @param mr       region that covers the message; may be NULL where `length` is 0 or with IBV_SEND_INLINE
/// @param flags    any of enum ibv_send_flags, or 0. With IBV_SEND_INLINE the bytes are copied during the call
///
/// Returns 0, and errno is untouched; or -1 with errno set.
///
/// # Errors
/// - EINVAL: `id` is NULL; it has no queue pair, or that has no device context; `length` is more than UINT32_MAX;
///   `length` is not 0 and, without IBV_SEND_INLINE, `mr` is NULL or the buffer wraps around the address space
///   or lies partly inside and partly outside the memory of `mr`, or, with IBV_SEND_INLINE, `addr` is NULL; the
///   queue pair is of type UD (use rdma_post_ud_send()) or XRC_SEND (use ibv_post_send()); or the provider
///   refused the request
/// - ENOTCONN: the queue pair, of an InfiniBand or RoCE device, is in state RESET, INIT or RTR
/// - ENOMEM: the queue is full, or the provider had no resources or gave no reason
/// - EOPNOTSUPP: the provider has no such operation
/// - ELIBACC: the library that RDMA_VERBS_PROVIDER names cannot be loaded
/// - any other: the provider's own
///
/// # Safety
/// - `id` and `mr` are valid objects.
/// - `addr` is device memory of `length` bytes, or with IBV_SEND_INLINE readable memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_post_send(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: size_t,
    mr: *mut ibv_mr,
    flags: c_int,
) -> c_int {
    // SAFETY: `id` is a valid object.
    let id = unsafe { CmId::new(id) };
    // SAFETY: `mr` is a valid object.
    let mr = unsafe { Mr::new(mr) };
    errno::status(post::single(id, context, Buffer { addr, length, mr }, flags, Operation::Send))
}

/// Posts an RDMA read of the peer's memory into one buffer.
///
/// @param id           identifier with a connected queue pair
/// @param context      comes back bit for bit in `wr_id` of the completion; may be NULL
/// @param addr         first byte of the buffer
/// @param length       bytes to read, 0 to UINT32_MAX (a device's `max_msg_sz` is less)
/// @param mr           region that covers the buffer; may be NULL where `length` is 0
/// @param flags        any of enum ibv_send_flags, or 0
/// @param remote_addr  first byte to read, as the peer registered it
/// @param rkey         remote key of the peer's region
///
/// Returns 0, and errno is untouched; or -1 with errno set.
///
/// # Errors
/// - EINVAL: `id` is NULL; it has no queue pair, or that has no device context; `length` is more than UINT32_MAX;
///   `mr` is NULL and `length` is not 0; the buffer wraps around the address space, or lies partly inside and
///   partly outside the memory of `mr`; the queue pair is of type UD or XRC_SEND; or the provider refused the request
/// - ENOTCONN, ENOMEM, EOPNOTSUPP, ELIBACC, any other: as rdma_post_send()
///
/// # Safety
/// - `id` and `mr` are valid objects.
/// - `addr` is device memory of `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_post_read(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: size_t,
    mr: *mut ibv_mr,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: `id` is a valid object.
    let id = unsafe { CmId::new(id) };
    // SAFETY: `mr` is a valid object.
    let mr = unsafe { Mr::new(mr) };
    let operation = Operation::Read(Remote { addr: remote_addr, rkey });
    errno::status(post::single(id, context, Buffer { addr, length, mr }, flags, operation))
}

/// Posts an RDMA write from one buffer to the peer's memory.
///
/// @param id           identifier with a connected queue pair
/// @param context      comes back bit for bit in `wr_id` of the completion; may be NULL
/// @param addr         first byte of the data
/// @param length       bytes to write, 0 to UINT32_MAX (a device's `max_msg_sz` is less)
/// @param mr           region that covers the data; may be NULL where `length` is 0 or with IBV_SEND_INLINE
/// @param flags        any of enum ibv_send_flags, or 0. With IBV_SEND_INLINE the bytes are copied during the call
/// @param remote_addr  first byte to write, as the peer registered it
/// @param rkey         remote key of the peer's region
///
/// Returns 0, and errno is untouched; or -1 with errno set.
///
/// # Errors
/// - as rdma_post_send()
///
/// # Safety
/// - `id` and `mr` are valid objects.
/// - `addr` is device memory of `length` bytes, or with IBV_SEND_INLINE readable memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_post_write(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: size_t,
    mr: *mut ibv_mr,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: `id` is a valid object.
    let id = unsafe { CmId::new(id) };
    // SAFETY: `mr` is a valid object.
    let mr = unsafe { Mr::new(mr) };
    let operation = Operation::Write(Remote { addr: remote_addr, rkey });
    errno::status(post::single(id, context, Buffer { addr, length, mr }, flags, operation))
}

/// Posts a datagram from one buffer, with the Q_Key of librdmacm's queue pairs (RDMA_UDP_QKEY).
///
/// @param id          identifier with a queue pair of type UD; on other types `ah` and `remote_qpn` have no effect
/// @param context     comes back bit for bit in `wr_id` of the completion; may be NULL
/// @param addr        first byte of the message
/// @param length      bytes in the message, 0 to UINT32_MAX (a datagram holds one path MTU at most)
/// @param mr          region that covers the message; may be NULL where `length` is 0 or with IBV_SEND_INLINE
/// @param flags       any of enum ibv_send_flags, or 0. With IBV_SEND_INLINE the bytes are copied during the call
/// @param ah          address handle of the destination
/// @param remote_qpn  queue pair number of the destination
///
/// Returns 0, and errno is untouched; or -1 with errno set.
///
/// # Errors
/// - EINVAL: as rdma_post_send(), but on a queue pair of type UD only where `ah` is NULL
/// - ENOTCONN, ENOMEM, EOPNOTSUPP, ELIBACC, any other: as rdma_post_send()
///
/// # Safety
/// - `id`, `mr` and `ah` are valid objects; `ah` until the completion of the request.
/// - `addr` is device memory of `length` bytes, or with IBV_SEND_INLINE readable memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_post_ud_send(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: size_t,
    mr: *mut ibv_mr,
    flags: c_int,
    ah: *mut ibv_ah,
    remote_qpn: u32,
) -> c_int {
    // SAFETY: `id` is a valid object.
    let id = unsafe { CmId::new(id) };
    // SAFETY: `mr` is a valid object.
    let mr = unsafe { Mr::new(mr) };
    let operation = Operation::UdSend(Datagram { ah, remote_qpn });
    errno::status(post::single(id, context, Buffer { addr, length, mr }, flags, operation))
}

/// Takes the next completion of a send, read or write, waiting for it where there is none yet.
///
/// @param id  identifier whose send completion queue and channel librdmacm made
/// @param wc  the completion
///
/// Returns 1 with `wc` filled, and errno is untouched; or -1 with errno set. A completion whose `status` is an error
/// is a completion: 1. Only one thread at a time may wait on a channel through this function and
/// rdma_get_recv_comp(); posting meanwhile is fine.
///
/// # Errors
/// - EINVAL: `id` or `wc` is NULL; the id has no such completion queue (one that the program made itself is not kept
///   in the id), or that has no device context; or there is no completion and the id has no channel to wait on
/// - EINTR: a signal came during the wait
/// - EAGAIN: there is no completion and the channel's descriptor is non-blocking
/// - EOPNOTSUPP: the provider has no such operation
/// - ELIBACC: the provider library cannot be loaded
/// - EIO: the provider gave no reason
/// - any other: the provider's own, as of ibv_poll_cq(3), ibv_req_notify_cq(3), ibv_get_cq_event(3)
///
/// # Safety
/// - `id` is a valid object.
/// - `wc` is NULL or has room for one completion.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_send_comp(id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
    // SAFETY: `id` is a valid object.
    let id = unsafe { CmId::new(id) };
    errno::one(completion::next(id.and_then(CmId::send_cq), id.and_then(CmId::send_cq_channel), wc))
}

/// Takes the next completion of a receive, waiting for it where there is none yet.
///
/// @param id  identifier whose receive completion queue and channel librdmacm made
/// @param wc  the completion
///
/// Returns 1 with `wc` filled, and errno is untouched; or -1 with errno set. A completion whose `status` is an error
/// is a completion: 1. Only one thread at a time may wait on a channel through this function and
/// rdma_get_send_comp(); posting meanwhile is fine.
///
/// # Errors
/// - as rdma_get_send_comp()
///
/// # Safety
/// - `id` is a valid object.
/// - `wc` is NULL or has room for one completion.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_recv_comp(id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
    // SAFETY: `id` is a valid object.
    let id = unsafe { CmId::new(id) };
    errno::one(completion::next(id.and_then(CmId::recv_cq), id.and_then(CmId::recv_cq_channel), wc))
}
