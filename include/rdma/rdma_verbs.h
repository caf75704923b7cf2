/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The functions of <rdma/rdma_verbs.h> as symbols of librdma_verbs: what each takes, returns, and sets errno to.
 * rdma_verbs(7) has what they share.
 *
 * The Safety sections say what the caller vouches for, because no library can check it. A "valid object" is NULL, or
 * points to an initialised object that nobody destroys before the call returns, and whose pointer fields are NULL or
 * valid objects themselves; a "valid array" is NULL, or points to
 * that many readable elements; "device memory" are bytes that the device may use until the request has completed.
 *
 * Written by cbindgen from src/ffi.rs: change it there and run "make header".
 */

#ifndef RDMA_VERBS_H
#define RDMA_VERBS_H

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

/* The version of this library. Upstream's header, which has inline functions instead, defines neither. */
#define LIBRDMA_VERBS_VERSION "1.0.0"
/* The same to compare with: major * 10000 + minor * 100 + patch. */
#define LIBRDMA_VERBS_VERSION_NUM 10000

#ifdef __cplusplus
extern "C" {
#endif

/* Shared receive queues: functions of librdmacm, see rdma_create_srq(3). */
int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr);
void rdma_destroy_srq(struct rdma_cm_id *id);

/*
 * Turns the result of a verb into 0, or -1 with errno set: a result of either sign is the errno itself, but -1 says
 * that errno is set already. Never a symbol.
 */
static inline int rdma_seterrno(int ret)
{
	if (ret == 0)
		return 0;
	if (ret == INT_MIN)
		errno = EIO;
	else if (ret != -1)
		errno = ret > 0 ? ret : -ret;
	return -1;
}


/**
 * Registers a buffer for sending from and receiving into, with local access only.
 *
 * @param id      identifier whose protection domain (`id->pd`) the region belongs to
 * @param addr    first byte of the buffer
 * @param length  bytes in the buffer
 *
 * Returns the memory region, to be given back by rdma_dereg_mr(); or NULL with errno set.
 *
 * # Errors
 * - EINVAL: `id` or `id->pd` is NULL, or the provider refused the arguments
 * - ELIBACC: the provider library cannot be loaded
 * - EOPNOTSUPP: the provider does not export ibv_reg_mr
 * - EIO: the provider gave no reason
 * - any other: the provider's own, as of ibv_reg_mr(3) (ENOMEM: often the limit on locked memory)
 *
 * # Safety
 * - `id` is a valid object.
 * - `addr` is device memory of `length` bytes until the region is gone.
 */
struct ibv_mr *rdma_reg_msgs(struct rdma_cm_id *id, void *addr, size_t length);

/**
 * Registers a buffer that the peer may read by RDMA.
 *
 * @param id      identifier whose protection domain (`id->pd`) the region belongs to
 * @param addr    first byte of the buffer
 * @param length  bytes in the buffer
 *
 * The peer needs the address and the region's `rkey`. Local access is granted as by rdma_reg_msgs().
 * Returns the memory region, to be given back by rdma_dereg_mr(); or NULL with errno set.
 *
 * # Errors
 * - as rdma_reg_msgs()
 *
 * # Safety
 * - `id` is a valid object.
 * - `addr` is device memory of `length` bytes until the region is gone.
 */
struct ibv_mr *rdma_reg_read(struct rdma_cm_id *id,
                             void *addr,
                             size_t length);

/**
 * Registers a buffer that the peer may write by RDMA.
 *
 * @param id      identifier whose protection domain (`id->pd`) the region belongs to
 * @param addr    first byte of the buffer
 * @param length  bytes in the buffer
 *
 * The peer needs the address and the region's `rkey`. Local access is granted as by rdma_reg_msgs().
 * Returns the memory region, to be given back by rdma_dereg_mr(); or NULL with errno set.
 *
 * # Errors
 * - as rdma_reg_msgs()
 *
 * # Safety
 * - `id` is a valid object.
 * - `addr` is device memory of `length` bytes until the region is gone.
 */
