/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* With --check=off nothing is refused and no result is changed, whatever else is on. */

#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "fake.h"

static struct ibv_qp *qp, *extended;
static struct ibv_cq *cq;

static int begin(void **state)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(devices[0]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC };
	struct ibv_qp_init_attr_ex attr_ex = {
		.qp_type = IBV_QPT_RC, .pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};

	(void)state;
	ibv_free_device_list(devices);
	assert_ptr_not_equal(context->ops.post_send, fake.tables[0].post_send);
	cq = attr.send_cq = attr.recv_cq = attr_ex.send_cq = attr_ex.recv_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	qp = ibv_create_qp(pd, &attr);
	extended = ibv_create_qp_ex(context, &attr_ex);
	return 0;
}

static const struct { int result, error; } rows[] = {
	{ ENOMEM, 0 }, { -ENOMEM, 0 }, { -1, EAGAIN }, { EINVAL, EAGAIN }, { INT_MIN, 5 }, { 1, 0 },
};

static void the_drivers_result_is_the_programs(void **state)
{
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_recv_wr recv = { 0 }, *bad_recv;

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		for (int is_recv = 0; is_recv < 2; is_recv++) {
			fake.scripted = true;
			fake.good = 0;
			fake.result = rows[i].result;
			fake.error = rows[i].error;
			assert_int_equal(is_recv ? ibv_post_recv(qp, &recv, &bad_recv) : ibv_post_send(qp, &send, &bad_send),
				rows[i].result);
			if (rows[i].error)
				assert_int_equal(errno, rows[i].error);
			assert_ptr_equal(is_recv ? (void *)bad_recv : bad_send, is_recv ? (void *)&recv : &send);
		}
	}
}

static void of_a_batch_too(void **state)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(extended);

	(void)state;
	assert_ptr_not_equal(ex, NULL);
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		fake.scripted = true;
		fake.result = rows[i].result;
		fake.error = rows[i].error;
		ibv_wr_start(ex);
		ibv_wr_send(ex);
		assert_int_equal(ibv_wr_complete(ex), rows[i].result);
		if (rows[i].error)
			assert_int_equal(errno, rows[i].error);
	}
}

/* The queue pair is in RESET, and the entry list is none: the driver has to know. */
static void nothing_is_refused(void **state)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .num_sge = -1 }, *bad;

	(void)state;
	fake.sends.requests = 0;
	assert_int_equal(ibv_post_send(qp, &wr, &bad), 0);
	assert_int_equal(fake.sends.requests, 1);
}

int main(void)
{
	static const struct CMUnitTest cases[] = {
		cmocka_unit_test(the_drivers_result_is_the_programs),
		cmocka_unit_test(of_a_batch_too),
		cmocka_unit_test(nothing_is_refused),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(cases, begin, NULL);
}
