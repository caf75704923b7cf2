/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * A program of many kinds, over the fake libibverbs. What it finds out it prints; a test reads that, and the trace.
 *
 *   subject WHAT [ARGUMENT]
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "fake.h"

#define need(truth) do { \
	if (!(truth)) { fprintf(stderr, "%s:%d: not so: %s: %m\n", __FILE__, __LINE__, #truth); exit(99); } \
} while (0)

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static char buffer[64];

static struct ibv_context *open_device(int device)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(devices[device]);

	need(context);
	ibv_free_device_list(devices);
	return context;
}

static struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 512, .max_recv_wr = 512, .max_send_sge = 4, .max_recv_sge = 4,
			.max_inline_data = 64 },
	};
	struct ibv_qp_attr to = { .qp_state = IBV_QPS_RTS };
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	need(qp);
	need(!ibv_modify_qp(qp, &to, IBV_QP_STATE));
	return qp;
}

static struct end make_end(struct ibv_context *context)
{
	struct end end = { .context = context };

	end.pd = ibv_alloc_pd(context);
	end.cq = ibv_create_cq(context, 512, NULL, NULL, 0);
	need(end.pd && end.cq);
	end.qp = make_qp(end.pd, end.cq);
	return end;
}

static void free_end(struct end end)
{
	need(!ibv_destroy_qp(end.qp));
	need(!ibv_destroy_cq(end.cq));
	need(!ibv_dealloc_pd(end.pd));
	need(!ibv_close_device(end.context));
}

static int post(struct ibv_qp *qp, uint64_t wr_id, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 16, .lkey = 1 };
	struct ibv_send_wr wr = {
		.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_send_wr *bad;
	int ret = ibv_post_send(qp, &wr, &bad);

	need(!ret || bad == &wr);
	return ret;
}

static void receive(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 64, .lkey = 1 };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad;

	need(!ibv_post_recv(qp, &wr, &bad));
}

static void drain(struct ibv_cq *cq, int count)
{
	struct ibv_wc wc;

	while (count--)
		need(ibv_poll_cq(cq, 1, &wc) == 1);
}

static void send_some(struct end end, int count)
{
	for (int i = 0; i < count; i++)
		need(!post(end.qp, i, IBV_WR_SEND));
	drain(end.cq, count);
}

/* Which entries of a table are not the driver's. */
static void show_table(const char *name, struct ibv_context *context, int driver)
{
	const struct ibv_context_ops *theirs = &fake.tables[driver];
	struct verbs_context *extended = verbs_get_ctx(context);
	static struct verbs_context untouched;

	if (!untouched.create_cq_ex) {
		/* The functions that a context begins with. */
		struct ibv_context *other = fake_open(driver);

		untouched = *verbs_get_ctx(other);
		memset(verbs_get_ctx(other), 0, sizeof(untouched));
	}
	printf("%s:", name);
#define SHOW(op) if (context->ops.op != theirs->op) printf(" " #op)
	SHOW(post_send);
	SHOW(post_recv);
	SHOW(post_srq_recv);
	SHOW(poll_cq);
	SHOW(req_notify_cq);
	if (extended->create_cq_ex != untouched.create_cq_ex)
		printf(" create_cq_ex");
	if (extended->create_qp_ex != untouched.create_qp_ex)
		printf(" create_qp_ex");
	printf("\n");
}

/* What is in the tables after each of the ways to get a context. */
static void tables(const char *argument)
{
	struct ibv_context *context = open_device(0);
	struct ibv_pd *pd;

	(void)argument;
	show_table("ibv_open_device", context, 0);
	ibv_close_device(context);
	context = ibv_import_device(1);
	show_table("ibv_import_device", context, 1);
	ibv_close_device(context);

	context = fake_open(0);
	show_table("another function", context, 0);
	pd = ibv_alloc_pd(context);
	show_table("ibv_alloc_pd", context, 0);
	ibv_close_device(context);
	context = fake_open(0);
	ibv_create_cq(context, 1, NULL, NULL, 0);
	show_table("ibv_create_cq", context, 0);
	pd->context = context = fake_open(1);
	make_qp(pd, NULL);
	show_table("ibv_create_qp", context, 1);
	fake_change(context, 0);
	show_table("the driver changes it", context, 0);
	ibv_create_cq(context, 1, NULL, NULL, 0);
	show_table("ibv_create_cq", context, 0);
}

