/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the provider returned, and what the caller sees; errno on success. */
#include <string.h>
#include "suite.h"

/* What a caller may have in errno when it calls. */
static const int befores[] = { 0, 1, 4242, -7, INT_MIN };

/* What a verb returns, what it leaves in errno (0: nothing), and the errno that follows. */
static const struct {
	int result;
	int left;
	int error;		/* DEFAULT: what stands for a failure without a reason */
} results[] = {
#define DEFAULT 0
	{ EPERM, 0, EPERM },
	{ 2, 0, 2 },
	{ EINVAL, 0, EINVAL },
	{ ENOMEM, 0, ENOMEM },
	{ EAGAIN, 0, EAGAIN },
	{ ENOTCONN, 0, ENOTCONN },
	{ 4095, 0, 4095 },
	{ 4096, 0, 4096 },
	{ INT_MAX, 0, INT_MAX },
	{ -2, 0, 2 },
	{ -EINVAL, 0, EINVAL },
	{ -ENOMEM, 0, ENOMEM },
	{ -EAGAIN, 0, EAGAIN },
	{ -4096, 0, 4096 },
	{ -INT_MAX, 0, INT_MAX },
	{ INT_MIN, 0, EIO },
	/* The value says it: errno is not looked at. */
	{ EINVAL, EBADF, EINVAL },
	{ EINVAL, -EBADF, EINVAL },
	{ -EINVAL, EBADF, EINVAL },
	{ INT_MIN, EBADF, EIO },
	/* -1: errno says it. */
	{ -1, EPERM, EPERM },
	{ -1, EINVAL, EINVAL },
	{ -1, ENOMEM, ENOMEM },
	{ -1, EIO, EIO },
	{ -1, EINTR, EINTR },
	{ -1, INT_MAX, INT_MAX },
	{ -1, -2, 2 },
	{ -1, -EINVAL, EINVAL },
	{ -1, -INT_MAX, INT_MAX },
	{ -1, 0, DEFAULT },
};

/* The two ways in which a provider may leave an errno that is none. */
static const int nonsense[] = { -1, INT_MIN };

static void check_result(const struct function *f, const struct arguments *args, int error, int before)
{
	struct outcome outcome = call(f, args, before);

	check_equal(outcome.status, -1);
	check_equal(outcome.region, NULL);
	check_equal(outcome.error, error);
}

/* All results of one verb, which `prepare` has the function call. */
static void check_results(const struct function *f, enum verb verb, int without_reason, void (*prepare)(void))
{
	struct arguments args = good_arguments();

	for (size_t i = 0; i < ARRAY_SIZE(results); i++) {
		for (size_t j = 0; j < ARRAY_SIZE(befores); j++) {
			row("%s, result %d, errno left %d, errno before %d", f->name, results[i].result,
			    results[i].left, befores[j]);
			new_script();
			if (prepare)
				prepare();
			say(verb, (struct answer){ .result = results[i].result, .error = results[i].left });
			check_result(f, &args, results[i].error == DEFAULT ? without_reason : results[i].error,
				     befores[j]);
			check_equal(script->asked[verb], 1);
		}
	}
	for (size_t i = 0; i < ARRAY_SIZE(nonsense); i++) {
		row("%s, errno left %d", f->name, nonsense[i]);
		new_script();
		if (prepare)
			prepare();
		say(verb, (struct answer){ .result = -1, .error = nonsense[i] });
		struct outcome outcome = call(f, &args, 0);

		check_equal(outcome.status, -1);
		check(outcome.error > 0);
	}
}

static void the_result_of_a_post_becomes_minus_1_and_errno(void **state)
{
	(void)state;
	for_each_function(f, POST)
		check_results(f, verb_of(f, &fx.id), ENOMEM, NULL);
}

static void the_result_of_a_receive_into_a_shared_queue_becomes_minus_1_and_errno(void **state)
{
	(void)state;
	fx.id.srq = &fx.srq;
	for_each_function(f, RECEIVE)
		check_results(f, POST_SRQ_RECV, ENOMEM, NULL);
}

static void the_result_of_giving_a_region_back_becomes_minus_1_and_errno(void **state)
{
	(void)state;
	for_each_function(f, DEREGISTRATION)
		check_results(f, DEREG_MR, EIO, NULL);
}

static void nothing_to_poll(void)
{
	/* errno from a step that succeeded is no reason for one that fails. */
	say(POLL_CQ, (struct answer){ .result = 0, .error = EBADF });
	say(POLL_CQ, (struct answer){ .result = 0, .error = EBADF });
}

