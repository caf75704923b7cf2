/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * observe [CASE...]  plays scenarios of reliable connections on the device that has the address in DEVICE_ADDRESS, and
 * prints what it sees: a line for each, "CASE<tab>observation", the same on every device that does the same
 *
 * Both ends are in this process, a and b, each with a completion queue of its own. Observations are in the order in
 * which they were made; what the calls return, then the completions of a, then those of b.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include "observe.h"

#define SIZE (1 << 20)
/* How long a completion that has to come may take, and how long one that must not come is waited for; milliseconds. */
#define PATIENCE 30000
#define SILENCE 300

struct end {
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char *buffer;
};

/* What a case may change before it opens the ends. */
static struct shape {
	struct ibv_qp_init_attr init;
	int cqe;
	uint8_t rnr_retry, retry_cnt, timeout, min_rnr_timer, rd_atomic;
	int access, qp_access;
	bool srq_of_b;
	bool self;
} shape;

static struct ibv_context *context;
static union ibv_gid gid;
static int gid_index;
static struct end ends[2];
#define a (&ends[0])
#define b (&ends[1])

static char name_of(const struct end *end)
{
	return end == a ? 'a' : 'b';
}

static const char *opcode(int opcode)
{
	switch (opcode) {
	case IBV_WC_SEND: return "SEND";
	case IBV_WC_RDMA_WRITE: return "RDMA_WRITE";
	case IBV_WC_RDMA_READ: return "RDMA_READ";
	case IBV_WC_COMP_SWAP: return "COMP_SWAP";
	case IBV_WC_FETCH_ADD: return "FETCH_ADD";
	case IBV_WC_RECV: return "RECV";
	case IBV_WC_RECV_RDMA_WITH_IMM: return "RECV_RDMA_WITH_IMM";
	}
	return "?";
}

static void open_device(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	const char *address = getenv("DEVICE_ADDRESS");
	union ibv_gid wanted = { .raw = { [10] = 0xff, [11] = 0xff } };
	struct ibv_port_attr port;

	need(devices);
	if (!address || inet_pton(AF_INET, address, wanted.raw + 12) != 1)
		die("no IPv4 address in DEVICE_ADDRESS");
	for (int i = 0; devices[i] && !context; i++) {
		context = ibv_open_device(devices[i]);
		need(context);
		need(!ibv_query_port(context, 1, &port));
		gid_index = -1;
		for (int entry = 0; entry < port.gid_tbl_len; entry++)
			if (!ibv_query_gid(context, 1, entry, &gid) && !memcmp(&gid, &wanted, sizeof(gid)))
				gid_index = entry;
		if (gid_index < 0) {
			ibv_close_device(context);
			context = NULL;
		}
	}
	ibv_free_device_list(devices);
	if (!context)
		die("no device has the address %s", address);
	gid = wanted;
	need(!fcntl(context->async_fd, F_SETFL, O_NONBLOCK));
}

static void usual(void)
{
	shape = (struct shape) {
		.init = {
			.cap = { .max_send_wr = 7, .max_recv_wr = 7, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64 },
			.qp_type = IBV_QPT_RC,
		},
		.cqe = 63,
		.rnr_retry = 7, .retry_cnt = 7, .timeout = 14, .min_rnr_timer = 1, .rd_atomic = 4,
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.qp_access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};
}

static int to_init(struct end *end)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = shape.qp_access };

	return ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

#define RTR_MASK (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | \
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define RTS_MASK (IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | \
		IBV_QP_MAX_QP_RD_ATOMIC)

static struct ibv_qp_attr rtr_attr(struct ibv_qp *peer)
{
	return (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .rq_psn = 0xfffffe,
		.max_dest_rd_atomic = shape.rd_atomic, .min_rnr_timer = shape.min_rnr_timer,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } },
	};
}

static int to_rtr(struct end *end, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = rtr_attr(peer);

	return ibv_modify_qp(end->qp, &attr, RTR_MASK);
}

static int to_rts(struct end *end)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS, .timeout = shape.timeout, .retry_cnt = shape.retry_cnt, .rnr_retry = shape.rnr_retry,
		/* Sequence numbers that wrap after the second packet. */
		.sq_psn = 0xfffffe, .max_rd_atomic = shape.rd_atomic,
	};

	return ibv_modify_qp(end->qp, &attr, RTS_MASK);
}

static int to_state(struct end *end, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	return ibv_modify_qp(end->qp, &attr, IBV_QP_STATE);
}

static void connect_ends(void)
{
	struct ibv_qp *peers[] = { shape.self ? a->qp : b->qp, a->qp };

	for (int i = 0; i < 2; i++)
		need(!to_init(&ends[i]));
	for (int i = 0; i < 2; i++)
		need(!to_rtr(&ends[i], peers[i]));
	for (int i = 0; i < 2; i++)
		need(!to_rts(&ends[i]));
}

