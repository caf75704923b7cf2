/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Messages between two connected ids of one process: once with the inline functions, once with the library. */

#ifndef EXCHANGE_H
#define EXCHANGE_H

#include <rdma/rdma_cma.h>

#define MESSAGE_SIZE 64

struct end {
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	char in[MESSAGE_SIZE];
	char out[MESSAGE_SIZE];
};

/* A message from one end to the other and one back, n times. Whatever fails ends the program. */
typedef void exchange_function(struct end *client, struct end *server, unsigned int n);

exchange_function exchange_inline;
exchange_function exchange_lib;

#endif
