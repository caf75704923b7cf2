/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The functions of libibverbs on the software device: what they make, answer, refuse and destroy. To be run under
 * rdma-verbs --soft --check=off. Its queue pairs are their own peers.
 */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include <cmocka.h>

enum { PORT = 1, SIZE = 4096 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char buffer[SIZE];

/* errno, and NULL. */
#define assert_no_object(object, error) do { \
	errno = 0; \
	assert_null(object); \
	assert_int_equal(errno, error); \
} while (0)

/* The error as the result, and errno the same. */
#define assert_error(call, error) do { \
	errno = 0; \
	assert_int_equal(call, error); \
	assert_int_equal(errno, error); \
} while (0)

#define assert_minus_one(call, error) do { \
	errno = 0; \
	assert_int_equal(call, -1); \
	assert_int_equal(errno, error); \
} while (0)

static int begin(void **state)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);

	(void)state;
	context = ibv_open_device(devices[0]);
	ibv_free_device_list(devices);
	assert_non_null(context);
	pd = ibv_alloc_pd(context);
	assert_non_null(pd);
	channel = ibv_create_comp_channel(context);
	assert_non_null(channel);
	cq = ibv_create_cq(context, 64, &cq, channel, 0);
	assert_non_null(cq);
	mr = ibv_reg_mr(pd, buffer, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		IBV_ACCESS_REMOTE_ATOMIC);
	assert_non_null(mr);
	return 0;
}

static int end(void **state)
{
	(void)state;
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(ibv_destroy_cq(cq), 0);
	assert_int_equal(ibv_destroy_comp_channel(channel), 0);
	assert_int_equal(ibv_dealloc_pd(pd), 0);
	assert_int_equal(ibv_close_device(context), 0);
	return 0;
}

static void the_list_has_one_device(void **state)
{
	int number = 7;
	struct ibv_device **devices = ibv_get_device_list(&number);
	struct ibv_device **again = ibv_get_device_list(NULL);

	(void)state;
	assert_int_equal(number, 1);
	assert_null(devices[1]);
	assert_ptr_equal(devices[0], again[0]);
	assert_string_equal(ibv_get_device_name(devices[0]), "soft0");
	assert_int_equal(devices[0]->node_type, IBV_NODE_CA);
	assert_int_equal(devices[0]->transport_type, IBV_TRANSPORT_IB);
	assert_true(ibv_get_device_guid(devices[0]) != 0);
	/* Whoever looks for the kernel's files finds none. */
	assert_int_equal(access(devices[0]->dev_path, F_OK), -1);
	assert_int_equal(access(devices[0]->ibdev_path, F_OK), -1);
	ibv_free_device_list(devices);
	ibv_free_device_list(again);
}

/* libmlx5 and others compare what lies behind the device with the operations of their drivers. */
static void no_driver_takes_the_device_for_its_own(void **state)
{
	struct driven { struct ibv_device device; const void *driver; };
	struct ibv_device **devices = ibv_get_device_list(NULL);

	(void)state;
	assert_null(((struct driven *)devices[0])->driver);
	ibv_free_device_list(devices);
}

static void a_context_is_extended_and_closes_its_descriptor(void **state)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *second = ibv_open_device(devices[0]);
	int fd;

	(void)state;
	assert_non_null(second);
	assert_non_null(verbs_get_ctx(second));
	assert_ptr_equal(second->device, devices[0]);
	assert_int_equal(second->num_comp_vectors, 1);
	fd = second->async_fd;
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(ibv_close_device(second), 0);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	ibv_free_device_list(devices);
}

static void the_device_has_limits(void **state)
{
	struct ibv_query_device_ex_input input = { 0 };
	struct ibv_device_attr_ex extended;
	struct ibv_device_attr attr;

	(void)state;
	memset(&attr, 0xa5, sizeof(attr));
	assert_int_equal(ibv_query_device(context, &attr), 0);
	assert_true(attr.max_qp >= 1000 && attr.max_cq >= 1000 && attr.max_mr >= 1000 && attr.max_pd > 0);
	assert_true(attr.max_qp_wr >= 8192 && attr.max_cqe >= 65536 && attr.max_sge >= 16 && attr.max_srq_wr >= 8192);
	assert_int_equal(attr.phys_port_cnt, 1);
	assert_int_equal(attr.atomic_cap, IBV_ATOMIC_HCA);
	assert_int_equal(attr.node_guid, ibv_get_device_guid(context->device));
	assert_int_equal(attr.max_mw, 0);
	memset(&extended, 0xa5, sizeof(extended));
	assert_int_equal(ibv_query_device_ex(context, &input, &extended), 0);
	assert_memory_equal(&extended.orig_attr, &attr, offsetof(struct ibv_device_attr, phys_port_cnt) + 1);
	assert_int_equal(extended.odp_caps.general_caps, 0);
	assert_int_equal(extended.completion_timestamp_mask, 0);
	input.comp_mask = 1;
	assert_int_equal(ibv_query_device_ex(context, &input, &extended), EINVAL);
}

