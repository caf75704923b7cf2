/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rdma-verbs: outstanding-at-exit: the program ends with 1 signaled request(s) whose completion was not taken
 *     where: DEVICE qp QP0, posted send wr_id 0x77
 * rdma-verbs: 1 report
 */
#include "../link.h"

int main(int argc, char **argv)
{
	struct link link = { 0 };

	link_open(&link, link_attr());
	link_recv(&link, 1, 1, 16);
	link_send(&link, 0, 0x77, 16, IBV_SEND_SIGNALED);
	if (correct(argc, argv))
		link_drain(&link, 2);
	/* The system takes back what is left. */
	return 0;
}
