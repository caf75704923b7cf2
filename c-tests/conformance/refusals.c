/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The calls that are answered before the provider hears of them, and their neighbours, which are not. */
#include <string.h>
#include "suite.h"

/* Nothing: rdma_dereg_mr has a region instead. */
#define WITH_ID (ANY & ~DEREGISTRATION)

static void without_an_id_or_region_is_EINVAL(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	args.id = NULL;
	for_each_function(f, WITH_ID)
		check_refused(f, &args, EINVAL);
	args = good_arguments();
	args.mr = NULL;
	for_each_function(f, DEREGISTRATION)
		check_refused(f, &args, EINVAL);
}

static void without_any_valid_argument_is_EINVAL(void **state)
{
	struct arguments args = { 0 };

	(void)state;
	for_each_function(f, ANY)
		check_refused(f, &args, EINVAL);
	args.id = &fx.id;
	fx.id = (struct rdma_cm_id){ 0 };
	for_each_function(f, ANY)
		check_refused(f, &args, EINVAL);
}

/* Each pointer of the id, and who cannot do without it. */
static const struct {
	const char *name;
	size_t offset;
	unsigned int needed_by;
} id_pointers[] = {
#define POINTER(field) #field, offsetof(struct rdma_cm_id, field)
	{ POINTER(verbs), 0 },
	{ POINTER(channel), 0 },
	{ POINTER(context), 0 },
	{ POINTER(qp), POST },
	{ POINTER(event), 0 },
	{ POINTER(send_cq_channel), 0 },
	{ POINTER(send_cq), COMPLETION },
	{ POINTER(recv_cq_channel), 0 },
	{ POINTER(recv_cq), COMPLETION },
	{ POINTER(srq), 0 },
	{ POINTER(pd), REGISTRATION },
};

static bool uses(const struct function *f, const char *pointer, unsigned int needed_by)
{
	if (!(f->is & needed_by))
		return false;
	if (!strcmp(pointer, "send_cq"))
		return !strcmp(f->name, "rdma_get_send_comp");
	if (!strcmp(pointer, "recv_cq"))
		return !strcmp(f->name, "rdma_get_recv_comp");
	return true;
}

static void each_null_pointer_of_the_id_is_EINVAL_where_the_call_works_on_it_and_ignored_elsewhere(void **state)
{
	struct arguments args = good_arguments();
	struct rdma_cm_id good = fx.id;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(id_pointers); i++) {
		for_each_function(f, ANY) {
			row("%s, %s", f->name, id_pointers[i].name);
			fx.id = good;
			*(void **)((char *)&fx.id + id_pointers[i].offset) = NULL;
			if (uses(f, id_pointers[i].name, id_pointers[i].needed_by))
				check_refused(f, &args, EINVAL);
			else
				check_accepted(f, &args);
		}
	}
}

static void posts_without_a_queue_pair_are_EINVAL(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	fx.id.qp = NULL;
	for_each_function(f, POST)
		check_refused(f, &args, EINVAL);
}

static void posts_to_a_queue_pair_without_a_context_are_EINVAL_in_every_state(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	fx.qp.context = NULL;
	for (int qp_state = IBV_QPS_RESET; qp_state <= IBV_QPS_UNKNOWN; qp_state++) {
		fx.qp.state = qp_state;
		for_each_function(f, POST) {
			row("%s, state %d", f->name, qp_state);
			check_refused(f, &args, EINVAL);
		}
	}
}

static void receives_go_to_the_shared_receive_queue_of_the_id_whatever_its_queue_pair(void **state)
{
	struct ibv_qp *queue_pairs[] = { &fx.qp, NULL };
	struct ibv_srq *own[] = { NULL, &fx.srq };
	struct arguments args = good_arguments();
	struct ibv_srq shared = fx.srq;

	(void)state;
	fx.id.srq = &shared;
	for (size_t i = 0; i < ARRAY_SIZE(queue_pairs); i++) {
		for (size_t j = 0; j < ARRAY_SIZE(own); j++) {
			fx.id.qp = queue_pairs[i];
			fx.qp.srq = own[j];
			for_each_function(f, RECEIVE) {
				row("%s, queue pair %zu with queue %zu", f->name, i, j);
				check_accepted(f, &args);
				check_equal(script->records[0].verb, POST_SRQ_RECV);
				check_equal(script->records[0].object, &shared);
			}
		}
	}
	fx.id.qp = &fx.qp;
	fx.qp.context = NULL;
	for_each_function(f, RECEIVE)
		check_accepted(f, &args);
}

