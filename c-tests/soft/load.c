/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * load [QPS]  much of everything, in one process: many queue pairs (1000), long messages, full queues, memory that goes
 * away under traffic, threads that post and poll at once; TAP on standard output
 *
 * On the device that has the address in DEVICE_ADDRESS.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <infiniband/verbs.h>

#define PATIENCE 120

#define die(...) do { fprintf(stderr, "load: " __VA_ARGS__); fputs("\n", stderr); exit(1); } while (0)
#define need(truth) do { if (!(truth)) die("%s:%d: not so: %s: %m", __FILE__, __LINE__, #truth); } while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };
static int gid_index;
static int points;

static void point(bool good, const char *name)
{
	printf("%sok %d - %s\n", good ? "" : "not ", ++points, name);
	fflush(stdout);
}

static void open_device(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	const char *address = getenv("DEVICE_ADDRESS");
	struct ibv_port_attr port;
	union ibv_gid entry;

	need(devices && devices[0]);
	if (!address || inet_pton(AF_INET, address, gid.raw + 12) != 1)
		die("no IPv4 address in DEVICE_ADDRESS");
	need(context = ibv_open_device(devices[0]));
	ibv_free_device_list(devices);
	need(!ibv_query_port(context, 1, &port));
	for (gid_index = port.gid_tbl_len - 1; gid_index >= 0; gid_index--)
		if (!ibv_query_gid(context, 1, gid_index, &entry) && !memcmp(&entry, &gid, sizeof(gid)))
			break;
	need(gid_index >= 0);
	need(pd = ibv_alloc_pd(context));
}

static struct ibv_qp *make_qp(struct ibv_cq *cq, uint32_t depth)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 2, .max_recv_sge = 2 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	need(qp);
	return qp;
}

static void to_rts(struct ibv_qp *qp, const struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .max_dest_rd_atomic = 8,
		.min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } },
	};
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 8 };
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void connect_pair(struct ibv_qp *qps[2])
{
	to_rts(qps[0], qps[1]);
	to_rts(qps[1], qps[0]);
}

static int post_send(struct ibv_qp *qp, uint64_t wr_id, enum ibv_wr_opcode opcode, void *from, uint32_t length,
	struct ibv_mr *mr, void *to, uint32_t rkey, int flags)
{
	struct ibv_sge sge = { .addr = (uintptr_t)from, .length = length, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = flags,
		.wr.rdma = { .remote_addr = (uintptr_t)to, .rkey = rkey } }, *bad;

	return ibv_post_send(qp, &wr, &bad);
}

static int post_recv(struct ibv_qp *qp, uint64_t wr_id, void *to, uint32_t length, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)to, .length = length, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_recv(qp, &wr, &bad);
}

static struct ibv_wc take(struct ibv_cq *cq)
{
	time_t until = time(NULL) + PATIENCE;
	struct ibv_wc wc;
	int got;

	while (!(got = ibv_poll_cq(cq, 1, &wc)))
		if (time(NULL) > until)
			die("no completion");
	need(got == 1);
	return wc;
}

static struct ibv_mr *reg(void *memory, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, length,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);

	need(mr);
	return mr;
}

static struct ibv_cq *make_cq(int cqe)
{
	struct ibv_cq *cq = ibv_create_cq(context, cqe, NULL, NULL, 0);

	need(cq);
	return cq;
}

static void many_qps(int n)
{
	struct ibv_cq *cq = make_cq(4 * n);
	struct ibv_qp **qps = calloc(n, sizeof(*qps));
	uint32_t *memory = aligned_alloc(4096, (2 * n * sizeof(uint32_t) + 4095) & ~4095);
	struct ibv_mr *mr = reg(memory, 2 * n * sizeof(uint32_t));
	bool good = true;
	char name[100];

	for (int i = 0; i < n; i++)
		qps[i] = make_qp(cq, 4);
	for (int i = 0; i < n; i += 2)
		connect_pair(&qps[i]);
	for (int i = 0; i < n; i++) {
		memory[i] = 1000 + i;
		memory[n + i] = 0;
		need(!post_recv(qps[i], i, &memory[n + (i ^ 1)], 4, mr));
	}
	for (int i = 0; i < n; i++)
		need(!post_send(qps[i], i, IBV_WR_SEND, &memory[i], 4, mr, NULL, 0, IBV_SEND_SIGNALED));
	for (int i = 0; i < 2 * n; i++)
		good &= take(cq).status == IBV_WC_SUCCESS;
	for (int i = 0; i < n; i++)
		good &= memory[n + i] == 1000u + i;
	for (int i = 0; i < n; i++)
		need(!ibv_destroy_qp(qps[i]));
	snprintf(name, sizeof(name), "%d queue pairs send to each other", n);
	point(good, name);
	need(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq));
	free(memory);
	free(qps);
}