/* Programs from before IBVERBS_1.1 have other structs. */
__asm__(".symver old_open_device, ibv_open_device@IBVERBS_1.0");
__asm__(".symver old_close_device, ibv_close_device@IBVERBS_1.0");
__asm__(".symver old_alloc_pd, ibv_alloc_pd@IBVERBS_1.0");
void *old_open_device(struct ibv_device *device);
int old_close_device(void *context);
void *old_alloc_pd(void *context);

static void old(const char *argument)
{
	void *context = old_open_device(NULL);

	(void)argument;
	need(context);
	need(old_alloc_pd(context) == context);
	/* Nobody has written into it. */
	need(!old_close_device(context));
	printf("untouched\n");
}

/* Two devices, whose operations are different ones. */
static void two(const char *argument)
{
	struct end ends[2] = { make_end(open_device(0)), make_end(open_device(1)) };

	(void)argument;
	for (int i = 0; i < 6; i++) {
		need(!post(ends[i % 2].qp, i, IBV_WR_SEND));
		printf("request %d: driver %d\n", i, fake.sends.driver);
	}
	drain(ends[0].cq, 3);
	drain(ends[1].cq, 3);
	free_end(ends[0]);
	free_end(ends[1]);
}

/* One device after the other, at the same address. */
static void reopened(const char *argument)
{
	struct ibv_context *first = NULL;

	(void)argument;
	for (int i = 0; i < 4; i++) {
		struct end end = make_end(open_device(i / 2));

		need(!first || end.context == first);
		first = end.context;
		need(!post(end.qp, i, IBV_WR_SEND));
		printf("request %d: driver %d\n", i, fake.sends.driver);
		drain(end.cq, 1);
		free_end(end);
	}
}

/* The driver has other functions some time after the device was opened. */
static void changed(const char *argument)
{
	struct end end = make_end(open_device(0));

	(void)argument;
	need(!post(end.qp, 0, IBV_WR_SEND));
	printf("request 0: driver %d\n", fake.sends.driver);
	fake_change(end.context, 1);
	need(ibv_create_cq(end.context, 1, NULL, NULL, 0));
	need(!post(end.qp, 1, IBV_WR_SEND));
	printf("request 1: driver %d\n", fake.sends.driver);
	drain(end.cq, 2);
	free_end(end);
}

static void never(const char *argument)
{
	(void)argument;
	free_end(make_end(open_device(0)));
}

/* So many posts, and how they end. */
static void posts(const char *argument)
{
	struct end end = make_end(open_device(0));
	struct ibv_wc wc;

	for (int i = 0; i < atoi(argument); i++) {
		int ret = post(end.qp, i, i % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND);

		if (ret)
			printf("post %d: %s\n", i, strerrorname_np(ret));
		else
			need(ibv_poll_cq(end.cq, 1, &wc) == 1 && wc.wr_id == (uint64_t)i);
		if (!ret && wc.status)
			printf("wc %d: %d\n", i, wc.status);
	}
	free_end(end);
}

static void interrupt(int number)
{
	(void)number;
}

/* The same, with a signal a thousand times a second that interrupts system calls. */
static void interrupted(const char *argument)
{
	struct sigaction action = { .sa_handler = interrupt };
	struct itimerval often = { .it_interval.tv_usec = 1000, .it_value.tv_usec = 1000 };

	need(!sigaction(SIGALRM, &action, NULL));
	need(!setitimer(ITIMER_REAL, &often, NULL));
	posts(argument);
}

