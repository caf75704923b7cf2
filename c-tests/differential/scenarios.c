/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Calls of the functions of <rdma/rdma_verbs.h>, whichever of the two headers that is, each in a process of its own.
 * For each it prints "= SCENARIO/FUNCTION", what the provider was asked and, as the last line, what the caller saw:
 * the result and errno, or the signal that ended the process.
 *
 *   scenarios [SCENARIO/FUNCTION]   that one, or all
 */

#define _GNU_SOURCE
#include <rdma/rdma_verbs.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device.h"

#if defined(LIBRARY) != defined(LIBRDMA_VERBS_VERSION)
#error "compiled with the wrong one of the two headers"
#endif

enum function {
	RECV = 1 << 0,
	SEND = 1 << 1,
	READ = 1 << 2,
	WRITE = 1 << 3,
	UD_SEND = 1 << 4,
	RECVV = 1 << 5,
	SENDV = 1 << 6,
	READV = 1 << 7,
	WRITEV = 1 << 8,
	GET_SEND_COMP = 1 << 9,
	GET_RECV_COMP = 1 << 10,
	REG_MSGS = 1 << 11,
	REG_READ = 1 << 12,
	REG_WRITE = 1 << 13,
	DEREG = 1 << 14,
	SETERRNO = 1 << 15,

	SIMPLE = RECV | SEND | READ | WRITE | UD_SEND,
	VECTORED = RECVV | SENDV | READV | WRITEV,
	POSTS = SIMPLE | VECTORED,
	RECEIVES = RECV | RECVV,
	SENDS = POSTS & ~RECEIVES,
	/* May be inline: with the bytes copied from where they are, whoever registered it. */
	OUTGOING = SEND | WRITE | UD_SEND,
	CONNECTED = SENDS & ~UD_SEND,
	COMPS = GET_SEND_COMP | GET_RECV_COMP,
	REGS = REG_MSGS | REG_READ | REG_WRITE,
};

static const struct {
	enum function function;
	const char *name;
} functions[] = {
	{ RECV, "rdma_post_recv" },
	{ SEND, "rdma_post_send" },
	{ READ, "rdma_post_read" },
	{ WRITE, "rdma_post_write" },
	{ UD_SEND, "rdma_post_ud_send" },
	{ RECVV, "rdma_post_recvv" },
	{ SENDV, "rdma_post_sendv" },
	{ READV, "rdma_post_readv" },
	{ WRITEV, "rdma_post_writev" },
	{ GET_SEND_COMP, "rdma_get_send_comp" },
	{ GET_RECV_COMP, "rdma_get_recv_comp" },
	{ REG_MSGS, "rdma_reg_msgs" },
	{ REG_READ, "rdma_reg_read" },
	{ REG_WRITE, "rdma_reg_write" },
	{ DEREG, "rdma_dereg_mr" },
	{ SETERRNO, "rdma_seterrno" },
};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* What errno is before each call: no errno that a scenario's provider uses. */
#define BEFORE EXFULL

/* The arguments of the function under test; those that it does not have are ignored. */
static struct {
	enum function function;
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
	int value;
} arg;

static struct rdma_cm_id id;
static struct ibv_sge sgl[3];
static struct ibv_wc wc;

static void good_arguments(enum function function)
{
	device_init();
	dev.datagram = function == UD_SEND;
	if (function == UD_SEND)
		dev.qp.qp_type = IBV_QPT_UD;

	id.verbs = &dev.context;
	id.qp = &dev.qp;
	id.pd = &dev.pd;
	id.send_cq = &dev.send_cq;
	id.recv_cq = &dev.recv_cq;
	id.send_cq_channel = &dev.send_channel;
	id.recv_cq_channel = &dev.recv_channel;
	id.qp_type = dev.qp.qp_type;

	for (size_t i = 0; i < LENGTH(sgl); i++) {
		sgl[i].addr = MEMORY + 0x100 * i;
		sgl[i].length = 0x10 + i;
		sgl[i].lkey = 0xab00 + i;
	}
	memset(&wc, 0xee, sizeof(wc));

	arg.function = function;
	arg.id = &id;
	arg.context = (void *)0x1122334455667788;
	arg.addr = (void *)(MEMORY + 0x40);
	arg.length = 0x123;
	arg.mr = &dev.mr;
	arg.sgl = sgl;
	arg.nsge = 2;
	arg.flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
	arg.remote_addr = 0x99aabbccddeeff01;
	arg.rkey = 0x23456789;
	arg.ah = &dev.ah;
	arg.remote_qpn = 0xabcdef;
	arg.wc = &wc;
}

/* Leaves its mark in the memory that the next call has its variables in. */
static __attribute__((noinline)) void dirty_the_stack(void)
{
	volatile unsigned char dirt[16384];

	for (size_t i = 0; i < sizeof(dirt); i++)
		dirt[i] = 0xa5;
}

static void print_result(int result, int err)
{
	printf("%d %s", result, err == BEFORE ? "errno kept" : errno_name(err));
	puts(dev.garbage ? ", undefined bytes" : "");
}

static void print_region(const struct ibv_mr *mr, int err)
{
	printf("%s ", mr == &dev.mr ? "mr" : mr ? "unknown" : "NULL");
	puts(err == BEFORE ? "errno kept" : errno_name(err));
}