static void receives_into_a_shared_receive_queue_without_a_context_are_EINVAL(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	fx.srq.context = NULL;
	fx.id.srq = &fx.srq;
	for_each_function(f, RECEIVE)
		check_refused(f, &args, EINVAL);
	fx.id.qp = NULL;
	for_each_function(f, RECEIVE)
		check_refused(f, &args, EINVAL);
}

static void receives_are_EINVAL_where_only_the_queue_pair_knows_the_shared_receive_queue(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	fx.qp.srq = &fx.srq;
	for_each_function(f, RECEIVE)
		check_refused(f, &args, EINVAL);
}

static void sends_do_not_care_about_shared_receive_queues(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	fx.qp.srq = &fx.srq;
	for_each_function(f, SEND_SIDE)
		check_accepted(f, &args);
	fx.id.srq = &fx.srq;
	for_each_function(f, SEND_SIDE) {
		check_accepted(f, &args);
		check_equal(script->records[0].object, &fx.qp);
	}
}

static const int states[] = {
	IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPS_ERR, IBV_QPS_UNKNOWN,
	8, 255, INT_MAX, -1, INT_MIN,
};

static const int transports[] = {
	IBV_TRANSPORT_IB, IBV_TRANSPORT_UNKNOWN, IBV_TRANSPORT_IWARP, IBV_TRANSPORT_USNIC, IBV_TRANSPORT_USNIC_UDP,
	IBV_TRANSPORT_UNSPECIFIED, 5, INT_MAX, INT_MIN,
};

static void sends_are_ENOTCONN_in_RESET_INIT_and_RTR_of_an_InfiniBand_device_and_nowhere_else(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(states); i++) {
		for (size_t j = 0; j < ARRAY_SIZE(transports); j++) {
			fx.qp.state = states[i];
			fx.device.transport_type = transports[j];
			for_each_function(f, SEND_SIDE) {
				row("%s, state %d, transport %d", f->name, states[i], transports[j]);
				if (transports[j] == IBV_TRANSPORT_IB &&
				    (states[i] == IBV_QPS_RESET || states[i] == IBV_QPS_INIT || states[i] == IBV_QPS_RTR))
					check_refused(f, &args, ENOTCONN);
				else
					check_accepted(f, &args);
			}
		}
	}
}

static void without_a_device_the_provider_decides_about_the_state(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	fx.context.device = NULL;
	for (size_t i = 0; i < ARRAY_SIZE(states); i++) {
		fx.qp.state = states[i];
		for_each_function(f, SEND_SIDE) {
			row("%s, state %d", f->name, states[i]);
			check_accepted(f, &args);
		}
	}
}

static void the_device_is_looked_at_only_where_the_state_says_no(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	fx.context.device = (struct ibv_device *)8;	/* no memory is there */
	for (int qp_state = IBV_QPS_RTS; qp_state <= IBV_QPS_ERR; qp_state++) {
		fx.qp.state = qp_state;
		for_each_function(f, SEND_SIDE)
			check_accepted(f, &args);
	}
	fx.qp.state = IBV_QPS_INIT;
	for_each_function(f, RECEIVE)
		check_accepted(f, &args);
}

static void receives_are_accepted_in_every_state(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(states); i++) {
		fx.qp.state = states[i];
		for_each_function(f, RECEIVE) {
			row("%s, state %d", f->name, states[i]);
			check_accepted(f, &args);
		}
	}
}

static void a_negative_number_of_entries_is_EINVAL_and_so_are_entries_without_a_list(void **state)
{
	static const int numbers[] = { INT_MIN, -1, 0, 1, 2, INT_MAX };
	struct ibv_sge *lists[] = { &fx.sge, NULL };
	struct arguments args = good_arguments();

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
		for (size_t j = 0; j < ARRAY_SIZE(lists); j++) {
			args.nsge = numbers[i];
			args.sgl = lists[j];
			for_each_function(f, VECTOR) {
				row("%s, nsge %d, sgl %p", f->name, args.nsge, (void *)args.sgl);
				if (numbers[i] < 0 || (numbers[i] > 0 && !lists[j]))
					check_refused(f, &args, EINVAL);
				else
					check_accepted(f, &args);
			}
		}
	}
}