/* Twenty posts to one queue pair and then to another, whose numbers are known. */
static void pairs(const char *argument)
{
	struct end end = make_end(open_device(0));
	struct ibv_qp *qps[2] = { end.qp, make_qp(end.pd, end.cq) };

	(void)argument;
	for (int i = 0; i < 40; i++)
		if (post(qps[i / 20], i, IBV_WR_SEND))
			printf("post %d\n", i);
}

/* Lists of five, so that a fault is in the middle of one. */
static void lists(const char *argument)
{
	struct end end = make_end(open_device(0));
	struct ibv_send_wr wrs[5], *bad;
	struct ibv_wc wc;

	(void)argument;
	for (int round = 0; round < 2; round++) {
		int ret;

		for (int i = 0; i < 5; i++)
			wrs[i] = (struct ibv_send_wr) {
				.wr_id = 10 * round + i, .next = i < 4 ? &wrs[i + 1] : NULL, .opcode = IBV_WR_SEND,
				.send_flags = IBV_SEND_SIGNALED,
			};
		ret = ibv_post_send(end.qp, wrs, &bad);
		printf("%s", ret ? strerrorname_np(ret) : "0");
		if (ret)
			printf(" at %d", (int)(bad - wrs));
		printf(", driver got %u:", fake.sends.count);
		for (unsigned int i = 0; i < fake.sends.count; i++)
			printf(" %d", (int)fake.sends.wr_ids[i]);
		printf("\n");
		while (ibv_poll_cq(end.cq, 1, &wc) == 1)
			;
	}
	free_end(end);
}

/* Batches of three through struct ibv_qp_ex, of which the argument-th is aborted by the program. */
static void batches(const char *argument)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 64, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ,
	};
	struct ibv_context *context = open_device(0);
	struct ibv_qp_attr to = { .qp_state = IBV_QPS_RTS };
	struct ibv_qp_ex *ex;
	struct ibv_wc wc;

	attr.pd = ibv_alloc_pd(context);
	attr.send_cq = attr.recv_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	need(qp);
	need(!ibv_modify_qp(qp, &to, IBV_QP_STATE));
	ex = ibv_qp_to_qp_ex(qp);
	need(ex && ibv_qp_to_qp_ex(qp) == ex);
	for (int i = 0; i < 4; i++) {
		unsigned int before = fake.sends.requests;

		ibv_wr_start(ex);
		ex->wr_id = 10 * i;
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(ex);
		ibv_wr_set_sge(ex, 1, (uintptr_t)buffer, 16);
		ex->wr_id = 10 * i + 1;
		ex->wr_flags = 0;
		ibv_wr_rdma_write(ex, 0x44, 0x5000);
		ibv_wr_set_sge(ex, 1, (uintptr_t)buffer, 32);
		ex->wr_id = 10 * i + 2;
		ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
		ibv_wr_send_imm(ex, htobe32(0x1234));
		ibv_wr_set_inline_data(ex, buffer, 8);
		if (i == atoi(argument)) {
			ibv_wr_abort(ex);
			printf("batch %d: aborted, driver took %u\n", i, fake.sends.requests - before);
		} else {
			int ret = ibv_wr_complete(ex);

			printf("batch %d: %s, driver took %u\n", i, ret ? strerrorname_np(ret) : "0", fake.sends.requests - before);
		}
		while (ibv_poll_cq(attr.send_cq, 1, &wc) == 1)
			printf("wc %d: %d\n", (int)wc.wr_id, wc.status);
	}
	need(!ibv_destroy_qp(qp));
}

/* The rules, where requests come through struct ibv_qp_ex. */
static void break_rules(struct ibv_qp_ex *ex, struct ibv_mr *mr, size_t inline_bytes, uint32_t bytes)
{
	static char data[128];

	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_INLINE;
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, data, inline_bytes);
	ex->wr_id = 2;
	ex->wr_flags = 0;
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)mr->addr, bytes);
	need(!ibv_wr_complete(ex));
}

