/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Posts as the operations table gets them: lists, of which a part may be refused or fail. To be run under rdma-verbs
 * with the checks on, in whatever combination with the rest.
 */

#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "fake.h"

enum verb { SEND, RECV, SHARED, VERBS };
enum { N = 5, NONE = -1 };

static const char *const names[VERBS] = { "ibv_post_send", "ibv_post_recv", "ibv_post_srq_recv" };
static struct fake_log *const logs[VERBS] = { &fake.sends, &fake.recvs, &fake.shared };

#define for_each_verb(verb) for (enum verb verb = SEND; verb < VERBS; verb++)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_qp *qp, *ud_qp, *srq_qp;
static char buffer[4096];
static struct ibv_mr *mr;

static struct ibv_qp *make_qp(enum ibv_qp_type type, struct ibv_srq *of)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .srq = of, .qp_type = type,
		.cap = { .max_send_wr = 512, .max_recv_wr = 512, .max_send_sge = 4, .max_recv_sge = 4,
			.max_inline_data = 64 },
	};
	struct ibv_qp *made = ibv_create_qp(pd, &attr);
	struct ibv_qp_attr to = { .qp_state = IBV_QPS_RTS };

	assert_non_null(made);
	assert_int_equal(ibv_modify_qp(made, &to, IBV_QP_STATE), 0);
	return made;
}

static int begin(void **state)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 512, .max_sge = 4 } };

	(void)state;
	context = ibv_open_device(devices[0]);
	ibv_free_device_list(devices);
	/* Without it nothing here would be tested. */
	assert_ptr_not_equal(context->ops.post_send, fake.tables[0].post_send);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 1024, NULL, NULL, 0);
	srq = ibv_create_srq(pd, &attr);
	qp = make_qp(IBV_QPT_RC, NULL);
	ud_qp = make_qp(IBV_QPT_UD, NULL);
	srq_qp = make_qp(IBV_QPT_RC, srq);
	mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	return 0;
}

/* All completions of good requests are taken, so that nothing is outstanding at the end. */
static int end(void **state)
{
	struct ibv_wc wc;

	(void)state;
	while (ibv_poll_cq(cq, 1, &wc) == 1)
		;
	ibv_destroy_qp(qp);
	ibv_destroy_qp(ud_qp);
	ibv_destroy_qp(srq_qp);
	ibv_destroy_srq(srq);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	return ibv_close_device(context);
}

/* A list of requests, with what may be wrong with one of them. */
struct list {
	struct ibv_sge sge;
	struct ibv_send_wr sends[N];
	struct ibv_recv_wr recvs[N];
};

static void make(struct list *list)
{
	memset(list, 0, sizeof(*list));
	list->sge = (struct ibv_sge) { .addr = (uintptr_t)buffer, .length = 16, .lkey = mr->lkey };
	for (int i = 0; i < N; i++) {
		list->sends[i] = (struct ibv_send_wr) {
			.wr_id = i, .next = i < N - 1 ? &list->sends[i + 1] : NULL, .sg_list = &list->sge, .num_sge = 1,
			.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		};
		list->recvs[i] = (struct ibv_recv_wr) {
			.wr_id = i, .next = i < N - 1 ? &list->recvs[i + 1] : NULL, .sg_list = &list->sge, .num_sge = 1,
		};
	}
}

static int call(enum verb verb, struct list *list, int *where)
{
	struct ibv_send_wr *bad_send = (void *)0x1;
	struct ibv_recv_wr *bad_recv = (void *)0x1;
	struct list before = *list;
	int ret;

	errno = 0x7e57;
	switch (verb) {
	case SEND:
		ret = ibv_post_send(qp, list->sends, &bad_send);
		*where = ret ? bad_send - list->sends : NONE;
		break;
	case RECV:
		ret = ibv_post_recv(qp, list->recvs, &bad_recv);
		*where = ret ? bad_recv - list->recvs : NONE;
		break;
	default:
		ret = ibv_post_srq_recv(srq, list->recvs, &bad_recv);
		*where = ret ? bad_recv - list->recvs : NONE;
	}
	/* The list is the caller's, as it was. */
	assert_memory_equal(list, &before, sizeof(before));
	/* Upstream's functions pass the result on as errno; here it is both, and after a success errno is untouched. */
	assert_int_equal(errno, ret ? ret : 0x7e57);
	return ret;
}