static void print_completion(void)
{
	const unsigned char *bytes = (const void *)&wc;

	printf("wc ");
	for (size_t i = 0; i < sizeof(wc); i++)
		printf("%02x", bytes[i]);
	putchar('\n');
}

static __attribute__((noinline)) void call_function(void)
{
	struct ibv_mr *region = NULL;
	int result = 0;
	int err;

	errno = BEFORE;
	switch (arg.function) {
	case RECV:
		result = rdma_post_recv(arg.id, arg.context, arg.addr, arg.length, arg.mr);
		break;
	case SEND:
		result = rdma_post_send(arg.id, arg.context, arg.addr, arg.length, arg.mr, arg.flags);
		break;
	case READ:
		result = rdma_post_read(arg.id, arg.context, arg.addr, arg.length, arg.mr, arg.flags, arg.remote_addr,
					arg.rkey);
		break;
	case WRITE:
		result = rdma_post_write(arg.id, arg.context, arg.addr, arg.length, arg.mr, arg.flags, arg.remote_addr,
					 arg.rkey);
		break;
	case UD_SEND:
		result = rdma_post_ud_send(arg.id, arg.context, arg.addr, arg.length, arg.mr, arg.flags, arg.ah,
					   arg.remote_qpn);
		break;
	case RECVV:
		result = rdma_post_recvv(arg.id, arg.context, arg.sgl, arg.nsge);
		break;
	case SENDV:
		result = rdma_post_sendv(arg.id, arg.context, arg.sgl, arg.nsge, arg.flags);
		break;
	case READV:
		result = rdma_post_readv(arg.id, arg.context, arg.sgl, arg.nsge, arg.flags, arg.remote_addr, arg.rkey);
		break;
	case WRITEV:
		result = rdma_post_writev(arg.id, arg.context, arg.sgl, arg.nsge, arg.flags, arg.remote_addr, arg.rkey);
		break;
	case GET_SEND_COMP:
		result = rdma_get_send_comp(arg.id, arg.wc);
		break;
	case GET_RECV_COMP:
		result = rdma_get_recv_comp(arg.id, arg.wc);
		break;
	case REG_MSGS:
		region = rdma_reg_msgs(arg.id, arg.addr, arg.length);
		break;
	case REG_READ:
		region = rdma_reg_read(arg.id, arg.addr, arg.length);
		break;
	case REG_WRITE:
		region = rdma_reg_write(arg.id, arg.addr, arg.length);
		break;
	case DEREG:
		result = rdma_dereg_mr(arg.mr);
		break;
	case SETERRNO:
		result = rdma_seterrno(arg.value);
		break;
	default:
		abort();
	}
	err = errno;

	if (!device_done())
		puts("the provider was not asked all that the scenario has");
	if (arg.function & COMPS)
		print_completion();
	if (arg.function & REGS)
		print_region(region, err);
	else
		print_result(result, err);
}

static void call(void)
{
	dirty_the_stack();
	call_function();
}

/* The script of one scenario: which verbs are called, in this order, and what they answer. */
#define SCRIPT(...) (dev.script = (const struct step[]){ __VA_ARGS__, { .verb = END } })

/* What a post ends in, whichever it is. */
static enum verb post_verb(void)
{
	if (arg.function & SENDS)
		return POST_SEND;
	return id.srq ? POST_SRQ_RECV : POST_RECV;
}

static void post(int result, int err)
{
	SCRIPT({ .verb = post_verb(), .result = result, .err = err });
	call();
}

/* A call that the library refuses. Where one of the two passes it on, the provider takes it. */
static void refused(void)
{
	SCRIPT({ .verb = post_verb() });
	call();
}

/*
 * Posts: what the provider answers.
 */
static void success(void)
{
	post(0, 0);
}

static void success_with_errno(void)
{
	post(0, EAGAIN);
}

static void success_with_shared_queue(void)
{
	id.srq = &dev.srq;
	post(0, 0);
}

static void shared_queue_without_qp(void)
{
	id.srq = &dev.srq;
	id.qp = NULL;
	post(0, 0);
}

static void shared_queue_of_both(void)
{
	id.srq = &dev.srq;
	dev.qp.srq = &dev.srq;
	post(0, 0);
}

static void send_with_shared_queue(void)
{
	id.srq = &dev.srq;
	dev.qp.srq = &dev.srq;
	post(0, 0);
}

static void failure_then_success(void)
{
	post(ENOMEM, 0);
	post(0, 0);
}

static void answer_enomem(void)
{
	post(ENOMEM, 0);
}

static void answer_einval(void)
{
	post(EINVAL, 0);
}

static void answer_4095(void)
{
	post(4095, 0);
}

static void answer_int_max(void)
{
	post(INT_MAX, 0);
}

static void answer_with_other_errno(void)
{
	post(EINVAL, EAGAIN);
}

static void answer_negative_enomem(void)
{
	post(-ENOMEM, 0);
}

static void answer_negative_einval(void)
{
	post(-EINVAL, EAGAIN);
}

static void answer_negative_4095(void)
{
	post(-4095, 0);
}

static void answer_int_min(void)
{
	post(INT_MIN, 0);
}