struct ibv_mr *rdma_reg_write(struct rdma_cm_id *id,
                              void *addr,
                              size_t length);

/**
 * Gives a memory region back. No posted request may still use it.
 *
 * @param mr  region made by one of the rdma_reg functions or by ibv_reg_mr()
 *
 * Returns 0; or -1 with errno set, and the region still stands.
 *
 * # Errors
 * - EINVAL: `mr` is NULL, or the provider refused it
 * - ELIBACC: the provider library cannot be loaded
 * - EOPNOTSUPP: the provider does not export ibv_dereg_mr
 * - EIO: the provider gave no reason
 * - any other: the provider's own, as of ibv_dereg_mr(3) (EBUSY: memory windows are bound to it)
 *
 * # Safety
 * - `mr` is a valid object, and nobody uses it during or after a call that returns 0.
 */
int rdma_dereg_mr(struct ibv_mr *mr);

/**
 * Posts a receive into several buffers.
 *
 * @param id       identifier with a shared receive queue (used first) or a queue pair
 * @param context  comes back bit for bit in `wr_id` of the completion; may be NULL
 * @param sgl      the buffers, filled in order; may be NULL where `nsge` is 0
 * @param nsge     number of entries, 0 up to the queue's `max_recv_sge`
 *
 * Returns 0, and errno is untouched; or -1 with errno set.
 *
 * # Errors
 * - EINVAL: `id` is NULL; it has neither a shared receive queue nor a queue pair, or that has no device context;
 *   it has no shared receive queue but its queue pair was made with one; `nsge` is negative, or positive
 *   with `sgl` NULL; or the provider refused the request
 * - ENOMEM: the queue is full, or the provider had no resources or gave no reason
 * - EOPNOTSUPP: the provider has no such operation
 * - ELIBACC: the library that RDMA_VERBS_PROVIDER names cannot be loaded
 * - any other: the provider's own
 *
 * # Safety
 * - `id` is a valid object.
 * - `sgl` is a valid array of `nsge`; its entries describe device memory.
 */
int rdma_post_recvv(struct rdma_cm_id *id,
                    void *context,
                    struct ibv_sge *sgl,
                    int nsge);

/**
 * Posts a send from several buffers.
 *
 * @param id       identifier with a connected queue pair
 * @param context  comes back bit for bit in `wr_id` of the completion; may be NULL
 * @param sgl      the buffers, sent in order; may be NULL where `nsge` is 0
 * @param nsge     number of entries, 0 up to the queue pair's `max_send_sge`
 * @param flags    any of enum ibv_send_flags, or 0
 *
 * Returns 0, and errno is untouched; or -1 with errno set.
 *
 * # Errors
 * - EINVAL: `id` is NULL; it has no queue pair, or that has no device context; `nsge` is negative, or positive with
 *   `sgl` NULL; the queue pair is of type UD (use rdma_post_ud_send()) or XRC_SEND (use ibv_post_send());
 *   or the provider refused the request
 * - ENOTCONN: the queue pair, of an InfiniBand or RoCE device, is in state RESET, INIT or RTR
 * - ENOMEM: the queue is full, or the provider had no resources or gave no reason
 * - EOPNOTSUPP: the provider has no such operation
 * - ELIBACC: the library that RDMA_VERBS_PROVIDER names cannot be loaded
 * - any other: the provider's own
 *
 * # Safety
 * - `id` is a valid object.
 * - `sgl` is a valid array of `nsge`; its entries describe device memory, or with IBV_SEND_INLINE readable memory.
 */
int rdma_post_sendv(struct rdma_cm_id *id,
                    void *context,
                    struct ibv_sge *sgl,
                    int nsge,
                    int flags);