static void make_ends(void)
{
	for (int i = 0; i < 2; i++) {
		struct end *end = &ends[i];
		struct ibv_qp_init_attr init = shape.init;

		need(end->pd = ibv_alloc_pd(context));
		need(end->channel = ibv_create_comp_channel(context));
		need(end->cq = ibv_create_cq(context, shape.cqe, NULL, end->channel, 0));
		init.send_cq = init.recv_cq = end->cq;
		if (end == b && shape.srq_of_b) {
			struct ibv_srq_init_attr srq = { .attr = { .max_wr = 7, .max_sge = 4 } };

			need(end->srq = ibv_create_srq(end->pd, &srq));
			init.srq = end->srq;
		}
		need(end->qp = ibv_create_qp(end->pd, &init));
		if (!end->buffer)
			need(end->buffer = aligned_alloc(4096, SIZE));
		for (int byte = 0; byte < SIZE; byte++)
			end->buffer[byte] = end == a ? byte % 251 : 0;
		need(end->mr = ibv_reg_mr(end->pd, end->buffer, SIZE, shape.access));
	}
}

static void open_ends(void)
{
	make_ends();
	connect_ends();
}

static void drain_async(void)
{
	struct ibv_async_event event;

	while (!ibv_get_async_event(context, &event))
		ibv_ack_async_event(&event);
}

static void close_ends(void)
{
	drain_async();
	for (int i = 0; i < 2; i++) {
		struct end *end = &ends[i];

		if (end->qp)
			need(!ibv_destroy_qp(end->qp));
	}
	for (int i = 0; i < 2; i++) {
		struct end *end = &ends[i];

		if (end->srq)
			need(!ibv_destroy_srq(end->srq));
		if (end->cq)
			need(!ibv_destroy_cq(end->cq));
		if (end->channel)
			need(!ibv_destroy_comp_channel(end->channel));
		if (end->mr)
			need(!ibv_dereg_mr(end->mr));
		if (end->pd)
			need(!ibv_dealloc_pd(end->pd));
		end->qp = NULL;
		end->srq = NULL;
		end->cq = NULL;
		end->channel = NULL;
		end->mr = NULL;
		end->pd = NULL;
	}
}

/* Requests. The buffers of a's requests begin at its own offset, and name the same place in the peer's. */

static struct ibv_sge sge(struct end *end, size_t offset, uint32_t length)
{
	return (struct ibv_sge) { .addr = (uintptr_t)end->buffer + offset, .length = length, .lkey = end->mr->lkey };
}

static int post_recv_list(struct end *end, uint64_t wr_id, struct ibv_sge *list, int n)
{
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = list, .num_sge = n }, *bad = NULL;

	return end->srq ? ibv_post_srq_recv(end->srq, &wr, &bad) : ibv_post_recv(end->qp, &wr, &bad);
}

static int post_recv(struct end *end, uint64_t wr_id, size_t offset, uint32_t length)
{
	struct ibv_sge one = sge(end, offset, length);

	return post_recv_list(end, wr_id, &one, 1);
}

static int post_wr(struct end *end, struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad = NULL;

	return ibv_post_send(end->qp, &wr, &bad);
}

static int post_send(struct end *end, uint64_t wr_id, size_t offset, uint32_t length, int flags)
{
	struct ibv_sge one = sge(end, offset, length);

	return post_wr(end, (struct ibv_send_wr) { .wr_id = wr_id, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = flags });
}

static int post_rdma(struct end *end, enum ibv_wr_opcode opcode, uint64_t wr_id, uint64_t addr, uint32_t rkey, uint32_t length)
{
	struct ibv_sge one = sge(end, 0, length);

	return post_wr(end, (struct ibv_send_wr) { .wr_id = wr_id, .sg_list = &one, .num_sge = 1, .opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(0x01020304), .wr.rdma = { .remote_addr = addr, .rkey = rkey } });
}

static int post_atomic(struct end *end, enum ibv_wr_opcode opcode, uint64_t wr_id, uint64_t addr, uint64_t compare, uint64_t swap)
{
	struct ibv_sge one = sge(end, 64, 8);

	return post_wr(end, (struct ibv_send_wr) { .wr_id = wr_id, .sg_list = &one, .num_sge = 1, .opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.atomic = { .remote_addr = addr, .compare_add = compare, .swap = swap, .rkey = b->mr->rkey } });
}

static uint64_t addr(const struct end *end)
{
	return (uintptr_t)end->buffer;
}

/* Completions. */

static void say_completion(const struct end *end, const struct ibv_wc *wc)
{
	char more[64] = "";

	if (wc->qp_num != end->qp->qp_num)
		say("%c: the number of another queue pair", name_of(end));
	if (wc->status) {
		say("%c: %#llx %s", name_of(end), (unsigned long long)wc->wr_id, status(wc->status));
		return;
	}
	/* Flags of a send are not defined. */
	if (wc->opcode & IBV_WC_RECV && wc->wc_flags & IBV_WC_WITH_IMM)
		snprintf(more, sizeof(more), " imm %#x", ntohl(wc->imm_data));
	say("%c: %#llx %s %s%s%s", name_of(end), (unsigned long long)wc->wr_id, status(wc->status), opcode(wc->opcode), more,
		wc->wc_flags & IBV_WC_GRH ? " grh" : "");
	/* The length of a send or write is not defined. */
	if (wc->opcode & IBV_WC_RECV || wc->opcode == IBV_WC_RDMA_READ)
		say("%u bytes", wc->byte_len);
}

