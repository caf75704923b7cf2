/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rdma-verbs: deregistered-buffer: the buffer's region was deregistered
 *     where: DEVICE qp QP0, post send wr_id 0x77, entry 0: [ADDR, +16) lkey KEY
 *     called from: break_the_rule (deregistered-buffer.c:LINE)
 * rdma-verbs: 1 report
 */
#include "../link.h"

static struct ibv_wc break_the_rule(struct link *link, uint32_t lkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)link->buffer, .length = 16, .lkey = lkey };
	struct ibv_send_wr wr = {
		.wr_id = 0x77, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_send_wr *bad;

	need(!ibv_post_send(link->qp[0], &wr, &bad));
	return link_wait(link);
}

int main(int argc, char **argv)
{
	struct link link = { 0 };
	bool good = correct(argc, argv);
	uint32_t lkey;

	link_open(&link, link_attr());
	/* A second region of the same buffer: the receive's stays. */
	link_recv(&link, 1, 1, 128);
	struct ibv_mr *first = link.mr;
	link_region(&link);
	lkey = link.mr->lkey;
	need(!ibv_dereg_mr(link.mr));
	link.mr = first;
	if (good) {
		break_the_rule(&link, first->lkey);
		link_drain(&link, 1);
	} else {
		need(break_the_rule(&link, lkey).status != IBV_WC_SUCCESS);
	}
	link_close(&link);
	return 0;
}
