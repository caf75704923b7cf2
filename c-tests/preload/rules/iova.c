/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rdma-verbs: unregistered-buffer: the buffer is not inside its region, [0x10000000, +4096)
 *     where: DEVICE qp QP0, post send wr_id 0x77, entry 0: [ADDR, +16) lkey KEY
 *     called from: break_the_rule (iova.c:LINE)
 * rdma-verbs: 1 report
 */
/* A region is used by the addresses that it was registered with, which need not be those of its memory. */
#include "../link.h"

#define IOVA 0x10000000

static struct ibv_wc break_the_rule(struct link *link, uint64_t addr, uint32_t lkey)
{
	struct ibv_sge sge = { .addr = addr, .length = 16, .lkey = lkey };
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
	struct ibv_mr *mr;

	link_open(&link, link_attr());
	link_recv(&link, 1, 1, 16);
	mr = ibv_reg_mr_iova(link.pd, link.buffer, BUFFER_SIZE, IOVA, IBV_ACCESS_LOCAL_WRITE);
	need(mr);
	if (good) {
		/* The last bytes of it. */
		break_the_rule(&link, IOVA + BUFFER_SIZE - 16, mr->lkey);
		link_drain(&link, 1);
	} else {
		need(break_the_rule(&link, (uintptr_t)link.buffer, mr->lkey).status != IBV_WC_SUCCESS);
	}
	need(!ibv_dereg_mr(mr));
	link_close(&link);
	return 0;
}
