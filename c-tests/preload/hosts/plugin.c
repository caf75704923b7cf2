/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * A plug-in that brings libibverbs with it, and the program that opens it so that nobody else sees either.
 * Built twice, with PLUGIN defined and without.
 */

#ifdef PLUGIN
#include <stddef.h>
#include "fake.h"

int plugin_run(void);
int plugin_run(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(devices[0]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap.max_send_wr = 16 };
	struct ibv_qp_attr to = { .qp_state = IBV_QPS_RTS };
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;

	ibv_free_device_list(devices);
	if (ibv_modify_qp(qp, &to, IBV_QP_STATE))
		return 1;
	for (wr.wr_id = 0; wr.wr_id < 7; wr.wr_id++)
		if (ibv_post_send(qp, &wr, &bad) || ibv_poll_cq(cq, 1, &wc) != 1)
			return 1;
	return 0;
}
#else
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	int (*run)(void) = plugin ? (int (*)(void))dlsym(plugin, "plugin_run") : NULL;

	if (!run) {
		fprintf(stderr, "%s\n", dlerror());
		return 99;
	}
	if (dlsym(RTLD_DEFAULT, "fake_open")) {
		fprintf(stderr, "libibverbs is in sight\n");
		return 99;
	}
	return run();
}
#endif