/* The driver was given the first so many requests of the list. */
static void check_given(enum verb verb, unsigned int calls, unsigned int count)
{
	assert_int_equal(logs[verb]->calls, calls);
	if (calls) {
		assert_int_equal(logs[verb]->count, count);
		for (unsigned int i = 0; i < count; i++)
			assert_int_equal(logs[verb]->wr_ids[i], i);
	}
}

static void forget(void)
{
	for_each_verb(verb)
		memset(logs[verb], 0, sizeof(*logs[verb]));
}

static void a_good_list_is_posted_at_once(void **state)
{
	struct list list;
	int where;

	(void)state;
	for_each_verb(verb) {
		print_message("%s\n", names[verb]);
		forget();
		make(&list);
		assert_int_equal(call(verb, &list, &where), 0);
		check_given(verb, 1, N);
	}
}

static void requests_before_a_refused_one_are_posted(void **state)
{
	struct list list;
	int where;

	(void)state;
	for_each_verb(verb) {
		for (int at = 0; at < N; at++) {
			print_message("%s, at %d\n", names[verb], at);
			forget();
			make(&list);
			list.sends[at].num_sge = -1;
			list.recvs[at].sg_list = NULL;
			assert_int_equal(call(verb, &list, &where), EINVAL);
			assert_int_equal(where, at);
			check_given(verb, at > 0, at);
		}
	}
}

static void of_two_refused_ones_the_first_decides(void **state)
{
	struct list list;
	int where;

	(void)state;
	for_each_verb(verb) {
		forget();
		make(&list);
		list.sends[2].num_sge = list.sends[3].num_sge = -1;
		list.recvs[2].num_sge = list.recvs[3].num_sge = -1;
		assert_int_equal(call(verb, &list, &where), EINVAL);
		assert_int_equal(where, 2);
		check_given(verb, 1, 2);
	}
}

static void a_driver_that_fails_says_where(void **state)
{
	struct list list;
	int where;

	(void)state;
	for_each_verb(verb) {
		for (unsigned int at = 0; at < N; at++) {
			forget();
			make(&list);
			fake.scripted = true;
			fake.good = at;
			fake.result = ENOMEM;
			fake.error = 0;
			assert_int_equal(call(verb, &list, &where), ENOMEM);
			assert_int_equal(where, at);
			assert_int_equal(logs[verb]->requests, at);
		}
	}
}

static void a_driver_that_fails_before_a_refused_one_decides(void **state)
{
	struct list list;
	int where;

	(void)state;
	for_each_verb(verb) {
		forget();
		make(&list);
		list.sends[3].num_sge = list.recvs[3].num_sge = -1;
		fake.scripted = true;
		fake.good = 1;
		fake.result = -EAGAIN;
		fake.error = 0;
		assert_int_equal(call(verb, &list, &where), EAGAIN);
		assert_int_equal(where, 1);
		check_given(verb, 1, 2);
	}
}

static void results_of_the_driver_become_a_positive_errno(void **state)
{
	static const struct { int result, error, expected; } rows[] = {
		{ ENOMEM, 0, ENOMEM },
		{ -ENOMEM, 0, ENOMEM },
		{ EINVAL, EAGAIN, EINVAL },
		{ -1, EAGAIN, EAGAIN },
		{ -1, 0, ENOMEM },
		{ 1, 0, 1 },
		{ INT_MIN, 0, EIO },
	};
	struct list list;
	int where;

	(void)state;
	for_each_verb(verb) {
		for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
			print_message("%s, %d, %d\n", names[verb], rows[i].result, rows[i].error);
			forget();
			make(&list);
			fake.scripted = true;
			fake.good = 2;
			fake.result = rows[i].result;
			fake.error = rows[i].error;
			assert_int_equal(call(verb, &list, &where), rows[i].expected);
			assert_int_equal(where, 2);
		}
	}
}

