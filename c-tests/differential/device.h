/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * A device whose answers a scenario writes beforehand, and which says on standard output what it is asked. The data
 * path is its operations table; the control functions are definitions of ibv_reg_mr() and its like in the program.
 */

#ifndef DEVICE_H
#define DEVICE_H

#include <infiniband/verbs.h>

enum verb {
	END,
	POST_SEND,
	POST_RECV,
	POST_SRQ_RECV,
	POLL_CQ,
	REQ_NOTIFY_CQ,
	GET_CQ_EVENT,
	REG_MR,
	DEREG_MR,
};

/* The next verb that is to be called, and the answer. */
struct step {
	enum verb verb;
	int result;
	int err;		/* errno is set to it, unless 0 */
	struct ibv_cq *cq;	/* GET_CQ_EVENT: the queue of the event, and its context */
	void *cq_context;
	struct ibv_mr *mr;	/* REG_MR */
	int status;		/* POLL_CQ: of the completion that it finds */
};

struct device {
	const struct step *script;	/* what happens, up to END */
	int datagram;			/* requests carry an address handle */
	int look_for_garbage;		/* in the bytes of requests that their opcode gives no meaning */
	int garbage;			/* there was some */

	struct ibv_device device;
	struct ibv_context context;
	struct ibv_pd pd;
	struct ibv_qp qp;
	struct ibv_srq srq;
	struct ibv_cq send_cq, recv_cq, other_cq;
	struct ibv_comp_channel send_channel, recv_channel;
	struct ibv_ah ah;
	struct ibv_mr mr;
};

extern struct device dev;

/* The memory of the region, at the same place in every process. */
#define MEMORY 0x10000000UL
#define MEMORY_SIZE 0x1000UL

/* A device in good order. */
void device_init(void);

/* Whether the script was played to its end. */
int device_done(void);

/* What an errno is called; a number where it is no errno. */
const char *errno_name(int err);

#endif
