/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "suite.h"

struct scripted *script;
enum route data_path_route;
struct fixture fx;
void (*fail_case)(const char *file, int line, const char *text);

static char row_text[256];

int fresh_fixture(void **state)
{
	(void)state;
	memset(&fx, 0, sizeof(fx));
	fx.device.transport_type = IBV_TRANSPORT_IB;
	fx.context.device = &fx.device;
	if (script)
		fx.context.ops = script->table;
	fx.pd.context = &fx.context;
	fx.send_channel.context = &fx.context;
	fx.recv_channel.context = &fx.context;
	fx.send_cq.context = &fx.context;
	fx.send_cq.channel = &fx.send_channel;
	fx.recv_cq.context = &fx.context;
	fx.recv_cq.channel = &fx.recv_channel;
	fx.srq.context = &fx.context;
	fx.srq.pd = &fx.pd;
	fx.qp.context = &fx.context;
	fx.qp.pd = &fx.pd;
	fx.qp.send_cq = &fx.send_cq;
	fx.qp.recv_cq = &fx.recv_cq;
	fx.qp.state = IBV_QPS_RTS;
	fx.qp.qp_type = IBV_QPT_RC;
	fx.ah.context = &fx.context;
	fx.ah.pd = &fx.pd;
	fx.mr.context = &fx.context;
	fx.mr.pd = &fx.pd;
	fx.mr.addr = fx.buffer;
	fx.mr.length = sizeof(fx.buffer);
	fx.mr.lkey = 0xa1b2c3d4;
	fx.mr.rkey = 0x5e6f7081;
	fx.sge.addr = (uintptr_t)fx.buffer;
	fx.sge.length = 128;
	fx.sge.lkey = fx.mr.lkey;
	fx.id.verbs = &fx.context;
	fx.id.context = &fx;
	fx.id.qp = &fx.qp;
	fx.id.pd = &fx.pd;
	fx.id.send_cq_channel = &fx.send_channel;
	fx.id.send_cq = &fx.send_cq;
	fx.id.recv_cq_channel = &fx.recv_channel;
	fx.id.recv_cq = &fx.recv_cq;
	fx.id.ps = RDMA_PS_TCP;
	fx.id.qp_type = IBV_QPT_RC;
	if (script)
		new_script();
	row("%s", "");
	return 0;
}

struct arguments good_arguments(void)
{
	return (struct arguments){
		.id = &fx.id,
		.context = (void *)0x0123456789abcdef,
		.sgl = &fx.sge,
		.nsge = 1,
		.addr = fx.buffer + 64,
		.length = 512,
		.mr = &fx.mr,
		.flags = IBV_SEND_SIGNALED,
		.remote_addr = 0x7766554433221100,
		.rkey = 0x89abcdef,
		.ah = &fx.ah,
		.remote_qpn = 0xabcdef,
		.wc = &fx.wc,
	};
}

/* The functions, in the order of the header. */

#define FUNCTION(function, returned, ...) \
	static void call_##function(const struct arguments *a, struct outcome *o) \
	{ \
		returned(function(__VA_ARGS__)); \
		o->error = errno; \
	}
#define STATUS(expression) (o->status = (expression))
#define REGION(expression) (o->status = (o->region = (expression)) ? 0 : -1)

FUNCTION(rdma_reg_msgs, REGION, a->id, a->addr, a->length)
FUNCTION(rdma_reg_read, REGION, a->id, a->addr, a->length)
FUNCTION(rdma_reg_write, REGION, a->id, a->addr, a->length)
FUNCTION(rdma_dereg_mr, STATUS, a->mr)
FUNCTION(rdma_post_recvv, STATUS, a->id, a->context, a->sgl, a->nsge)
FUNCTION(rdma_post_sendv, STATUS, a->id, a->context, a->sgl, a->nsge, a->flags)
FUNCTION(rdma_post_readv, STATUS, a->id, a->context, a->sgl, a->nsge, a->flags, a->remote_addr, a->rkey)
FUNCTION(rdma_post_writev, STATUS, a->id, a->context, a->sgl, a->nsge, a->flags, a->remote_addr, a->rkey)
FUNCTION(rdma_post_recv, STATUS, a->id, a->context, a->addr, a->length, a->mr)
FUNCTION(rdma_post_send, STATUS, a->id, a->context, a->addr, a->length, a->mr, a->flags)
FUNCTION(rdma_post_read, STATUS, a->id, a->context, a->addr, a->length, a->mr, a->flags, a->remote_addr, a->rkey)
FUNCTION(rdma_post_write, STATUS, a->id, a->context, a->addr, a->length, a->mr, a->flags, a->remote_addr, a->rkey)
FUNCTION(rdma_post_ud_send, STATUS, a->id, a->context, a->addr, a->length, a->mr, a->flags, a->ah, a->remote_qpn)
FUNCTION(rdma_get_send_comp, STATUS, a->id, a->wc)
FUNCTION(rdma_get_recv_comp, STATUS, a->id, a->wc)

#define ROW(function, ...) { .name = #function, .call = call_##function, __VA_ARGS__ }

