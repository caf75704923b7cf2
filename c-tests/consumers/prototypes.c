/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Whether each function has the type of upstream's inline; TAP on standard output. Compiled with -DUPSTREAM="path of
 * upstream's header", in quotes.
 */

#include <rdma/rdma_cma.h>
#include <stdio.h>

/* Upstream's, under other names. */
#define rdma_seterrno upstream_rdma_seterrno
#define rdma_create_srq upstream_rdma_create_srq
#define rdma_create_srq_ex upstream_rdma_create_srq_ex
#define rdma_destroy_srq upstream_rdma_destroy_srq
#define rdma_reg_msgs upstream_rdma_reg_msgs
#define rdma_reg_read upstream_rdma_reg_read
#define rdma_reg_write upstream_rdma_reg_write
#define rdma_dereg_mr upstream_rdma_dereg_mr
#define rdma_post_recvv upstream_rdma_post_recvv
#define rdma_post_sendv upstream_rdma_post_sendv
#define rdma_post_readv upstream_rdma_post_readv
#define rdma_post_writev upstream_rdma_post_writev
#define rdma_post_recv upstream_rdma_post_recv
#define rdma_post_send upstream_rdma_post_send
#define rdma_post_read upstream_rdma_post_read
#define rdma_post_write upstream_rdma_post_write
#define rdma_post_ud_send upstream_rdma_post_ud_send
#define rdma_get_send_comp upstream_rdma_get_send_comp
#define rdma_get_recv_comp upstream_rdma_get_recv_comp
#include UPSTREAM
#undef rdma_seterrno
#undef rdma_create_srq
#undef rdma_create_srq_ex
#undef rdma_destroy_srq
#undef rdma_reg_msgs
#undef rdma_reg_read
#undef rdma_reg_write
#undef rdma_dereg_mr
#undef rdma_post_recvv
#undef rdma_post_sendv
#undef rdma_post_readv
#undef rdma_post_writev
#undef rdma_post_recv
#undef rdma_post_send
#undef rdma_post_read
#undef rdma_post_write
#undef rdma_post_ud_send
#undef rdma_get_send_comp
#undef rdma_get_recv_comp

/* Ours. */
#undef RDMA_VERBS_H
#include <rdma/rdma_verbs.h>
#ifndef LIBRDMA_VERBS_VERSION
#error "not the header of this library"
#endif

static int tests, failures;

static void result(int ok, const char *name)
{
	failures += !ok;
	printf("%sok %d - %s\n", ok ? "" : "not ", ++tests, name);
}

#define SAME_TYPE(a, b) __builtin_types_compatible_p(__typeof__(a), __typeof__(b))
#define SAME(name) result(SAME_TYPE(name, upstream_##name), #name)

int main(void)
{
	SAME(rdma_seterrno);
	SAME(rdma_create_srq);
	SAME(rdma_create_srq_ex);
	SAME(rdma_destroy_srq);
	SAME(rdma_reg_msgs);
	SAME(rdma_reg_read);
	SAME(rdma_reg_write);
	SAME(rdma_dereg_mr);
	SAME(rdma_post_recvv);
	SAME(rdma_post_sendv);
	SAME(rdma_post_readv);
	SAME(rdma_post_writev);
	SAME(rdma_post_recv);
	SAME(rdma_post_send);
	SAME(rdma_post_read);
	SAME(rdma_post_write);
	SAME(rdma_post_ud_send);
	SAME(rdma_get_send_comp);
	SAME(rdma_get_recv_comp);
	result(!SAME_TYPE(rdma_post_send, upstream_rdma_post_recv), "functions of different types differ");
	printf("1..%d\n", tests);
	return failures != 0;
}
