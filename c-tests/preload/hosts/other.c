/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Another library that people preload in front of libibverbs, of the same manners: it says what it sees. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
#include <infiniband/verbs.h>

#define SAY(text) ((void)!write(STDERR_FILENO, text "\n", sizeof(text)))

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *(*real)(struct ibv_device *) = dlvsym(RTLD_NEXT, "ibv_open_device", "IBVERBS_1.1");

	SAY("other: ibv_open_device");
	return real(device);
}

int ibv_close_device(struct ibv_context *context)
{
	int (*real)(struct ibv_context *) = dlvsym(RTLD_NEXT, "ibv_close_device", "IBVERBS_1.1");

	SAY("other: ibv_close_device");
	return real(context);
}