const struct function functions[15] = {
	ROW(rdma_reg_msgs, .is = REGISTRATION, .access = IBV_ACCESS_LOCAL_WRITE),
	ROW(rdma_reg_read, .is = REGISTRATION, .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ),
	ROW(rdma_reg_write, .is = REGISTRATION, .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
	ROW(rdma_dereg_mr, .is = DEREGISTRATION),
	ROW(rdma_post_recvv, .is = RECEIVE | VECTOR),
	ROW(rdma_post_sendv, .is = SEND_SIDE | VECTOR, .opcode = IBV_WR_SEND),
	ROW(rdma_post_readv, .is = SEND_SIDE | VECTOR | REMOTE, .opcode = IBV_WR_RDMA_READ),
	ROW(rdma_post_writev, .is = SEND_SIDE | VECTOR | REMOTE, .opcode = IBV_WR_RDMA_WRITE),
	ROW(rdma_post_recv, .is = RECEIVE | SIMPLE),
	ROW(rdma_post_send, .is = SEND_SIDE | SIMPLE | INLINE, .opcode = IBV_WR_SEND),
	ROW(rdma_post_read, .is = SEND_SIDE | SIMPLE | REMOTE, .opcode = IBV_WR_RDMA_READ),
	ROW(rdma_post_write, .is = SEND_SIDE | SIMPLE | INLINE | REMOTE, .opcode = IBV_WR_RDMA_WRITE),
	ROW(rdma_post_ud_send, .is = SEND_SIDE | SIMPLE | INLINE | DATAGRAM, .opcode = IBV_WR_SEND),
	ROW(rdma_get_send_comp, .is = COMPLETION, .success = 1),
	ROW(rdma_get_recv_comp, .is = COMPLETION, .success = 1),
};

/* What the library does not write in a request must not be zero by luck. */
static __attribute__((noinline)) void dirty_stack(void)
{
	volatile char garbage[2048];

	for (size_t i = 0; i < sizeof(garbage); i++)
		garbage[i] = (char)0xa5;
}

struct outcome call(const struct function *f, const struct arguments *args, int before)
{
	struct outcome outcome = { 0 };

	dirty_stack();
	errno = before;
	f->call(args, &outcome);
	return outcome;
}

enum verb verb_of(const struct function *f, const struct rdma_cm_id *id)
{
	if (f->is & REGISTRATION)
		return REG_MR;
	if (f->is & DEREGISTRATION)
		return DEREG_MR;
	if (f->is & COMPLETION)
		return POLL_CQ;
	if (f->is & SEND_SIDE)
		return POST_SEND;
	return id->srq ? POST_SRQ_RECV : POST_RECV;
}

void say(enum verb verb, struct answer answer)
{
	check(script->said[verb] < ANSWERS);
	script->answers[verb][script->said[verb]++] = answer;
}

void new_script(void)
{
	memset(script->said, 0, sizeof(script->said));
	memset(script->asked, 0, sizeof(script->asked));
	memset(script->records, 0, sizeof(script->records));
	script->count = 0;
}

void row(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(row_text, sizeof(row_text), format, args);
	va_end(args);
}

void failure(const char *file, int line, const char *format, ...)
{
	char text[768];
	int n = snprintf(text, sizeof(text), "[%s] ", row_text);
	va_list args;

	va_start(args, format);
	vsnprintf(text + n, sizeof(text) - n, format, args);
	va_end(args);
	if (fail_case)
		fail_case(file, line, text);
	fprintf(stderr, "%s:%d: %s\n", file, line, text);
	exit(EXIT_FAILURE);
}

void check_bytes_(const char *file, int line, const char *what, const void *actual, const void *expected, size_t size)
{
	const unsigned char *a = actual, *e = expected;

	for (size_t i = 0; i < size; i++)
		if (a[i] != e[i])
			failure(file, line, "byte %zu of %s is %#x, not %#x", i, what, a[i], e[i]);
}

void check_calls_(const char *file, int line, const char *expected)
{
	static const char *const names[VERBS] = {
		[POST_SEND] = "post_send", [POST_RECV] = "post_recv", [POST_SRQ_RECV] = "post_srq_recv",
		[POLL_CQ] = "poll", [REQ_NOTIFY_CQ] = "arm", [GET_CQ_EVENT] = "wait", [ACK_CQ_EVENTS] = "ack",
		[REG_MR] = "reg", [DEREG_MR] = "dereg",
	};
	char calls[RECORDS * 16] = "";

	for (unsigned int i = 0; i < script->count; i++) {
		const struct record *record = &script->records[i];
		bool data_path = record->verb <= REQ_NOTIFY_CQ;

		if (i)
			strcat(calls, " ");
		strcat(calls, names[record->verb]);
		if (record->route != (data_path ? data_path_route : BY_NAME))
			failure(file, line, "%s was reached by route %d", names[record->verb], record->route);
	}
	if (strcmp(calls, expected))
		failure(file, line, "the calls were \"%s\", not \"%s\"", calls, expected);
}

void check_fails_(const char *file, int line, const struct function *f, const struct arguments *args, int error)
{
	/* Neither the value that it should become nor one that is never right. */
	int before = error == EBUSY ? EBADF : EBUSY;
	struct outcome outcome = call(f, args, before);

	if (outcome.status != -1 || outcome.region)
		failure(file, line, "%s returned %d, not failure", f->name, outcome.status);
	if (outcome.error != error)
		failure(file, line, "%s set errno to %d (%s), not %d (%s)", f->name, outcome.error,
			strerror(outcome.error), error, strerror(error));
}

void check_refused_(const char *file, int line, const struct function *f, const struct arguments *args, int error)
{
	new_script();
	check_fails_(file, line, f, args, error);
	if (script->count)
		failure(file, line, "%s called the provider", f->name);
}

void check_accepted_(const char *file, int line, const struct function *f, const struct arguments *args)
{
	static const char *const calls[VERBS] = {
		[POST_SEND] = "post_send", [POST_RECV] = "post_recv", [POST_SRQ_RECV] = "post_srq_recv",
		[POLL_CQ] = "poll", [REG_MR] = "reg", [DEREG_MR] = "dereg",
	};
	enum verb verb = verb_of(f, args->id);
	struct outcome outcome;

	new_script();
	say(verb, (struct answer){ .result = f->success, .mr = &fx.mr, .error = EBADF });
	outcome = call(f, args, 4242);
	if (outcome.status != f->success)
		failure(file, line, "%s returned %d and set errno to %d (%s)", f->name, outcome.status, outcome.error,
			strerror(outcome.error));
	if (outcome.error != 4242)
		failure(file, line, "%s succeeded and changed errno to %d", f->name, outcome.error);
	check_calls_(file, line, calls[verb]);
}

/* All functions at once. */

void check_all_work(void)
{
	struct arguments args = good_arguments();

	for_each_function(f, ANY) {
		row("%s", f->name);
		check_accepted(f, &args);
	}
	fx.id.srq = &fx.srq;
	for_each_function(f, RECEIVE)
		check_accepted(f, &args);
	fx.id.srq = NULL;
}

/* What a completion that has to be waited for needs. */
static void say_wait(void)
{
	say(POLL_CQ, (struct answer){ 0 });
	say(REQ_NOTIFY_CQ, (struct answer){ 0 });
	say(POLL_CQ, (struct answer){ 0 });
	say(GET_CQ_EVENT, (struct answer){ .cq = &fx.send_cq });
	say(ACK_CQ_EVENTS, (struct answer){ 0 });
	say(POLL_CQ, (struct answer){ .result = 1 });
}

void check_waiting_works(void)
{
	struct arguments args = good_arguments();

	for_each_function(f, COMPLETION) {
		struct outcome outcome;

		row("%s, waiting", f->name);
		new_script();
		say_wait();
		outcome = call(f, &args, 4242);
		check_equal(outcome.status, 1);
		check_equal(outcome.error, 4242);
		check_calls("poll arm poll wait ack poll");
	}
}

void check_waiting_fails(int error)
{
	struct arguments args = good_arguments();

	for_each_function(f, COMPLETION) {
		row("%s, waiting", f->name);
		new_script();
		say_wait();
		check_fails(f, &args, error);
		/* An event that could not be acknowledged is not taken either. */
		check_calls("poll arm poll");
	}
}

void check_control_fails(int error)
{
	struct arguments args = good_arguments();

	for_each_function(f, REGISTRATION | DEREGISTRATION) {
		row("%s", f->name);
		check_refused(f, &args, error);
	}
	check_waiting_fails(error);
}

void check_data_path_works(void)
{
	struct arguments args = good_arguments();

	for_each_function(f, POST | COMPLETION) {
		row("%s", f->name);
		check_accepted(f, &args);
	}
	fx.id.srq = &fx.srq;
	for_each_function(f, RECEIVE)
		check_accepted(f, &args);
	fx.id.srq = NULL;
}

void check_refusals(void)
{
	struct arguments args = { 0 };

	for_each_function(f, ANY)
		check_refused(f, &args, EINVAL);
	args = good_arguments();
	args.nsge = -1;
	args.mr = NULL;
	args.wc = NULL;
	fx.id.pd = NULL;
	for_each_function(f, ANY)
		check_refused(f, &args, EINVAL);
	args = good_arguments();
	fx.qp.state = IBV_QPS_INIT;
	for_each_function(f, SEND_SIDE)
		check_refused(f, &args, ENOTCONN);
	fx.qp.state = IBV_QPS_RTS;
	fx.qp.qp_type = IBV_QPT_XRC_SEND;
	for_each_function(f, SEND_SIDE)
		check_refused(f, &args, EINVAL);
	fresh_fixture(NULL);
}

void check_all_fail(int error)
{
	struct arguments args = good_arguments();

	for_each_function(f, ANY) {
		row("%s", f->name);
		check_refused(f, &args, error);
	}
	fx.id.srq = &fx.srq;
	for_each_function(f, RECEIVE)
		check_refused(f, &args, error);
	fx.id.srq = NULL;
}
