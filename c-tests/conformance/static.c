/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A fully static program. `static own` uses its own verbs, `static named` has RDMA_VERBS_PROVIDER set. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "suite.h"

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: %s own|named\n", argv[0]);
		return EXIT_FAILURE;
	}
	script = &scripted;
	data_path_route = BY_TABLE;
	fresh_fixture(NULL);
	check_refusals();
	if (!strcmp(argv[1], "named")) {
		check_all_fail(ELIBACC);
	} else {
		check_data_path_works();
		check_control_fails(ELIBACC);
	}
	check_refusals();
	return EXIT_SUCCESS;
}