static void a_driver_that_does_not_say_where(void **state)
{
	struct ibv_send_wr *bad_send = (void *)0x1;
	struct ibv_recv_wr *bad_recv = (void *)0x1;
	struct list list;

	(void)state;
	make(&list);
	fake.silent = true;
	fake.good = 0;
	fake.result = ENOMEM;
	fake.error = 0;
	fake.scripted = true;
	assert_int_equal(ibv_post_send(qp, list.sends, &bad_send), ENOMEM);
	fake.scripted = true;
	assert_int_equal(ibv_post_recv(qp, list.recvs, &bad_recv), ENOMEM);
	fake.silent = false;
	assert_ptr_equal(bad_send, (void *)0x1);
	assert_ptr_equal(bad_recv, (void *)0x1);
}

static void no_request_is_the_drivers_business(void **state)
{
	struct ibv_send_wr *bad_send;
	struct ibv_recv_wr *bad_recv;

	(void)state;
	forget();
	assert_int_equal(ibv_post_send(qp, NULL, &bad_send), 0);
	assert_int_equal(ibv_post_recv(qp, NULL, &bad_recv), 0);
	assert_int_equal(ibv_post_srq_recv(srq, NULL, &bad_recv), 0);
	for_each_verb(verb)
		assert_int_equal(logs[verb]->calls, 1);
}

/* Each refusal, and the nearest request that is none. */

static int send_one(struct ibv_qp *to, struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;

	forget();
	return ibv_post_send(to, &wr, &bad);
}

static void entry_lists(void **state)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 1, .lkey = mr->lkey };

	(void)state;
	assert_int_equal(send_one(qp, (struct ibv_send_wr) { .opcode = IBV_WR_SEND, .num_sge = -1, .sg_list = &sge }), EINVAL);
	assert_int_equal(send_one(qp, (struct ibv_send_wr) { .opcode = IBV_WR_SEND, .num_sge = INT_MIN, .sg_list = &sge }),
		EINVAL);
	assert_int_equal(send_one(qp, (struct ibv_send_wr) { .opcode = IBV_WR_SEND, .num_sge = 1 }), EINVAL);
	assert_int_equal(fake.sends.calls, 0);
	assert_int_equal(send_one(qp, (struct ibv_send_wr) { .opcode = IBV_WR_SEND, .num_sge = 0 }), 0);
	assert_int_equal(fake.sends.calls, 1);
}

static void states(void **state)
{
	static const struct { enum ibv_qp_state state; int expected; } rows[] = {
		{ IBV_QPS_RESET, ENOTCONN }, { IBV_QPS_INIT, ENOTCONN }, { IBV_QPS_RTR, ENOTCONN },
		{ IBV_QPS_RTS, 0 }, { IBV_QPS_SQD, 0 }, { IBV_QPS_SQE, 0 }, { IBV_QPS_ERR, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct ibv_recv_wr recv = { 0 }, *bad;

		qp->state = rows[i].state;
		assert_int_equal(send_one(qp, (struct ibv_send_wr) { .opcode = IBV_WR_SEND }), rows[i].expected);
		assert_int_equal(fake.sends.calls, rows[i].expected == 0);
		/* Receives may come before. */
		assert_int_equal(ibv_post_recv(qp, &recv, &bad), 0);
	}
	qp->state = IBV_QPS_RESET;
	/* Other transports keep no state there. */
	context->device->transport_type = IBV_TRANSPORT_IWARP;
	assert_int_equal(send_one(qp, (struct ibv_send_wr) { .opcode = IBV_WR_SEND }), 0);
	context->device->transport_type = IBV_TRANSPORT_IB;
	qp->state = IBV_QPS_RTS;
}

static void inline_from_null(void **state)
{
	struct ibv_sge sges[2] = { { .addr = (uintptr_t)buffer, .length = 1 }, { .length = 1 } };
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE, .sg_list = sges, .num_sge = 2,
	};

	(void)state;
	assert_int_equal(send_one(qp, wr), EINVAL);
	assert_int_equal(fake.sends.calls, 0);
	sges[1].length = 0;
	assert_int_equal(send_one(qp, wr), 0);
	sges[1].length = 1;
	wr.num_sge = 1;
	assert_int_equal(send_one(qp, wr), 0);
}