/* A region that all lengths of 32 bits fit into. Nobody touches the memory. */
static struct ibv_mr large_region(void)
{
	struct ibv_mr region = fx.mr;

	region.addr = (void *)0x100000000;
	region.length = (size_t)1 << 40;
	return region;
}

static const size_t lengths[] = { 0, 1, INT32_MAX, UINT32_MAX, (size_t)UINT32_MAX + 1, (size_t)UINT32_MAX + 2, SIZE_MAX };

static void a_length_of_more_than_32_bits_is_EINVAL_and_a_length_without_a_region_unless_inline(void **state)
{
	static const int flags[] = { 0, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_INLINE | IBV_SEND_FENCE, ~IBV_SEND_INLINE };
	struct ibv_mr region = large_region();
	struct ibv_mr *regions[] = { &region, NULL };
	struct arguments args = good_arguments();

	(void)state;
	args.addr = region.addr;
	for_each_function(f, SIMPLE) {
		for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
			for (size_t j = 0; j < ARRAY_SIZE(regions); j++) {
				for (size_t k = 0; k < ARRAY_SIZE(flags); k++) {
					bool needs_none = (f->is & INLINE) && (flags[k] & IBV_SEND_INLINE);

					args.length = lengths[i];
					args.mr = regions[j];
					args.flags = flags[k];
					row("%s, length %#zx, mr %p, flags %#x", f->name, args.length, (void *)args.mr,
					    args.flags);
					if (args.length > UINT32_MAX || (args.length > 0 && !args.mr && !needs_none)) {
						check_refused(f, &args, EINVAL);
					} else {
						check_accepted(f, &args);
						check_equal(script->records[0].sge.length, args.length);
					}
				}
			}
		}
	}
}

static void inline_from_address_NULL_is_EINVAL_unless_the_length_is_0(void **state)
{
	struct ibv_mr zero_based = fx.mr;
	struct ibv_mr *regions[] = { &fx.mr, &zero_based, NULL };
	struct arguments args = good_arguments();

	(void)state;
	zero_based.addr = NULL;
	args.addr = NULL;
	args.flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
	for (size_t i = 0; i < ARRAY_SIZE(regions); i++) {
		args.mr = regions[i];
		for_each_function(f, INLINE) {
			row("%s, region %zu", f->name, i);
			for (args.length = 1; args.length < sizeof(fx.buffer); args.length *= 2)
				check_refused(f, &args, EINVAL);
			args.length = 0;
			check_accepted(f, &args);
		}
	}
}

static void address_NULL_is_accepted_where_it_may_be_an_offset_into_the_region(void **state)
{
	struct ibv_mr zero_based = fx.mr;
	struct ibv_mr *regions[] = { &fx.mr, &zero_based };
	struct arguments args = good_arguments();

	(void)state;
	zero_based.addr = NULL;
	args.addr = NULL;
	for (size_t i = 0; i < ARRAY_SIZE(regions); i++) {
		args.mr = regions[i];
		for_each_function(f, SIMPLE) {
			row("%s, region %zu", f->name, i);
			args.flags = (f->is & INLINE) ? 0 : IBV_SEND_INLINE;
			check_accepted(f, &args);
		}
	}
}

#define TOP UINTPTR_MAX	/* the last address */

struct range {
	const char *name;
	uintptr_t addr;
	size_t length;
	uintptr_t region;
	size_t region_length;
	bool refused;
};