static void fill(uint8_t *memory, size_t size, uint32_t seed)
{
	for (size_t i = 0; i < size; i++)
		memory[i] = (seed = seed * 1664525 + 1013904223) >> 24;
}

static void long_messages(void)
{
	const size_t size = 64 << 20;
	struct ibv_cq *cq = make_cq(16);
	struct ibv_qp *qps[2] = { make_qp(cq, 4), make_qp(cq, 4) };
	uint8_t *from = aligned_alloc(4096, size), *to = aligned_alloc(4096, size);
	struct ibv_mr *from_mr = reg(from, size), *to_mr = reg(to, size);
	struct ibv_wc wc;

	connect_pair(qps);
	fill(from, size, 1);
	memset(to, 0, size);
	need(!post_send(qps[0], 1, IBV_WR_RDMA_WRITE, from, size, from_mr, to, to_mr->rkey, IBV_SEND_SIGNALED));
	point(take(cq).status == IBV_WC_SUCCESS && !memcmp(from, to, size), "a write of 64 MiB");
	memset(to, 0, size);
	need(!post_send(qps[1], 2, IBV_WR_RDMA_READ, to, size, to_mr, from, from_mr->rkey, IBV_SEND_SIGNALED));
	wc = take(cq);
	point(wc.status == IBV_WC_SUCCESS && wc.byte_len == size && !memcmp(from, to, size), "a read of 64 MiB");
	memset(to, 0, size);
	need(!post_recv(qps[1], 3, to, size, to_mr));
	need(!post_send(qps[0], 4, IBV_WR_SEND, from, size, from_mr, NULL, 0, 0));
	wc = take(cq);
	point(wc.status == IBV_WC_SUCCESS && wc.wr_id == 3 && wc.byte_len == size && !memcmp(from, to, size), "a send of 64 MiB");
	/* Both ways at once. */
	memset(to, 0, size);
	need(!post_send(qps[0], 5, IBV_WR_RDMA_WRITE, from, size / 2, from_mr, to, to_mr->rkey, IBV_SEND_SIGNALED));
	need(!post_send(qps[1], 6, IBV_WR_RDMA_READ, to + size / 2, size / 2, to_mr, from + size / 2, from_mr->rkey, IBV_SEND_SIGNALED));
	point(take(cq).status == IBV_WC_SUCCESS && take(cq).status == IBV_WC_SUCCESS && !memcmp(from, to, size), "both ways at once");
	for (int i = 0; i < 2; i++)
		need(!ibv_destroy_qp(qps[i]));
	need(!ibv_dereg_mr(from_mr) && !ibv_dereg_mr(to_mr) && !ibv_destroy_cq(cq));
	free(from);
	free(to);
}

