/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rdma-verbs: unregistered-buffer: the buffer is not inside its region, [ADDR, +4096)
 *     where: DEVICE qp QP0, post send wr_id 0x77, entry 1: [ADDR, +65) lkey KEY
 *     called from: break_the_rule (unregistered-buffer.c:LINE)
 * rdma-verbs: 1 report
 */
#include "../link.h"

static struct ibv_wc break_the_rule(struct link *link, uint32_t length)
{
	struct ibv_sge sges[2] = {
		{ .addr = (uintptr_t)link->buffer, .length = 8, .lkey = link->mr->lkey },
		{ .addr = (uintptr_t)link->buffer + BUFFER_SIZE - 64, .length = length, .lkey = link->mr->lkey },
	};
	struct ibv_send_wr wr = {
		.wr_id = 0x77, .sg_list = sges, .num_sge = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_send_wr *bad;

	need(!ibv_post_send(link->qp[0], &wr, &bad));
	return link_wait(link);
}

int main(int argc, char **argv)
{
	struct link link = { 0 };
	bool good = correct(argc, argv);

	link_open(&link, link_attr());
	link_recv(&link, 1, 1, 128);
	/* Up to the last byte of the region, or one more. */
	if (good) {
		break_the_rule(&link, 64);
		link_drain(&link, 1);
	} else {
		need(break_the_rule(&link, 65).status == IBV_WC_LOC_PROT_ERR);
	}
	link_close(&link);
	return 0;
}
