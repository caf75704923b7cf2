/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Messages from one queue pair to another, whose completions are polled through struct ibv_cq_ex.
 *
 *   start_poll MESSAGES
 */

#include <errno.h>
#include "link.h"

/*
 * Takes a completion if there is one; a failed one ends the program with a message. Not with ibv_next_poll: when rxe of
 * rdma-core 44 finds nothing more there, ibv_end_poll takes one too many.
 */
static int poll_one(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int ret = ibv_start_poll(cq, &attr);

	if (ret == ENOENT)
		return 0;
	need(!ret);
	if (cq->status)
		die("wr_id %#llx: %s", (unsigned long long)cq->wr_id, ibv_wc_status_str(cq->status));
	if (cq->wr_id >= 0x1000)
		need(ibv_wc_read_opcode(cq) == IBV_WC_RECV && ibv_wc_read_byte_len(cq) == 64);
	else
		need(ibv_wc_read_opcode(cq) == IBV_WC_SEND);
	ibv_end_poll(cq);
	return 1;
}

int main(int argc, char **argv)
{
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS };
	int messages = argc > 1 ? atoi(argv[1]) : 0;
	struct ibv_cq_ex *cq;
	struct link link = { 0 };

	need(messages > 0);
	link_device(&link);
	cq = ibv_create_cq_ex(link.context, &cq_attr);
	need(cq);
	link.cq = ibv_cq_ex_to_cq(cq);
	link_make(&link, link_attr());
	for (int i = 0; i < messages; i++) {
		link_recv(&link, 1, 0x1000 + i, 128);
		link_send(&link, 0, i, 64, IBV_SEND_SIGNALED);
		for (int taken = 0; taken < 2; taken += poll_one(cq))
			;
	}
	link_close(&link);
	printf("%d messages\n", messages);
	return 0;
}