static void answer_minus_one(void)
{
	post(-1, 0);
}

static void answer_minus_one_with_errno(void)
{
	post(-1, ENOBUFS);
}

static void answer_minus_one_with_negative_errno(void)
{
	post(-1, -ENOBUFS);
}

static void shared_queue_answer_enomem(void)
{
	id.srq = &dev.srq;
	post(ENOMEM, 0);
}

static void shared_queue_answer_negative(void)
{
	id.srq = &dev.srq;
	post(-ENOMEM, 0);
}

static void shared_queue_answer_minus_one(void)
{
	id.srq = &dev.srq;
	post(-1, 0);
}

static void no_operation(void)
{
	dev.context.ops.post_send = NULL;
	dev.context.ops.post_recv = NULL;
	refused();
}

static void no_operation_for_shared_queue(void)
{
	id.srq = &dev.srq;
	dev.context.ops.post_srq_recv = NULL;
	refused();
}

static void undefined_bytes(void)
{
	dev.look_for_garbage = 1;
	post(0, 0);
}

/*
 * Posts: arguments that are passed on.
 */
static void context_null(void)
{
	arg.context = NULL;
	post(0, 0);
}

static void context_all_ones(void)
{
	arg.context = (void *)UINTPTR_MAX;
	post(0, 0);
}

static void no_flags(void)
{
	arg.flags = 0;
	post(0, 0);
}

static void flags_unknown(void)
{
	arg.flags = INT_MIN | 0x7fff0000;
	post(0, 0);
}

static void remote_zero(void)
{
	arg.remote_addr = 0;
	arg.rkey = 0;
	post(0, 0);
}

static void remote_all_ones(void)
{
	arg.remote_addr = UINT64_MAX;
	arg.rkey = UINT32_MAX;
	post(0, 0);
}

static void qpn_all_ones(void)
{
	arg.remote_qpn = UINT32_MAX;
	post(0, 0);
}

static void key_all_ones(void)
{
	dev.mr.lkey = UINT32_MAX;
	post(0, 0);
}

static void inline_data(void)
{
	arg.flags |= IBV_SEND_INLINE;
	post(0, 0);
}

static void inline_without_region(void)
{
	arg.flags |= IBV_SEND_INLINE;
	arg.mr = NULL;
	post(0, 0);
}

static void inline_outside_region(void)
{
	arg.flags |= IBV_SEND_INLINE;
	dev.mr.length = 0x100;
	post(0, 0);
}

static void inline_of_nothing(void)
{
	arg.flags |= IBV_SEND_INLINE;
	arg.addr = NULL;
	arg.length = 0;
	arg.mr = NULL;
	post(0, 0);
}

static void inline_null(void)
{
	arg.flags |= IBV_SEND_INLINE;
	arg.addr = NULL;
	refused();
}

/* The flag means nothing to a read. */
static void inline_read(void)
{
	arg.flags |= IBV_SEND_INLINE;
	post(0, 0);
}

static void no_entries(void)
{
	arg.nsge = 0;
	post(0, 0);
}

static void no_entries_no_list(void)
{
	arg.sgl = NULL;
	arg.nsge = 0;
	post(0, 0);
}

static void one_entry(void)
{
	arg.nsge = 1;
	post(0, 0);
}

static void three_entries(void)
{
	arg.nsge = 3;
	post(0, 0);
}

static void too_many_entries(void)
{
	arg.nsge = 3;
	post(EINVAL, 0);
}

static void entry_of_all_ones(void)
{
	memset(&sgl[1], 0xff, sizeof(sgl[1]));
	post(0, 0);
}

static void vector_inline(void)
{
	arg.flags |= IBV_SEND_INLINE;
	post(0, 0);
}

static void negative_count(void)
{
	arg.nsge = -1;
	refused();
}

static void negative_count_int_min(void)
{
	arg.nsge = INT_MIN;
	refused();
}

static void negative_count_no_list(void)
{
	arg.sgl = NULL;
	arg.nsge = -1;
	refused();
}

static void no_list(void)
{
	arg.sgl = NULL;
	refused();
}

/*
 * Posts: lengths and ranges.
 */
static void length_0(void)
{
	arg.length = 0;
	post(0, 0);
}

static void length_0_without_region(void)
{
	arg.length = 0;
	arg.mr = NULL;
	post(0, 0);
}

static void length_0_of_null(void)
{
	arg.addr = NULL;
	arg.length = 0;
	post(0, 0);
}

static void length_0_past_region(void)
{
	arg.addr = (void *)(MEMORY + MEMORY_SIZE + 1);
	arg.length = 0;
	post(0, 0);
}

static void length_0_at_end_of_region(void)
{
	arg.addr = (void *)(MEMORY + MEMORY_SIZE);
	arg.length = 0;
	post(0, 0);
}

static void length_all(void)
{
	arg.addr = (void *)MEMORY;
	arg.length = MEMORY_SIZE;
	post(0, 0);
}

static void length_1_first(void)
{
	arg.addr = (void *)MEMORY;
	arg.length = 1;
	post(0, 0);
}

static void length_1_last(void)
{
	arg.addr = (void *)(MEMORY + MEMORY_SIZE - 1);
	arg.length = 1;
	post(0, 0);
}

