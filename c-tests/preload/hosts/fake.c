/* SPDX-License-Identifier: MIT OR Apache-2.0 */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "fake.h"

#undef ibv_reg_mr	/* macros of newer headers */
#undef ibv_reg_mr_iova

#define container(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))

/* Requests that a queue holds, oldest first. */
enum { RING = 1024 };
struct ring {
	uint64_t wr_ids[RING];
	unsigned int first, count;
};

struct fake_srq {
	struct ibv_srq srq;
	struct ring ring;
};

struct fake_cq {
	union {
		struct ibv_cq cq;
		struct ibv_cq_ex ex;
	};
	pthread_mutex_t lock;
	struct ibv_wc wcs[RING];
	unsigned int first, count;
	struct ibv_wc current;
};

struct fake_qp {
	union {
		struct ibv_qp qp;
		struct ibv_qp_ex ex;
	};
	bool sig_all;
	struct ring ring;
	/* Between wr_start and wr_complete. */
	struct ibv_send_wr batch[LOG];
	struct ibv_sge sges[LOG];
	unsigned int batched;
};

static struct ibv_device devices[DRIVERS] = {
	{ .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "fake0" },
	{ .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "fake1" },
};

static enum ibv_wc_status next_status;

void fake_fail_next(enum ibv_wc_status status)
{
	next_status = status;
}

static void complete(struct ibv_cq *cq, struct ibv_wc wc)
{
	struct fake_cq *fake_cq = container(cq, struct fake_cq, cq);

	pthread_mutex_lock(&fake_cq->lock);
	if (fake_cq->count == RING)
		abort();
	fake_cq->wcs[(fake_cq->first + fake_cq->count++) % RING] = wc;
	pthread_mutex_unlock(&fake_cq->lock);
}

static int take(struct ibv_cq *cq, struct ibv_wc *wc)
{
	struct fake_cq *fake_cq = container(cq, struct fake_cq, cq);
	int found = 0;

	pthread_mutex_lock(&fake_cq->lock);
	if (fake_cq->count) {
		*wc = fake_cq->wcs[fake_cq->first];
		fake_cq->first = (fake_cq->first + 1) % RING;
		fake_cq->count--;
		found = 1;
	}
	pthread_mutex_unlock(&fake_cq->lock);
	return found;
}

static void put(struct ring *ring, uint64_t wr_id)
{
	if (ring->count == RING)
		abort();
	ring->wr_ids[(ring->first + ring->count++) % RING] = wr_id;
}

static void note(struct fake_log *log, int driver, uint64_t wr_id, bool is_first)
{
	if (fake.threads)
		return;
	if (is_first) {
		log->driver = driver;
		log->count = 0;
		log->calls++;
	}
	if (log->count < LOG)
		log->wr_ids[log->count++] = wr_id;
}

/* Whether the script says that a request fails. */
static bool fails(unsigned int index)
{
	return fake.scripted && index == fake.good;
}

static int fail(void)
{
	fake.scripted = false;
	if (fake.error)
		errno = fake.error;
	return fake.result;
}

static enum ibv_wc_opcode completes_as(enum ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	case IBV_WR_LOCAL_INV:
		return IBV_WC_LOCAL_INV;
	case IBV_WR_BIND_MW:
		return IBV_WC_BIND_MW;
	case IBV_WR_TSO:
		return IBV_WC_TSO;
	default:
		return IBV_WC_SEND;
	}
}

static int post_send(int driver, struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_qp *fake_qp = container(qp, struct fake_qp, qp);
	unsigned int i = 0;

	if (!wr)
		note(&fake.sends, driver, 0, true);
	for (; wr; wr = wr->next, i++) {
		note(&fake.sends, driver, wr->wr_id, i == 0);
		if (fails(i)) {
			if (!fake.silent)
				*bad = wr;
			return fail();
		}
		if (!fake.threads)
			fake.sends.requests++;
		if (wr->send_flags & IBV_SEND_SIGNALED || fake_qp->sig_all || next_status) {
			struct ibv_wc wc = {
				.wr_id = wr->wr_id, .status = next_status, .opcode = completes_as(wr->opcode),
				.qp_num = qp->qp_num, .vendor_err = next_status ? 0x51 : 0,
			};

			next_status = IBV_WC_SUCCESS;
			complete(qp->send_cq, wc);
		}
	}
	return 0;
}