/**
 * Posts an RDMA read of the peer's memory into several buffers.
 *
 * @param id           identifier with a connected queue pair
 * @param context      comes back bit for bit in `wr_id` of the completion; may be NULL
 * @param sgl          the buffers, filled in order; may be NULL where `nsge` is 0
 * @param nsge         number of entries, 0 up to the queue pair's `max_send_sge`
 * @param flags        any of enum ibv_send_flags, or 0
 * @param remote_addr  first byte to read, as the peer registered it
 * @param rkey         remote key of the peer's region
 *
 * Returns 0, and errno is untouched; or -1 with errno set.
 *
 * # Errors
 * - as rdma_post_sendv()
 *
 * # Safety
 * - `id` is a valid object.
 * - `sgl` is a valid array of `nsge`; its entries describe device memory.
 */
int rdma_post_readv(struct rdma_cm_id *id,
                    void *context,
                    struct ibv_sge *sgl,
                    int nsge,
                    int flags,
                    uint64_t remote_addr,
                    uint32_t rkey);

/**
 * Posts an RDMA write from several buffers to the peer's memory.
 *
 * @param id           identifier with a connected queue pair
 * @param context      comes back bit for bit in `wr_id` of the completion; may be NULL
 * @param sgl          the buffers, written in order; may be NULL where `nsge` is 0
 * @param nsge         number of entries, 0 up to the queue pair's `max_send_sge`
 * @param flags        any of enum ibv_send_flags, or 0
 * @param remote_addr  first byte to write, as the peer registered it
 * @param rkey         remote key of the peer's region
 *
 * Returns 0, and errno is untouched; or -1 with errno set.
 *
 * # Errors
 * - as rdma_post_sendv()
 *
 * # Safety
 * - `id` is a valid object.
 * - `sgl` is a valid array of `nsge`; its entries describe device memory, or with IBV_SEND_INLINE readable memory.
 */
int rdma_post_writev(struct rdma_cm_id *id,
                     void *context,
                     struct ibv_sge *sgl,
                     int nsge,
                     int flags,
                     uint64_t remote_addr,
                     uint32_t rkey);

/**
 * Posts a receive into one buffer.
 *
 * @param id       identifier with a shared receive queue (used first) or a queue pair
 * @param context  comes back bit for bit in `wr_id` of the completion; may be NULL
 * @param addr     first byte of the buffer
 * @param length   bytes in the buffer, 0 to UINT32_MAX
 * @param mr       region that covers the buffer; may be NULL where `length` is 0
 *
 * Returns 0, and errno is untouched; or -1 with errno set.
 *
 * # Errors
 * - EINVAL: `id` is NULL; it has neither a shared receive queue nor a queue pair, or that has no device context;
 *   it has no shared receive queue but its queue pair was made with one; `length` is more than UINT32_MAX;
 *   `mr` is NULL and `length` is not 0; the buffer wraps around the address space, or lies partly inside and
 *   partly outside the memory of `mr`; or the provider refused the request
 * - ENOMEM: the queue is full, or the provider had no resources or gave no reason
 * - EOPNOTSUPP: the provider has no such operation
 * - ELIBACC: the library that RDMA_VERBS_PROVIDER names cannot be loaded
 * - any other: the provider's own
 *
 * # Safety
 * - `id` and `mr` are valid objects.
 * - `addr` is device memory of `length` bytes.
 */
int rdma_post_recv(struct rdma_cm_id *id,
                   void *context,
                   void *addr,
                   size_t length,
                   struct ibv_mr *mr);

