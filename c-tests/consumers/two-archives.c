/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Uses two static libraries that are written in Rust. */

#include <rdma/rdma_verbs.h>

int other_archive(void);

int main(void)
{
	return !(other_archive() == 3 && rdma_post_send(NULL, NULL, NULL, 0, NULL, 0) == -1 && errno == EINVAL);
}