static const struct range ranges[] = {
	{ "in the middle", 0x10400, 0x100, 0x10000, 0x4000, false },
	{ "exactly the region", 0x10000, 0x4000, 0x10000, 0x4000, false },
	{ "the first byte", 0x10000, 1, 0x10000, 0x4000, false },
	{ "the last byte", 0x13fff, 1, 0x10000, 0x4000, false },
	{ "up to the end", 0x13f00, 0x100, 0x10000, 0x4000, false },
	{ "from one byte before the region", 0xffff, 0x100, 0x10000, 0x4000, true },
	{ "from one byte before the region to its end", 0xffff, 0x4001, 0x10000, 0x4000, true },
	{ "one byte before and the first byte", 0xffff, 2, 0x10000, 0x4000, true },
	{ "to one byte past the region", 0x13f00, 0x101, 0x10000, 0x4000, true },
	{ "the region and one byte more", 0x10000, 0x4001, 0x10000, 0x4000, true },
	{ "the last byte and one more", 0x13fff, 2, 0x10000, 0x4000, true },
	{ "over the start", 0xf000, 0x2000, 0x10000, 0x4000, true },
	{ "over the end", 0x13000, 0x2000, 0x10000, 0x4000, true },
	{ "around the region", 0xf000, 0x10000, 0x10000, 0x4000, true },
	{ "one byte around the region on both sides", 0xffff, 0x4002, 0x10000, 0x4000, true },
	{ "the byte before the region", 0xffff, 1, 0x10000, 0x4000, false },
	{ "up to the region", 0xf000, 0x1000, 0x10000, 0x4000, false },
	{ "the byte behind the region", 0x14000, 1, 0x10000, 0x4000, false },
	{ "from the end of the region", 0x14000, 0x1000, 0x10000, 0x4000, false },
	{ "far below", 0, 0x1000, 0x10000, 0x4000, false },
	{ "far above", 0x7fff00000000, 0x1000, 0x10000, 0x4000, false },
	{ "a region of one byte", 0x10000, 1, 0x10000, 1, false },
	{ "over a region of one byte", 0xffff, 3, 0x10000, 1, true },
	{ "a region of no bytes, at its address", 0x10000, 0x100, 0x10000, 0, false },
	{ "a region of no bytes, around its address", 0xff00, 0x1000, 0x10000, 0, false },
	{ "a region of no bytes at address 0", 0, 0x1000, 0, 0, false },
	{ "a region at address 0", 0, 0x4000, 0, 0x4000, false },
	{ "to one byte past a region at address 0", 0, 0x4001, 0, 0x4000, true },
	{ "4 GiB - 1 byte, all of the region", 0x100000000, UINT32_MAX, 0x100000000, UINT32_MAX, false },
	{ "4 GiB - 1 byte, one more than the region", 0x100000000, UINT32_MAX, 0x100000000, UINT32_MAX - 1, true },
	{ "4 GiB - 1 byte, of a larger region", 0x1ffffffff, UINT32_MAX, 0x100000000, (size_t)1 << 40, false },
	/* Around the end of the address space. */
	{ "wrapping by one byte", TOP, 2, 0x10000, 0x4000, true },
	{ "wrapping far", TOP - 0xfff, UINT32_MAX, 0x10000, 0x4000, true },
	{ "wrapping into the region", TOP - 0xfff, 0x12000, 0x10000, 0x4000, true },
	{ "wrapping, region of no bytes", TOP, 2, 0x10000, 0, true },
	{ "wrapping out of a region at the top", TOP - 0xff, 0x101, TOP - 0xfff, 0x1000, true },
	{ "wrapping out of a region at the top that ends before", TOP - 0xff, 0x101, TOP - 0xfff, 0xfff, true },
	{ "the last addresses, elsewhere", TOP - 0xff, 0x100, 0x10000, 0x4000, false },
	{ "the last address, elsewhere", TOP, 1, 0x10000, 0x4000, false },
	{ "up to the last address but one, exactly the region", TOP - 0xfff, 0xfff, TOP - 0xfff, 0xfff, false },
	{ "to the last address, one byte past the region", TOP - 0xfff, 0x1000, TOP - 0xfff, 0xfff, true },
	/* An implicit on-demand region is [0, SIZE_MAX). */
	{ "implicit region, a buffer", 0x7fff00000000, 0x1000, 0, SIZE_MAX, false },
	{ "implicit region, address 0", 0, 0x1000, 0, SIZE_MAX, false },
	{ "implicit region, up to its end", TOP - 0xff, 0xff, 0, SIZE_MAX, false },
	{ "implicit region, past its end", TOP - 0xff, 0x100, 0, SIZE_MAX, true },
	{ "implicit region, wrapping", TOP - 0xff, 0x101, 0, SIZE_MAX, true },
};

/* Where the end of the region is no address any more. */
static const struct range ranges_at_the_top[] = {
	{ "up to the last address, exactly the region", TOP - 0xfff, 0x1000, TOP - 0xfff, 0x1000, false },
	{ "up to the last address, inside the region", TOP - 0xff, 0x100, TOP - 0xfff, 0x1000, false },
	{ "the last address, inside the region", TOP, 1, TOP - 0xfff, 0x1000, false },
	{ "the last address alone is the region", TOP, 1, TOP, 1, false },
	{ "into a region at the top", TOP - 0x1000, 0x100, TOP - 0xfff, 0x1000, true },
	{ "around a region at the top", TOP - 0x1000, 0x1001, TOP - 0xfff, 0x1000, true },
	{ "up to a region at the top", TOP - 0x1fff, 0x1000, TOP - 0xfff, 0x1000, false },
};