static void length_4g_less_1(void)
{
	dev.mr.length = 1UL << 40;
	arg.length = UINT32_MAX;
	post(0, 0);
}

static void length_4g(void)
{
	dev.mr.length = 1UL << 40;
	arg.length = 1UL << 32;
	refused();
}

static void length_4g_and_16(void)
{
	dev.mr.length = 1UL << 40;
	arg.length = (1UL << 32) + 16;
	refused();
}

static void length_4g_inline(void)
{
	arg.flags |= IBV_SEND_INLINE;
	arg.length = (1UL << 32) + 16;
	refused();
}

/* An int of -1 that became a size_t on its way. */
static void length_minus_1(void)
{
	arg.length = SIZE_MAX;
	refused();
}

static void no_region(void)
{
	arg.mr = NULL;
	refused();
}

static void starts_before_region(void)
{
	arg.addr = (void *)(MEMORY - 1);
	refused();
}

static void ends_after_region(void)
{
	arg.addr = (void *)(MEMORY + MEMORY_SIZE - 0x122);
	refused();
}

static void contains_region(void)
{
	arg.addr = (void *)(MEMORY - 0x10);
	arg.length = MEMORY_SIZE + 0x20;
	refused();
}

static void wraps_around(void)
{
	arg.addr = (void *)(UINTPTR_MAX - 0x10);
	refused();
}

static void wraps_around_in_whole_region(void)
{
	dev.mr.addr = NULL;
	dev.mr.length = SIZE_MAX;
	arg.addr = (void *)(UINTPTR_MAX - 0x10);
	refused();
}

/* Addresses count from the region's iova, which is not its address here. */
static void iova_below_region(void)
{
	arg.addr = (void *)0x40;
	post(0, 0);
}

static void iova_above_region(void)
{
	arg.addr = (void *)(MEMORY << 4);
	post(0, 0);
}

static void iova_touches_region(void)
{
	arg.addr = (void *)(MEMORY + MEMORY_SIZE);
	post(0, 0);
}

static void implicit_region(void)
{
	dev.mr.addr = NULL;
	dev.mr.length = SIZE_MAX;
	post(0, 0);
}

static void empty_region(void)
{
	dev.mr.length = 0;
	post(0, 0);
}

/*
 * Posts: the id and its objects.
 */
static void null_id(void)
{
	arg.id = NULL;
	refused();
}

static void null_id_and_all(void)
{
	enum function function = arg.function;

	memset(&arg, 0, sizeof(arg));
	arg.function = function;
	refused();
}

static void no_queue(void)
{
	id.qp = NULL;
	refused();
}

static void no_context(void)
{
	dev.qp.context = NULL;
	refused();
}

static void no_context_of_shared_queue(void)
{
	id.srq = &dev.srq;
	dev.srq.context = NULL;
	refused();
}

static void shared_queue_of_qp_only(void)
{
	dev.qp.srq = &dev.srq;
	refused();
}

#define STATE(name, value, how)			\
	static void name(void)			\
	{					\
		dev.qp.state = value;		\
		how;				\
	}
STATE(state_reset, IBV_QPS_RESET, refused())
STATE(state_init, IBV_QPS_INIT, refused())
STATE(state_rtr, IBV_QPS_RTR, refused())
STATE(state_rts, IBV_QPS_RTS, post(0, 0))
STATE(state_sqd, IBV_QPS_SQD, post(0, 0))
STATE(state_sqe, IBV_QPS_SQE, post(0, 0))
STATE(state_err, IBV_QPS_ERR, post(0, 0))
STATE(state_unknown, IBV_QPS_UNKNOWN, post(0, 0))
STATE(state_beyond, 0x7fffffff, post(0, 0))
STATE(state_init_receive, IBV_QPS_INIT, post(0, 0))
STATE(state_reset_receive, IBV_QPS_RESET, post(0, 0))
STATE(state_rtr_receive, IBV_QPS_RTR, post(0, 0))
STATE(state_err_receive, IBV_QPS_ERR, post(0, 0))

static void state_init_iwarp(void)
{
	dev.device.transport_type = IBV_TRANSPORT_IWARP;
	dev.qp.state = IBV_QPS_INIT;
	post(0, 0);
}

static void state_init_unknown_transport(void)
{
	dev.device.transport_type = IBV_TRANSPORT_UNKNOWN;
	dev.qp.state = IBV_QPS_INIT;
	post(0, 0);
}

static void state_init_no_device(void)
{
	dev.context.device = NULL;
	dev.qp.state = IBV_QPS_INIT;
	post(0, 0);
}

#define TYPE(name, value, how)			\
	static void name(void)			\
	{					\
		dev.qp.qp_type = value;		\
		how;				\
	}
TYPE(type_rc, IBV_QPT_RC, post(0, 0))
TYPE(type_uc, IBV_QPT_UC, post(0, 0))
TYPE(type_raw_packet, IBV_QPT_RAW_PACKET, post(0, 0))
TYPE(type_xrc_recv, IBV_QPT_XRC_RECV, post(0, 0))
TYPE(type_driver, IBV_QPT_DRIVER, post(0, 0))
TYPE(type_ud, IBV_QPT_UD, refused())
TYPE(type_xrc_send, IBV_QPT_XRC_SEND, refused())
TYPE(type_ud_receive, IBV_QPT_UD, post(0, 0))
TYPE(type_xrc_send_receive, IBV_QPT_XRC_SEND, post(0, 0))

