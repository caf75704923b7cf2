/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * observed NAME    run with librdma_verbs_preload in front: times the posts of a program that has upstream's inline functions
 *                  in its own code, on a context that was opened, and so patched, and on one like it that was not, in turn
 * observed --off   says whether the opened context's operations are the provider's own
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "provider.h"

#define ROUNDS 301
#define POSTS_PER_ROUND 1000

static struct ibv_device device = { .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "bench0" };
static struct ibv_context plain = { .device = &device };
static char buffer[64];

static double now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* What is posted completes at once, and is polled outside of the time that is taken. */
static double time_round(struct ibv_qp *qp, struct ibv_cq *cq)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = sizeof(buffer), .lkey = 0x1234 };
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_wc wc = { .wr_id = 1, .status = IBV_WC_SUCCESS, .opcode = IBV_WC_SEND, .qp_num = qp->qp_num };
	struct ibv_send_wr *bad;
	double start = now_ns(), end;

	for (int i = 0; i < POSTS_PER_ROUND; i++) {
		__asm__ volatile("" : : "r"(&wr) : "memory");
		if (ibv_post_send(qp, &wr, &bad)) {
			fputs("observed: a post failed\n", stderr);
			exit(1);
		}
	}
	end = now_ns();
	for (int i = 0; i < POSTS_PER_ROUND; i++)
		ibv_poll_cq(cq, 1, &wc);
	return (end - start) / POSTS_PER_ROUND;
}

int main(int argc, char **argv)
{
	static double round_ns[2][ROUNDS];
	struct ibv_context *opened = ibv_open_device(&device);
	struct ibv_context *contexts[] = { &plain, opened };
	struct ibv_qp qps[2];
	struct ibv_cq cqs[2];
	int is_patched;

	if (argc != 2 || !opened)
		return 2;
	plain.ops = null_ops;
	is_patched = memcmp(&opened->ops, &null_ops, sizeof(null_ops));
	if (!strcmp(argv[1], "--off")) {
		printf("everything off: the operations are %s\n", is_patched ? "PATCHED" : "the provider's own");
		return 0;
	}
	if (opened->ops.post_send == null_ops.post_send) {
		fputs("observed: the context was not patched\n", stderr);
		return 1;
	}
	for (int i = 0; i < 2; i++) {
		qps[i] = (struct ibv_qp){ .context = contexts[i], .qp_num = 17, .state = IBV_QPS_RTS, .qp_type = IBV_QPT_RC };
		cqs[i] = (struct ibv_cq){ .context = contexts[i] };
	}
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < 2; i++)
			round_ns[i][round] = time_round(&qps[i], &cqs[i]);
	for (int i = 0; i < 2; i++)
		qsort(round_ns[i], ROUNDS, sizeof(double), compare);
	printf("bench post_send feature=%s unpatched_ns=%.2f patched_ns=%.2f more_ns=%.2f median_more_ns=%.2f\n", argv[1],
	       round_ns[0][0], round_ns[1][0], round_ns[1][0] - round_ns[0][0],
	       round_ns[1][ROUNDS / 2] - round_ns[0][ROUNDS / 2]);
	return 0;
}