static void the_result_of_arming_becomes_minus_1_and_errno(void **state)
{
	(void)state;
	for_each_function(f, COMPLETION)
		check_results(f, REQ_NOTIFY_CQ, EIO, nothing_to_poll);
}

static void armed_in_vain(void)
{
	nothing_to_poll();
	say(REQ_NOTIFY_CQ, (struct answer){ .result = 0, .error = EBADF });
}

static void the_result_of_waiting_becomes_minus_1_and_errno(void **state)
{
	(void)state;
	for_each_function(f, COMPLETION)
		check_results(f, GET_CQ_EVENT, EIO, armed_in_vain);
}

static void the_errno_of_a_region_that_is_NULL_is_made_positive_and_is_EIO_where_there_is_none(void **state)
{
	static const struct {
		int left;
		int error;
	} rows[] = {
		{ 0, EIO }, { EPERM, EPERM }, { EINVAL, EINVAL }, { ENOMEM, ENOMEM }, { INT_MAX, INT_MAX },
		{ -2, 2 }, { -EINVAL, EINVAL }, { -ENOMEM, ENOMEM }, { -INT_MAX, INT_MAX },
	};
	struct arguments args = good_arguments();

	(void)state;
	for_each_function(f, REGISTRATION) {
		for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
			for (size_t j = 0; j < ARRAY_SIZE(befores); j++) {
				row("%s, errno left %d, errno before %d", f->name, rows[i].left, befores[j]);
				new_script();
				say(REG_MR, (struct answer){ .mr = NULL, .error = rows[i].left });
				check_result(f, &args, rows[i].error, befores[j]);
			}
		}
		for (size_t i = 0; i < ARRAY_SIZE(nonsense); i++) {
			row("%s, errno left %d", f->name, nonsense[i]);
			new_script();
			say(REG_MR, (struct answer){ .mr = NULL, .error = nonsense[i] });
			check(call(f, &args, 0).error > 0);
		}
	}
}

static const struct {
	int result;
	int error;	/* 0: a completion */
} polls[] = {
	{ 1, 0 },
	{ 2, 2 },
	{ 3, 3 },
	{ 95, 95 },
	{ EOPNOTSUPP, EOPNOTSUPP },
	{ INT_MAX, INT_MAX },
	{ -1, EIO },
	{ -2, EIO },
	{ -3, 3 },
	{ -EINVAL, EINVAL },
	{ -EIO, EIO },
	{ -INT_MAX, INT_MAX },
	{ INT_MIN, EIO },
};

/* `before_it`: the answers of an earlier poll and of arming. */
static void check_polls(void (*before_it)(void))
{
	static const int left[] = { 0, EBADF, -EBADF, ENOMEM, -1 };
	struct arguments args = good_arguments();

	for_each_function(f, COMPLETION) {
		for (size_t i = 0; i < ARRAY_SIZE(polls); i++) {
			for (size_t j = 0; j < ARRAY_SIZE(left); j++) {
				struct outcome outcome;

				row("%s, result %d, errno left %d", f->name, polls[i].result, left[j]);
				new_script();
				if (before_it)
					before_it();
				say(POLL_CQ, (struct answer){ .result = polls[i].result, .error = left[j] });
				outcome = call(f, &args, 4242);
				check_equal(outcome.status, polls[i].error ? -1 : 1);
				check_equal(outcome.error, polls[i].error ? polls[i].error : 4242);
				check_calls(before_it ? "poll arm poll" : "poll");
			}
		}
	}
}

static void the_result_of_polling_is_a_number_or_an_errno_of_either_sign(void **state)
{
	(void)state;
	check_polls(NULL);
}

static void armed(void)
{
	say(POLL_CQ, (struct answer){ .result = 0 });
	say(REQ_NOTIFY_CQ, (struct answer){ .result = 0 });
}

static void the_result_of_the_second_poll_is_treated_as_the_first(void **state)
{
	(void)state;
	check_polls(armed);
}

