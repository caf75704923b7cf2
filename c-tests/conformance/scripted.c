/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The builds: NO_DATA_PATH exports the four control functions only, as libibverbs does; NO_REG_MR and its kin lack one
 * of these; OLD_VERSIONS adds functions under an old symbol version, which nobody should find.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "scripted.h"

/* A request that the library must not look at. */
#define POISON ((void *)0xdead00000000bad0)

/* Keeps a call and finds what to answer. */
static struct answer take(struct record record)
{
	static const struct answer success = { .result = 0 };
	static const struct ibv_wc wc;
	static const struct answer found = { .result = 1, .wc = &wc };

	if (scripted.obliging) {
		scripted.obliged[record.verb]++;
		return record.verb == POLL_CQ ? found : success;
	}
	if (scripted.count == RECORDS)
		abort();
	scripted.records[scripted.count++] = record;
	if (scripted.asked[record.verb] == scripted.said[record.verb])
		return (struct answer){ .result = UNSCRIPTED, .error = UNSCRIPTED };
	return scripted.answers[record.verb][scripted.asked[record.verb]++];
}

static int reply(struct answer answer)
{
	if (answer.meanwhile)
		answer.meanwhile();
	if (answer.error)
		errno = answer.error;
	return answer.result;
}

static int post_send(enum route route, struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	struct record record = { .verb = POST_SEND, .route = route, .object = qp };

	memcpy(&record.wr.send, wr, sizeof(*wr));
	if (wr->num_sge > 0)
		record.sge = wr->sg_list[0];
	*bad_wr = POISON;
	return reply(take(record));
}

static int post_receive(struct record record, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	memcpy(&record.wr.recv, wr, sizeof(*wr));
	if (wr->num_sge > 0)
		record.sge = wr->sg_list[0];
	*bad_wr = POISON;
	return reply(take(record));
}

static int post_recv(enum route route, struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	return post_receive((struct record){ .verb = POST_RECV, .route = route, .object = qp }, wr, bad_wr);
}

static int post_srq_recv(enum route route, struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	return post_receive((struct record){ .verb = POST_SRQ_RECV, .route = route, .object = srq }, wr, bad_wr);
}

static int poll_cq(enum route route, struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
{
	struct answer answer = take((struct record){
		.verb = POLL_CQ, .route = route, .object = cq, .number = num_entries, .wc = wc,
	});

	if (answer.result == 1 && answer.wc)
		memcpy(wc, answer.wc, sizeof(*wc));
	return reply(answer);
}

static int req_notify_cq(enum route route, struct ibv_cq *cq, int solicited_only)
{
	return reply(take((struct record){
		.verb = REQ_NOTIFY_CQ, .route = route, .object = cq, .number = solicited_only,
	}));
}

/* The data path, twice: in the table, and under the names that <infiniband/verbs.h> has inlines for. */

#ifdef NO_DATA_PATH
#define UNDER_ITS_NAME(verb, parameters, ...)
#else
#define UNDER_ITS_NAME(verb, parameters, ...) \
	int named_##verb parameters __asm__("ibv_" #verb); \
	int named_##verb parameters { return verb(BY_NAME, __VA_ARGS__); }
#endif
#define TWICE(verb, parameters, ...) \
	static int table_##verb parameters { return verb(BY_TABLE, __VA_ARGS__); } \
	UNDER_ITS_NAME(verb, parameters, __VA_ARGS__)

TWICE(post_send, (struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr), qp, wr, bad_wr)
TWICE(post_recv, (struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr), qp, wr, bad_wr)
TWICE(post_srq_recv, (struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr), srq, wr, bad_wr)
TWICE(poll_cq, (struct ibv_cq *cq, int num_entries, struct ibv_wc *wc), cq, num_entries, wc)
TWICE(req_notify_cq, (struct ibv_cq *cq, int solicited_only), cq, solicited_only)

struct scripted scripted = {
	.table = {
		.post_send = table_post_send,
		.post_recv = table_post_recv,
		.post_srq_recv = table_post_srq_recv,
		.poll_cq = table_poll_cq,
		.req_notify_cq = table_req_notify_cq,
	},
};

/* The control functions; each is missing from some build. */

#define MAYBE __attribute__((unused))

static MAYBE struct ibv_mr *reg_mr(enum route route, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct answer answer = take((struct record){
		.verb = REG_MR, .route = route, .object = pd, .addr = addr, .length = length, .access = access,
	});

	reply(answer);
	return answer.mr;
}

static MAYBE int dereg_mr(enum route route, struct ibv_mr *mr)
{
	return reply(take((struct record){ .verb = DEREG_MR, .route = route, .object = mr }));
}

static MAYBE int get_cq_event(enum route route, struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	struct answer answer = take((struct record){ .verb = GET_CQ_EVENT, .route = route, .object = channel });

	*cq = answer.cq;
	*cq_context = POISON;
	return reply(answer);
}

static MAYBE void ack_cq_events(enum route route, struct ibv_cq *cq, unsigned int nevents)
{
	reply(take((struct record){ .verb = ACK_CQ_EVENTS, .route = route, .object = cq, .number = nevents }));
}

#undef ibv_reg_mr	/* a macro of newer headers */

#ifndef NO_REG_MR
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return reg_mr(BY_NAME, pd, addr, length, access);
}
#endif

#ifndef NO_DEREG_MR
int ibv_dereg_mr(struct ibv_mr *mr)
{
	return dereg_mr(BY_NAME, mr);
}
#endif

#ifndef NO_GET_CQ_EVENT
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	return get_cq_event(BY_NAME, channel, cq, cq_context);
}
#endif

#ifndef NO_ACK_CQ_EVENTS
void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
{
	ack_cq_events(BY_NAME, cq, nevents);
}
#endif

#ifdef OLD_VERSIONS
#define UNDER_OLD_VERSION(name) __asm__(".symver old_" #name ", ibv_" #name "@IBVERBS_1.0");

UNDER_OLD_VERSION(reg_mr)
struct ibv_mr *old_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return reg_mr(BY_OLD_VERSION, pd, addr, length, access);
}

UNDER_OLD_VERSION(dereg_mr)
int old_dereg_mr(struct ibv_mr *mr)
{
	return dereg_mr(BY_OLD_VERSION, mr);
}

UNDER_OLD_VERSION(get_cq_event)
int old_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	return get_cq_event(BY_OLD_VERSION, channel, cq, cq_context);
}

UNDER_OLD_VERSION(ack_cq_events)
void old_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
{
	ack_cq_events(BY_OLD_VERSION, cq, nevents);
}
#endif
