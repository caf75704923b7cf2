/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* rdma_get_send_comp and rdma_get_recv_comp: what is called in which order, and what ends the wait. */
#include <string.h>
#include "suite.h"

/* A completion with no two bytes alike. */
static struct ibv_wc completion(void)
{
	struct ibv_wc wc;

	for (size_t i = 0; i < sizeof(wc); i++)
		((unsigned char *)&wc)[i] = i + 1;
	return wc;
}

static const struct answer nothing = { .result = 0 };

/* One completion; `wc` lives as long as the script. */
static struct answer one(void)
{
	static struct ibv_wc wc;

	wc = completion();
	return (struct answer){ .result = 1, .wc = &wc };
}

static bool is_send(const struct function *f)
{
	return !strcmp(f->name, "rdma_get_send_comp");
}

static struct ibv_cq *queue_of(const struct function *f)
{
	return is_send(f) ? &fx.send_cq : &fx.recv_cq;
}

static struct ibv_comp_channel *channel_of(const struct function *f)
{
	return is_send(f) ? &fx.send_channel : &fx.recv_channel;
}

/* Every call was about the function's own queue and channel and asked for what it should; acks are another matter. */
static void check_objects(const struct function *f)
{
	for (unsigned int i = 0; i < script->count; i++) {
		const struct record *record = &script->records[i];

		switch (record->verb) {
		case POLL_CQ:
			check_equal(record->object, queue_of(f));
			check_equal(record->number, 1);
			check_equal(record->wc, &fx.wc);
			break;
		case REQ_NOTIFY_CQ:
			check_equal(record->object, queue_of(f));
			check_equal(record->number, 0);
			break;
		case GET_CQ_EVENT:
			check_equal(record->object, channel_of(f));
			break;
		default:
			check_equal(record->verb, ACK_CQ_EVENTS);
			check_equal(record->number, 1);
		}
	}
}

static void check_found(const struct function *f, const char *calls)
{
	struct arguments args = good_arguments();
	struct ibv_wc expected = completion();
	struct outcome outcome = call(f, &args, 4242);

	check_equal(outcome.status, 1);
	check_equal(outcome.error, 4242);
	check_calls(calls);
	check_objects(f);
	check_bytes(&fx.wc, &expected, sizeof(expected));
}

static void check_gives_up(const struct function *f, int error, const char *calls)
{
	struct arguments args = good_arguments();

	check_fails(f, &args, error);
	check_calls(calls);
	check_objects(f);
}

#define BOTH(f) \
	(void)state; \
	for_each_function(f, COMPLETION) \
		if (row("%s", f->name), new_script(), true)

static void a_completion_that_is_there_takes_one_poll(void **state)
{
	BOTH(f) {
		say(POLL_CQ, one());
		check_found(f, "poll");
	}
}

static void a_completion_between_the_first_poll_and_the_arming_is_found_without_a_wait(void **state)
{
	BOTH(f) {
		say(POLL_CQ, nothing);
		say(REQ_NOTIFY_CQ, nothing);
		say(POLL_CQ, one());
		check_found(f, "poll arm poll");
	}
}

/* A queue with an entry that shows itself only once the queue is armed. */
static void completion_arrives(void)
{
	say(POLL_CQ, one());
}

static void a_completion_that_the_arming_itself_brings_is_found_without_a_wait(void **state)
{
	BOTH(f) {
		say(POLL_CQ, nothing);
		say(REQ_NOTIFY_CQ, (struct answer){ .meanwhile = completion_arrives });
		check_found(f, "poll arm poll");
	}
}

static void an_event_is_acknowledged_before_the_queue_is_looked_at_again(void **state)
{
	BOTH(f) {
		say(POLL_CQ, nothing);
		say(REQ_NOTIFY_CQ, nothing);
		say(POLL_CQ, nothing);
		say(GET_CQ_EVENT, (struct answer){ .cq = queue_of(f) });
		say(ACK_CQ_EVENTS, nothing);
		say(POLL_CQ, one());
		check_found(f, "poll arm poll wait ack poll");
		check_equal(script->records[4].object, queue_of(f));
	}
}

static void an_event_without_a_completion_starts_over(void **state)
{
	BOTH(f) {
		for (int i = 0; i < 2; i++) {
			say(POLL_CQ, nothing);
			say(REQ_NOTIFY_CQ, nothing);
			say(POLL_CQ, nothing);
			say(GET_CQ_EVENT, (struct answer){ .cq = queue_of(f) });
			say(ACK_CQ_EVENTS, nothing);
		}
		say(POLL_CQ, nothing);
		say(REQ_NOTIFY_CQ, nothing);
		say(POLL_CQ, one());
		check_found(f, "poll arm poll wait ack poll arm poll wait ack poll arm poll");
	}
}