/**
 * Posts a send from one buffer.
 *
 * @param id       identifier with a connected queue pair
 * @param context  comes back bit for bit in `wr_id` of the completion; may be NULL
 * @param addr     first byte of the message
 * @param length   bytes in the message, 0 to UINT32_MAX (a device's `max_msg_sz` is less)
 * @param mr       region that covers the message; may be NULL where `length` is 0 or with IBV_SEND_INLINE
 * @param flags    any of enum ibv_send_flags, or 0. With IBV_SEND_INLINE the bytes are copied during the call
 *
 * Returns 0, and errno is untouched; or -1 with errno set.
 *
 * # Errors
 * - EINVAL: `id` is NULL; it has no queue pair, or that has no device context; `length` is more than UINT32_MAX;
 *   `length` is not 0 and, without IBV_SEND_INLINE, `mr` is NULL or the buffer wraps around the address space
 *   or lies partly inside and partly outside the memory of `mr`, or, with IBV_SEND_INLINE, `addr` is NULL; the
 *   queue pair is of type UD (use rdma_post_ud_send()) or XRC_SEND (use ibv_post_send()); or the provider
 *   refused the request
 * - ENOTCONN: the queue pair, of an InfiniBand or RoCE device, is in state RESET, INIT or RTR
 * - ENOMEM: the queue is full, or the provider had no resources or gave no reason
 * - EOPNOTSUPP: the provider has no such operation
 * - ELIBACC: the library that RDMA_VERBS_PROVIDER names cannot be loaded
 * - any other: the provider's own
 *
 * # Safety
 * - `id` and `mr` are valid objects.
 * - `addr` is device memory of `length` bytes, or with IBV_SEND_INLINE readable memory.
 */
int rdma_post_send(struct rdma_cm_id *id,
                   void *context,
                   void *addr,
                   size_t length,
                   struct ibv_mr *mr,
                   int flags);

/**
 * Posts an RDMA read of the peer's memory into one buffer.
 *
 * @param id           identifier with a connected queue pair
 * @param context      comes back bit for bit in `wr_id` of the completion; may be NULL
 * @param addr         first byte of the buffer
 * @param length       bytes to read, 0 to UINT32_MAX (a device's `max_msg_sz` is less)
 * @param mr           region that covers the buffer; may be NULL where `length` is 0
 * @param flags        any of enum ibv_send_flags, or 0
 * @param remote_addr  first byte to read, as the peer registered it
 * @param rkey         remote key of the peer's region
 *
 * Returns 0, and errno is untouched; or -1 with errno set.
 *
 * # Errors
 * - EINVAL: `id` is NULL; it has no queue pair, or that has no device context; `length` is more than UINT32_MAX;
 *   `mr` is NULL and `length` is not 0; the buffer wraps around the address space, or lies partly inside and
 *   partly outside the memory of `mr`; the queue pair is of type UD or XRC_SEND; or the provider refused the request
 * - ENOTCONN, ENOMEM, EOPNOTSUPP, ELIBACC, any other: as rdma_post_send()
 *
 * # Safety
 * - `id` and `mr` are valid objects.
 * - `addr` is device memory of `length` bytes.
 */
int rdma_post_read(struct rdma_cm_id *id,
                   void *context,
                   void *addr,
                   size_t length,
                   struct ibv_mr *mr,
                   int flags,
                   uint64_t remote_addr,
                   uint32_t rkey);

/**
 * Posts an RDMA write from one buffer to the peer's memory.
 *
 * @param id           identifier with a connected queue pair
 * @param context      comes back bit for bit in `wr_id` of the completion; may be NULL
 * @param addr         first byte of the data
 * @param length       bytes to write, 0 to UINT32_MAX (a device's `max_msg_sz` is less)
 * @param mr           region that covers the data; may be NULL where `length` is 0 or with IBV_SEND_INLINE
 * @param flags        any of enum ibv_send_flags, or 0. With IBV_SEND_INLINE the bytes are copied during the call
 * @param remote_addr  first byte to write, as the peer registered it
 * @param rkey         remote key of the peer's region
 *
 * Returns 0, and errno is untouched; or -1 with errno set.
 *
 * # Errors
 * - as rdma_post_send()
 *
 * # Safety
 * - `id` and `mr` are valid objects.
 * - `addr` is device memory of `length` bytes, or with IBV_SEND_INLINE readable memory.
 */
