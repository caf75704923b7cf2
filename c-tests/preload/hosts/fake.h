/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * A libibverbs without devices: two of them, fake0 and fake1, each with a driver of its own, that do as they are told.
 *
 * A request that is accepted is done at once: if it is signaled, its completion is there. A receive waits for
 * fake_arrive. A program finds this by linking to the file, which has libibverbs's name and versions.
 */

#ifndef FAKE_H
#define FAKE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <infiniband/verbs.h>

enum { DRIVERS = 2, LOG = 64 };

/* What the driver was asked for last. */
struct fake_log {
	int driver;		/* whose function it was */
	unsigned int count;	/* requests in the last call */
	uint64_t wr_ids[LOG];
	unsigned int calls;	/* calls so far */
	unsigned int requests;	/* requests that were accepted so far */
};

struct fake {
	/* How the next posts end, of whatever kind: after so many requests with this result, and errno, if not 0. */
	bool scripted;
	unsigned int good;
	int result;
	int error;
	bool silent;	/* bad_wr is not set */

	/* The same for what is polled. */
	bool poll_scripted;
	int poll_result;

	/* What the functions that destroy or change something return, and what goes on between the end of that and their return. */
	int end_result;
	void (*meanwhile)(void);
	/* The next key of a region and number of a queue pair, if not 0. */
	uint32_t next_key, next_number;

	/* Nothing is logged while threads post. */
	bool threads;
	struct fake_log sends, recvs, shared;
	atomic_uint polls;

	/* Programs may look at these to see what is in the tables. */
	struct ibv_context_ops tables[DRIVERS];
};

extern struct fake fake;

/* A context that no function of libibverbs's name has opened. */
struct ibv_context *fake_open(int device);
/* The driver changes the entries of the table of this context. */
void fake_change(struct ibv_context *context, int driver);
/* A message comes, and takes the oldest receive; or it fails there with a status. */
void fake_arrive(struct ibv_qp *qp, uint32_t bytes, enum ibv_wc_status status);
/* The next send that the driver is given completes with this status. */
void fake_fail_next(enum ibv_wc_status status);

#endif
