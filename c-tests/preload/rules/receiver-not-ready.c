/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rdma-verbs: receiver-not-ready: the peer had no receive posted when the message came, for as long as it was tried
 *     where: DEVICE qp QP0, completion of send wr_id 0x77
 *     called from: link_wait (link.c:LINE)
 * rdma-verbs: 1 report
 */
#include "../link.h"

int main(int argc, char **argv)
{
	struct link link = { 0 };
	bool good = correct(argc, argv);

	link_rnr_retry = 1;
	link_open(&link, link_attr());
	if (good)
		link_recv(&link, 1, 1, 16);
	link_send(&link, 0, 0x77, 16, IBV_SEND_SIGNALED);
	if (good)
		link_drain(&link, 2);
	else
		need(link_wait(&link).status == IBV_WC_RNR_RETRY_EXC_ERR);
	link_close(&link);
	return 0;
}
