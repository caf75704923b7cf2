/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rdma-verbs: inline-too-long: 2048 bytes inline, and the queue pair was created with max_inline_data MAX
 *     where: DEVICE qp QP0, post send wr_id 0x77
 *     called from: break_the_rule (inline-too-long.c:LINE)
 * rdma-verbs: 1 report
 */
#include "../link.h"

static int break_the_rule(struct link *link, uint32_t length)
{
	/* Inline data needs no region. */
	static char bytes[2048];
	struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = length };
	struct ibv_send_wr wr = {
		.wr_id = 0x77, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
	};
	struct ibv_send_wr *bad;

	return ibv_post_send(link->qp[0], &wr, &bad);
}

int main(int argc, char **argv)
{
	struct link link = { 0 };

	link_open(&link, link_attr());
	link_recv(&link, 1, 1, 128);
	if (correct(argc, argv)) {
		need(!break_the_rule(&link, 32));
		link_drain(&link, 2);
	} else {
		need(break_the_rule(&link, 2048));
	}
	link_close(&link);
	return 0;
}
