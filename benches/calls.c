/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Compiled twice: with UPSTREAM against the inline functions of rdma-core's header, without it against this library's.
 */

#include <rdma/rdma_verbs.h>

#include "calls.h"

#ifdef UPSTREAM
#ifdef LIBRDMA_VERBS_VERSION
#error "this is not upstream's header"
#endif
#define CALLS inline_calls
#else
#ifndef LIBRDMA_VERBS_VERSION
#error "this is not the library's header"
#endif
#define CALLS lib_calls
#endif

/*
 * The loop is the same for both. That its call is neither hoisted nor dropped follows from what is called: the library,
 * or a function of the provider that nobody here can see; the barrier makes the arguments unknown each time.
 */
#define LOOP(name, success, ...)                                                        \
	__attribute__((noinline)) static unsigned long                                  \
	loop_##name(const struct arguments *args, unsigned long n)                      \
	{                                                                               \
		unsigned long failed = 0;                                               \
                                                                                        \
		while (n--) {                                                           \
			failed += name(__VA_ARGS__) != success;                         \
			asm volatile("" ::: "memory");                                  \
		}                                                                       \
		return failed;                                                          \
	}

#define BUFFER args->id, args->context, args->addr, args->length, args->mr
#define LIST args->id, args->context, args->sgl, args->nsge
#define REMOTE args->remote_addr, args->rkey

LOOP(rdma_post_recvv, 0, LIST)
LOOP(rdma_post_sendv, 0, LIST, args->flags)
LOOP(rdma_post_readv, 0, LIST, args->flags, REMOTE)
LOOP(rdma_post_writev, 0, LIST, args->flags, REMOTE)
LOOP(rdma_post_recv, 0, BUFFER)
LOOP(rdma_post_send, 0, BUFFER, args->flags)
LOOP(rdma_post_read, 0, BUFFER, args->flags, REMOTE)
LOOP(rdma_post_write, 0, BUFFER, args->flags, REMOTE)
LOOP(rdma_post_ud_send, 0, BUFFER, args->flags, args->ah, args->remote_qpn)
LOOP(rdma_get_send_comp, 1, args->id, args->wc)
LOOP(rdma_get_recv_comp, 1, args->id, args->wc)

const struct call CALLS[N_CALLS] = {
	{ "rdma_post_recvv", CONNECTED, loop_rdma_post_recvv },
	{ "rdma_post_recvv_srq", SHARED, loop_rdma_post_recvv },
	{ "rdma_post_sendv", CONNECTED, loop_rdma_post_sendv },
	{ "rdma_post_readv", CONNECTED, loop_rdma_post_readv },
	{ "rdma_post_writev", CONNECTED, loop_rdma_post_writev },
	{ "rdma_post_recv", CONNECTED, loop_rdma_post_recv },
	{ "rdma_post_recv_srq", SHARED, loop_rdma_post_recv },
	{ "rdma_post_send", CONNECTED, loop_rdma_post_send },
	{ "rdma_post_read", CONNECTED, loop_rdma_post_read },
	{ "rdma_post_write", CONNECTED, loop_rdma_post_write },
	{ "rdma_post_ud_send", DATAGRAM, loop_rdma_post_ud_send },
	{ "rdma_get_send_comp", CONNECTED, loop_rdma_get_send_comp },
	{ "rdma_get_recv_comp", CONNECTED, loop_rdma_get_recv_comp },
};
