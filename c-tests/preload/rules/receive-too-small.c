/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rdma-verbs: receive-too-small: the receive of 8 bytes is shorter than the message that came (STATUS)
 *     where: DEVICE qp QP1, completion of recv wr_id 0x77
 *     called from: link_wait (link.c:LINE)
 * rdma-verbs: 1 report
 */
#include "../link.h"

int main(int argc, char **argv)
{
	struct link link = { 0 };
	bool good = correct(argc, argv);

	link_open(&link, link_attr());
	link_recv(&link, 1, 0x77, good ? 16 : 8);
	link_send(&link, 0, 1, 16, IBV_SEND_SIGNALED);
	if (good) {
		link_drain(&link, 2);
	} else {
		need(link_wait(&link).status != IBV_WC_SUCCESS);
		need(link_wait(&link).status != IBV_WC_SUCCESS);
	}
	link_close(&link);
	return 0;
}
