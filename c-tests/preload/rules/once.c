/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rdma-verbs: inline-too-long: 2048 bytes inline, and the queue pair was created with max_inline_data MAX
 *     where: DEVICE qp QP0, post send wr_id 0x70
 *     called from: break_the_rule (once.c:LINE)
 * rdma-verbs: unregistered-buffer: the buffer is not inside its region, [ADDR, +4096)
 *     where: DEVICE qp QP0, post send wr_id 0x80, entry 0: [ADDR, +8192) lkey KEY
 *     called from: break_the_rule (once.c:LINE)
 * rdma-verbs: inline-too-long: 2048 bytes inline, and the queue pair was created with max_inline_data MAX
 *     where: DEVICE qp QP1, post send wr_id 0x90
 *     called from: break_the_rule (once.c:LINE)
 * rdma-verbs: 3 reports
 */
/* A report is made once for a queue pair and a rule: not again for the same two, and again for another of either. */
#include "../link.h"

static void break_the_rule(struct link *link, int end, uint64_t wr_id, uint32_t length, int flags)
{
	struct ibv_sge sge = { .addr = (uintptr_t)link->buffer, .length = length, .lkey = link->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags,
	};
	struct ibv_send_wr *bad;

	ibv_post_send(link->qp[end], &wr, &bad);
}

int main(int argc, char **argv)
{
	struct link link = { 0 };

	link_open(&link, link_attr());
	if (!correct(argc, argv)) {
		for (int i = 0; i < 3; i++)
			break_the_rule(&link, 0, 0x70 + i, 2048, IBV_SEND_INLINE);
		for (int i = 0; i < 3; i++)
			break_the_rule(&link, 0, 0x80 + i, 8192, 0);
		for (int i = 0; i < 3; i++)
			break_the_rule(&link, 1, 0x90 + i, 2048, IBV_SEND_INLINE);
	}
	link_close(&link);
	return 0;
}