static void success_leaves_errno_alone_whatever_the_provider_does_to_it(void **state)
{
	static const int scribbles[] = { 0, 1, EBADF, -1, -EBADF, INT_MIN, INT_MAX };
	struct arguments args = good_arguments();

	(void)state;
	for_each_function(f, ANY) {
		for (size_t i = 0; i < ARRAY_SIZE(befores); i++) {
			for (size_t j = 0; j < ARRAY_SIZE(scribbles); j++) {
				struct outcome outcome;

				row("%s, errno before %d, scribble %d", f->name, befores[i], scribbles[j]);
				new_script();
				say(verb_of(f, &fx.id), (struct answer){
					.result = f->success, .mr = &fx.mr, .error = scribbles[j],
				});
				outcome = call(f, &args, befores[i]);
				check_equal(outcome.status, f->success);
				check_equal(outcome.error, befores[i]);
			}
		}
	}
}

static void a_wait_that_succeeds_leaves_errno_alone(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	for_each_function(f, COMPLETION) {
		for (size_t i = 0; i < ARRAY_SIZE(befores); i++) {
			struct outcome outcome;

			row("%s, errno before %d", f->name, befores[i]);
			new_script();
			armed_in_vain();
			say(GET_CQ_EVENT, (struct answer){ .cq = &fx.send_cq, .error = EAGAIN });
			say(ACK_CQ_EVENTS, (struct answer){ .error = EPERM });
			say(POLL_CQ, (struct answer){ .result = 1, .error = ENOENT });
			outcome = call(f, &args, befores[i]);
			check_equal(outcome.status, 1);
			check_equal(outcome.error, befores[i]);
			check_calls("poll arm poll wait ack poll");
		}
	}
}

static void a_successful_receive_into_a_shared_queue_leaves_errno_alone(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	fx.id.srq = &fx.srq;
	for_each_function(f, RECEIVE) {
		for (size_t i = 0; i < ARRAY_SIZE(befores); i++) {
			row("%s, errno before %d", f->name, befores[i]);
			new_script();
			say(POST_SRQ_RECV, (struct answer){ .error = EBADF });
			check_equal(call(f, &args, befores[i]).error, befores[i]);
		}
	}
}

static void a_refusal_sets_errno_whatever_it_was(void **state)
{
	struct arguments args = { 0 };

	(void)state;
	for_each_function(f, ANY) {
		for (size_t i = 0; i < ARRAY_SIZE(befores); i++) {
			row("%s, errno before %d", f->name, befores[i]);
			new_script();
			check_result(f, &args, EINVAL, befores[i]);
		}
	}
}

static void rdma_seterrno_makes_a_result_minus_1_and_a_positive_errno(void **state)
{
	static const struct {
		int result;
		int error;	/* KEPT: as it was */
	} rows[] = {
#define KEPT INT_MIN
		{ 0, KEPT },
		{ 1, 1 },
		{ EINVAL, EINVAL },
		{ INT_MAX, INT_MAX },
		{ -1, KEPT },
		{ -2, 2 },
		{ -ENOMEM, ENOMEM },
		{ -INT_MAX, INT_MAX },
		{ INT_MIN, EIO },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		for (size_t j = 0; j < ARRAY_SIZE(befores); j++) {
			int status, after;

			row("%d, errno before %d", rows[i].result, befores[j]);
			errno = befores[j];
			status = rdma_seterrno(rows[i].result);
			after = errno;
			check_equal(status, rows[i].result ? -1 : 0);
			check_equal(after, rows[i].error == KEPT ? befores[j] : rows[i].error);
		}
	}
}

static const struct CMUnitTest tests[] = {
	CASE(the_result_of_a_post_becomes_minus_1_and_errno),
	CASE(the_result_of_a_receive_into_a_shared_queue_becomes_minus_1_and_errno),
	CASE(the_result_of_giving_a_region_back_becomes_minus_1_and_errno),
	CASE(the_result_of_arming_becomes_minus_1_and_errno),
	CASE(the_result_of_waiting_becomes_minus_1_and_errno),
	CASE(the_errno_of_a_region_that_is_NULL_is_made_positive_and_is_EIO_where_there_is_none),
	CASE(the_result_of_polling_is_a_number_or_an_errno_of_either_sign),
	CASE(the_result_of_the_second_poll_is_treated_as_the_first),
	CASE(success_leaves_errno_alone_whatever_the_provider_does_to_it),
	CASE(a_wait_that_succeeds_leaves_errno_alone),
	CASE(a_successful_receive_into_a_shared_queue_leaves_errno_alone),
	CASE(a_refusal_sets_errno_whatever_it_was),
	CASE(rdma_seterrno_makes_a_result_minus_1_and_a_positive_errno),
};
CASES(errnos, tests);