static void an_event_of_another_queue_is_acknowledged_as_that_queues_and_the_wait_goes_on(void **state)
{
	struct ibv_cq other = { .context = &fx.context };

	BOTH(f) {
		struct ibv_cq *events[] = { &other, is_send(f) ? &fx.recv_cq : &fx.send_cq, queue_of(f) };

		for (size_t i = 0; i < ARRAY_SIZE(events); i++) {
			say(POLL_CQ, nothing);
			say(REQ_NOTIFY_CQ, nothing);
			say(POLL_CQ, nothing);
			say(GET_CQ_EVENT, (struct answer){ .cq = events[i] });
			say(ACK_CQ_EVENTS, nothing);
		}
		say(POLL_CQ, one());
		check_found(f, "poll arm poll wait ack poll arm poll wait ack poll arm poll wait ack poll");
		for (size_t i = 0; i < ARRAY_SIZE(events); i++)
			check_equal(script->records[5 * i + 4].object, events[i]);
	}
}

static void a_completion_with_an_error_status_is_a_completion(void **state)
{
	static struct ibv_wc wc;
	struct arguments args = good_arguments();

	for (int status = IBV_WC_SUCCESS; status <= IBV_WC_GENERAL_ERR; status++) {
		BOTH(f) {
			row("%s, status %d", f->name, status);
			memset(&fx.wc, 0, sizeof(fx.wc));
			wc = completion();
			wc.status = status;
			say(POLL_CQ, (struct answer){ .result = 1, .wc = &wc, .error = EIO });
			struct outcome outcome = call(f, &args, 4242);

			check_equal(outcome.status, 1);
			check_equal(outcome.error, 4242);
			check_bytes(&fx.wc, &wc, sizeof(wc));
		}
	}
}

static void what_the_wait_says_comes_back_at_once(void **state)
{
	static const int errors[] = { EINTR, EAGAIN, EBADF, EIO, ENODEV, 4242 };

	for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
		BOTH(f) {
			row("%s, errno %d", f->name, errors[i]);
			say(POLL_CQ, nothing);
			say(REQ_NOTIFY_CQ, nothing);
			say(POLL_CQ, nothing);
			say(GET_CQ_EVENT, (struct answer){ .result = -1, .error = errors[i], .cq = queue_of(f) });
			check_gives_up(f, errors[i], "poll arm poll wait");
		}
	}
}

static void a_wait_that_fails_after_a_foreign_event_comes_back_too(void **state)
{
	BOTH(f) {
		for (int i = 0; i < 2; i++) {
			say(POLL_CQ, nothing);
			say(REQ_NOTIFY_CQ, nothing);
			say(POLL_CQ, nothing);
		}
		say(GET_CQ_EVENT, (struct answer){ .cq = &fx.recv_cq });
		say(ACK_CQ_EVENTS, nothing);
		say(GET_CQ_EVENT, (struct answer){ .result = -1, .error = EINTR });
		check_gives_up(f, EINTR, "poll arm poll wait ack poll arm poll wait");
	}
}

static void a_short_read_of_the_channel_is_EIO(void **state)
{
	BOTH(f) {
		say(POLL_CQ, nothing);
		say(REQ_NOTIFY_CQ, nothing);
		say(POLL_CQ, nothing);
		say(GET_CQ_EVENT, (struct answer){ .result = -1 });
		check_gives_up(f, EIO, "poll arm poll wait");
	}
}

static void an_event_that_names_no_queue_is_EIO(void **state)
{
	BOTH(f) {
		say(POLL_CQ, nothing);
		say(REQ_NOTIFY_CQ, nothing);
		say(POLL_CQ, nothing);
		say(GET_CQ_EVENT, (struct answer){ .cq = NULL });
		check_gives_up(f, EIO, "poll arm poll wait");
	}
}

static void a_queue_that_cannot_be_armed_is_not_waited_for(void **state)
{
	BOTH(f) {
		say(POLL_CQ, nothing);
		say(REQ_NOTIFY_CQ, (struct answer){ .result = ENODEV });
		check_gives_up(f, ENODEV, "poll arm");
	}
}

static void a_poll_that_fails_ends_the_call(void **state)
{
	BOTH(f) {
		say(POLL_CQ, (struct answer){ .result = -EINVAL });
		check_gives_up(f, EINVAL, "poll");
	}
}

static void a_second_poll_that_fails_ends_the_call_without_a_wait(void **state)
{
	BOTH(f) {
		say(POLL_CQ, nothing);
		say(REQ_NOTIFY_CQ, nothing);
		say(POLL_CQ, (struct answer){ .result = -EINVAL });
		check_gives_up(f, EINVAL, "poll arm poll");
	}
}

