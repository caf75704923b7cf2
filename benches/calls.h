/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* The calls that are compared, each as a loop of a user's program: once inline, once into the library. */

#ifndef CALLS_H
#define CALLS_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

/* What is handed to every call. The loops read it anew each time, as a program has its arguments from somewhere. */
struct arguments {
	struct rdma_cm_id *id;
	void *context;
	void *addr;
	size_t length;
	struct ibv_mr *mr;
	struct ibv_sge *sgl;
	int nsge;
	int flags;
	uint64_t remote_addr;
	uint32_t rkey;
	struct ibv_ah *ah;
	uint32_t remote_qpn;
	struct ibv_wc *wc;
};

/* Makes n calls and returns how many of them did not succeed. */
typedef unsigned long loop_function(const struct arguments *args, unsigned long n);

/* Which of the ids below a call is made on. */
enum kind {
	CONNECTED,
	DATAGRAM,
	SHARED,
};

struct call {
	const char *name;
	enum kind kind;
	loop_function *loop;
};

#define N_CALLS 13

/* The same calls in the same order. */
extern const struct call inline_calls[N_CALLS];
extern const struct call lib_calls[N_CALLS];

#endif