/* Takes so many completions, and says them. */
static void take(struct end *end, int n)
{
	long until = now() + PATIENCE;
	struct ibv_wc wc;

	while (n > 0) {
		int got = ibv_poll_cq(end->cq, 1, &wc);

		if (got < 0) {
			say("%c: polling fails", name_of(end));
			return;
		}
		if (got) {
			say_completion(end, &wc);
			n--;
		} else if (now() > until) {
			say("%c: no completion", name_of(end));
			return;
		}
	}
}

/* There is nothing more, for a while. */
static void silence(struct end *end)
{
	long until = now() + SILENCE;
	struct ibv_wc wc;

	do {
		if (ibv_poll_cq(end->cq, 1, &wc) > 0)
			say_completion(end, &wc);
	} while (now() < until);
}

static void say_states(void)
{
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;

		need(!ibv_query_qp(ends[i].qp, &attr, IBV_QP_STATE, &init));
		say("%c in %s", name_of(&ends[i]), state(attr.qp_state));
	}
}

static void say_content(size_t from, size_t to, size_t length)
{
	say("content %s", memcmp(a->buffer + from, b->buffer + to, length) ? "WRONG" : "right");
}

static void say_async(void)
{
	long until = now() + PATIENCE;
	struct ibv_async_event event;

	while (ibv_get_async_event(context, &event)) {
		if (now() > until) {
			say("no event");
			return;
		}
	}
	say("event %s", event.event_type == IBV_EVENT_CQ_ERR ? "CQ_ERR" :
		event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED ? "SRQ_LIMIT_REACHED" :
		event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED ? "QP_LAST_WQE_REACHED" :
		event.event_type == IBV_EVENT_QP_FATAL ? "QP_FATAL" :
		event.event_type == IBV_EVENT_QP_ACCESS_ERR ? "QP_ACCESS_ERR" :
		event.event_type == IBV_EVENT_COMM_EST ? "COMM_EST" :
		event.event_type == IBV_EVENT_SQ_DRAINED ? "SQ_DRAINED" : "of another kind");
	ibv_ack_async_event(&event);
}

/* Whether the channel is readable, now or soon. */
static void say_readable(struct end *end, int patience)
{
	struct pollfd fd = { .fd = end->channel->fd, .events = POLLIN };

	say("channel %s", poll(&fd, 1, patience) == 1 ? "readable" : "silent");
}

/* The cases. */

static void messages(void)
{
	open_ends();
	need(!post_recv(b, 0x1234567890abcdef, 100, 1000));
	need(!post_recv(b, UINT64_MAX, 2000, 1000));
	need(!post_recv(b, 0, 4000, 1000));
	need(!post_send(a, UINT64_MAX, 0, 1000, IBV_SEND_SIGNALED));
	need(!post_send(a, 0, 1000, 0, IBV_SEND_SIGNALED));
	need(!post_send(a, 7, 2000, 1, IBV_SEND_SIGNALED));
	take(a, 3);
	take(b, 3);
	say_content(0, 100, 1000);
	say_content(2000, 4000, 1);
}

static void long_message(void)
{
	open_ends();
	need(!post_recv(b, 1, 0, SIZE));
	need(!post_send(a, 1, 0, SIZE, IBV_SEND_SIGNALED));
	take(a, 1);
	take(b, 1);
	say_content(0, 0, SIZE);
}

static void no_entries(void)
{
	open_ends();
	need(!post_recv_list(b, 1, NULL, 0));
	need(!post_wr(a, (struct ibv_send_wr) { .wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }));
	take(a, 1);
	take(b, 1);
}

static void many_entries(void)
{
	struct ibv_sge from[4], to[4];

	open_ends();
	for (int i = 0; i < 4; i++) {
		from[i] = sge(a, i * 3000, 1000 + i);
		to[i] = sge(b, 50000 + i * 7000, 1 + 2000 * (i == 3));
	}
	need(!post_recv_list(b, 1, to, 4));
	need(!post_wr(a, (struct ibv_send_wr) { .sg_list = from, .num_sge = 2, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED }));
	take(a, 1);
	take(b, 1);
	say_content(0, 50000, 1);
	say_content(1, 57000, 1);
	say_content(3, 71000, 997);
	say_content(3000, 71997, 1001);
}

static void immediate(void)
{
	struct ibv_sge one;

	open_ends();
	one = sge(a, 0, 10);
	need(!post_recv(b, 1, 0, 10));
	need(!post_wr(a, (struct ibv_send_wr) { .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(0xdeadbeef) }));
	take(a, 1);
	take(b, 1);
}

