/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The nine posts: every byte of the request that the provider gets. */
#include <stdlib.h>
#include <string.h>
#include "suite.h"

/* What a post of these arguments must look like; the list of a simple function is the library's own. */
static struct ibv_send_wr send_request(const struct function *f, const struct arguments *args)
{
	struct ibv_send_wr wr;

	memset(&wr, 0, sizeof(wr));
	wr.wr_id = (uintptr_t)args->context;
	wr.sg_list = (f->is & VECTOR) ? args->sgl : script->records[0].wr.send.sg_list;
	wr.num_sge = (f->is & VECTOR) ? args->nsge : 1;
	wr.opcode = f->opcode;
	wr.send_flags = args->flags;
	if (f->is & REMOTE) {
		wr.wr.rdma.remote_addr = args->remote_addr;
		wr.wr.rdma.rkey = args->rkey;
	}
	if (f->is & DATAGRAM) {
		wr.wr.ud.ah = args->ah;
		wr.wr.ud.remote_qpn = args->remote_qpn;
		wr.wr.ud.remote_qkey = 0x01234567;
	}
	return wr;
}

static struct ibv_recv_wr receive_request(const struct function *f, const struct arguments *args)
{
	struct ibv_recv_wr wr;

	memset(&wr, 0, sizeof(wr));
	wr.wr_id = (uintptr_t)args->context;
	wr.sg_list = (f->is & VECTOR) ? args->sgl : script->records[0].wr.recv.sg_list;
	wr.num_sge = (f->is & VECTOR) ? args->nsge : 1;
	return wr;
}

/* The call succeeds, and all 128 bytes (32 of a receive) and those of the entry are right. */
static void check_request(const struct function *f, const struct arguments *args)
{
	const struct record *record = &script->records[0];
	struct ibv_sge entry = {
		.addr = (uintptr_t)args->addr, .length = args->length, .lkey = args->mr ? args->mr->lkey : 0,
	};

	check_accepted(f, args);
	if (f->is & SEND_SIDE) {
		struct ibv_send_wr expected = send_request(f, args);

		check_bytes(&record->wr.send, &expected, sizeof(expected));
	} else {
		struct ibv_recv_wr expected = receive_request(f, args);

		check_bytes(&record->wr.recv, &expected, sizeof(expected));
	}
	if (f->is & SIMPLE) {
		check(args->length <= UINT32_MAX);
		check_bytes(&record->sge, &entry, sizeof(entry));
	}
}

static void a_request_says_what_was_asked_and_is_zero_elsewhere(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	check_equal(sizeof(struct ibv_send_wr), 128);
	check_equal(sizeof(struct ibv_recv_wr), 32);
	for_each_function(f, POST) {
		row("%s", f->name);
		check_request(f, &args);
	}
}

static void a_request_with_all_arguments_zero_is_zero(void **state)
{
	struct arguments args = { .id = &fx.id };

	(void)state;
	for_each_function(f, POST) {
		row("%s", f->name);
		check_request(f, &args);
	}
}

static void the_context_comes_back_bit_for_bit(void **state)
{
	char on_stack;
	void *contexts[] = { NULL, (void *)UINTPTR_MAX, &on_stack, (void *)1, (void *)(UINTPTR_MAX / 2 + 1) };
	struct arguments args = good_arguments();

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(contexts); i++) {
		args.context = contexts[i];
		for_each_function(f, POST) {
			row("%s, context %p", f->name, args.context);
			check_request(f, &args);
		}
	}
}

static void flags_are_passed_on_known_or_not(void **state)
{
	static const int flags[] = {
		0, IBV_SEND_FENCE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_SEND_INLINE, IBV_SEND_IP_CSUM,
		IBV_SEND_SIGNALED | IBV_SEND_INLINE, 1 << 5, 1 << 20, 1 << 30, INT_MAX, INT_MIN, -1, ~IBV_SEND_INLINE,
	};
	struct arguments args = good_arguments();

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
		args.flags = flags[i];
		for_each_function(f, SEND_SIDE) {
			row("%s, flags %#x", f->name, args.flags);
			check_request(f, &args);
		}
	}
}

static void the_remote_memory_is_named_as_it_was_given(void **state)
{
	static const uint64_t addresses[] = { 0, 1, UINT32_MAX, 0xfedcba9876543210, UINT64_MAX };
	static const uint32_t keys[] = { 0, 1, 0x12345678, UINT32_MAX };
	struct arguments args = good_arguments();

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(addresses); i++) {
		for (size_t j = 0; j < ARRAY_SIZE(keys); j++) {
			args.remote_addr = addresses[i];
			args.rkey = keys[j];
			for_each_function(f, REMOTE) {
				row("%s, address %#llx, key %#x", f->name, (unsigned long long)addresses[i], keys[j]);
				check_request(f, &args);
			}
		}
	}
}

static void a_datagram_names_handle_queue_pair_number_and_the_key_of_librdmacm(void **state)
{
	static const int types[] = { IBV_QPT_UD, IBV_QPT_RC };
	static const uint32_t numbers[] = { 0, 1, 0xffffff, UINT32_MAX };
	struct arguments args = good_arguments();

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
		for (size_t j = 0; j < ARRAY_SIZE(numbers); j++) {
			fx.qp.qp_type = types[i];
			args.remote_qpn = numbers[j];
			for_each_function(f, DATAGRAM) {
				row("%s, type %d, number %#x", f->name, types[i], numbers[j]);
				check_request(f, &args);
			}
		}
	}
}

