/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * All fifteen names, bound to whatever library this is linked or preloaded with. Exits with 0 if calling each with
 * nothing but zeros fails as it does in librdma_verbs.
 */

#include <rdma/rdma_verbs.h>
#include <stdio.h>

static int failures;

static void check(int failed, const char *name)
{
	if (failed && errno == EINVAL)
		return;
	failures++;
	printf("%s\n", name);
}

#define CALL(name, failure, ...) (errno = 0, check(name(__VA_ARGS__) == failure, #name))

int main(void)
{
	CALL(rdma_reg_msgs, NULL, NULL, NULL, 0);
	CALL(rdma_reg_read, NULL, NULL, NULL, 0);
	CALL(rdma_reg_write, NULL, NULL, NULL, 0);
	CALL(rdma_dereg_mr, -1, NULL);
	CALL(rdma_post_recvv, -1, NULL, NULL, NULL, 0);
	CALL(rdma_post_sendv, -1, NULL, NULL, NULL, 0, 0);
	CALL(rdma_post_readv, -1, NULL, NULL, NULL, 0, 0, 0, 0);
	CALL(rdma_post_writev, -1, NULL, NULL, NULL, 0, 0, 0, 0);
	CALL(rdma_post_recv, -1, NULL, NULL, NULL, 0, NULL);
	CALL(rdma_post_send, -1, NULL, NULL, NULL, 0, NULL, 0);
	CALL(rdma_post_read, -1, NULL, NULL, NULL, 0, NULL, 0, 0, 0);
	CALL(rdma_post_write, -1, NULL, NULL, NULL, 0, NULL, 0, 0, 0);
	CALL(rdma_post_ud_send, -1, NULL, NULL, NULL, 0, NULL, 0, NULL, 0);
	CALL(rdma_get_send_comp, -1, NULL, NULL);
	CALL(rdma_get_recv_comp, -1, NULL, NULL);
	return failures != 0;
}