static void range_arguments(struct arguments *args, const struct range *range)
{
	args->addr = (void *)range->addr;
	args->length = range->length;
	args->mr = &fx.mr;
	fx.mr.addr = (void *)range->region;
	fx.mr.length = range->region_length;
}

static void check_range(const struct function *f, const struct range *range, int flags)
{
	struct arguments args = good_arguments();

	args.flags = flags;
	range_arguments(&args, range);
	row("%s, flags %#x: %s", f->name, flags, range->name);
	if (range->refused)
		check_refused(f, &args, EINVAL);
	else
		check_accepted(f, &args);
}

static void a_buffer_that_wraps_or_crosses_the_border_of_its_region_is_EINVAL(void **state)
{
	(void)state;
	for_each_function(f, SIMPLE) {
		for (size_t i = 0; i < ARRAY_SIZE(ranges); i++) {
			check_range(f, &ranges[i], 0);
			check_range(f, &ranges[i], IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
		}
	}
}

static void a_region_may_end_with_the_address_space(void **state)
{
	(void)state;
	for_each_function(f, SIMPLE)
		for (size_t i = 0; i < ARRAY_SIZE(ranges_at_the_top); i++)
			check_range(f, &ranges_at_the_top[i], 0);
}

static void reads_check_the_range_with_IBV_SEND_INLINE_too(void **state)
{
	(void)state;
	for_each_function(f, SIMPLE)
		for (size_t i = 0; i < ARRAY_SIZE(ranges); i++)
			if (!(f->is & INLINE))
				check_range(f, &ranges[i], IBV_SEND_INLINE);
}

static void no_range_is_checked_for_inline_sends_writes_and_datagrams(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	args.flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
	for (size_t i = 0; i < ARRAY_SIZE(ranges); i++) {
		range_arguments(&args, &ranges[i]);
		if (!args.addr)
			continue;	/* refused for that */
		for_each_function(f, INLINE) {
			row("%s: %s", f->name, ranges[i].name);
			check_accepted(f, &args);
		}
	}
}

static void no_range_is_checked_for_length_0(void **state)
{
	static const uintptr_t addresses[] = { 0, 1, 0xffff, 0x10000, 0x13fff, 0x14000, TOP - 1, TOP };
	static const int flags[] = { 0, IBV_SEND_INLINE };
	struct arguments args = good_arguments();

	(void)state;
	args.length = 0;
	fx.mr.addr = (void *)0x10000;
	fx.mr.length = 0x4000;
	for (size_t i = 0; i < ARRAY_SIZE(addresses); i++) {
		for (size_t j = 0; j < ARRAY_SIZE(flags); j++) {
			args.addr = (void *)addresses[i];
			args.flags = flags[j];
			for_each_function(f, SIMPLE) {
				row("%s, address %p, flags %#x", f->name, args.addr, args.flags);
				check_accepted(f, &args);
			}
		}
	}
}

static void no_entry_of_a_list_is_checked(void **state)
{
	struct ibv_sge wild[] = { { TOP, UINT32_MAX, 0 }, { 0, UINT32_MAX, 1 }, { 0, 0, 0 } };
	struct arguments args = good_arguments();

	(void)state;
	args.sgl = wild;
	args.nsge = ARRAY_SIZE(wild);
	for_each_function(f, VECTOR)
		check_accepted(f, &args);
}

static void what_only_the_provider_needs_is_not_touched(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	/* No memory is there. */
	args.addr = (void *)8;
	args.ah = (struct ibv_ah *)8;
	args.sgl = (struct ibv_sge *)8;
	args.nsge = 0;
	fx.id.pd = (struct ibv_pd *)8;
	fx.id.send_cq_channel = fx.id.recv_cq_channel = (struct ibv_comp_channel *)8;
	for_each_function(f, ANY) {
		row("%s", f->name);
		check_accepted(f, &args);
	}
	args.flags = IBV_SEND_INLINE;
	for_each_function(f, INLINE)
		check_accepted(f, &args);
	args.mr = (struct ibv_mr *)8;
	for_each_function(f, DEREGISTRATION)
		check_accepted(f, &args);
}

static const int qp_types[] = {
	IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RAW_PACKET, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV, IBV_QPT_DRIVER,
	0, 1, 7, 11, INT_MAX, -1, INT_MIN,
};

static void only_datagrams_with_an_address_handle_fit_UD_and_nothing_fits_XRC_SEND(void **state)
{
	struct ibv_ah *handles[] = { &fx.ah, NULL };
	struct arguments args = good_arguments();

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(qp_types); i++) {
		for (size_t j = 0; j < ARRAY_SIZE(handles); j++) {
			fx.qp.qp_type = qp_types[i];
			args.ah = handles[j];
			for_each_function(f, SEND_SIDE) {
				row("%s, type %d, ah %p", f->name, qp_types[i], (void *)args.ah);
				if (qp_types[i] == IBV_QPT_XRC_SEND ||
				    (qp_types[i] == IBV_QPT_UD && !(f->is & DATAGRAM)) ||
				    (qp_types[i] == IBV_QPT_UD && !args.ah))
					check_refused(f, &args, EINVAL);
				else
					check_accepted(f, &args);
			}
		}
	}
}