static void datagrams(void **state)
{
	struct ibv_ah ah = { .context = context };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };

	(void)state;
	assert_int_equal(send_one(ud_qp, wr), EINVAL);
	wr.opcode = IBV_WR_SEND_WITH_IMM;
	assert_int_equal(send_one(ud_qp, wr), EINVAL);
	assert_int_equal(fake.sends.calls, 0);
	wr.wr.ud.ah = &ah;
	assert_int_equal(send_one(ud_qp, wr), 0);
	/* On a connected one the same bytes mean something else. */
	wr.wr.ud.ah = NULL;
	assert_int_equal(send_one(qp, wr), 0);
}

static void receives_of_a_shared_queue(void **state)
{
	struct ibv_recv_wr wr = { 0 }, *bad;

	(void)state;
	forget();
	assert_int_equal(ibv_post_recv(srq_qp, &wr, &bad), EINVAL);
	assert_ptr_equal(bad, &wr);
	assert_int_equal(fake.recvs.calls, 0);
	assert_int_equal(ibv_post_srq_recv(srq, &wr, &bad), 0);
	assert_int_equal(fake.shared.calls, 1);
}

static void polling_is_the_drivers_business(void **state)
{
	static const int results[] = { 0, -1, -EINVAL, INT_MIN };
	struct ibv_wc wcs[2];

	(void)state;
	while (ibv_poll_cq(cq, 2, wcs) > 0)
		;
	for (size_t i = 0; i < sizeof(results) / sizeof(*results); i++) {
		errno = 0x7e57;
		fake.poll_scripted = true;
		fake.poll_result = results[i];
		assert_int_equal(ibv_poll_cq(cq, 2, wcs), results[i]);
		assert_int_equal(errno, 0x7e57);
	}
	for (int i = 0; i < 3; i++) {
		struct ibv_send_wr wr = { .wr_id = i, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED };

		assert_int_equal(send_one(qp, wr), 0);
	}
	fake_fail_next(IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(send_one(qp, (struct ibv_send_wr) { .wr_id = 3, .opcode = IBV_WR_RDMA_WRITE }), 0);
	errno = 0x7e57;
	for (int i = 0; i < 4; i += 2) {
		assert_int_equal(ibv_poll_cq(cq, 2, wcs), 2);
		assert_int_equal(errno, 0x7e57);
		assert_int_equal(wcs[0].wr_id, i);
		assert_int_equal(wcs[1].wr_id, i + 1);
		assert_int_equal(wcs[0].status, IBV_WC_SUCCESS);
		assert_int_equal(wcs[0].opcode, IBV_WC_RDMA_READ);
	}
	assert_int_equal(wcs[1].status, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(wcs[1].vendor_err, 0x51);
	assert_int_equal(wcs[1].qp_num, qp->qp_num);
	assert_int_equal(ibv_poll_cq(cq, 2, wcs), 0);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)
	static const struct CMUnitTest cases[] = {
		CASE(a_good_list_is_posted_at_once),
		CASE(requests_before_a_refused_one_are_posted),
		CASE(of_two_refused_ones_the_first_decides),
		CASE(a_driver_that_fails_says_where),
		CASE(a_driver_that_fails_before_a_refused_one_decides),
		CASE(results_of_the_driver_become_a_positive_errno),
		CASE(a_driver_that_does_not_say_where),
		CASE(no_request_is_the_drivers_business),
		CASE(entry_lists),
		CASE(states),
		CASE(inline_from_null),
		CASE(datagrams),
		CASE(receives_of_a_shared_queue),
		CASE(polling_is_the_drivers_business),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(cases, NULL, NULL);
}