int rdma_post_write(struct rdma_cm_id *id,
                    void *context,
                    void *addr,
                    size_t length,
                    struct ibv_mr *mr,
                    int flags,
                    uint64_t remote_addr,
                    uint32_t rkey);

/**
 * Posts a datagram from one buffer, with the Q_Key of librdmacm's queue pairs (RDMA_UDP_QKEY).
 *
 * @param id          identifier with a queue pair of type UD; on other types `ah` and `remote_qpn` have no effect
 * @param context     comes back bit for bit in `wr_id` of the completion; may be NULL
 * @param addr        first byte of the message
 * @param length      bytes in the message, 0 to UINT32_MAX (a datagram holds one path MTU at most)
 * @param mr          region that covers the message; may be NULL where `length` is 0 or with IBV_SEND_INLINE
 * @param flags       any of enum ibv_send_flags, or 0. With IBV_SEND_INLINE the bytes are copied during the call
 * @param ah          address handle of the destination
 * @param remote_qpn  queue pair number of the destination
 *
 * Returns 0, and errno is untouched; or -1 with errno set.
 *
 * # Errors
 * - EINVAL: as rdma_post_send(), but on a queue pair of type UD only where `ah` is NULL
 * - ENOTCONN, ENOMEM, EOPNOTSUPP, ELIBACC, any other: as rdma_post_send()
 *
 * # Safety
 * - `id`, `mr` and `ah` are valid objects; `ah` until the completion of the request.
 * - `addr` is device memory of `length` bytes, or with IBV_SEND_INLINE readable memory.
 */
int rdma_post_ud_send(struct rdma_cm_id *id,
                      void *context,
                      void *addr,
                      size_t length,
                      struct ibv_mr *mr,
                      int flags,
                      struct ibv_ah *ah,
                      uint32_t remote_qpn);

/**
 * Takes the next completion of a send, read or write, waiting for it where there is none yet.
 *
 * @param id  identifier whose send completion queue and channel librdmacm made
 * @param wc  the completion
 *
 * Returns 1 with `wc` filled, and errno is untouched; or -1 with errno set. A completion whose `status` is an error
 * is a completion: 1. Only one thread at a time may wait on a channel through this function and
 * rdma_get_recv_comp(); posting meanwhile is fine.
 *
 * # Errors
 * - EINVAL: `id` or `wc` is NULL; the id has no such completion queue (one that the program made itself is not kept
 *   in the id), or that has no device context; or there is no completion and the id has no channel to wait on
 * - EINTR: a signal came during the wait
 * - EAGAIN: there is no completion and the channel's descriptor is non-blocking
 * - EOPNOTSUPP: the provider has no such operation
 * - ELIBACC: the provider library cannot be loaded
 * - EIO: the provider gave no reason
 * - any other: the provider's own, as of ibv_poll_cq(3), ibv_req_notify_cq(3), ibv_get_cq_event(3)
 *
 * # Safety
 * - `id` is a valid object.
 * - `wc` is NULL or has room for one completion.
 */
int rdma_get_send_comp(struct rdma_cm_id *id,
                       struct ibv_wc *wc);

/**
 * Takes the next completion of a receive, waiting for it where there is none yet.
 *
 * @param id  identifier whose receive completion queue and channel librdmacm made
 * @param wc  the completion
 *
 * Returns 1 with `wc` filled, and errno is untouched; or -1 with errno set. A completion whose `status` is an error
 * is a completion: 1. Only one thread at a time may wait on a channel through this function and
 * rdma_get_send_comp(); posting meanwhile is fine.
 *
 * # Errors
 * - as rdma_get_send_comp()
 *
 * # Safety
 * - `id` is a valid object.
 * - `wc` is NULL or has room for one completion.
 */
int rdma_get_recv_comp(struct rdma_cm_id *id,
                       struct ibv_wc *wc);

#ifdef __cplusplus
}
#endif

#endif /* RDMA_VERBS_H */