static void the_type_that_counts_is_that_of_the_queue_pair_and_not_that_of_the_id(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(qp_types); i++) {
		row("type %d", qp_types[i]);
		fx.id.qp_type = qp_types[i];
		fx.id.ps = RDMA_PS_UDP;
		for_each_function(f, SEND_SIDE)
			check_accepted(f, &args);
	}
}

static void receives_are_accepted_on_every_type(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(qp_types); i++) {
		fx.qp.qp_type = qp_types[i];
		for_each_function(f, RECEIVE) {
			row("%s, type %d", f->name, qp_types[i]);
			check_accepted(f, &args);
		}
	}
}

static void completions_without_a_place_for_them_are_EINVAL(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	args.wc = NULL;
	for_each_function(f, COMPLETION)
		check_refused(f, &args, EINVAL);
}

static void completions_of_a_queue_without_a_context_are_EINVAL(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	fx.send_cq.context = NULL;
	fx.recv_cq.context = NULL;
	for_each_function(f, COMPLETION)
		check_refused(f, &args, EINVAL);
}

static void completions_need_nothing_of_the_id_but_queue_and_channel(void **state)
{
	struct arguments args = good_arguments();
	struct rdma_cm_id bare = { .send_cq = &fx.send_cq, .recv_cq = &fx.recv_cq };

	(void)state;
	args.id = &bare;
	fx.send_cq.channel = NULL;
	fx.recv_cq.channel = NULL;
	for_each_function(f, COMPLETION)
		check_accepted(f, &args);
}

/* Each of these alone is EINVAL on a queue pair that is ready. */
static void nothing_wrong(struct arguments *args) { (void)args; }
static void negative_nsge(struct arguments *args) { args->nsge = -1; }
static void no_list(struct arguments *args) { args->sgl = NULL; }
static void long_length(struct arguments *args) { args->length = SIZE_MAX; }
static void no_region(struct arguments *args) { args->mr = NULL; }
static void crossing(struct arguments *args) { args->length = sizeof(fx.buffer); }
static void wrapping(struct arguments *args) { args->addr = (void *)TOP; }
static void type_ud(struct arguments *args) { fx.qp.qp_type = IBV_QPT_UD; args->ah = NULL; }
static void type_xrc(struct arguments *args) { (void)args; fx.qp.qp_type = IBV_QPT_XRC_SEND; }

static void inline_null(struct arguments *args)
{
	args->addr = NULL;
	args->flags |= IBV_SEND_INLINE;
}

static const struct {
	const char *name;
	void (*spoil)(struct arguments *);
	unsigned int matters_to;
} mistakes[] = {
	{ "nothing wrong", nothing_wrong, 0 },
	{ "nsge -1", negative_nsge, VECTOR },
	{ "sgl NULL", no_list, VECTOR },
	{ "length SIZE_MAX", long_length, SIMPLE },
	{ "mr NULL", no_region, SIMPLE },
	{ "buffer crosses the region's border", crossing, SIMPLE },
	{ "buffer wraps", wrapping, SIMPLE },
	{ "inline from NULL", inline_null, INLINE },
	{ "UD without an address handle", type_ud, SEND_SIDE },
	{ "XRC_SEND", type_xrc, SEND_SIDE },
};

