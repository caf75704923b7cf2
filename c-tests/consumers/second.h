/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* The other translation unit of program.c, which may be of the other language. */

#ifndef SECOND_H
#define SECOND_H

#include <rdma/rdma_verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

int second_post(struct rdma_cm_id *id, struct ibv_sge *sge);

#ifdef __cplusplus
}
#endif

#endif