static int post_receives(struct fake_log *log, int driver, struct ring *ring, struct ibv_recv_wr *wr,
	struct ibv_recv_wr **bad)
{
	unsigned int i = 0;

	if (!wr)
		note(log, driver, 0, true);
	for (; wr; wr = wr->next, i++) {
		note(log, driver, wr->wr_id, i == 0);
		if (fails(i)) {
			if (!fake.silent)
				*bad = wr;
			return fail();
		}
		if (!fake.threads)
			log->requests++;
		put(ring, wr->wr_id);
	}
	return 0;
}

static int post_recv(int driver, struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return post_receives(&fake.recvs, driver, &container(qp, struct fake_qp, qp)->ring, wr, bad);
}

static int post_srq_recv(int driver, struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return post_receives(&fake.shared, driver, &container(srq, struct fake_srq, srq)->ring, wr, bad);
}

static int poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
{
	int count = 0;

	fake.polls++;
	if (fake.poll_scripted) {
		fake.poll_scripted = false;
		return fake.poll_result;
	}
	while (count < num_entries && take(cq, wc + count))
		count++;
	return count;
}

void fake_arrive(struct ibv_qp *qp, uint32_t bytes, enum ibv_wc_status status)
{
	struct fake_qp *fake_qp = container(qp, struct fake_qp, qp);
	struct ring *ring = qp->srq ? &container(qp->srq, struct fake_srq, srq)->ring : &fake_qp->ring;
	struct ibv_wc wc = {
		.wr_id = ring->wr_ids[ring->first], .status = status, .opcode = IBV_WC_RECV, .byte_len = bytes,
		.qp_num = qp->qp_num,
	};

	if (!ring->count)
		abort();
	ring->first = (ring->first + 1) % RING;
	ring->count--;
	complete(qp->recv_cq, wc);
}

/* Each driver has functions of its own. */
#define DRIVER(n) \
	static int post_send_##n(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) \
	{ return post_send(n, qp, wr, bad); } \
	static int post_recv_##n(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) \
	{ return post_recv(n, qp, wr, bad); } \
	static int post_srq_recv_##n(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) \
	{ return post_srq_recv(n, srq, wr, bad); } \
	static int poll_cq_##n(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc) \
	{ return poll_cq(cq, num_entries, wc); }
#define TABLE(n) { \
	.post_send = post_send_##n, .post_recv = post_recv_##n, .post_srq_recv = post_srq_recv_##n, .poll_cq = poll_cq_##n, \
}
DRIVER(0)
DRIVER(1)

struct fake fake = { .tables = { TABLE(0), TABLE(1) } };

/* Queue pairs that are posted to through struct ibv_qp_ex. */

static struct ibv_send_wr *begin(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode)
{
	struct fake_qp *qp = container(ex, struct fake_qp, ex);
	struct ibv_send_wr *wr = &qp->batch[qp->batched];

	if (qp->batched == LOG)
		abort();
	*wr = (struct ibv_send_wr) { .wr_id = ex->wr_id, .send_flags = ex->wr_flags, .opcode = opcode };
	if (qp->batched++)
		wr[-1].next = wr;
	return wr;
}

static void wr_send(struct ibv_qp_ex *ex)
{
	begin(ex, IBV_WR_SEND);
}

static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm_data)
{
	begin(ex, IBV_WR_SEND_WITH_IMM)->imm_data = imm_data;
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr)
{
	struct ibv_send_wr *wr = begin(ex, IBV_WR_RDMA_WRITE);

	wr->wr.rdma.rkey = rkey;
	wr->wr.rdma.remote_addr = remote_addr;
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote_addr)
{
	struct ibv_send_wr *wr = begin(ex, IBV_WR_RDMA_READ);

	wr->wr.rdma.rkey = rkey;
	wr->wr.rdma.remote_addr = remote_addr;
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct fake_qp *qp = container(ex, struct fake_qp, ex);
	unsigned int last = qp->batched - 1;

	qp->sges[last] = (struct ibv_sge) { .addr = addr, .length = length, .lkey = lkey };
	qp->batch[last].sg_list = &qp->sges[last];
	qp->batch[last].num_sge = 1;
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	wr_set_sge(ex, 0, (uintptr_t)addr, length);
}