static void type_rc_no_handle(void)
{
	dev.qp.qp_type = IBV_QPT_RC;
	arg.ah = NULL;
	post(0, 0);
}

static void type_ud_no_handle(void)
{
	arg.ah = NULL;
	refused();
}

/*
 * Registration.
 */
static void reg(struct ibv_mr *mr, int err)
{
	SCRIPT({ .verb = REG_MR, .mr = mr, .err = err });
	call();
}

static void reg_success(void)
{
	reg(&dev.mr, 0);
}

static void reg_success_with_errno(void)
{
	reg(&dev.mr, EAGAIN);
}

static void reg_null(void)
{
	arg.addr = NULL;
	arg.length = 0;
	reg(&dev.mr, 0);
}

static void reg_all(void)
{
	arg.addr = NULL;
	arg.length = SIZE_MAX;
	reg(&dev.mr, 0);
}

static void reg_failure(void)
{
	reg(NULL, ENOMEM);
}

static void reg_failure_without_errno(void)
{
	reg(NULL, 0);
}

static void reg_failure_with_negative_errno(void)
{
	reg(NULL, -ENOMEM);
}

static void reg_no_domain(void)
{
	id.pd = NULL;
	reg(&dev.mr, 0);
}

static void reg_null_id(void)
{
	arg.id = NULL;
	reg(&dev.mr, 0);
}

static void dereg(int result, int err)
{
	SCRIPT({ .verb = DEREG_MR, .result = result, .err = err });
	call();
}

static void dereg_success(void)
{
	dereg(0, 0);
}

static void dereg_success_with_errno(void)
{
	dereg(0, EAGAIN);
}

static void dereg_failure(void)
{
	dereg(EBUSY, 0);
}

static void dereg_failure_negative(void)
{
	dereg(-EBUSY, 0);
}

static void dereg_failure_int_min(void)
{
	dereg(INT_MIN, 0);
}

static void dereg_minus_one(void)
{
	dereg(-1, 0);
}

static void dereg_minus_one_with_errno(void)
{
	dereg(-1, EBUSY);
}

static void dereg_null(void)
{
	arg.mr = NULL;
	dereg(0, 0);
}

/*
 * Completions.
 */
#define FOUND { .verb = POLL_CQ, .result = 1 }
#define EMPTY { .verb = POLL_CQ, .result = 0 }
#define ARMED { .verb = REQ_NOTIFY_CQ, .result = 0 }
#define EVENT { .verb = GET_CQ_EVENT, .cq = own_cq(), .cq_context = &id }

static struct ibv_cq *own_cq(void)
{
	return arg.function == GET_SEND_COMP ? &dev.send_cq : &dev.recv_cq;
}

#define COMP(name, ...)				\
	static void name(void)			\
	{					\
		SCRIPT(__VA_ARGS__);		\
		call();				\
	}

COMP(comp_first_poll, FOUND)
COMP(comp_second_poll, EMPTY, ARMED, FOUND)
COMP(comp_after_event, EMPTY, ARMED, EMPTY, EVENT, FOUND)
COMP(comp_between_event_and_arm, EMPTY, ARMED, EMPTY, EVENT, EMPTY, ARMED, FOUND)
COMP(comp_after_three_events, EMPTY, ARMED, EMPTY, EVENT, EMPTY, ARMED, EMPTY, EVENT, EMPTY, ARMED, EMPTY, EVENT, FOUND)
COMP(comp_with_error_status, { .verb = POLL_CQ, .result = 1, .status = IBV_WC_WR_FLUSH_ERR })
COMP(comp_with_error_status_after_event, EMPTY, ARMED, EMPTY, EVENT,
     { .verb = POLL_CQ, .result = 1, .status = IBV_WC_RETRY_EXC_ERR })
COMP(comp_success_with_errno_of_poll, { .verb = POLL_CQ, .result = 1, .err = EAGAIN })
COMP(comp_success_with_errno_of_arm, EMPTY, { .verb = REQ_NOTIFY_CQ, .err = EAGAIN }, FOUND)
COMP(comp_success_with_errno_of_wait, EMPTY, ARMED, EMPTY,
     { .verb = GET_CQ_EVENT, .err = EINTR, .cq = own_cq(), .cq_context = &id }, FOUND)