/* As many requests as fit, again and again, in lists of their own. */
static void full_queues(void)
{
	enum { DEPTH = 1024, ROUNDS = 50 };
	struct ibv_cq *send_cq = make_cq(2 * DEPTH), *recv_cq = make_cq(2 * DEPTH);
	struct ibv_qp_init_attr init = {
		.send_cq = send_cq, .recv_cq = recv_cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qps[2];
	static uint64_t memory[2 * DEPTH];
	struct ibv_mr *mr = reg(memory, sizeof(memory));
	bool good = true;

	for (int i = 0; i < 2; i++)
		need(qps[i] = ibv_create_qp(pd, &init));
	connect_pair(qps);
	for (int round = 0; round < ROUNDS; round++) {
		int sent = 0, n = 0;

		for (n = 0; !post_recv(qps[1], n, &memory[DEPTH + n % DEPTH], 8, mr); n++)
			;
		good &= n >= DEPTH;
		for (sent = 0; sent < n; sent++) {
			memory[sent % DEPTH] = round * 10000 + sent;
			if (post_send(qps[0], sent, IBV_WR_SEND, &memory[sent % DEPTH], 8, mr, NULL, 0, IBV_SEND_SIGNALED))
				break;
		}
		good &= sent >= DEPTH;
		for (int i = 0; i < sent; i++) {
			struct ibv_wc wc = take(send_cq), got = take(recv_cq);

			good &= wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i;
			good &= got.status == IBV_WC_SUCCESS && got.wr_id == (uint64_t)i;
		}
		for (int i = 0; i < DEPTH; i++)
			good &= memory[DEPTH + i] == (uint64_t)round * 10000 + i || sent > DEPTH;
		/* What was not needed. */
		for (int i = sent; i < n; i++) {
			need(!post_send(qps[0], i, IBV_WR_SEND, &memory[0], 8, mr, NULL, 0, IBV_SEND_SIGNALED));
			good &= take(send_cq).status == IBV_WC_SUCCESS && take(recv_cq).status == IBV_WC_SUCCESS;
		}
	}
	point(good, "queues of 1024, filled and emptied 50 times, in order");
	for (int i = 0; i < 2; i++)
		need(!ibv_destroy_qp(qps[i]));
	need(!ibv_dereg_mr(mr) && !ibv_destroy_cq(send_cq) && !ibv_destroy_cq(recv_cq));
}

/* Memory that its owner takes away and frees while the peer writes to it: the writes fail, and nobody is hurt. */
static void memory_goes(void)
{
	const size_t size = 4 << 20;
	bool good = true;

	for (int round = 0; round < 50; round++) {
		struct ibv_cq *cq = make_cq(64);
		struct ibv_qp *qps[2] = { make_qp(cq, 16), make_qp(cq, 16) };
		uint8_t *from = aligned_alloc(4096, size), *to = aligned_alloc(4096, size);
		struct ibv_mr *from_mr = reg(from, size), *to_mr = reg(to, size);
		int failed = 0;
		uint32_t rkey = to_mr->rkey;

		connect_pair(qps);
		memset(from, 1, size);
		for (int i = 0; i < 8; i++)
			need(!post_send(qps[0], i, round % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, from, size, from_mr, to, rkey,
				IBV_SEND_SIGNALED));
		for (int i = 0; i < round % 8; i++)
			good &= take(cq).status == IBV_WC_SUCCESS;
		need(!ibv_dereg_mr(to_mr));
		memset(to, 0xaa, size);
		for (int i = round % 8; i < 8; i++) {
			enum ibv_wc_status status = take(cq).status;

			good &= status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_WR_FLUSH_ERR ||
				status == IBV_WC_SUCCESS;
			failed += status == IBV_WC_REM_ACCESS_ERR;
		}
		good &= failed <= 1;
		/* Nothing is written after the deregistration. */
		for (size_t i = 0; i < size && round % 2 == 0; i += 4096)
			good &= to[i] == 0xaa;
		for (int i = 0; i < 2; i++)
			need(!ibv_destroy_qp(qps[i]));
		need(!ibv_dereg_mr(from_mr) && !ibv_destroy_cq(cq));
		free(from);
		free(to);
	}
	point(good, "memory is deregistered under writes to it and reads from it, 50 times");
}

/* Threads. */

#define THREADS 4
#define MESSAGES 20000

static struct shared {
	struct ibv_qp *qps[2];
	struct ibv_cq *cqs[2];
	struct ibv_mr *mr;
	atomic_int posted, sent, received;
	_Atomic uint64_t sum;
} shared;

static uint64_t slots[4096];

static void *post_some(void *unused)
{
	(void)unused;
	for (;;) {
		int i = atomic_fetch_add(&shared.posted, 1);

		if (i >= MESSAGES)
			return NULL;
		slots[i % 2048] = 1;
		/* Full now and then: then others have to poll. */
		while (post_send(shared.qps[0], i, IBV_WR_SEND, &slots[i % 2048], 8, shared.mr, NULL, 0, IBV_SEND_SIGNALED))
			sched_yield();
	}
}

static void *poll_some(void *unused)
{
	struct ibv_wc wc[8];

	(void)unused;
	while (atomic_load(&shared.sent) < MESSAGES || atomic_load(&shared.received) < MESSAGES) {
		int got = ibv_poll_cq(shared.cqs[0], 8, wc);

		need(got >= 0);
		for (int i = 0; i < got; i++) {
			need(wc[i].status == IBV_WC_SUCCESS);
			atomic_fetch_add(&shared.sent, 1);
		}
		got = ibv_poll_cq(shared.cqs[1], 8, wc);
		need(got >= 0);
		for (int i = 0; i < got; i++) {
			need(wc[i].status == IBV_WC_SUCCESS);
			atomic_fetch_add(&shared.sum, wc[i].byte_len);
			atomic_fetch_add(&shared.received, 1);
			need(!post_recv(shared.qps[1], 0, &slots[2048 + wc[i].wr_id], 8, shared.mr));
		}
	}
	return NULL;
}

static void threads(void)
{
	pthread_t thread[2 * THREADS];

	for (int i = 0; i < 2; i++)
		shared.cqs[i] = make_cq(4096);
	shared.mr = reg(slots, sizeof(slots));
	for (int i = 0; i < 2; i++)
		shared.qps[i] = make_qp(shared.cqs[i], 256);
	connect_pair(shared.qps);
	for (int i = 0; i < 256; i++)
		need(!post_recv(shared.qps[1], i, &slots[2048 + i], 8, shared.mr));
	for (int i = 0; i < 2 * THREADS; i++)
		need(!pthread_create(&thread[i], NULL, i % 2 ? poll_some : post_some, NULL));
	for (int i = 0; i < 2 * THREADS; i++)
		need(!pthread_join(thread[i], NULL));
	point(shared.sent == MESSAGES && shared.received == MESSAGES && shared.sum == 8 * MESSAGES,
		"4 threads post to one queue pair and 4 poll its queues, 20000 messages");
	for (int i = 0; i < 2; i++)
		need(!ibv_destroy_qp(shared.qps[i]));
	need(!ibv_dereg_mr(shared.mr));
	for (int i = 0; i < 2; i++)
		need(!ibv_destroy_cq(shared.cqs[i]));
}

/* Each thread with a pair of its own, made and destroyed again and again. */
static void *make_and_break(void *unused)
{
	(void)unused;
	for (int i = 0; i < 100; i++) {
		struct ibv_cq *cq = make_cq(16);
		struct ibv_qp *qps[2] = { make_qp(cq, 4), make_qp(cq, 4) };
		uint64_t memory[2] = { i, -1 };
		struct ibv_mr *mr = reg(memory, sizeof(memory));

		connect_pair(qps);
		need(!post_send(qps[0], 1, IBV_WR_RDMA_WRITE, &memory[0], 8, mr, &memory[1], mr->rkey, IBV_SEND_SIGNALED));
		/* Half of them end with a request under way. */
		if (i % 2) {
			need(take(cq).status == IBV_WC_SUCCESS);
			need(memory[1] == (uint64_t)i);
		}
		need(!ibv_destroy_qp(qps[0]) && !ibv_destroy_qp(qps[1]) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq));
	}
	return NULL;
}

static void threads_of_their_own(void)
{
	pthread_t thread[THREADS];

	for (int i = 0; i < THREADS; i++)
		need(!pthread_create(&thread[i], NULL, make_and_break, NULL));
	for (int i = 0; i < THREADS; i++)
		need(!pthread_join(thread[i], NULL));
	point(true, "4 threads make and destroy 100 pairs each");
}

int main(int argc, char **argv)
{
	open_device();
	many_qps(argc > 1 ? atoi(argv[1]) : 1000);
	long_messages();
	full_queues();
	memory_goes();
	threads();
	threads_of_their_own();
	need(!ibv_dealloc_pd(pd));
	need(!ibv_close_device(context));
	printf("1..%d\n", points);
	return 0;
}