static void inline_data(void)
{
	struct ibv_sge one;

	open_ends();
	one = sge(a, 0, 64);
	one.lkey = 0;
	need(!post_recv(b, 1, 0, 64));
	need(!post_wr(a, (struct ibv_send_wr) { .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE }));
	/* It was copied. */
	memset(a->buffer, 0xee, 64);
	take(a, 1);
	take(b, 1);
	say("first bytes %u %u", b->buffer[0], b->buffer[63]);
	say("65 bytes: %s", error(post_send(a, 2, 0, 65, IBV_SEND_INLINE)));
}

static void writes(void)
{
	open_ends();
	need(!post_rdma(a, IBV_WR_RDMA_WRITE, 1, addr(b) + 5, b->mr->rkey, 100000));
	take(a, 1);
	silence(b);
	say_content(0, 5, 100000);
	need(!post_recv(b, 2, 0, 0));
	need(!post_rdma(a, IBV_WR_RDMA_WRITE_WITH_IMM, 3, addr(b) + 200000, b->mr->rkey, 77));
	take(a, 1);
	take(b, 1);
	say_content(0, 200000, 77);
}

static void reads(void)
{
	struct ibv_sge list[3];

	open_ends();
	for (int i = 0; i < SIZE; i++)
		b->buffer[i] = i % 241;
	for (int i = 0; i < 3; i++)
		list[i] = sge(a, i * 100000, 33333);
	need(!post_wr(a, (struct ibv_send_wr) { .wr_id = 1, .sg_list = list, .num_sge = 3, .opcode = IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { .remote_addr = addr(b) + 1, .rkey = b->mr->rkey } }));
	take(a, 1);
	say_content(0, 1, 33333);
	say_content(100000, 1 + 33333, 33333);
	say_content(200000, 1 + 66666, 33333);
	need(!post_rdma(a, IBV_WR_RDMA_READ, 2, addr(b), b->mr->rkey, 0));
	take(a, 1);
}

static void atomics(void)
{
	uint64_t *there, *here;

	open_ends();
	there = (void *)(b->buffer + 8);
	here = (void *)(a->buffer + 64);
	*there = 40;
	need(!post_atomic(a, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, addr(b) + 8, 2, 0));
	take(a, 1);
	say("was %llu, is %llu", (unsigned long long)*here, (unsigned long long)*there);
	need(!post_atomic(a, IBV_WR_ATOMIC_CMP_AND_SWP, 2, addr(b) + 8, 42, 7));
	take(a, 1);
	say("was %llu, is %llu", (unsigned long long)*here, (unsigned long long)*there);
	need(!post_atomic(a, IBV_WR_ATOMIC_CMP_AND_SWP, 3, addr(b) + 8, 42, 8));
	take(a, 1);
	say("was %llu, is %llu", (unsigned long long)*here, (unsigned long long)*there);
}

static void atomic_unaligned(void)
{
	int ret;

	open_ends();
	ret = post_atomic(a, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, addr(b) + 4, 2, 0);
	say("post %s", error(ret));
	if (!ret)
		take(a, 1);
	say_states();
}

static void unsignaled(void)
{
	open_ends();
	for (int i = 0; i < 6; i++)
		need(!post_recv(b, i, 0, 10));
	for (int i = 0; i < 6; i++)
		need(!post_send(a, i, 0, 10, i == 5 ? IBV_SEND_SIGNALED : 0));
	take(a, 1);
	silence(a);
	/* Their places are free again. */
	for (int i = 0; i < 6; i++)
		need(!post_recv(b, i, 0, 10) || true);
	take(b, 6);
	for (int i = 0; i < 7; i++)
		say("%s", error(post_send(a, i, 0, 0, 0)));
}

static void all_signaled(void)
{
	shape.init.sq_sig_all = 1;
	open_ends();
	need(!post_recv(b, 1, 0, 10));
	need(!post_send(a, 2, 0, 10, 0));
	take(a, 1);
	take(b, 1);
}

static void fence(void)
{
	struct ibv_sge one;

	open_ends();
	memset(b->buffer, 0x5a, SIZE);
	one = sge(a, 0, 8);
	need(!post_recv(b, 1, 500000, 8));
	need(!post_rdma(a, IBV_WR_RDMA_READ, 1, addr(b), b->mr->rkey, 400000));
	/* Sends what the read brings. */
	need(!post_wr(a, (struct ibv_send_wr) { .wr_id = 2, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE }));
	take(a, 2);
	take(b, 1);
	say("%#x", b->buffer[500000]);
}

static void order_of_all(void)
{
	open_ends();
	need(!post_recv(b, 1, 0, 10));
	need(!post_rdma(a, IBV_WR_RDMA_READ, 1, addr(b), b->mr->rkey, 300000));
	need(!post_send(a, 2, 0, 10, IBV_SEND_SIGNALED));
	need(!post_atomic(a, IBV_WR_ATOMIC_FETCH_AND_ADD, 3, addr(b) + 8, 1, 0));
	need(!post_rdma(a, IBV_WR_RDMA_WRITE, 4, addr(b), b->mr->rkey, 10));
	need(!post_rdma(a, IBV_WR_RDMA_READ, 5, addr(b), b->mr->rkey, 10));
	take(a, 5);
	take(b, 1);
}

