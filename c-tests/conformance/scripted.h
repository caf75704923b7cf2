/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A provider that answers what a case tells it to, and keeps what it was asked.
 *
 * It is a shared object, loaded by the library; a case finds the same instance by opening the same file (attach() in
 * suite.c). One build of it also stands in the test program itself.
 */
#ifndef SCRIPTED_H
#define SCRIPTED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <infiniband/verbs.h>

enum verb {
	POST_SEND,
	POST_RECV,
	POST_SRQ_RECV,
	POLL_CQ,
	REQ_NOTIFY_CQ,
	GET_CQ_EVENT,
	ACK_CQ_EVENTS,
	REG_MR,
	DEREG_MR,
	VERBS,
};

/* How the library came to a verb. */
enum route {
	BY_NAME,	/* the exported function */
	BY_TABLE,	/* the entry of context->ops */
	BY_OLD_VERSION,	/* the function that is exported under an old version */
};

struct answer {
	int result;
	int error;			/* what errno becomes; 0 leaves it alone */
	struct ibv_mr *mr;		/* of ibv_reg_mr, instead of the result */
	const struct ibv_wc *wc;	/* of ibv_poll_cq: what the caller finds, where the result is 1 */
	struct ibv_cq *cq;		/* of ibv_get_cq_event */
	void (*meanwhile)(void);	/* runs inside the call */
};

struct record {
	enum verb verb;
	enum route route;
	void *object;			/* the first argument: qp, srq, cq, channel, pd or mr */
	union {				/* posts: every byte of the request */
		struct ibv_send_wr send;
		struct ibv_recv_wr recv;
	} wr;
	struct ibv_sge sge;		/* posts: the first entry, where there is one */
	struct ibv_wc *wc;		/* ibv_poll_cq */
	int number;			/* ibv_poll_cq: entries; ibv_req_notify_cq: solicited; ibv_ack_cq_events: events */
	void *addr;			/* ibv_reg_mr */
	size_t length;
	int access;
};

enum { ANSWERS = 8, RECORDS = 64 };

/* What a verb answers that was called more often than the case said: no loop goes on for ever. */
enum { UNSCRIPTED = ENOANO };

struct scripted {
	/* For each verb, what its first, second... call answers. */
	struct answer answers[VERBS][ANSWERS];
	unsigned int said[VERBS];
	unsigned int asked[VERBS];

	/* Answer every call, from any thread, with success, and record nothing. */
	bool obliging;
	atomic_uint obliged[VERBS];

	struct record records[RECORDS];
	unsigned int count;

	/* For context->ops. */
	struct ibv_context_ops table;
};

extern struct scripted scripted;

#endif