static void batch_rules(const char *argument)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 64, .max_send_sge = 1, .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_context *context = open_device(0);
	struct ibv_qp_attr to = { .qp_state = IBV_QPS_RTS };
	struct ibv_mr *mr;
	struct ibv_qp *qp;

	attr.pd = ibv_alloc_pd(context);
	attr.send_cq = attr.recv_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	need(qp = ibv_create_qp_ex(context, &attr));
	need(!ibv_modify_qp(qp, &to, IBV_QP_STATE));
	need(mr = ibv_reg_mr(attr.pd, buffer, sizeof(buffer), 0));
	if (!strcmp(argument, "broken"))
		break_rules(ibv_qp_to_qp_ex(qp), mr, 65, sizeof(buffer) + 1);
	else
		break_rules(ibv_qp_to_qp_ex(qp), mr, 64, sizeof(buffer));
}

/* Posts of buffers inside and outside of regions that were made in all ways; each wrong one on a new queue pair. */
static void regions(const char *argument)
{
	struct end end = make_end(open_device(0));
	bool broken = !strcmp(argument, "broken");
	struct {
		struct ibv_mr *mr;
		uint64_t first;
		uint64_t length;
	} made[] = {
		{ ibv_reg_mr(end.pd, buffer, 40, 0), (uintptr_t)buffer, 40 },
		{ ibv_reg_mr_iova(end.pd, buffer, 40, 0x7000, 0), 0x7000, 40 },
		{ ibv_reg_mr_iova2(end.pd, buffer, 40, 0, IBV_ACCESS_RELAXED_ORDERING), 0, 40 },
		{ ibv_reg_dmabuf_mr(end.pd, 0x100, 40, 0x9000, 5, 0), 0x9000, 40 },
		/* Used by offsets: nobody looks at those. */
		{ ibv_reg_mr(end.pd, buffer, 40, IBV_ACCESS_ZERO_BASED), 0, SIZE_MAX },
		/* As a whole process with on-demand paging. */
		{ ibv_reg_mr(end.pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND), 0, SIZE_MAX },
	};
	struct ibv_sge sges[4];
	struct ibv_send_wr wr = { .sg_list = sges, .opcode = IBV_WR_SEND }, *bad;

	for (size_t i = 0; i < sizeof(made) / sizeof(*made); i++) {
		uint32_t lkey = made[i].mr->lkey;
		uint64_t end_of_it = made[i].first + made[i].length;

		wr.wr_id = i;
		wr.num_sge = 4;
		sges[0] = (struct ibv_sge) { made[i].first, 1, lkey };
		sges[1] = (struct ibv_sge) { end_of_it - 40, 40, lkey };
		/* Nothing is nowhere, and nobody knows what this key is. */
		sges[2] = (struct ibv_sge) { end_of_it + 1000, 0, lkey };
		sges[3] = (struct ibv_sge) { end_of_it + 1000, 8, 0x7777 };
		need(!ibv_post_send(end.qp, &wr, &bad));
		if (broken && made[i].length != SIZE_MAX) {
			sges[1].length++;
			need(!ibv_post_send(make_qp(end.pd, end.cq), &wr, &bad));
		}
	}
	/* What it covers now nobody has followed. */
	need(!ibv_rereg_mr(made[0].mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, buffer, 64, 0));
	sges[0] = (struct ibv_sge) { (uintptr_t)buffer, 64, made[0].mr->lkey };
	wr.num_sge = 1;
	need(!ibv_post_send(end.qp, &wr, &bad));
}

