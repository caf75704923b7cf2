/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rdma-verbs: outstanding-at-destroy: the queue pair is destroyed with 2 signaled request(s) whose completion was not taken
 *     where: DEVICE qp QP0, posted send wr_id 0x77
 *     called from: break_the_rule (outstanding-at-destroy.c:LINE)
 * rdma-verbs: 1 report
 */
#include "../link.h"

static void break_the_rule(struct link *link)
{
	need(!ibv_destroy_qp(link->qp[0]));
	link->qp[0] = NULL;
}

int main(int argc, char **argv)
{
	struct link link = { 0 };

	link_open(&link, link_attr());
	for (int i = 0; i < 3; i++)
		link_recv(&link, 1, i, 16);
	link_send(&link, 0, 0x76, 16, 0);
	link_send(&link, 0, 0x77, 16, IBV_SEND_SIGNALED);
	link_send(&link, 0, 0x78, 16, IBV_SEND_SIGNALED);
	if (correct(argc, argv))
		link_drain(&link, 5);
	break_the_rule(&link);
	link_close(&link);
	return 0;
}