static void without_a_queue_there_is_EINVAL(void **state)
{
	struct arguments args = good_arguments();

	fx.id.send_cq = NULL;
	fx.id.recv_cq = NULL;
	BOTH(f)
		check_refused(f, &args, EINVAL);
}

static void without_a_channel_a_completion_that_is_there_is_found(void **state)
{
	fx.id.send_cq_channel = NULL;
	fx.id.recv_cq_channel = NULL;
	BOTH(f) {
		say(POLL_CQ, one());
		check_found(f, "poll");
	}
}

static void without_a_channel_only_having_to_wait_is_EINVAL(void **state)
{
	struct arguments args = good_arguments();

	fx.id.send_cq_channel = NULL;
	fx.id.recv_cq_channel = NULL;
	BOTH(f) {
		/* Whether there is a point in arming then is left open. */
		for (int i = 0; i < 2; i++) {
			say(POLL_CQ, nothing);
			say(REQ_NOTIFY_CQ, nothing);
		}
		check_fails(f, &args, EINVAL);
		check(script->count > 0);
		check_equal(script->asked[GET_CQ_EVENT], 0);
		check_objects(f);
		for (unsigned int i = 0; i < script->count; i++)
			check(script->records[i].verb != GET_CQ_EVENT);
	}
}

static void without_a_channel_a_completion_of_the_second_poll_is_found(void **state)
{
	fx.id.send_cq_channel = NULL;
	fx.id.recv_cq_channel = NULL;
	BOTH(f) {
		say(POLL_CQ, nothing);
		say(REQ_NOTIFY_CQ, nothing);
		say(POLL_CQ, one());
		check_found(f, "poll arm poll");
	}
}

static void the_channel_is_that_of_the_id(void **state)
{
	/* A queue that the program made for another channel. */
	fx.send_cq.channel = NULL;
	fx.recv_cq.channel = NULL;
	BOTH(f) {
		say(POLL_CQ, nothing);
		say(REQ_NOTIFY_CQ, nothing);
		say(POLL_CQ, nothing);
		say(GET_CQ_EVENT, (struct answer){ .cq = queue_of(f) });
		say(ACK_CQ_EVENTS, nothing);
		say(POLL_CQ, one());
		check_found(f, "poll arm poll wait ack poll");
	}
}

static void one_queue_may_serve_both_directions(void **state)
{
	fx.id.send_cq = &fx.recv_cq;
	fx.id.send_cq_channel = &fx.recv_channel;
	(void)state;
	for_each_function(f, COMPLETION) {
		struct arguments args = good_arguments();

		row("%s", f->name);
		check_accepted(f, &args);
		check_equal(script->records[0].object, &fx.recv_cq);
	}
}

static void the_queue_pair_is_not_looked_at(void **state)
{
	struct arguments args = good_arguments();

	fx.qp.state = IBV_QPS_INIT;
	BOTH(f)
		check_accepted(f, &args);
	fx.qp.state = IBV_QPS_ERR;
	fx.qp.qp_type = IBV_QPT_XRC_SEND;
	fx.qp.send_cq = NULL;
	fx.qp.recv_cq = NULL;
	BOTH(f)
		check_accepted(f, &args);
}

static const struct CMUnitTest tests[] = {
	CASE(a_completion_that_is_there_takes_one_poll),
	CASE(a_completion_between_the_first_poll_and_the_arming_is_found_without_a_wait),
	CASE(a_completion_that_the_arming_itself_brings_is_found_without_a_wait),
	CASE(an_event_is_acknowledged_before_the_queue_is_looked_at_again),
	CASE(an_event_without_a_completion_starts_over),
	CASE(an_event_of_another_queue_is_acknowledged_as_that_queues_and_the_wait_goes_on),
	CASE(a_completion_with_an_error_status_is_a_completion),
	CASE(what_the_wait_says_comes_back_at_once),
	CASE(a_wait_that_fails_after_a_foreign_event_comes_back_too),
	CASE(a_short_read_of_the_channel_is_EIO),
	CASE(an_event_that_names_no_queue_is_EIO),
	CASE(a_queue_that_cannot_be_armed_is_not_waited_for),
	CASE(a_poll_that_fails_ends_the_call),
	CASE(a_second_poll_that_fails_ends_the_call_without_a_wait),
	CASE(without_a_queue_there_is_EINVAL),
	CASE(without_a_channel_a_completion_that_is_there_is_found),
	CASE(without_a_channel_only_having_to_wait_is_EINVAL),
	CASE(without_a_channel_a_completion_of_the_second_poll_is_found),
	CASE(the_channel_is_that_of_the_id),
	CASE(one_queue_may_serve_both_directions),
	CASE(the_queue_pair_is_not_looked_at),
};
CASES(completions, tests);
