/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The library as a program has it that was not linked with it; TAP on standard output.
 *
 *   dlopen LIBRARY
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>

static int tests, failures;

static int result(int ok, const char *what, const char *name)
{
	failures += !ok;
	printf("%sok %d - %s%s\n", ok ? "" : "not ", ++tests, what, name);
	return ok;
}

static void *library;

/* A function of the library, found by its name, and what calling it with nothing but zeros does. */
#define FUNCTION(name, ...)								\
	do {										\
		__typeof__(name) *function = (__typeof__(function))dlsym(library, #name);	\
											\
		result(function && (void *)function == dlvsym(library, #name, "RDMA_VERBS_1.0"), "found: ", #name); \
		errno = 0;								\
		result(function && failed(function(__VA_ARGS__)) && errno == EINVAL, "called: ", #name); \
		result(!dlsym(RTLD_DEFAULT, #name), "not visible to others: ", #name);	\
	} while (0)

#define failed(result) _Generic((result), int: (long)(result) == -1, struct ibv_mr *: !(result))

static void all(void)
{
	FUNCTION(rdma_reg_msgs, NULL, NULL, 0);
	FUNCTION(rdma_reg_read, NULL, NULL, 0);
	FUNCTION(rdma_reg_write, NULL, NULL, 0);
	FUNCTION(rdma_dereg_mr, NULL);
	FUNCTION(rdma_post_recvv, NULL, NULL, NULL, 0);
	FUNCTION(rdma_post_sendv, NULL, NULL, NULL, 0, 0);
	FUNCTION(rdma_post_readv, NULL, NULL, NULL, 0, 0, 0, 0);
	FUNCTION(rdma_post_writev, NULL, NULL, NULL, 0, 0, 0, 0);
	FUNCTION(rdma_post_recv, NULL, NULL, NULL, 0, NULL);
	FUNCTION(rdma_post_send, NULL, NULL, NULL, 0, NULL, 0);
	FUNCTION(rdma_post_read, NULL, NULL, NULL, 0, NULL, 0, 0, 0);
	FUNCTION(rdma_post_write, NULL, NULL, NULL, 0, NULL, 0, 0, 0);
	FUNCTION(rdma_post_ud_send, NULL, NULL, NULL, 0, NULL, 0, NULL, 0);
	FUNCTION(rdma_get_send_comp, NULL, NULL);
	FUNCTION(rdma_get_recv_comp, NULL, NULL);
}

int main(int argc, char **argv)
{
	__typeof__(rdma_dereg_mr) *function;

	setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
	library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!library) {
		printf("Bail out! %s\n", argc == 2 ? dlerror() : "usage: dlopen LIBRARY");
		return 1;
	}
	result(!dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD), "loading it loads no libibverbs", "");
	all();

	/* Another thread may be waiting in it. */
	function = (__typeof__(function))dlsym(library, "rdma_dereg_mr");
	result(dlclose(library) == 0, "dlclose", "");
	result(dlopen(argv[1], RTLD_LAZY | RTLD_NOLOAD) != NULL, "it stays loaded", "");
	errno = 0;
	result(function(NULL) == -1 && errno == EINVAL, "a function called after dlclose", "");

	printf("1..%d\n", tests);
	return failures != 0;
}
