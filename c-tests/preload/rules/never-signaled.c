/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rdma-verbs: never-signaled: the send queue is full with 8 requests and none of them is signaled, so that no completion will ever free their places
 *     where: DEVICE qp QP0, post send wr_id 0x7
 *     called from: break_the_rule (never-signaled.c:LINE)
 * rdma-verbs: 1 report
 */
#include "../link.h"

static void break_the_rule(struct link *link, int flags)
{
	struct ibv_sge sge = { .addr = (uintptr_t)link->buffer, .length = 16, .lkey = link->mr->lkey };
	struct ibv_send_wr wrs[8], *bad;

	/* One list, as long as the queue. */
	for (int i = 0; i < 8; i++)
		wrs[i] = (struct ibv_send_wr) {
			.wr_id = i, .next = i < 7 ? &wrs[i + 1] : NULL, .sg_list = &sge, .num_sge = 1,
			.opcode = IBV_WR_SEND, .send_flags = i == 7 ? flags : 0,
		};
	need(!ibv_post_send(link->qp[0], wrs, &bad));
}

int main(int argc, char **argv)
{
	struct link link = { 0 };
	bool good = correct(argc, argv);

	link_open(&link, link_attr());
	/* Twice: the completion of the last frees all places. */
	for (int round = 0; round < (good ? 2 : 1); round++) {
		for (int i = 0; i < 8; i++)
			link_recv(&link, 1, 1, 128);
		break_the_rule(&link, good ? IBV_SEND_SIGNALED : 0);
		link_drain(&link, good ? 9 : 8);
	}
	link_close(&link);
	return 0;
}