#define POLL_FAILS(name, ...)									\
	COMP(name, { .verb = POLL_CQ, __VA_ARGS__ })						\
	COMP(name##_second, EMPTY, ARMED, { .verb = POLL_CQ, __VA_ARGS__ })
POLL_FAILS(comp_poll_minus_one, .result = -1)
POLL_FAILS(comp_poll_minus_one_with_errno, .result = -1, .err = ENOBUFS)
POLL_FAILS(comp_poll_minus_two, .result = -2)
POLL_FAILS(comp_poll_negative, .result = -ENODEV)
POLL_FAILS(comp_poll_int_min, .result = INT_MIN)
POLL_FAILS(comp_poll_stub, .result = EOPNOTSUPP)
POLL_FAILS(comp_poll_two, .result = 2)

#define ARM_FAILS(name, ...) COMP(name, EMPTY, { .verb = REQ_NOTIFY_CQ, __VA_ARGS__ })
ARM_FAILS(comp_arm_failure, .result = ENOMEM)
ARM_FAILS(comp_arm_negative, .result = -ENOMEM)
ARM_FAILS(comp_arm_int_min, .result = INT_MIN)
ARM_FAILS(comp_arm_minus_one, .result = -1)
ARM_FAILS(comp_arm_minus_one_with_errno, .result = -1, .err = ENOBUFS)

#define WAIT_FAILS(name, ...) COMP(name, EMPTY, ARMED, EMPTY, { .verb = GET_CQ_EVENT, __VA_ARGS__ })
WAIT_FAILS(comp_wait_eintr, .result = -1, .err = EINTR)
WAIT_FAILS(comp_wait_eagain, .result = -1, .err = EAGAIN)
WAIT_FAILS(comp_wait_ebadf, .result = -1, .err = EBADF)
WAIT_FAILS(comp_wait_short_read, .result = -1)
WAIT_FAILS(comp_wait_positive, .result = EBADF)
WAIT_FAILS(comp_wait_negative, .result = -EBADF)
COMP(comp_wait_eintr_after_event, EMPTY, ARMED, EMPTY, EVENT, EMPTY, ARMED, EMPTY,
     { .verb = GET_CQ_EVENT, .result = -1, .err = EINTR })

COMP(comp_foreign_event, EMPTY, ARMED, EMPTY, { .verb = GET_CQ_EVENT, .cq = &dev.other_cq, .cq_context = &id }, FOUND)
COMP(comp_foreign_event_then_own, EMPTY, ARMED, EMPTY, { .verb = GET_CQ_EVENT, .cq = &dev.other_cq, .cq_context = &id },
     EMPTY, ARMED, EMPTY, EVENT, FOUND)
COMP(comp_foreign_context, EMPTY, ARMED, EMPTY, { .verb = GET_CQ_EVENT, .cq = own_cq(), .cq_context = &dev }, FOUND)
COMP(comp_event_of_no_queue, EMPTY, ARMED, EMPTY, { .verb = GET_CQ_EVENT, .cq_context = &id }, FOUND)

static void comp_null_id(void)
{
	arg.id = NULL;
	comp_first_poll();
}

static void comp_no_queue(void)
{
	id.send_cq = id.recv_cq = NULL;
	comp_first_poll();
}

static void comp_no_context(void)
{
	own_cq()->context = NULL;
	comp_first_poll();
}

static void comp_null_wc(void)
{
	arg.wc = NULL;
	comp_first_poll();
}

static void comp_no_channel(void)
{
	id.send_cq_channel = id.recv_cq_channel = NULL;
	comp_first_poll();
}

static void comp_no_channel_second_poll(void)
{
	id.send_cq_channel = id.recv_cq_channel = NULL;
	comp_second_poll();
}

static void comp_no_channel_to_wait_on(void)
{
	id.send_cq_channel = id.recv_cq_channel = NULL;
	SCRIPT(EMPTY, ARMED, EMPTY);
	call();
}

static void comp_no_poll(void)
{
	dev.context.ops.poll_cq = NULL;
	comp_first_poll();
}

static void comp_no_arm(void)
{
	dev.context.ops.req_notify_cq = NULL;
	SCRIPT(EMPTY);
	call();
}

/*
 * rdma_seterrno(), which is an inline in both.
 */
#define VALUE(name, v)				\
	static void name(void)			\
	{					\
		arg.value = v;			\
		call();				\
	}
VALUE(seterrno_0, 0)
VALUE(seterrno_positive, EINVAL)
VALUE(seterrno_negative, -EINVAL)
VALUE(seterrno_minus_one, -1)
VALUE(seterrno_int_min, INT_MIN)

#define SCENARIO(play, functions) { #play, play, functions }

static const struct {
	const char *name;
	void (*play)(void);
	unsigned int functions;
} scenarios[] = {
	SCENARIO(success, POSTS),
	SCENARIO(success_with_errno, POSTS),
	SCENARIO(success_with_shared_queue, RECEIVES),
	SCENARIO(shared_queue_without_qp, RECEIVES),
	SCENARIO(shared_queue_of_both, RECEIVES),
	SCENARIO(send_with_shared_queue, SENDS),
	SCENARIO(failure_then_success, POSTS),
	SCENARIO(answer_enomem, POSTS),
	SCENARIO(answer_einval, POSTS),
	SCENARIO(answer_4095, POSTS),
	SCENARIO(answer_int_max, POSTS),
	SCENARIO(answer_with_other_errno, POSTS),
	SCENARIO(answer_negative_enomem, POSTS),
	SCENARIO(answer_negative_einval, POSTS),
	SCENARIO(answer_negative_4095, POSTS),
	SCENARIO(answer_int_min, POSTS),
	SCENARIO(answer_minus_one, POSTS),
	SCENARIO(answer_minus_one_with_errno, POSTS),
	SCENARIO(answer_minus_one_with_negative_errno, POSTS),
	SCENARIO(shared_queue_answer_enomem, RECEIVES),
	SCENARIO(shared_queue_answer_negative, RECEIVES),
	SCENARIO(shared_queue_answer_minus_one, RECEIVES),
	SCENARIO(no_operation, POSTS),
	SCENARIO(no_operation_for_shared_queue, RECEIVES),
	SCENARIO(undefined_bytes, POSTS),

	SCENARIO(context_null, POSTS),
	SCENARIO(context_all_ones, POSTS),
	SCENARIO(no_flags, SENDS),
	SCENARIO(flags_unknown, SENDS),
	SCENARIO(remote_zero, READ | WRITE | READV | WRITEV),
	SCENARIO(remote_all_ones, READ | WRITE | READV | WRITEV),
	SCENARIO(qpn_all_ones, UD_SEND),
	SCENARIO(key_all_ones, SIMPLE),
	SCENARIO(inline_data, OUTGOING),
	SCENARIO(inline_without_region, OUTGOING),
	SCENARIO(inline_outside_region, OUTGOING),
	SCENARIO(inline_of_nothing, OUTGOING),
	SCENARIO(inline_null, OUTGOING),
	SCENARIO(inline_read, READ | READV),
	SCENARIO(no_entries, VECTORED),
	SCENARIO(no_entries_no_list, VECTORED),
	SCENARIO(one_entry, VECTORED),
	SCENARIO(three_entries, VECTORED),
	SCENARIO(too_many_entries, VECTORED),
	SCENARIO(entry_of_all_ones, VECTORED),
	SCENARIO(vector_inline, SENDV | WRITEV),
	SCENARIO(negative_count, VECTORED),
	SCENARIO(negative_count_int_min, VECTORED),
	SCENARIO(negative_count_no_list, VECTORED),
	SCENARIO(no_list, VECTORED),

	SCENARIO(length_0, SIMPLE),
	SCENARIO(length_0_without_region, SIMPLE),
	SCENARIO(length_0_of_null, SIMPLE),
	SCENARIO(length_0_past_region, SIMPLE),
	SCENARIO(length_0_at_end_of_region, SIMPLE),
	SCENARIO(length_all, SIMPLE),
	SCENARIO(length_1_first, SIMPLE),
	SCENARIO(length_1_last, SIMPLE),
	SCENARIO(length_4g_less_1, SIMPLE),
	SCENARIO(length_4g, SIMPLE),
	SCENARIO(length_4g_and_16, SIMPLE),
	SCENARIO(length_4g_inline, OUTGOING),
	SCENARIO(length_minus_1, SIMPLE),
	SCENARIO(no_region, SIMPLE),
	SCENARIO(starts_before_region, SIMPLE),
	SCENARIO(ends_after_region, SIMPLE),
	SCENARIO(contains_region, SIMPLE),
	SCENARIO(wraps_around, SIMPLE),
	SCENARIO(wraps_around_in_whole_region, SIMPLE),
	SCENARIO(iova_below_region, SIMPLE),
	SCENARIO(iova_above_region, SIMPLE),
	SCENARIO(iova_touches_region, SIMPLE),
	SCENARIO(implicit_region, SIMPLE),
	SCENARIO(empty_region, SIMPLE),

	SCENARIO(null_id, POSTS),
	SCENARIO(null_id_and_all, POSTS),
	SCENARIO(no_queue, POSTS),
	SCENARIO(no_context, POSTS),
	SCENARIO(no_context_of_shared_queue, RECEIVES),
	SCENARIO(shared_queue_of_qp_only, RECEIVES),
	SCENARIO(state_reset, SENDS),
	SCENARIO(state_init, SENDS),
	SCENARIO(state_rtr, SENDS),
	SCENARIO(state_rts, SENDS),
	SCENARIO(state_sqd, SENDS),
	SCENARIO(state_sqe, SENDS),
	SCENARIO(state_err, SENDS),
	SCENARIO(state_unknown, SENDS),
	SCENARIO(state_beyond, SENDS),
	SCENARIO(state_reset_receive, RECEIVES),
	SCENARIO(state_init_receive, RECEIVES),
	SCENARIO(state_rtr_receive, RECEIVES),
	SCENARIO(state_err_receive, RECEIVES),
	SCENARIO(state_init_iwarp, SENDS),
	SCENARIO(state_init_unknown_transport, SENDS),
	SCENARIO(state_init_no_device, SENDS),
	SCENARIO(type_rc, POSTS),
	SCENARIO(type_uc, POSTS),
	SCENARIO(type_raw_packet, POSTS),
	SCENARIO(type_xrc_recv, POSTS),
	SCENARIO(type_driver, POSTS),
	SCENARIO(type_ud, CONNECTED),
	SCENARIO(type_xrc_send, SENDS),
	SCENARIO(type_ud_receive, RECEIVES),
	SCENARIO(type_xrc_send_receive, RECEIVES),
	SCENARIO(type_rc_no_handle, UD_SEND),
	SCENARIO(type_ud_no_handle, UD_SEND),

	SCENARIO(reg_success, REGS),
	SCENARIO(reg_success_with_errno, REGS),
	SCENARIO(reg_null, REGS),
	SCENARIO(reg_all, REGS),
	SCENARIO(reg_failure, REGS),
	SCENARIO(reg_failure_without_errno, REGS),
	SCENARIO(reg_failure_with_negative_errno, REGS),
	SCENARIO(reg_no_domain, REGS),
	SCENARIO(reg_null_id, REGS),
	SCENARIO(dereg_success, DEREG),
	SCENARIO(dereg_success_with_errno, DEREG),
	SCENARIO(dereg_failure, DEREG),
	SCENARIO(dereg_failure_negative, DEREG),
	SCENARIO(dereg_failure_int_min, DEREG),
	SCENARIO(dereg_minus_one, DEREG),
	SCENARIO(dereg_minus_one_with_errno, DEREG),
	SCENARIO(dereg_null, DEREG),

	SCENARIO(comp_first_poll, COMPS),
	SCENARIO(comp_second_poll, COMPS),
	SCENARIO(comp_after_event, COMPS),
	SCENARIO(comp_between_event_and_arm, COMPS),
	SCENARIO(comp_after_three_events, COMPS),
	SCENARIO(comp_with_error_status, COMPS),
	SCENARIO(comp_with_error_status_after_event, COMPS),
	SCENARIO(comp_success_with_errno_of_poll, COMPS),
	SCENARIO(comp_success_with_errno_of_arm, COMPS),
	SCENARIO(comp_success_with_errno_of_wait, COMPS),
	SCENARIO(comp_poll_minus_one, COMPS),
	SCENARIO(comp_poll_minus_one_second, COMPS),
	SCENARIO(comp_poll_minus_one_with_errno, COMPS),
	SCENARIO(comp_poll_minus_one_with_errno_second, COMPS),
	SCENARIO(comp_poll_minus_two, COMPS),
	SCENARIO(comp_poll_minus_two_second, COMPS),
	SCENARIO(comp_poll_negative, COMPS),
	SCENARIO(comp_poll_negative_second, COMPS),
	SCENARIO(comp_poll_int_min, COMPS),
	SCENARIO(comp_poll_int_min_second, COMPS),
	SCENARIO(comp_poll_stub, COMPS),
	SCENARIO(comp_poll_stub_second, COMPS),
	SCENARIO(comp_poll_two, COMPS),
	SCENARIO(comp_poll_two_second, COMPS),
	SCENARIO(comp_arm_failure, COMPS),
	SCENARIO(comp_arm_negative, COMPS),
	SCENARIO(comp_arm_int_min, COMPS),
	SCENARIO(comp_arm_minus_one, COMPS),
	SCENARIO(comp_arm_minus_one_with_errno, COMPS),
	SCENARIO(comp_wait_eintr, COMPS),
	SCENARIO(comp_wait_eagain, COMPS),
	SCENARIO(comp_wait_ebadf, COMPS),
	SCENARIO(comp_wait_short_read, COMPS),
	SCENARIO(comp_wait_positive, COMPS),
	SCENARIO(comp_wait_negative, COMPS),
	SCENARIO(comp_wait_eintr_after_event, COMPS),
	SCENARIO(comp_foreign_event, COMPS),
	SCENARIO(comp_foreign_event_then_own, COMPS),
	SCENARIO(comp_foreign_context, COMPS),
	SCENARIO(comp_event_of_no_queue, COMPS),
	SCENARIO(comp_null_id, COMPS),
	SCENARIO(comp_no_queue, COMPS),
	SCENARIO(comp_no_context, COMPS),
	SCENARIO(comp_null_wc, COMPS),
	SCENARIO(comp_no_channel, COMPS),
	SCENARIO(comp_no_channel_second_poll, COMPS),
	SCENARIO(comp_no_channel_to_wait_on, COMPS),
	SCENARIO(comp_no_poll, COMPS),
	SCENARIO(comp_no_arm, COMPS),

	SCENARIO(seterrno_0, SETERRNO),
	SCENARIO(seterrno_positive, SETERRNO),
	SCENARIO(seterrno_negative, SETERRNO),
	SCENARIO(seterrno_minus_one, SETERRNO),
	SCENARIO(seterrno_int_min, SETERRNO),
};

/* Plays a scenario to its end, whatever that is. */
static void play(void (*scenario)(void), enum function function)
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		/* A call that does not come back must not keep the run from ending. */
		alarm(60);
		good_arguments(function);
		scenario();
		exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child) {
		perror("scenarios");
		exit(1);
	}
	if (WIFSIGNALED(status))
		printf("SIG%s\n", sigabbrev_np(WTERMSIG(status)));
	else if (status)
		printf("exit status %d\n", WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
	static const struct rlimit no_core;
	int played = 0;
	char name[128];

	setrlimit(RLIMIT_CORE, &no_core);
	/* All that was said is read even if the call crashes. */
	setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
	for (size_t s = 0; s < LENGTH(scenarios); s++) {
		for (size_t f = 0; f < LENGTH(functions); f++) {
			if (!(scenarios[s].functions & functions[f].function))
				continue;
			snprintf(name, sizeof(name), "%s/%s", scenarios[s].name, functions[f].name);
			if (argc > 1 && strcmp(name, argv[1]))
				continue;
			printf("= %s\n", name);
			play(scenarios[s].play, functions[f].function);
			played++;
		}
	}
	return !played;
}
