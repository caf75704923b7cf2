/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The cases that hold for every provider.
 *
 *   conformance by-name|by-table
 *
 * The provider is the scripted one that RDMA_VERBS_PROVIDER names, or where the variable is not set, the one in this
 * program itself. The argument says how the library has to reach the data path.
 */
#include "suite.h"

extern const struct cases refusals, requests, errnos, completions, registration;

int main(int argc, char **argv)
{
	static const struct cases *const lists[] = { &refusals, &requests, &errnos, &completions, &registration };

	use_provider(argc, argv);
	return run_cases("conformance", lists, ARRAY_SIZE(lists));
}