static void ENOTCONN_comes_before_every_mistake_in_the_arguments_and_in_the_type(void **state)
{
	struct arguments args;

	for (size_t i = 0; i < ARRAY_SIZE(mistakes); i++) {
		for_each_function(f, SEND_SIDE) {
			fresh_fixture(state);
			row("%s, %s", f->name, mistakes[i].name);
			args = good_arguments();
			mistakes[i].spoil(&args);
			/* It is a mistake of this call. */
			if (f->is & mistakes[i].matters_to)
				check_refused(f, &args, EINVAL);
			for (int qp_state = IBV_QPS_RESET; qp_state <= IBV_QPS_RTR; qp_state++) {
				fx.qp.state = qp_state;
				check_refused(f, &args, ENOTCONN);
			}
		}
	}
}

static void a_missing_queue_comes_before_every_other_mistake(void **state)
{
	struct arguments args;

	for (size_t i = 0; i < ARRAY_SIZE(mistakes); i++) {
		for_each_function(f, POST) {
			fresh_fixture(state);
			row("%s, %s", f->name, mistakes[i].name);
			fx.qp.state = IBV_QPS_INIT;
			args = good_arguments();
			mistakes[i].spoil(&args);
			fx.qp.context = NULL;
			check_refused(f, &args, EINVAL);
			fx.id.qp = NULL;
			check_refused(f, &args, EINVAL);
			args.id = NULL;
			check_refused(f, &args, EINVAL);
		}
	}
}

static const struct CMUnitTest tests[] = {
	CASE(without_an_id_or_region_is_EINVAL),
	CASE(without_any_valid_argument_is_EINVAL),
	CASE(each_null_pointer_of_the_id_is_EINVAL_where_the_call_works_on_it_and_ignored_elsewhere),
	CASE(posts_without_a_queue_pair_are_EINVAL),
	CASE(posts_to_a_queue_pair_without_a_context_are_EINVAL_in_every_state),
	CASE(receives_go_to_the_shared_receive_queue_of_the_id_whatever_its_queue_pair),
	CASE(receives_into_a_shared_receive_queue_without_a_context_are_EINVAL),
	CASE(receives_are_EINVAL_where_only_the_queue_pair_knows_the_shared_receive_queue),
	CASE(sends_do_not_care_about_shared_receive_queues),
	CASE(sends_are_ENOTCONN_in_RESET_INIT_and_RTR_of_an_InfiniBand_device_and_nowhere_else),
	CASE(without_a_device_the_provider_decides_about_the_state),
	CASE(the_device_is_looked_at_only_where_the_state_says_no),
	CASE(receives_are_accepted_in_every_state),
	CASE(a_negative_number_of_entries_is_EINVAL_and_so_are_entries_without_a_list),
	CASE(a_length_of_more_than_32_bits_is_EINVAL_and_a_length_without_a_region_unless_inline),
	CASE(inline_from_address_NULL_is_EINVAL_unless_the_length_is_0),
	CASE(address_NULL_is_accepted_where_it_may_be_an_offset_into_the_region),
	CASE(a_buffer_that_wraps_or_crosses_the_border_of_its_region_is_EINVAL),
	CASE(a_region_may_end_with_the_address_space),
	CASE(reads_check_the_range_with_IBV_SEND_INLINE_too),
	CASE(no_range_is_checked_for_inline_sends_writes_and_datagrams),
	CASE(no_range_is_checked_for_length_0),
	CASE(no_entry_of_a_list_is_checked),
	CASE(what_only_the_provider_needs_is_not_touched),
	CASE(only_datagrams_with_an_address_handle_fit_UD_and_nothing_fits_XRC_SEND),
	CASE(the_type_that_counts_is_that_of_the_queue_pair_and_not_that_of_the_id),
	CASE(receives_are_accepted_on_every_type),
	CASE(completions_without_a_place_for_them_are_EINVAL),
	CASE(completions_of_a_queue_without_a_context_are_EINVAL),
	CASE(completions_need_nothing_of_the_id_but_queue_and_channel),
	CASE(ENOTCONN_comes_before_every_mistake_in_the_arguments_and_in_the_type),
	CASE(a_missing_queue_comes_before_every_other_mistake),
};
CASES(refusals, tests);