#undef ibv_query_port
static void the_port_is_an_active_roce_port(void **state)
{
	struct { struct ibv_port_attr attr; char behind[16]; } old, new, short_one;
	/* As programs of before port_cap_flags2 have it. */
	const size_t compat = offsetof(struct ibv_port_attr, port_cap_flags2);
	struct verbs_context *table = verbs_get_ctx(context);

	(void)state;
	memset(&old, 0xa5, sizeof(old));
	memset(&new, 0xa5, sizeof(new));
	memset(&short_one, 0xa5, sizeof(short_one));
	assert_int_equal(___ibv_query_port(context, PORT, &new.attr), 0);
	assert_int_equal(new.attr.state, IBV_PORT_ACTIVE);
	assert_int_equal(new.attr.phys_state, 5);
	assert_int_equal(new.attr.link_layer, IBV_LINK_LAYER_ETHERNET);
	assert_int_equal(new.attr.lid, 0);
	assert_true(new.attr.active_mtu >= IBV_MTU_1024 && new.attr.active_mtu <= new.attr.max_mtu);
	assert_true(new.attr.max_msg_sz >= 1 << 30);
	assert_true(new.attr.gid_tbl_len >= 1);
	assert_int_equal(new.attr.pkey_tbl_len, 1);
	assert_int_equal(new.behind[0], (char)0xa5);
	/* No more than there is room for. */
	assert_int_equal(ibv_query_port(context, PORT, (struct _compat_ibv_port_attr *)&old.attr), 0);
	assert_memory_equal(&old.attr, &new.attr, compat);
	assert_int_equal(((char *)&old)[compat], (char)0xa5);
	assert_int_equal(table->query_port(context, PORT, &short_one.attr, 8), 0);
	assert_memory_equal(&short_one, &new, 8);
	assert_int_equal(((char *)&short_one)[8], (char)0xa5);
	assert_error(___ibv_query_port(context, 0, &new.attr), EINVAL);
	assert_error(___ibv_query_port(context, 2, &new.attr), EINVAL);
}

