/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rdma-verbs: deregistered-in-use: the region of lkey KEY is deregistered while a request uses it
 *     where: DEVICE qp QP1, posted recv wr_id 0x77
 *     called from: break_the_rule (deregistered-in-use.c:LINE)
 * rdma-verbs: 1 report
 */
#include "../link.h"

static void break_the_rule(struct link *link)
{
	need(!ibv_dereg_mr(link->mr));
	link->mr = NULL;
}

int main(int argc, char **argv)
{
	struct link link = { 0 };

	link_open(&link, link_attr());
	link_recv(&link, 1, 0x77, 128);
	link_recv(&link, 1, 0x78, 128);
	if (correct(argc, argv)) {
		link_send(&link, 0, 1, 16, IBV_SEND_SIGNALED);
		link_send(&link, 0, 2, 16, IBV_SEND_SIGNALED);
		link_drain(&link, 4);
	}
	/* Two requests use it, and the report is one: also where a message comes for them. */
	break_the_rule(&link);
	if (!correct(argc, argv)) {
		link_send(&link, 0, 1, 16, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
		need(link_wait(&link).status != IBV_WC_SUCCESS);
		need(link_wait(&link).status != IBV_WC_SUCCESS);
	}
	link_close(&link);
	return 0;
}