static void wr_start(struct ibv_qp_ex *ex)
{
	container(ex, struct fake_qp, ex)->batched = 0;
}

static int wr_complete(struct ibv_qp_ex *ex)
{
	struct fake_qp *qp = container(ex, struct fake_qp, ex);
	struct ibv_send_wr *bad;

	/* All of it or nothing. */
	if (fake.scripted)
		return fail();
	return post_send(qp->qp.context->device - devices, &qp->qp, qp->batch, &bad);
}

static void wr_abort(struct ibv_qp_ex *ex)
{
	container(ex, struct fake_qp, ex)->batched = 0;
}

/* Completion queues that are polled through struct ibv_cq_ex. */

static int next_poll(struct ibv_cq_ex *ex)
{
	struct fake_cq *cq = container(ex, struct fake_cq, ex);

	if (!take(&cq->cq, &cq->current))
		return ENOENT;
	ex->wr_id = cq->current.wr_id;
	ex->status = cq->current.status;
	return 0;
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	(void)attr;
	return next_poll(ex);
}

static void end_poll(struct ibv_cq_ex *ex)
{
	(void)ex;
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex)
{
	return container(ex, struct fake_cq, ex)->current.opcode;
}

static uint32_t read_vendor_err(struct ibv_cq_ex *ex)
{
	return container(ex, struct fake_cq, ex)->current.vendor_err;
}

static uint32_t read_byte_len(struct ibv_cq_ex *ex)
{
	return container(ex, struct fake_cq, ex)->current.byte_len;
}

static uint32_t read_qp_num(struct ibv_cq_ex *ex)
{
	return container(ex, struct fake_cq, ex)->current.qp_num;
}

static unsigned int read_wc_flags(struct ibv_cq_ex *ex)
{
	return container(ex, struct fake_cq, ex)->current.wc_flags;
}

/* The functions of libibverbs. */

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(DRIVERS + 1, sizeof(*list));

	for (int i = 0; i < DRIVERS; i++)
		list[i] = &devices[i];
	if (count)
		*count = DRIVERS;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int cqe, void *cq_context, bool extended)
{
	struct fake_cq *cq = calloc(1, sizeof(*cq));

	pthread_mutex_init(&cq->lock, NULL);
	cq->cq.context = context;
	cq->cq.cqe = cqe;
	cq->cq.cq_context = cq_context;
	if (extended) {
		cq->ex.start_poll = start_poll;
		cq->ex.next_poll = next_poll;
		cq->ex.end_poll = end_poll;
		cq->ex.read_opcode = read_opcode;
		cq->ex.read_vendor_err = read_vendor_err;
		cq->ex.read_byte_len = read_byte_len;
		cq->ex.read_wc_flags = read_wc_flags;
	}
	return &cq->cq;
}

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	struct fake_cq *cq = container(create_cq(context, attr->cqe, attr->cq_context, true), struct fake_cq, cq);

	if (attr->wc_flags & IBV_WC_EX_WITH_QP_NUM)
		cq->ex.read_qp_num = read_qp_num;
	return &cq->ex;
}

/* As the kernel's: one space of numbers for each device. */
static atomic_uint numbers[DRIVERS] = { 0x11, 0x1000 };

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct fake_qp *qp = calloc(1, sizeof(*qp));

	qp->qp.context = pd->context;
	qp->qp.pd = pd;
	qp->qp.send_cq = attr->send_cq;
	qp->qp.recv_cq = attr->recv_cq;
	qp->qp.srq = attr->srq;
	qp->qp.qp_type = attr->qp_type;
	qp->qp.state = IBV_QPS_RESET;
	qp->qp.qp_num = fake.next_number ? fake.next_number : numbers[pd->context->device - devices]++;
	fake.next_number = 0;
	qp->sig_all = attr->sq_sig_all;
	return &qp->qp;
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	struct fake_qp *qp = container(create_qp(attr->pd, (struct ibv_qp_init_attr *)attr), struct fake_qp, qp);

	(void)context;
	qp->ex.wr_start = wr_start;
	qp->ex.wr_complete = wr_complete;
	qp->ex.wr_abort = wr_abort;
	qp->ex.wr_send = wr_send;
	qp->ex.wr_send_imm = wr_send_imm;
	qp->ex.wr_rdma_write = wr_rdma_write;
	qp->ex.wr_rdma_read = wr_rdma_read;
	qp->ex.wr_set_sge = wr_set_sge;
	qp->ex.wr_set_inline_data = wr_set_inline_data;
	return &qp->qp;
}