/* Completions through struct ibv_cq_ex, which tells the number of the queue pair if the argument says so. */
static void extended(const char *argument)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 64, .wc_flags = strcmp(argument, "qp_num") ? 0 : IBV_WC_EX_WITH_QP_NUM };
	struct ibv_context *context = open_device(0);
	struct ibv_poll_cq_attr poll = { 0 };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_qp *qps[2];

	need(cq);
	for (int i = 0; i < 2; i++)
		qps[i] = make_qp(pd, ibv_cq_ex_to_cq(cq));
	need(ibv_start_poll(cq, &poll) == ENOENT);
	for (int i = 0; i < 3; i++) {
		receive(qps[1], 0x100 + i);
		need(!post(qps[0], i, IBV_WR_SEND));
		fake_arrive(qps[1], 16, IBV_WC_SUCCESS);
	}
	fake_fail_next(IBV_WC_RETRY_EXC_ERR);
	need(!post(qps[0], 3, IBV_WR_SEND));
	need(!ibv_start_poll(cq, &poll));
	do
		printf("wr_id %#x: %d\n", (int)cq->wr_id, cq->status);
	while (!ibv_next_poll(cq));
	ibv_end_poll(cq);
	for (int i = 0; i < 2; i++)
		need(!ibv_destroy_qp(qps[i]));
	need(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	need(!ibv_dealloc_pd(pd));
	need(!ibv_close_device(context));
}

/* A shared receive queue of two queue pairs. */
static void shared(const char *argument)
{
	struct end end = make_end(open_device(0));
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(end.pd, &srq_attr);
	struct ibv_qp_init_attr attr = {
		.send_cq = end.cq, .recv_cq = end.cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_send_sge = 1 },
	};
	struct ibv_mr *mr = ibv_reg_mr(end.pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 64, .lkey = mr->lkey };
	struct ibv_qp_attr to = { .qp_state = IBV_QPS_RTS };
	struct ibv_qp *qps[2];

	for (int i = 0; i < 2; i++) {
		need(qps[i] = ibv_create_qp(end.pd, &attr));
		need(!ibv_modify_qp(qps[i], &to, IBV_QP_STATE));
	}
	for (int i = 0; i < 6; i++) {
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;

		need(!ibv_post_srq_recv(srq, &wr, &bad));
	}
	for (int i = 0; i < 4; i++)
		fake_arrive(qps[i % 2], 10 + i, IBV_WC_SUCCESS);
	drain(end.cq, 4);
	/* Two receives are left on it, as always. Without a queue pair nothing comes any more, and the region may go. */
	if (!strcmp(argument, "broken"))
		need(!ibv_dereg_mr(mr));
	for (int i = 0; i < 2; i++)
		need(!ibv_destroy_qp(qps[i]));
	if (!strcmp(argument, "region first"))
		need(!ibv_dereg_mr(mr));
	need(!ibv_destroy_srq(srq));
	if (!*argument)
		need(!ibv_dereg_mr(mr));
	free_end(end);
}

/* Completions of receives on a shared queue, which are told without the number of the queue pair. */
static void shared_extended(const char *argument)
{
	struct ibv_context *context = open_device(0);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 64 };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &cq_attr);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_attr);
	struct ibv_qp_init_attr attr = {
		.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .srq = srq, .qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	struct ibv_poll_cq_attr poll = { 0 };

	(void)argument;
	for (int i = 0; i < 3; i++) {
		struct ibv_recv_wr wr = { .wr_id = i }, *bad;

		need(!ibv_post_srq_recv(srq, &wr, &bad));
		fake_arrive(qp, 16, IBV_WC_SUCCESS);
	}
	need(!ibv_start_poll(cq, &poll));
	while (!ibv_next_poll(cq))
		;
	ibv_end_poll(cq);
}

/* Requests that complete with an error, of which the program takes the first and then gives up. */
static void failing(const char *argument)
{
	struct end end = make_end(open_device(0));
	struct ibv_mr *mr = ibv_reg_mr(end.pd, buffer, sizeof(buffer), 0);
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 16, .lkey = mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_send_wr *bad;

	if (!strcmp(argument, "failing"))
		fake_fail_next(IBV_WC_RETRY_EXC_ERR);
	for (int i = 0; i < 3; i++, wr.wr_id++)
		need(!ibv_post_send(end.qp, &wr, &bad));
	drain(end.cq, 1);
	need(!ibv_dereg_mr(mr));
	need(!ibv_destroy_qp(end.qp));
	end.qp = make_qp(end.pd, end.cq);
	if (!strcmp(argument, "failing"))
		fake_fail_next(IBV_WC_RETRY_EXC_ERR);
	for (int i = 0; i < 3; i++)
		need(!post(end.qp, 10 + i, IBV_WR_SEND));
	drain(end.cq, 3);
}

