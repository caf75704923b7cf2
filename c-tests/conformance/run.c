/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The cases of a program, run by cmocka. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "suite.h"

struct scripted *attach(const char *provider)
{
	void *handle = dlopen(provider, RTLD_NOW | RTLD_LOCAL);
	struct scripted *found = handle ? dlsym(handle, "scripted") : NULL;

	if (!found) {
		fprintf(stderr, "no scripted provider in %s: %s\n", provider ? provider : "this program", dlerror());
		exit(EXIT_FAILURE);
	}
	return found;
}

void use_provider(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "by-name")) {
		data_path_route = BY_NAME;
	} else if (argc == 2 && !strcmp(argv[1], "by-table")) {
		data_path_route = BY_TABLE;
	} else {
		fprintf(stderr, "usage: %s by-name|by-table\n", argv[0]);
		exit(EXIT_FAILURE);
	}
	script = attach(getenv("RDMA_VERBS_PROVIDER"));
}

static void fail_with_cmocka(const char *file, int line, const char *text)
{
	print_error("%s\n", text);
	_fail(file, line);
}

/* Seconds after which something must be stuck: far more than all cases take, and enough for one. */
enum { ALL_CASES = 120, ONE_CASE = 20 };

/* A process that aborts, or never ends, is a failure of the case that it was in. cmocka sees to the other signals. */
static void on_signal(int signal)
{
	alarm(ONE_CASE);
	failure(__FILE__, __LINE__, "signal %d", signal);
}

int run_cases(const char *name, const struct cases *const *lists, size_t count)
{
	/* The case is left by a jump, with the signal not blocked. */
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_NODEFER };
	struct CMUnitTest tests[256];
	size_t total = 0;

	for (size_t i = 0; i < count; i++) {
		if (total + lists[i]->count > ARRAY_SIZE(tests)) {
			fprintf(stderr, "%s: too many cases\n", name);
			return EXIT_FAILURE;
		}
		memcpy(tests + total, lists[i]->tests, lists[i]->count * sizeof(tests[0]));
		total += lists[i]->count;
	}
	fail_case = fail_with_cmocka;
	sigaction(SIGABRT, &action, NULL);
	sigaction(SIGALRM, &action, NULL);
	alarm(ALL_CASES);
	cmocka_set_message_output(CM_OUTPUT_TAP);
	return _cmocka_run_group_tests(name, tests, total, NULL, NULL) ? EXIT_FAILURE : EXIT_SUCCESS;
}
