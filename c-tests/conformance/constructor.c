/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A library that does what the program says while the loader still loads it; next to scripted.c, with its script. */
#include "scripted.h"

void while_loading(struct scripted *loaded);

__attribute__((constructor)) static void load(void)
{
	while_loading(&scripted);
}