/* A send queue, with nothing signaled on it, of a queue pair in this state. */
static void unsignaled(const char *argument)
{
	struct end end = make_end(open_device(0));
	struct ibv_qp_attr to = { .qp_state = !strcmp(argument, "error") ? IBV_QPS_ERR : IBV_QPS_SQD };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;

	need(!ibv_modify_qp(end.qp, &to, IBV_QP_STATE));
	for (int i = 0; i < 512; i++)
		need(!ibv_post_send(end.qp, &wr, &bad));
	free_end(end);
}

/* What happens in another thread before this one knows that its object is gone. */
static struct end other;
static struct ibv_mr *other_mr;
static void others_region(void)
{
	need(other_mr = ibv_reg_mr(other.pd, buffer, sizeof(buffer), 0));
}
static void others_queue_pair(void)
{
	other.qp = make_qp(other.pd, other.cq);
	need(!post(other.qp, 0x77, IBV_WR_SEND));
}

/* Keys and numbers that are another object's at once; or the object is still there. */
static void reused(const char *argument)
{
	struct end end = other = make_end(open_device(0));
	struct ibv_mr *mr = ibv_reg_mr(end.pd, buffer, sizeof(buffer), 0);
	uint32_t lkey = mr->lkey;
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 16, .lkey = lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_send_wr *bad;

	if (!strcmp(argument, "key")) {
		fake.next_key = lkey;
		fake.meanwhile = others_region;
		need(!ibv_dereg_mr(mr));
		need(other_mr->lkey == lkey);
	} else if (!strcmp(argument, "key of a changed one")) {
		other_mr = ibv_reg_mr(end.pd, buffer, 1, 0);
		need(!ibv_dereg_mr(mr));
		fake.next_key = lkey;
		need(!ibv_rereg_mr(other_mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, buffer, sizeof(buffer), 0));
	} else if (!strcmp(argument, "region that stays")) {
		fake.end_result = EBUSY;
		need(ibv_dereg_mr(mr) == EBUSY);
	} else if (!strcmp(argument, "number")) {
		fake.next_number = end.qp->qp_num;
		fake.meanwhile = others_queue_pair;
		need(!ibv_destroy_qp(end.qp));
		end.qp = other.qp;
		drain(end.cq, 1);
	} else {
		need(!post(end.qp, 0x77, IBV_WR_SEND));
		drain(end.cq, 1);
		receive(end.qp, 0x78);
		fake.end_result = EBUSY;
		need(ibv_destroy_qp(end.qp) == EBUSY);
		fake_arrive(end.qp, 16, IBV_WC_SUCCESS);
		drain(end.cq, 1);
	}
	need(!ibv_post_send(end.qp, &wr, &bad));
	drain(end.cq, 1);
	free_end(end);
}