static void gids_are_addresses(void **state)
{
	static const union ibv_gid none;
	struct ibv_gid_entry entries[256], entry;
	struct ibv_port_attr port;
	ssize_t number;
	int valid = 0, loopback = 0;
	union ibv_gid gid;

	(void)state;
	assert_int_equal(___ibv_query_port(context, PORT, &port), 0);
	for (int i = 0; i < port.gid_tbl_len; i++) {
		assert_int_equal(ibv_query_gid(context, PORT, i, &gid), 0);
		if (!memcmp(&gid, &none, sizeof(gid))) {
			assert_error(ibv_query_gid_ex(context, PORT, i, &entry, 0), ENODATA);
			continue;
		}
		valid++;
		loopback += !memcmp(&gid, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\1", sizeof(gid));
		assert_int_equal(ibv_query_gid_ex(context, PORT, i, &entry, 0), 0);
		assert_memory_equal(&entry.gid, &gid, sizeof(gid));
		assert_int_equal(entry.gid_index, i);
		assert_int_equal(entry.port_num, PORT);
		assert_int_equal(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
		assert_true(entry.ndev_ifindex > 0);
	}
	assert_true(valid > 0);
	assert_int_equal(loopback, 1);
	number = ibv_query_gid_table(context, entries, 256, 0);
	assert_int_equal(number, valid);
	assert_int_equal(ibv_query_gid_table(context, entries, 1, 0), 1);
	assert_minus_one(ibv_query_gid(context, PORT, port.gid_tbl_len, &gid), EINVAL);
	assert_minus_one(ibv_query_gid(context, PORT, -1, &gid), EINVAL);
	assert_minus_one(ibv_query_gid(context, 2, 0, &gid), EINVAL);
	assert_error(ibv_query_gid_ex(context, PORT, 0, &entry, 1), EOPNOTSUPP);
}

static void the_default_partition(void **state)
{
	__be16 pkey = 0;

	(void)state;
	assert_int_equal(ibv_query_pkey(context, PORT, 0, &pkey), 0);
	assert_int_equal(be16toh(pkey), 0xffff);
	assert_int_equal(ibv_get_pkey_index(context, PORT, pkey), 0);
	assert_minus_one(ibv_query_pkey(context, PORT, 1, &pkey), EINVAL);
	assert_int_equal(ibv_get_pkey_index(context, PORT, htobe16(0x7fff)), -1);
}

static void regions(void **state)
{
	char *pages = mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *other;
	unsigned char in_core;

	(void)state;
	assert_true(pages != MAP_FAILED);
	assert_int_equal(munmap(pages + SIZE, SIZE), 0);
	assert_ptr_equal(mr->addr, buffer);
	assert_int_equal(mr->length, SIZE);
	assert_ptr_equal(mr->pd, pd);
	assert_ptr_equal(mr->context, context);
	assert_true(mr->lkey != 0 && mr->rkey != 0);
	assert_no_object(ibv_reg_mr(pd, NULL, 16, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	assert_no_object(ibv_reg_mr(pd, pages, SIZE + 1, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	assert_no_object(ibv_reg_mr(pd, "constant", 8, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	assert_no_object(ibv_reg_mr(pd, pages, 1UL << 40, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	assert_no_object(ibv_reg_mr(pd, pages, 0, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	assert_no_object(ibv_reg_mr(pd, pages, 16, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	assert_no_object(ibv_reg_mr(pd, pages, 16, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	assert_no_object(ibv_reg_mr(pd, pages, 16, IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
	other = ibv_reg_mr(pd, pages, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
	assert_non_null(other);
	/* Without remote access there is no key for it. */
	assert_int_equal(other->rkey, 0);
	/* Registering has not made a page of what was never touched. */
	assert_int_equal(mincore(pages, SIZE, &in_core), 0);
	assert_int_equal(in_core & 1, 0);
	assert_int_equal(ibv_dereg_mr(other), 0);
	other = ibv_reg_mr(pd, (void *)"constant", 8, IBV_ACCESS_REMOTE_READ);
	assert_non_null(other);
	assert_true(other->rkey != 0);
	assert_int_equal(ibv_dereg_mr(other), 0);
	munmap(pages, SIZE);
}

static void a_region_changes(void **state)
{
	char other_buffer[64];
	struct ibv_pd *other_pd = ibv_alloc_pd(context);
	struct ibv_mr *changing = ibv_reg_mr(pd, buffer, SIZE, IBV_ACCESS_LOCAL_WRITE);

	(void)state;
	assert_int_equal(ibv_rereg_mr(changing, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other_buffer, 64, 0), 0);
	assert_ptr_equal(changing->addr, other_buffer);
	assert_int_equal(changing->length, 64);
	assert_int_equal(changing->rkey, 0);
	assert_int_equal(ibv_rereg_mr(changing, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_READ), 0);
	assert_true(changing->rkey != 0);
	assert_int_equal(ibv_rereg_mr(changing, IBV_REREG_MR_CHANGE_PD, other_pd, NULL, 0, 0), 0);
	assert_ptr_equal(changing->pd, other_pd);
	errno = 0;
	assert_int_equal(ibv_rereg_mr(changing, 1 << 7, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(ibv_rereg_mr(changing, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 16, 0), IBV_REREG_MR_ERR_INPUT);
	assert_int_equal(errno, EFAULT);
	assert_int_equal(ibv_dealloc_pd(other_pd), EBUSY);
	assert_int_equal(ibv_dereg_mr(changing), 0);
	assert_int_equal(ibv_dealloc_pd(other_pd), 0);
}

static void completion_queues(void **state)
{
	struct ibv_cq *other;
	struct ibv_wc wc;

	(void)state;
	assert_true(cq->cqe >= 64);
	assert_ptr_equal(cq->channel, channel);
	assert_ptr_equal(cq->cq_context, &cq);
	assert_error(ibv_destroy_comp_channel(channel), EBUSY);
	assert_int_equal(ibv_poll_cq(cq, 1, &wc), 0);
	assert_int_equal(ibv_poll_cq(cq, 0, NULL), 0);
	assert_int_equal(ibv_resize_cq(cq, 1000), 0);
	assert_true(cq->cqe >= 1000);
	assert_error(ibv_resize_cq(cq, 0), EINVAL);
	assert_no_object(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	assert_no_object(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
	assert_no_object(ibv_create_cq(context, INT32_MAX, NULL, NULL, 0), EINVAL);
	assert_no_object(ibv_create_cq(context, 1, NULL, NULL, 1), EINVAL);
	assert_no_object(ibv_create_cq(context, 1, NULL, NULL, -1), EINVAL);
	other = ibv_create_cq(context, 1, NULL, NULL, 0);
	assert_non_null(other);
	assert_int_equal(ibv_req_notify_cq(other, 0), 0);
	assert_int_equal(ibv_destroy_cq(other), 0);
}

static void channels_wait_as_their_descriptor_does(void **state)
{
	struct pollfd ready = { .fd = channel->fd, .events = POLLIN };
	struct ibv_async_event event;
	struct ibv_cq *of;
	void *cq_context;

	(void)state;
	assert_true(fcntl(channel->fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(poll(&ready, 1, 0), 0);
	fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	assert_minus_one(ibv_get_cq_event(channel, &of, &cq_context), EAGAIN);
	fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
	assert_minus_one(ibv_get_async_event(context, &event), EAGAIN);
}

static void shared_receive_queues(void **state)
{
	struct ibv_srq_init_attr init = { .srq_context = &init, .attr = { .max_wr = 10, .max_sge = 2 } };
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad = NULL;
	struct ibv_srq_attr attr = { 0 };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);

	(void)state;
	assert_non_null(srq);
	assert_ptr_equal(srq->srq_context, &init);
	assert_true(init.attr.max_wr >= 10 && init.attr.max_sge >= 2);
	assert_int_equal(ibv_query_srq(srq, &attr), 0);
	assert_int_equal(attr.max_wr, init.attr.max_wr);
	assert_int_equal(attr.srq_limit, 0);
	assert_error(ibv_modify_srq(srq, &attr, 1 << 5), EINVAL);
	for (unsigned int i = 0; i < init.attr.max_wr; i++)
		assert_int_equal(ibv_post_srq_recv(srq, &wr, &bad), 0);
	assert_error(ibv_post_srq_recv(srq, &wr, &bad), ENOMEM);
	assert_ptr_equal(bad, &wr);
	attr.srq_limit = 3;
	assert_int_equal(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	attr.srq_limit = 0;
	assert_int_equal(ibv_query_srq(srq, &attr), 0);
	assert_int_equal(attr.srq_limit, 3);
	assert_int_equal(ibv_destroy_srq(srq), 0);
	init.attr = (struct ibv_srq_attr) { .max_wr = 0 };
	assert_no_object(ibv_create_srq(pd, &init), EINVAL);
	init.attr = (struct ibv_srq_attr) { .max_wr = 1, .max_sge = 1000 };
	assert_no_object(ibv_create_srq(pd, &init), EINVAL);
}

static struct ibv_qp_init_attr init_attr(void)
{
	return (struct ibv_qp_init_attr) {
		.qp_context = &cq, .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64 },
	};
}

static void queue_pairs(void **state)
{
	static const enum ibv_qp_type unsupported[] =
		{ IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RAW_PACKET, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV, IBV_QPT_DRIVER };
	struct ibv_qp_init_attr init = init_attr(), queried = { 0 };
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send = NULL;
	struct ibv_recv_wr recv = { 0 }, *bad_recv = NULL;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr;

	(void)state;
	assert_non_null(qp);
	assert_true(init.cap.max_send_wr >= 8 && init.cap.max_recv_sge >= 2 && init.cap.max_inline_data >= 64);
	assert_int_equal(qp->state, IBV_QPS_RESET);
	assert_int_equal(qp->qp_type, IBV_QPT_RC);
	assert_ptr_equal(qp->pd, pd);
	assert_true(qp->qp_num > 1 && qp->qp_num < 0xffffff);
	assert_null(ibv_qp_to_qp_ex(qp));
	assert_error(ibv_dealloc_pd(pd), EBUSY);
	assert_error(ibv_destroy_cq(cq), EBUSY);
	assert_error(ibv_post_send(qp, &send, &bad_send), EINVAL);
	assert_ptr_equal(bad_send, &send);
	assert_error(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	assert_ptr_equal(bad_recv, &recv);
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_RTS;
	assert_error(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = IBV_ACCESS_REMOTE_READ };
	assert_int_equal(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	assert_int_equal(qp->state, IBV_QPS_INIT);
	memset(&attr, 0, sizeof(attr));
	assert_int_equal(ibv_query_qp(qp, &attr, IBV_QP_STATE, &queried), 0);
	assert_int_equal(attr.qp_state, IBV_QPS_INIT);
	assert_int_equal(attr.port_num, PORT);
	assert_int_equal(attr.cap.max_send_wr, init.cap.max_send_wr);
	assert_ptr_equal(queried.qp_context, &cq);
	assert_ptr_equal(queried.send_cq, cq);
	assert_int_equal(queried.qp_type, IBV_QPT_RC);
	assert_memory_equal(&queried.cap, &init.cap, sizeof(init.cap));
	recv.num_sge = -1;
	assert_error(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	recv.num_sge = 0;
	for (unsigned int i = 0; i < init.cap.max_recv_wr; i++)
		assert_int_equal(ibv_post_recv(qp, &recv, &bad_recv), 0);
	assert_error(ibv_post_recv(qp, &recv, &bad_recv), ENOMEM);
	assert_int_equal(ibv_destroy_qp(qp), 0);

	for (size_t i = 0; i < sizeof(unsupported) / sizeof(*unsupported); i++) {
		init.qp_type = unsupported[i];
		assert_no_object(ibv_create_qp(pd, &init), EOPNOTSUPP);
	}
	/* Room for the data of entries is room for inline data. */
	init = init_attr();
	init.cap.max_inline_data = 0;
	qp = ibv_create_qp(pd, &init);
	assert_non_null(qp);
	assert_true(init.cap.max_inline_data >= init.cap.max_send_sge * sizeof(struct ibv_sge));
	assert_int_equal(ibv_destroy_qp(qp), 0);
	init = init_attr();
	init.cap.max_send_wr = 2000000;
	assert_no_object(ibv_create_qp(pd, &init), EINVAL);
	init = init_attr();
	init.cap.max_recv_sge = 33;
	assert_no_object(ibv_create_qp(pd, &init), EINVAL);
	init = init_attr();
	init.cap.max_inline_data = 1 << 20;
	assert_no_object(ibv_create_qp(pd, &init), EINVAL);
	init = init_attr();
	init.send_cq = NULL;
	assert_no_object(ibv_create_qp(pd, &init), EINVAL);
}

/* What the device does not have says so, and is not handed to the real library. */
static void the_rest_is_not_supported(void **state)
{
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = IBV_XRCD_INIT_ATTR_FD, .fd = -1 };
	struct ibv_cq_init_attr_ex timestamps =
		{ .cqe = 1, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP };
	struct ibv_srq_init_attr_ex tags =
		{ .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD, .srq_type = IBV_SRQT_TM, .pd = pd };
	struct ibv_qp_init_attr_ex bind = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_BIND_MW,
	};
	struct ibv_parent_domain_init_attr domain = { .pd = pd };
	struct ibv_alloc_dm_attr dm = { .length = 64 };
	struct ibv_qp_init_attr init = init_attr();
	struct ibv_td_init_attr td = { 0 };
	struct ibv_ah_attr ah = { .port_num = PORT, .is_global = 1 };
	struct ibv_ece ece = { .vendor_id = 1, .options = 1 };
	union ibv_gid gid = { 0 };
	struct ibv_qp *qp;

	(void)state;
	assert_no_object(ibv_open_xrcd(context, &xrcd), EOPNOTSUPP);
	assert_no_object(ibv_create_cq_ex(context, &timestamps), EOPNOTSUPP);
	assert_no_object(ibv_create_srq_ex(context, &tags), EOPNOTSUPP);
	assert_no_object(ibv_create_qp_ex(context, &bind), EOPNOTSUPP);
	assert_no_object(ibv_alloc_parent_domain(context, &domain), EOPNOTSUPP);
	assert_no_object(ibv_alloc_td(context, &td), EOPNOTSUPP);
	assert_no_object(ibv_alloc_dm(context, &dm), EOPNOTSUPP);
	assert_no_object(ibv_alloc_mw(pd, IBV_MW_TYPE_1), EOPNOTSUPP);
	assert_no_object(ibv_alloc_null_mr(pd), EOPNOTSUPP);
	assert_no_object(ibv_create_ah(pd, &ah), EOPNOTSUPP);
	assert_no_object(ibv_reg_dmabuf_mr(pd, 0, 64, 0, -1, 0), EOPNOTSUPP);
	assert_no_object(ibv_import_device(-1), EOPNOTSUPP);
	assert_no_object(ibv_import_pd(context, 0), EOPNOTSUPP);
	assert_no_object(ibv_import_mr(pd, 0), EOPNOTSUPP);
	assert_int_equal(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 0), EOPNOTSUPP);
	qp = ibv_create_qp(pd, &init);
	assert_non_null(qp);
	assert_error(ibv_attach_mcast(qp, &gid, 0), EOPNOTSUPP);
	assert_error(ibv_detach_mcast(qp, &gid, 0), EOPNOTSUPP);
	assert_error(ibv_set_ece(qp, &ece), EOPNOTSUPP);
	assert_int_equal(ibv_query_ece(qp, &ece), 0);
	assert_int_equal(ece.options, 0);
	assert_int_equal(ibv_destroy_qp(qp), 0);
}

/* Connects a queue pair to itself, over the first GID that there is. */
static void connect_to_itself(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = PORT,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};

	assert_int_equal(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.max_dest_rd_atomic = 4;
	attr.min_rnr_timer = 1;
	attr.ah_attr = (struct ibv_ah_attr) { .is_global = 1, .port_num = PORT, .grh = { .hop_limit = 64 } };
	assert_int_equal(ibv_query_gid(qp->context, PORT, 0, &attr.ah_attr.grh.dgid), 0);
	assert_int_equal(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	assert_int_equal(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), 0);
}

static struct ibv_wc completion(struct ibv_cq *of)
{
	struct ibv_wc wc;
	int found;

	/* A test that hangs is ended by its harness. */
	while (!(found = ibv_poll_cq(of, 1, &wc)))
		;
	assert_int_equal(found, 1);
	return wc;
}

static void post_recv(struct ibv_qp *qp, uint64_t wr_id, char *at)
{
	struct ibv_sge sge = { .addr = (uintptr_t)at, .length = 256, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	assert_int_equal(ibv_post_recv(qp, &wr, &bad), 0);
}

static void each_operation_through_ibv_wr_start(void **state)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd, .sq_sig_all = 1,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
			IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
			IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_SEND_WITH_INV,
	};
	struct ibv_data_buf parts[] = { { "in", 2 }, { NULL, 0 }, { "line", 4 } };
	struct ibv_sge sges[] = { { (uintptr_t)buffer, 3, 0 }, { (uintptr_t)buffer + 10, 3, 0 } };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	struct ibv_qp_ex *ex;
	struct ibv_wc wc;
	uint64_t *counter = (uint64_t *)(buffer + 1024), *result = (uint64_t *)(buffer + 1032);

	(void)state;
	assert_non_null(qp);
	ex = ibv_qp_to_qp_ex(qp);
	assert_non_null(ex);
	connect_to_itself(qp);

	/* Two sends, one inline in parts, whose bytes may change once they are set. */
	memcpy(buffer, "abc-------def", 13);
	post_recv(qp, 1, buffer + 2048);
	post_recv(qp, 2, buffer + 3072);
	ibv_wr_start(ex);
	ex->wr_id = 10;
	ex->wr_flags = 0;
	ibv_wr_send(ex);
	ibv_wr_set_inline_data_list(ex, 3, parts);
	ex->wr_id = 11;
	ibv_wr_send_imm(ex, htobe32(0x1234));
	sges[0].lkey = sges[1].lkey = mr->lkey;
	ibv_wr_set_sge_list(ex, 2, sges);
	assert_int_equal(ibv_wr_complete(ex), 0);
	for (int sends = 0, recvs = 0; sends < 2 || recvs < 2; ) {
		wc = completion(cq);
		assert_int_equal(wc.status, IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_SEND)
			assert_int_equal(wc.wr_id, 10 + sends++);
		else
			assert_int_equal(wc.wr_id, 1 + recvs++);
		if (wc.wr_id == 2) {
			assert_int_equal(wc.imm_data, htobe32(0x1234));
			assert_true(wc.wc_flags & IBV_WC_WITH_IMM);
		}
	}
	assert_memory_equal(buffer + 2048, "inline", 6);
	assert_memory_equal(buffer + 3072, "abcdef", 6);

	/* One-sided operations, in order. */
	*counter = 40;
	ibv_wr_start(ex);
	ex->wr_id = 20;
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer + 512);
	ibv_wr_set_inline_data(ex, "written", 7);
	ex->wr_id = 21;
	ibv_wr_rdma_read(ex, mr->rkey, (uintptr_t)buffer + 512);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)buffer + 600, 7);
	ex->wr_id = 22;
	ibv_wr_atomic_fetch_add(ex, mr->rkey, (uintptr_t)counter, 2);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)result, 8);
	ex->wr_id = 23;
	ibv_wr_atomic_cmp_swp(ex, mr->rkey, (uintptr_t)counter, 42, 7);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)(result + 1), 8);
	assert_int_equal(ibv_wr_complete(ex), 0);
	static const enum ibv_wc_opcode opcodes[] =
		{ IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ, IBV_WC_FETCH_ADD, IBV_WC_COMP_SWAP };
	for (int i = 0; i < 4; i++) {
		wc = completion(cq);
		assert_int_equal(wc.status, IBV_WC_SUCCESS);
		assert_int_equal(wc.wr_id, 20 + i);
		assert_int_equal(wc.opcode, opcodes[i]);
	}
	assert_memory_equal(buffer + 600, "written", 7);
	assert_int_equal(result[0], 40);
	assert_int_equal(result[1], 42);
	assert_int_equal(*counter, 7);

	/* All or nothing: what is wrong with one request keeps the others from being posted, and so does a full queue. */
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer);
	ibv_wr_rdma_read(ex, mr->rkey, (uintptr_t)buffer);
	ibv_wr_set_inline_data(ex, "x", 1);
	assert_error(ibv_wr_complete(ex), EINVAL);
	ibv_wr_start(ex);
	for (unsigned int i = 0; i < init.cap.max_send_wr + 1; i++)
		ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)buffer);
	assert_error(ibv_wr_complete(ex), ENOMEM);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, buffer, init.cap.max_inline_data + 1);
	assert_error(ibv_wr_complete(ex), EINVAL);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_abort(ex);
	assert_int_equal(ibv_poll_cq(cq, 1, &wc), 0);
	assert_int_equal(ibv_destroy_qp(qp), 0);
}

static void completions_are_read_by_field(void **state)
{
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *ex = ibv_create_cq_ex(context, &cq_attr);
	struct ibv_qp_init_attr init = init_attr();
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_send_wr wr = { .wr_id = 5, .opcode = IBV_WR_SEND_WITH_IMM, .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
		.imm_data = htobe32(77) }, *bad;
	struct ibv_sge sge = { .addr = (uintptr_t)"four", .length = 4 };
	struct ibv_qp *qp;
	int result;

	(void)state;
	assert_non_null(ex);
	init.send_cq = cq;
	init.recv_cq = ibv_cq_ex_to_cq(ex);
	qp = ibv_create_qp(pd, &init);
	assert_non_null(qp);
	connect_to_itself(qp);
	errno = 0;
	assert_int_equal(ibv_start_poll(ex, &attr), ENOENT);
	assert_int_equal(errno, 0);
	post_recv(qp, 1, buffer);
	post_recv(qp, 2, buffer + 256);
	wr.sg_list = &sge;
	wr.num_sge = 1;
	assert_int_equal(ibv_post_send(qp, &wr, &bad), 0);
	assert_int_equal(completion(cq).status, IBV_WC_SUCCESS);
	assert_int_equal(ibv_post_send(qp, &wr, &bad), 0);
	assert_int_equal(completion(cq).status, IBV_WC_SUCCESS);
	/* Both have been received: the sender has their acknowledgements. */
	while ((result = ibv_start_poll(ex, &attr)) == ENOENT)
		;
	for (int i = 1; i <= 2; i++) {
		assert_int_equal(result, 0);
		assert_int_equal(ex->wr_id, i);
		assert_int_equal(ex->status, IBV_WC_SUCCESS);
		assert_int_equal(ibv_wc_read_opcode(ex), IBV_WC_RECV);
		assert_int_equal(ibv_wc_read_byte_len(ex), 4);
		assert_int_equal(ibv_wc_read_qp_num(ex), qp->qp_num);
		assert_int_equal(ibv_wc_read_imm_data(ex), htobe32(77));
		assert_true(ibv_wc_read_wc_flags(ex) & IBV_WC_WITH_IMM);
		result = ibv_next_poll(ex);
	}
	assert_int_equal(result, ENOENT);
	ibv_end_poll(ex);
	attr.comp_mask = 1;
	assert_int_equal(ibv_start_poll(ex, &attr), EINVAL);
	assert_int_equal(ibv_destroy_qp(qp), 0);
	assert_int_equal(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), 0);
}

static void *acknowledge_later(void *ignored)
{
	(void)ignored;
	usleep(100000);
	ibv_ack_cq_events(cq, 2);
	return NULL;
}

static void a_queue_is_destroyed_when_its_events_are_acknowledged(void **state)
{
	struct ibv_qp_init_attr init = init_attr();
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	pthread_t thread;

	(void)state;
	assert_non_null(qp);
	connect_to_itself(qp);
	wr.wr.rdma.remote_addr = (uintptr_t)buffer;
	wr.wr.rdma.rkey = mr->rkey;
	for (int i = 0; i < 2; i++) {
		void *cq_context = NULL;
		struct ibv_cq *of = NULL;

		assert_int_equal(ibv_req_notify_cq(cq, 0), 0);
		assert_int_equal(ibv_post_send(qp, &wr, &bad), 0);
		assert_int_equal(ibv_get_cq_event(channel, &of, &cq_context), 0);
		assert_ptr_equal(of, cq);
		assert_ptr_equal(cq_context, &cq);
		assert_int_equal(completion(cq).status, IBV_WC_SUCCESS);
	}
	assert_int_equal(ibv_destroy_qp(qp), 0);
	/* Without the acknowledgement, the end of the case would wait for ever. */
	assert_int_equal(pthread_create(&thread, NULL, acknowledge_later, NULL), 0);
	assert_int_equal(ibv_destroy_cq(cq), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	cq = ibv_create_cq(context, 64, &cq, channel, 0);
	assert_non_null(cq);
}

static void asynchronous_events_are_acknowledged(void **state)
{
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1, .srq_limit = 0 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_qp_init_attr init = init_attr();
	struct ibv_srq_attr limit = { .srq_limit = 2 };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_recv_wr recv = { 0 }, *bad_recv;
	struct ibv_async_event event;
	struct ibv_qp *qp;

	(void)state;
	assert_non_null(srq);
	init.srq = srq;
	qp = ibv_create_qp(pd, &init);
	assert_non_null(qp);
	assert_error(ibv_destroy_srq(srq), EBUSY);
	connect_to_itself(qp);
	assert_error(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	assert_int_equal(ibv_post_srq_recv(srq, &recv, &bad_recv), 0);
	assert_int_equal(ibv_post_srq_recv(srq, &recv, &bad_recv), 0);
	assert_int_equal(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
	assert_int_equal(ibv_post_send(qp, &wr, &bad), 0);
	assert_int_equal(ibv_get_async_event(context, &event), 0);
	while (event.event_type == IBV_EVENT_COMM_EST) {
		ibv_ack_async_event(&event);
		assert_int_equal(ibv_get_async_event(context, &event), 0);
	}
	assert_int_equal(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
	assert_ptr_equal(event.element.srq, srq);
	ibv_ack_async_event(&event);
	assert_int_equal(ibv_destroy_qp(qp), 0);
	assert_int_equal(ibv_destroy_srq(srq), 0);
}

static void forks_need_no_preparation(void **state)
{
	(void)state;
	assert_int_equal(ibv_fork_init(), 0);
	assert_int_equal(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)
	static const struct CMUnitTest cases[] = {
		cmocka_unit_test(the_list_has_one_device),
		cmocka_unit_test(no_driver_takes_the_device_for_its_own),
		CASE(a_context_is_extended_and_closes_its_descriptor),
		CASE(the_device_has_limits),
		CASE(the_port_is_an_active_roce_port),
		CASE(gids_are_addresses),
		CASE(the_default_partition),
		CASE(regions),
		CASE(a_region_changes),
		CASE(completion_queues),
		CASE(channels_wait_as_their_descriptor_does),
		CASE(shared_receive_queues),
		CASE(queue_pairs),
		CASE(the_rest_is_not_supported),
		CASE(each_operation_through_ibv_wr_start),
		CASE(completions_are_read_by_field),
		CASE(a_queue_is_destroyed_when_its_events_are_acknowledged),
		CASE(asynchronous_events_are_acknowledged),
		cmocka_unit_test(forks_need_no_preparation),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(cases, NULL, NULL);
}