static void too_long(void)
{
	open_ends();
	need(!post_recv(b, 1, 0, 10));
	need(!post_recv(b, 2, 0, 10));
	need(!post_recv(a, 3, 0, 10));
	need(!post_send(a, 4, 0, 11, IBV_SEND_SIGNALED));
	need(!post_send(a, 5, 0, 1, IBV_SEND_SIGNALED));
	take(a, 3);
	take(b, 2);
	say_states();
}

static void remote_error(enum ibv_wr_opcode opcode, uint64_t at, uint32_t rkey, uint32_t length)
{
	need(!post_recv(b, 1, 0, 10));
	need(!post_rdma(a, opcode, 2, at, rkey, length));
	take(a, 1);
	take(b, 1);
	say_states();
}

static void write_bad_rkey(void)
{
	open_ends();
	remote_error(IBV_WR_RDMA_WRITE, addr(b), b->mr->rkey ^ 0x5555, 10);
}

static void write_beyond(void)
{
	open_ends();
	remote_error(IBV_WR_RDMA_WRITE, addr(b) + SIZE - 9, b->mr->rkey, 10);
}

static void write_before(void)
{
	open_ends();
	remote_error(IBV_WR_RDMA_WRITE, addr(b) - 1, b->mr->rkey, 10);
}

static void write_without_right(void)
{
	shape.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
	open_ends();
	remote_error(IBV_WR_RDMA_WRITE, addr(b), b->mr->rkey, 10);
}

static void write_without_right_of_qp(void)
{
	shape.qp_access = IBV_ACCESS_REMOTE_READ;
	open_ends();
	remote_error(IBV_WR_RDMA_WRITE, addr(b), b->mr->rkey, 10);
}

static void write_nothing_anywhere(void)
{
	open_ends();
	need(!post_rdma(a, IBV_WR_RDMA_WRITE, 1, 0, 0, 0));
	take(a, 1);
	say_states();
}

static void read_without_right(void)
{
	shape.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	open_ends();
	remote_error(IBV_WR_RDMA_READ, addr(b), b->mr->rkey, 10);
}

static void read_bad_rkey(void)
{
	open_ends();
	remote_error(IBV_WR_RDMA_READ, addr(b), b->mr->rkey ^ 0x5555, 10);
}

static void key_of_another_pd(void)
{
	struct ibv_pd *pd;
	struct ibv_mr *mr;

	open_ends();
	need(pd = ibv_alloc_pd(context));
	need(mr = ibv_reg_mr(pd, b->buffer, SIZE, shape.access));
	remote_error(IBV_WR_RDMA_WRITE, addr(b), mr->rkey, 10);
	need(!ibv_dereg_mr(mr));
	need(!ibv_dealloc_pd(pd));
}

static void send_from(struct ibv_sge one)
{
	need(!post_recv(b, 1, 0, 1000));
	need(!post_wr(a, (struct ibv_send_wr) { .wr_id = 2, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_SEND }));
	take(a, 1);
	silence(b);
	say_states();
	say("another send: %s", error(post_send(a, 3, 0, 10, 0)));
	take(a, 1);
}

static void send_bad_lkey(void)
{
	struct ibv_sge one;

	open_ends();
	one = sge(a, 0, 10);
	one.lkey ^= 0x5555;
	send_from(one);
}

static void send_beyond(void)
{
	open_ends();
	send_from(sge(a, SIZE - 9, 10));
}

static void receive_into(struct ibv_sge one)
{
	need(!post_recv_list(b, 1, &one, 1));
	need(!post_send(a, 2, 0, 10, IBV_SEND_SIGNALED));
	take(a, 1);
	take(b, 1);
	say_states();
}

static void receive_bad_lkey(void)
{
	struct ibv_sge one;

	open_ends();
	one = sge(b, 0, 10);
	one.lkey ^= 0x5555;
	receive_into(one);
}

static void receive_without_right(void)
{
	shape.access = 0;
	shape.qp_access = 0;
	open_ends();
	receive_into(sge(b, 0, 10));
}

static void receive_deregistered(void)
{
	struct ibv_sge one;

	open_ends();
	one = sge(b, 0, 10);
	need(!ibv_dereg_mr(b->mr));
	b->mr = NULL;
	receive_into(one);
}

static void queues_full(void)
{
	int n;

	shape.rnr_retry = 7;
	open_ends();
	for (n = 0; n < 100 && !post_recv(a, n, 0, 10); n++)
		;
	say("%d receives, then %s", n, error(post_recv(a, n, 0, 10)));
	for (n = 0; n < 100 && !post_send(a, n, 0, 10, IBV_SEND_SIGNALED); n++)
		;
	say("%d sends, then %s", n, error(post_send(a, n, 0, 10, IBV_SEND_SIGNALED)));
}

