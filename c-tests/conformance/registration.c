/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* rdma_reg_msgs, rdma_reg_read, rdma_reg_write, rdma_dereg_mr: what the provider is asked. */
#include "suite.h"

static void each_purpose_has_its_access_rights(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	for_each_function(f, REGISTRATION) {
		row("%s", f->name);
		check_accepted(f, &args);
		check_equal(script->records[0].access, f->access);
	}
}

static void the_protection_domain_address_and_length_go_through_unchanged(void **state)
{
	static const struct {
		void *addr;
		size_t length;
	} rows[] = {
		{ fx.buffer, 1 },
		{ fx.buffer + 1, sizeof(fx.buffer) - 1 },
		{ fx.buffer, 0 },
		{ NULL, 0 },
		{ NULL, 1 },
		{ NULL, SIZE_MAX },
		{ (void *)UINTPTR_MAX, 1 },
		{ (void *)UINTPTR_MAX, SIZE_MAX },
		{ (void *)0x1000, (size_t)UINT32_MAX + 1 },
	};
	struct arguments args = good_arguments();

	(void)state;
	for_each_function(f, REGISTRATION) {
		for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
			row("%s, row %zu", f->name, i);
			args.addr = rows[i].addr;
			args.length = rows[i].length;
			check_accepted(f, &args);
			check_equal(script->records[0].object, &fx.pd);
			check_equal(script->records[0].addr, rows[i].addr);
			check_equal(script->records[0].length, rows[i].length);
		}
	}
}

static void the_region_is_the_one_that_the_provider_returned(void **state)
{
	struct ibv_mr other = { 0 };
	struct ibv_mr *regions[] = { &fx.mr, &other };
	struct arguments args = good_arguments();

	(void)state;
	for_each_function(f, REGISTRATION) {
		for (size_t i = 0; i < ARRAY_SIZE(regions); i++) {
			row("%s, region %zu", f->name, i);
			new_script();
			say(REG_MR, (struct answer){ .mr = regions[i] });
			check_equal(call(f, &args, 0).region, regions[i]);
		}
	}
}

static void registering_needs_nothing_of_the_id_but_the_protection_domain(void **state)
{
	struct rdma_cm_id bare = { .pd = &fx.pd };
	struct arguments args = good_arguments();

	(void)state;
	args.id = &bare;
	fx.pd.context = NULL;
	for_each_function(f, REGISTRATION) {
		row("%s", f->name);
		check_accepted(f, &args);
	}
}

static void the_region_is_given_back_to_the_provider_untouched(void **state)
{
	struct arguments args = good_arguments();
	struct ibv_mr region = { .addr = fx.buffer, .length = 77, .handle = 5, .lkey = 6, .rkey = 7 }, copy = region;

	(void)state;
	args.id = NULL;
	args.mr = &region;
	for_each_function(f, DEREGISTRATION) {
		check_accepted(f, &args);
		check_equal(script->records[0].object, &region);
		check_bytes(&region, &copy, sizeof(region));
	}
}

static const struct CMUnitTest tests[] = {
	CASE(each_purpose_has_its_access_rights),
	CASE(the_protection_domain_address_and_length_go_through_unchanged),
	CASE(the_region_is_the_one_that_the_provider_returned),
	CASE(registering_needs_nothing_of_the_id_but_the_protection_domain),
	CASE(the_region_is_given_back_to_the_provider_untouched),
};
CASES(registration, tests);