/* Kilobytes of memory that are in use. */
static long memory(void)
{
	FILE *statm = fopen("/proc/self/statm", "r");
	long pages;

	need(statm && fscanf(statm, "%*d %ld", &pages) == 1);
	fclose(statm);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* So many queue pairs, one after the other. */
static void churn(const char *argument)
{
	struct end end = make_end(open_device(0));
	long before = memory();

	for (int i = 0; i < atoi(argument); i++) {
		struct ibv_qp *qp = make_qp(end.pd, end.cq);

		for (int j = 0; j < 3; j++) {
			receive(qp, j);
			need(!post(qp, j, IBV_WR_SEND));
			fake_arrive(qp, 16, IBV_WC_SUCCESS);
		}
		drain(end.cq, 6);
		need(!ibv_destroy_qp(qp));
	}
	printf("%ld\n", (memory() - before) * 1024 / atoi(argument));
	free_end(end);
}

/* So many requests whose completions are taken where nobody sees it. */
static void unseen(const char *argument)
{
	struct end end = make_end(open_device(0));
	long before = memory();
	struct ibv_wc wc;

	for (int i = 0; i < atoi(argument); i++) {
		need(!post(end.qp, i, IBV_WR_SEND));
		need(fake.tables[0].poll_cq(end.cq, 1, &wc) == 1);
	}
	printf("%ld\n", (memory() - before) * 1024 / atoi(argument));
	free_end(end);
}

static struct end late_end;
static void take_down(void)
{
	drain(late_end.cq, 3);
	free_end(late_end);
}

/* Takes everything down in an exit handler. */
static void late(const char *argument)
{
	(void)argument;
	need(!atexit(take_down));
	late_end = make_end(open_device(0));
	for (int i = 0; i < 3; i++)
		need(!post(late_end.qp, i, IBV_WR_SEND));
}

/* Three posts, then a child that posts and ends as the argument says, then two more. */
static void forked(const char *argument)
{
	struct end end = make_end(open_device(0));
	int status;
	pid_t child;

	for (int i = 0; i < 3; i++)
		need(!post(end.qp, i, IBV_WR_SEND));
	fflush(stdout);
	child = fork();
	need(child >= 0);
	if (!child) {
		struct ibv_wc wc;

		errno = 0x7e57;
		for (int i = 0; i < 2; i++)
			need(!post(end.qp, 100 + i, IBV_WR_SEND));
		need(errno == 0x7e57);
		printf("child: driver took %u\n", fake.sends.requests);
		while (ibv_poll_cq(end.cq, 1, &wc) == 1)
			;
		fflush(stdout);
		if (!strcmp(argument, "usr2"))
			raise(SIGUSR2);
		else if (!strcmp(argument, "closes"))
			free_end(end);
		exit(0);
	}
	need(waitpid(child, &status, 0) == child);
	printf("child ended: %d\n", WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
	for (int i = 3; i < 5; i++)
		need(!post(end.qp, i, IBV_WR_SEND));
	printf("driver took %u\n", fake.sends.requests);
	drain(end.cq, 5);
	free_end(end);
}

enum { THREADS = 16 };
static struct end shared_end;
static int rounds;

static void *one_thread(void *number)
{
	struct ibv_cq *cq = ibv_create_cq(shared_end.context, 512, NULL, NULL, 0);
	struct ibv_qp *qp = make_qp(shared_end.pd, cq);

	for (int i = 0; i < rounds; i++) {
		uint64_t wr_id = (uint64_t)(uintptr_t)number << 32 | i;

		receive(qp, wr_id);
		need(!post(qp, wr_id, i % 3 ? IBV_WR_SEND : IBV_WR_RDMA_READ));
		fake_arrive(qp, 32, IBV_WC_SUCCESS);
		drain(cq, 2);
	}
	need(!ibv_destroy_qp(qp));
	need(!ibv_destroy_cq(cq));
	return NULL;
}

/* Sixteen threads, each with a queue pair of its own, do so many rounds of a send and a receive. */
static void threads(const char *argument)
{
	pthread_t ids[THREADS];

	rounds = atoi(argument);
	fake.threads = true;
	shared_end = make_end(open_device(0));
	for (uintptr_t i = 0; i < THREADS; i++)
		need(!pthread_create(&ids[i], NULL, one_thread, (void *)i));
	for (int i = 0; i < THREADS; i++)
		need(!pthread_join(ids[i], NULL));
	free_end(shared_end);
}

/* The same, and in the middle of it the program is killed. */
static void dies(const char *argument)
{
	pthread_t ids[THREADS];

	rounds = 1 << 30;
	fake.threads = true;
	shared_end = make_end(open_device(0));
	for (uintptr_t i = 0; i < THREADS; i++)
		need(!pthread_create(&ids[i], NULL, one_thread, (void *)i));
	while (fake.polls < 2000)
		usleep(1000);
	if (!strcmp(argument, "abort"))
		abort();
	raise(atoi(argument));
}

static volatile sig_atomic_t handled;
static void handle(int number)
{
	(void)number;
	handled++;
}

/* Until there is something in the file, for a while. */
static void wait_for(const char *name, off_t size)
{
	struct stat stat_;

	for (int i = 0; i < 1000; i++) {
		if (!stat(name, &stat_) && stat_.st_size > size)
			return;
		usleep(10000);
	}
	need(!"there should be more in the file");
}

/* SIGUSR2 between posts: the argument is the file of the statistics. */
static void usr2(const char *argument)
{
	struct end end = make_end(open_device(0));
	struct stat stat_;

	send_some(end, 3);
	raise(SIGUSR2);
	wait_for(argument, 0);
	send_some(end, 2);
	need(!stat(argument, &stat_));
	kill(getpid(), SIGUSR2);
	wait_for(argument, stat_.st_size);
	send_some(end, 1);
	free_end(end);
}

/* A program that has a use for the signal, before the device is opened or after. */
static void own_usr2(const char *argument)
{
	struct end end;
	int status;

	if (!strcmp(argument, "before"))
		signal(SIGUSR2, handle);
	end = make_end(open_device(0));
	if (!strcmp(argument, "after"))
		signal(SIGUSR2, handle);
	send_some(end, 3);
	raise(SIGUSR2);
	printf("handled %d\n", (int)handled);
	fflush(stdout);
	if (!fork()) {
		raise(SIGUSR2);
		_exit(handled);
	}
	need(wait(&status) > 0);
	printf("in a child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
	free_end(end);
}

/* Closes what it did not open, and then uses the numbers for a file of its own: the argument. */
static void closes(const char *argument)
{
	struct end end = make_end(open_device(0));
	int first, last;

	send_some(end, 2);
	need(!close_range(3, ~0U, 0));
	first = last = open(argument, O_WRONLY | O_CREAT | O_APPEND, 0600);
	/* Every number that anybody may have had. */
	while (last < 300)
		need((last = dup(first)) >= 0);
	send_some(end, 2);
	for (int fd = first; fd <= last; fd++)
		need(write(fd, ".", 1) == 1);
	free_end(end);
}

/* The same with sockets: nothing comes there at SIGUSR2. */
static void closes_sockets(const char *argument)
{
	struct end end = make_end(open_device(0));
	struct stat stat_;
	int ends[2];

	send_some(end, 2);
	need(!close_range(3, ~0U, 0));
	need(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	for (int last = ends[1]; last < 300;)
		need((last = dup(ends[0])) >= 0);
	need(stat(argument, &stat_) == 0);
	raise(SIGUSR2);
	usleep(200000);
	printf("%s\n", recv(ends[1], &stat_, 1, MSG_DONTWAIT) < 0 ? strerrorname_np(errno) : "something came");
	free_end(end);
}

/* The number that the next file gets. */
static void numbers(const char *argument)
{
	struct end end = make_end(open_device(0));

	(void)argument;
	printf("%d\n", open("/dev/null", O_RDONLY));
	free_end(end);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(const char *argument); } kinds[] = {
		{ "tables", tables }, { "old", old }, { "two", two }, { "reopened", reopened }, { "changed", changed },
		{ "never", never }, { "posts", posts }, { "pairs", pairs }, { "lists", lists }, { "batches", batches },
		{ "extended", extended }, { "shared", shared }, { "forked", forked }, { "threads", threads },
		{ "dies", dies }, { "usr2", usr2 }, { "own_usr2", own_usr2 }, { "closes", closes },
		{ "numbers", numbers }, { "batch_rules", batch_rules }, { "regions", regions },
		{ "shared_extended", shared_extended }, { "failing", failing }, { "unsignaled", unsignaled },
		{ "reused", reused }, { "churn", churn }, { "unseen", unseen }, { "late", late },
		{ "closes_sockets", closes_sockets }, { "interrupted", interrupted },
	};

	need(argc > 1);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		if (!strcmp(argv[1], kinds[i].name)) {
			kinds[i].run(argc > 2 ? argv[2] : "");
			return 0;
		}
	}
	need(!"no such kind");
}