static void a_list_is_passed_on_as_it_is(void **state)
{
	struct ibv_sge list[] = { { 1, 2, 3 }, { 4, 5, 6 }, { UINT64_MAX, UINT32_MAX, UINT32_MAX } }, copy[3];
	struct arguments args = good_arguments();

	(void)state;
	memcpy(copy, list, sizeof(list));
	args.sgl = list;
	for (args.nsge = 0; args.nsge <= 3; args.nsge++) {
		for_each_function(f, VECTOR) {
			row("%s, nsge %d", f->name, args.nsge);
			check_request(f, &args);
			check_bytes(list, copy, sizeof(list));
		}
	}
	args.sgl = NULL;
	args.nsge = 0;
	for_each_function(f, VECTOR)
		check_request(f, &args);
}

static void the_entry_of_a_simple_function_has_the_key_of_the_region(void **state)
{
	static const uint32_t keys[] = { 0, 1, 0x80000000, UINT32_MAX };
	struct arguments args = good_arguments();

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
		fx.mr.lkey = keys[i];
		for_each_function(f, SIMPLE) {
			row("%s, key %#x", f->name, keys[i]);
			check_request(f, &args);
		}
	}
}

static void the_entry_has_key_0_without_a_region(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	args.mr = NULL;
	args.flags = IBV_SEND_INLINE;
	for_each_function(f, INLINE)
		check_request(f, &args);
	args.length = 0;
	for_each_function(f, SIMPLE)
		check_request(f, &args);
	args.flags = 0;
	for_each_function(f, SIMPLE)
		check_request(f, &args);
}

static void an_inline_entry_has_the_key_of_the_region_that_was_given(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	args.flags = IBV_SEND_INLINE;
	for_each_function(f, INLINE) {
		row("%s", f->name);
		check_request(f, &args);
		check_equal(script->records[0].sge.lkey, fx.mr.lkey);
	}
}

static void a_message_of_length_0_is_one_entry_of_length_0(void **state)
{
	void *addresses[] = { NULL, fx.buffer, (void *)UINTPTR_MAX };
	struct ibv_mr *regions[] = { NULL, &fx.mr };
	struct arguments args = good_arguments();

	(void)state;
	args.length = 0;
	for (size_t i = 0; i < ARRAY_SIZE(addresses); i++) {
		for (size_t j = 0; j < ARRAY_SIZE(regions); j++) {
			args.addr = addresses[i];
			args.mr = regions[j];
			for_each_function(f, SIMPLE) {
				row("%s, address %zu, region %zu", f->name, i, j);
				check_request(f, &args);
			}
		}
	}
}

static void a_post_goes_once_to_the_queue_of_the_id(void **state)
{
	struct ibv_qp other = fx.qp;
	struct ibv_qp *queue_pairs[] = { &fx.qp, &other };
	struct arguments args = good_arguments();

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(queue_pairs); i++) {
		fx.id.qp = queue_pairs[i];
		for_each_function(f, POST) {
			row("%s, queue pair %zu", f->name, i);
			check_accepted(f, &args);
			check_equal(script->records[0].object, queue_pairs[i]);
		}
	}
}

static void a_receive_into_a_shared_queue_is_the_same_request(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	fx.id.srq = &fx.srq;
	for_each_function(f, RECEIVE) {
		row("%s", f->name);
		check_request(f, &args);
		check_equal(script->records[0].verb, POST_SRQ_RECV);
		check_equal(script->records[0].object, &fx.srq);
	}
}

static void a_failing_post_is_not_tried_again(void **state)
{
	static const int results[] = { ENOMEM, -ENOMEM, EAGAIN, EINTR, -EINTR, EBUSY };
	struct arguments args = good_arguments();

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(results); i++) {
		for_each_function(f, POST) {
			row("%s, result %d", f->name, results[i]);
			new_script();
			say(verb_of(f, &fx.id), (struct answer){ .result = results[i] });
			check_fails(f, &args, abs(results[i]));
			check_equal(script->count, 1);
		}
	}
}

static void the_objects_of_the_caller_are_not_changed(void **state)
{
	struct arguments args = good_arguments();
	struct fixture before;

	(void)state;
	memcpy(&before, &fx, sizeof(fx));
	for_each_function(f, POST) {
		row("%s", f->name);
		check_accepted(f, &args);
		check_bytes(&fx, &before, sizeof(fx));
	}
}

static const struct CMUnitTest tests[] = {
	CASE(a_request_says_what_was_asked_and_is_zero_elsewhere),
	CASE(a_request_with_all_arguments_zero_is_zero),
	CASE(the_context_comes_back_bit_for_bit),
	CASE(flags_are_passed_on_known_or_not),
	CASE(the_remote_memory_is_named_as_it_was_given),
	CASE(a_datagram_names_handle_queue_pair_number_and_the_key_of_librdmacm),
	CASE(a_list_is_passed_on_as_it_is),
	CASE(the_entry_of_a_simple_function_has_the_key_of_the_region),
	CASE(the_entry_has_key_0_without_a_region),
	CASE(an_inline_entry_has_the_key_of_the_region_that_was_given),
	CASE(a_message_of_length_0_is_one_entry_of_length_0),
	CASE(a_post_goes_once_to_the_queue_of_the_id),
	CASE(a_receive_into_a_shared_queue_is_the_same_request),
	CASE(a_failing_post_is_not_tried_again),
	CASE(the_objects_of_the_caller_are_not_changed),
};
CASES(requests, tests);