static void too_many_entries(void)
{
	struct ibv_sge list[40];

	open_ends();
	for (int i = 0; i < 40; i++)
		list[i] = sge(a, 0, 1);
	say("receive: %s", error(post_recv_list(a, 1, list, 5)));
	say("receive -1: %s", error(post_recv_list(a, 1, list, -1)));
	say("send: %s", error(post_wr(a, (struct ibv_send_wr) { .sg_list = list, .num_sge = 5, .opcode = IBV_WR_SEND })));
	say("send -1: %s", error(post_wr(a, (struct ibv_send_wr) { .sg_list = list, .num_sge = -1, .opcode = IBV_WR_SEND })));
}

static void lists(void)
{
	struct ibv_sge one;
	struct ibv_send_wr wr[3], *bad = NULL;

	open_ends();
	for (int i = 0; i < 3; i++)
		need(!post_recv(b, i, 0, 10));
	one = sge(a, 0, 10);
	for (int i = 0; i < 3; i++)
		wr[i] = (struct ibv_send_wr) { .wr_id = i, .next = i < 2 ? &wr[i + 1] : NULL, .sg_list = &one, .num_sge = i == 1 ? 9 : 1,
			.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	say("%s", error(ibv_post_send(a->qp, wr, &bad)));
	say("bad is number %d", (int)(bad - wr));
	take(a, 1);
	silence(a);
}

static void states(void)
{
	static const char *const names[] = { "RESET", "INIT", "RTR" };

	make_ends();
	for (int i = 0; i < 3; i++) {
		say("in %s: receive %s", names[i], error(post_recv(a, i, 0, 10)));
		if (i == 0)
			need(!to_init(a) && !to_init(b));
		else if (i == 1)
			need(!to_rtr(a, b->qp) && !to_rtr(b, a->qp));
	}
	need(!to_rts(a) && !to_rts(b));
	say_states();
	say("ERR %s", error(to_state(a, IBV_QPS_ERR)));
	take(a, 2);
	silence(a);
	say("RESET %s", error(to_state(a, IBV_QPS_RESET)));
	say_states();
}

static void transitions(void)
{
	struct ibv_qp_attr attr;

	make_ends();
	say("RESET to RTR %s", error(to_rtr(a, b->qp)));
	say("RESET to RTS %s", error(to_rts(a)));
	say("RESET to SQD %s", error(to_state(a, IBV_QPS_SQD)));
	attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	say("INIT without rights %s", error(ibv_modify_qp(a->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT)));
	attr.port_num = 2;
	say("INIT with port 2 %s", error(ibv_modify_qp(a->qp, &attr,
		IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)));
	need(!to_init(a));
	say("INIT to RTS %s", error(to_rts(a)));
	attr = rtr_attr(b->qp);
	say("RTR without a PSN %s", error(ibv_modify_qp(a->qp, &attr, RTR_MASK & ~IBV_QP_RQ_PSN)));
	say("RTR with a timeout %s", error(ibv_modify_qp(a->qp, &attr, RTR_MASK | IBV_QP_TIMEOUT)));
	attr.ah_attr.is_global = 0;
	say("RTR without GRH %s", error(ibv_modify_qp(a->qp, &attr, RTR_MASK)));
	need(!to_rtr(a, b->qp));
	say("RTR to RTR %s", error(to_rtr(a, b->qp)));
	say("RTR to INIT %s", error(to_init(a)));
	need(!to_rts(a));
	say("RTS to RTR %s", error(to_rtr(a, b->qp)));
	attr = (struct ibv_qp_attr) { .qp_access_flags = 0, .min_rnr_timer = 3 };
	say("RTS other rights %s", error(ibv_modify_qp(a->qp, &attr, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER)));
	say("RTS other peer %s", error(ibv_modify_qp(a->qp, &attr, IBV_QP_DEST_QPN)));
	say("ERR %s", error(to_state(a, IBV_QPS_ERR)));
	say("ERR to RTS %s", error(to_rts(a)));
	say("ERR to RESET %s", error(to_state(a, IBV_QPS_RESET)));
}

static void again_after_reset(void)
{
	open_ends();
	need(!post_recv(b, 1, 0, 10));
	need(!post_send(a, 1, 0, 10, IBV_SEND_SIGNALED));
	take(a, 1);
	take(b, 1);
	need(!post_recv(b, 2, 0, 10));
	for (int i = 0; i < 2; i++)
		need(!to_state(&ends[i], IBV_QPS_RESET));
	/* What was posted is forgotten. */
	silence(b);
	connect_ends();
	need(!post_recv(b, 3, 0, 10));
	need(!post_send(a, 3, 0, 10, IBV_SEND_SIGNALED));
	take(a, 1);
	take(b, 1);
}

static void flush(void)
{
	open_ends();
	for (int i = 0; i < 3; i++)
		need(!post_recv(a, i, 0, 10));
	need(!post_send(a, 10, 0, 10, 0));
	need(!post_send(a, 11, 0, 10, 0));
	need(!to_state(a, IBV_QPS_ERR));
	take(a, 5);
	say("send: %s", error(post_send(a, 12, 0, 10, 0)));
	take(a, 1);
	say_states();
}

static void receive_posted_in_error(void)
{
	open_ends();
	need(!to_state(a, IBV_QPS_ERR));
	say("%s", error(post_recv(a, 1, 0, 10)));
	silence(a);
}

static void no_receive_no_retry(void)
{
	shape.rnr_retry = 0;
	open_ends();
	need(!post_send(a, 1, 0, 10, IBV_SEND_SIGNALED));
	take(a, 1);
	say_states();
}

static void no_receive_two_retries(void)
{
	shape.rnr_retry = 2;
	open_ends();
	need(!post_recv(a, 5, 0, 10));
	need(!post_send(a, 1, 0, 10, 0));
	take(a, 2);
	say_states();
}

static void receive_in_the_end(void)
{
	open_ends();
	need(!post_send(a, 1, 0, 10, IBV_SEND_SIGNALED));
	need(!post_send(a, 2, 100, 10, IBV_SEND_SIGNALED));
	silence(a);
	need(!post_recv(b, 3, 0, 10));
	take(a, 1);
	take(b, 1);
	silence(a);
	need(!post_recv(b, 4, 100, 10));
	take(a, 1);
	take(b, 1);
	say_content(0, 0, 10);
	say_content(100, 100, 10);
}

static void write_imm_without_receive(void)
{
	shape.rnr_retry = 1;
	open_ends();
	need(!post_rdma(a, IBV_WR_RDMA_WRITE_WITH_IMM, 1, addr(b), b->mr->rkey, 10));
	take(a, 1);
}

static void read_while_sends_wait(void)
{
	open_ends();
	need(!post_recv(b, 1, 0, 10));
	need(!post_send(a, 1, 0, 10, IBV_SEND_SIGNALED));
	need(!post_send(a, 2, 0, 10, IBV_SEND_SIGNALED));
	take(b, 1);
	need(!post_rdma(b, IBV_WR_RDMA_READ, 3, addr(a), a->mr->rkey, 200000));
	take(b, 1);
	need(!post_recv(b, 4, 0, 10));
	take(b, 1);
	take(a, 2);
}

static void to_itself(void)
{
	shape.self = true;
	open_ends();
	need(!post_recv(a, 1, 1000, 10));
	need(!post_send(a, 2, 0, 10, IBV_SEND_SIGNALED));
	take(a, 2);
}

static void shared_receives(void)
{
	struct ibv_srq_attr attr = { .srq_limit = 2 };

	shape.srq_of_b = true;
	open_ends();
	for (int i = 0; i < 3; i++)
		need(!post_recv(b, i, 0, 10));
	say("limit %s", error(ibv_modify_srq(b->srq, &attr, IBV_SRQ_LIMIT)));
	for (int i = 0; i < 2; i++)
		need(!post_send(a, i, 0, 10, IBV_SEND_SIGNALED));
	take(a, 2);
	take(b, 2);
	say_async();
	need(!ibv_query_srq(b->srq, &attr));
	say("limit now %u", attr.srq_limit);
}

static void shared_receives_in_error(void)
{
	shape.srq_of_b = true;
	open_ends();
	need(!post_recv(b, 1, 0, 10));
	need(!to_state(b, IBV_QPS_ERR));
	silence(b);
	say_async();
}

static void shared_receives_full(void)
{
	int n;

	shape.srq_of_b = true;
	open_ends();
	for (n = 0; n < 100 && !post_recv(b, n, 0, 10); n++)
		;
	say("%d, then %s", n, error(post_recv(b, n, 0, 10)));
}

static void overrun(void)
{
	shape.cqe = 3;
	open_ends();
	for (int i = 0; i < 7; i++)
		need(!post_rdma(a, IBV_WR_RDMA_WRITE, i, addr(b), b->mr->rkey, 10));
	say_async();
}

static void notification(void)
{
	struct ibv_cq *cq;
	void *cq_context;

	open_ends();
	need(!ibv_req_notify_cq(b->cq, 0));
	say_readable(b, SILENCE);
	need(!post_recv(b, 1, 0, 10) && !post_recv(b, 2, 0, 10));
	need(!post_send(a, 1, 0, 10, IBV_SEND_SIGNALED));
	say_readable(b, PATIENCE);
	need(!ibv_get_cq_event(b->channel, &cq, &cq_context));
	ibv_ack_cq_events(cq, 1);
	need(!post_send(a, 2, 0, 10, IBV_SEND_SIGNALED));
	take(a, 2);
	take(b, 2);
	/* Not armed again. */
	say_readable(b, SILENCE);
}

static void solicited(void)
{
	struct ibv_cq *cq;
	void *cq_context;

	open_ends();
	need(!ibv_req_notify_cq(b->cq, 1));
	need(!post_recv(b, 1, 0, 10) && !post_recv(b, 2, 0, 10));
	need(!post_send(a, 1, 0, 10, IBV_SEND_SIGNALED));
	take(a, 1);
	say_readable(b, SILENCE);
	need(!post_send(a, 2, 0, 10, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED));
	say_readable(b, PATIENCE);
	need(!ibv_get_cq_event(b->channel, &cq, &cq_context));
	ibv_ack_cq_events(cq, 1);
	take(b, 2);
}

static void notified_of_a_failure(void)
{
	struct ibv_cq *cq;
	void *cq_context;

	open_ends();
	need(!post_recv(b, 1, 0, 10));
	need(!ibv_req_notify_cq(b->cq, 1));
	need(!to_state(b, IBV_QPS_ERR));
	say_readable(b, PATIENCE);
	need(!ibv_get_cq_event(b->channel, &cq, &cq_context));
	ibv_ack_cq_events(cq, 1);
}

static void say_made(const char *what, void *object, int (*destroy)(void *))
{
	say("%s: %s", what, object ? "ok" : error(errno));
	if (object)
		need(!destroy(object));
}

static int dereg_mr(void *mr)
{
	return ibv_dereg_mr(mr);
}

static int destroy_qp(void *qp)
{
	return ibv_destroy_qp(qp);
}

static int destroy_cq(void *cq)
{
	return ibv_destroy_cq(cq);
}

static void in_use(void)
{
	open_ends();
	say("pd %s", error(ibv_dealloc_pd(a->pd)));
	say("cq %s", error(ibv_destroy_cq(a->cq)));
	say_made("region at NULL", ibv_reg_mr(a->pd, NULL, 4096, IBV_ACCESS_LOCAL_WRITE), dereg_mr);
	say_made("remote without local write", ibv_reg_mr(a->pd, a->buffer, 4096, IBV_ACCESS_REMOTE_WRITE), dereg_mr);
}

static void limits(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	make_ends();
	need(!ibv_query_qp(a->qp, &attr, IBV_QP_STATE | IBV_QP_CAP, &init));
	say("sends at least 7: %d, receives: %d, entries %d %d, inline at least 64: %d", init.cap.max_send_wr >= 7,
		init.cap.max_recv_wr >= 7, init.cap.max_send_sge >= 4, init.cap.max_recv_sge >= 4, init.cap.max_inline_data >= 64);
	init = shape.init;
	init.send_cq = init.recv_cq = a->cq;
	init.cap.max_send_wr = 20000000;
	say_made("too many sends", ibv_create_qp(a->pd, &init), destroy_qp);
	init.cap = shape.init.cap;
	init.cap.max_send_sge = 1000;
	say_made("too many entries", ibv_create_qp(a->pd, &init), destroy_qp);
	init.cap = shape.init.cap;
	init.cap.max_inline_data = 1 << 20;
	say_made("too much inline data", ibv_create_qp(a->pd, &init), destroy_qp);
	say_made("cq of -1", ibv_create_cq(context, -1, NULL, NULL, 0), destroy_cq);
	say_made("cq of 0", ibv_create_cq(context, 0, NULL, NULL, 0), destroy_cq);
}

static const struct {
	const char *name;
	void (*play)(void);
} cases[] = {
#define CASE(name) { #name, name }
	CASE(messages), CASE(long_message), CASE(no_entries), CASE(many_entries), CASE(immediate), CASE(inline_data),
	CASE(writes), CASE(reads), CASE(atomics), CASE(atomic_unaligned), CASE(unsignaled), CASE(all_signaled), CASE(fence),
	CASE(order_of_all), CASE(too_long), CASE(write_bad_rkey), CASE(write_beyond), CASE(write_before),
	CASE(write_without_right), CASE(write_without_right_of_qp), CASE(write_nothing_anywhere), CASE(read_without_right),
	CASE(read_bad_rkey), CASE(key_of_another_pd), CASE(send_bad_lkey), CASE(send_beyond), CASE(receive_bad_lkey),
	CASE(receive_without_right), CASE(receive_deregistered), CASE(queues_full), CASE(too_many_entries), CASE(lists),
	CASE(states), CASE(transitions), CASE(again_after_reset), CASE(flush), CASE(receive_posted_in_error),
	CASE(no_receive_no_retry), CASE(no_receive_two_retries), CASE(receive_in_the_end), CASE(write_imm_without_receive),
	CASE(read_while_sends_wait), CASE(to_itself), CASE(shared_receives), CASE(shared_receives_in_error),
	CASE(shared_receives_full), CASE(overrun), CASE(notification), CASE(solicited), CASE(notified_of_a_failure),
	CASE(in_use), CASE(limits),
};

int main(int argc, char **argv)
{
	static char room[OBSERVED];

	observed = room;
	open_device();
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bool wanted = argc < 2;

		for (int j = 1; j < argc; j++)
			wanted |= !strcmp(argv[j], cases[i].name);
		if (!wanted)
			continue;
		observed[0] = 0;
		usual();
		cases[i].play();
		printf("%s\t%s\n", cases[i].name, observed);
		fflush(stdout);
		close_ends();
	}
	need(!ibv_close_device(context));
	return 0;
}
