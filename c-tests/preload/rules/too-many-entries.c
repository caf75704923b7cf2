/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rdma-verbs: too-many-entries: 3 entries, and the queue pair was created with max_recv_sge 2
 *     where: DEVICE qp QP1, post recv wr_id 0x77
 *     called from: break_the_rule (too-many-entries.c:LINE)
 * rdma-verbs: too-many-entries: 33 entries, and the queue pair was created with max_send_sge MAX
 *     where: DEVICE qp QP0, post send wr_id 0x78
 *     called from: break_the_rule (too-many-entries.c:LINE)
 * rdma-verbs: 2 reports
 */
#include "../link.h"

#define MANY 33

static void break_the_rule(struct link *link, int receives, int sends)
{
	struct ibv_sge sges[MANY];
	struct ibv_recv_wr recv = { .wr_id = 0x77, .sg_list = sges, .num_sge = receives };
	struct ibv_send_wr send = {
		.wr_id = 0x78, .sg_list = sges, .num_sge = sends, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_recv_wr *bad_recv;
	struct ibv_send_wr *bad_send;

	for (int i = 0; i < MANY; i++)
		sges[i] = (struct ibv_sge) {
			.addr = (uintptr_t)link->buffer + 8 * i, .length = 8, .lkey = link->mr->lkey,
		};
	need(!ibv_post_recv(link->qp[1], &recv, &bad_recv) == (receives <= 2));
	need(!ibv_post_send(link->qp[0], &send, &bad_send) == (sends <= 2));
}

int main(int argc, char **argv)
{
	struct link link = { 0 };

	link_open(&link, link_attr());
	if (correct(argc, argv)) {
		break_the_rule(&link, 2, 2);
		link_drain(&link, 2);
	} else {
		break_the_rule(&link, 3, MANY);
	}
	link_close(&link);
	return 0;
}