/* A context that is opened next after one was closed gets its place. */
static struct verbs_context places[8];

struct ibv_context *fake_open(int device)
{
	struct verbs_context *place = places;

	while (place->sz)
		if (++place == places + 8)
			abort();
	*place = (struct verbs_context) {
		.sz = sizeof(*place),
		.create_cq_ex = create_cq_ex,
		.create_qp_ex = create_qp_ex,
		.context = {
			.device = &devices[device],
			.ops = fake.tables[device],
			.abi_compat = __VERBS_ABI_IS_EXTENDED,
		},
	};
	return &place->context;
}

void fake_change(struct ibv_context *context, int driver)
{
	context->ops = fake.tables[driver];
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	return fake_open(device - devices);
}

struct ibv_context *ibv_import_device(int cmd_fd)
{
	return fake_open(cmd_fd);
}

int ibv_close_device(struct ibv_context *context)
{
	struct verbs_context *place = container(context, struct verbs_context, context);

	memset(place, 0, sizeof(*place));
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	pd->context = context;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
	int comp_vector)
{
	(void)channel;
	(void)comp_vector;
	return create_cq(context, cqe, cq_context, false);
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(container(cq, struct fake_cq, cq));
	return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return create_qp(pd, attr);
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (mask & IBV_QP_STATE)
		qp->state = attr->qp_state;
	return 0;
}

/* The number, key or address is free for another object, and somebody takes it before the caller knows. */
static int ended(void)
{
	void (*meanwhile)(void) = fake.meanwhile;
	int result = fake.end_result;

	fake.meanwhile = NULL;
	fake.end_result = 0;
	if (meanwhile)
		meanwhile();
	return result;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	if (!fake.end_result)
		free(container(qp, struct fake_qp, qp));
	return ended();
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	struct fake_qp *fake_qp = container(qp, struct fake_qp, qp);

	return fake_qp->ex.wr_start ? &fake_qp->ex : NULL;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct fake_srq *srq = calloc(1, sizeof(*srq));

	srq->srq.context = pd->context;
	srq->srq.pd = pd;
	srq->srq.srq_context = attr->srq_context;
	return &srq->srq;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	free(container(srq, struct fake_srq, srq));
	return 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length)
{
	static atomic_uint keys = 0x100;
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	*mr = (struct ibv_mr) { .context = pd->context, .pd = pd, .addr = addr, .length = length };
	mr->lkey = mr->rkey = fake.next_key ? fake.next_key : keys++;
	fake.next_key = 0;
	return mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	(void)access;
	return reg_mr(pd, addr, length);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	(void)iova;
	(void)access;
	return reg_mr(pd, addr, length);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	(void)iova;
	(void)access;
	return reg_mr(pd, addr, length);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	(void)offset;
	(void)iova;
	(void)fd;
	(void)access;
	return reg_mr(pd, NULL, length);
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	(void)pd;
	(void)access;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		mr->addr = addr;
		mr->length = length;
	}
	if (fake.next_key)
		mr->lkey = mr->rkey = fake.next_key;
	fake.next_key = 0;
	return ended();
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	if (!fake.end_result)
		free(mr);
	return ended();
}

/*
 * The functions of programs that are older than version 1.1. Their contexts are other structs, in which nobody may
 * write: these have no room but for what they are.
 */
#define UNDER_OLD_VERSION(name) __asm__(".symver old_" #name ", ibv_" #name "@IBVERBS_1.0")

struct old { struct ibv_context *real; };
static struct old old = { .real = (void *)0x5a5a5a5a };

UNDER_OLD_VERSION(open_device);
struct old *old_open_device(struct ibv_device *device)
{
	(void)device;
	return &old;
}

UNDER_OLD_VERSION(close_device);
int old_close_device(struct old *context)
{
	return context == &old && context->real == (void *)0x5a5a5a5a ? 0 : EINVAL;
}

UNDER_OLD_VERSION(alloc_pd);
struct old *old_alloc_pd(struct old *context)
{
	return context;
}
