/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * posts time      times every call, inline and in the library in turn, over each provider
 * posts count     runs every loop twice with different numbers of calls, and a callgrind dump after each
 * posts repeat N  makes each library call N times over the provider that writes queue entries
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <valgrind/callgrind.h>

#include "calls.h"
#include "provider.h"

/* A round is short beside a scheduler's time slice, so that most rounds are not interrupted. */
#define ROUNDS 301
#define CALLS_PER_ROUND 10000

#define LENGTH 64

static const struct provider {
	const char *name;
	const struct ibv_context_ops *ops;
} providers[] = {
	{ "null", &null_ops },
	{ "wqe", &wqe_ops },
};

#define N_PROVIDERS (sizeof(providers) / sizeof(providers[0]))

static const struct variant {
	const char *name;
	const struct call *calls;
} variants[] = {
	{ "inline", inline_calls },
	{ "lib", lib_calls },
};

#define N_VARIANTS (sizeof(variants) / sizeof(variants[0]))

/* The objects as libibverbs and librdmacm would have made them for an InfiniBand device. */
static struct ibv_device device = { .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB };
static struct ibv_context context = { .device = &device };
static struct provider_qp connected, datagram;
static struct provider_srq shared;
static struct provider_cq cq;
static struct rdma_cm_id ids[] = {
	[CONNECTED] = { .qp = &connected.qp, .send_cq = &cq.cq, .recv_cq = &cq.cq },
	[DATAGRAM] = { .qp = &datagram.qp, .send_cq = &cq.cq, .recv_cq = &cq.cq },
	[SHARED] = { .qp = &connected.qp, .srq = &shared.srq, .send_cq = &cq.cq, .recv_cq = &cq.cq },
};
static char buffer[2 * LENGTH];
static struct ibv_mr mr = { .context = &context, .addr = buffer, .length = sizeof(buffer), .lkey = 0x1234 };
static struct ibv_ah ah = { .context = &context };
static struct ibv_sge sgl[MAX_SGE];
static struct ibv_wc wc;

static void init_queue(struct queue *queue)
{
	if (pthread_spin_init(&queue->lock, PTHREAD_PROCESS_PRIVATE)) {
		fputs("posts: no spinlock\n", stderr);
		exit(1);
	}
}

static void init_qp(struct provider_qp *qp, enum ibv_qp_type type, uint32_t number)
{
	qp->qp = (struct ibv_qp){ .context = &context, .qp_num = number, .state = IBV_QPS_RTS, .qp_type = type };
	init_queue(&qp->send);
	init_queue(&qp->recv);
}

static void init(void)
{
	init_qp(&connected, IBV_QPT_RC, 17);
	init_qp(&datagram, IBV_QPT_UD, 18);
	shared.srq = (struct ibv_srq){ .context = &context, .handle = 19 };
	init_queue(&shared.recv);
	cq.cq = (struct ibv_cq){ .context = &context };
	init_queue(&cq.completions);
	for (int i = 0; i < MAX_SGE; i++)
		sgl[i] = (struct ibv_sge){ (uintptr_t)buffer + i * LENGTH, LENGTH, mr.lkey };
}

/* Makes n calls, all of which must succeed. */
static void run(const struct call *call, unsigned long n)
{
	const struct arguments args = {
		.id = &ids[call->kind],
		.context = sgl,
		.addr = buffer,
		.length = LENGTH,
		.mr = &mr,
		.sgl = sgl,
		.nsge = MAX_SGE,
		.flags = IBV_SEND_SIGNALED,
		.remote_addr = 0x7f0000001000,
		.rkey = 0x5678,
		.ah = &ah,
		.remote_qpn = 20,
		.wc = &wc,
	};
	unsigned long failed = call->loop(&args, n);

	if (failed) {
		fprintf(stderr, "posts: %s: %lu of %lu calls failed\n", call->name, failed, n);
		exit(1);
	}
}

static double now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static double time_round(const struct call *call)
{
	double start = now_ns();

	run(call, CALLS_PER_ROUND);
	return (now_ns() - start) / CALLS_PER_ROUND;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double round_ns[N_PROVIDERS][N_CALLS][N_VARIANTS][ROUNDS];

/* All calls in each round, so that a busy moment of the machine is one round of every call. */
static void time_calls(void)
{
	for (int round = 0; round < ROUNDS; round++)
		for (size_t provider = 0; provider < N_PROVIDERS; provider++) {
			context.ops = *providers[provider].ops;
			for (int i = 0; i < N_CALLS; i++)
				for (size_t variant = 0; variant < N_VARIANTS; variant++)
					round_ns[provider][i][variant][round] =
						time_round(&variants[variant].calls[i]);
		}
	for (size_t provider = 0; provider < N_PROVIDERS; provider++)
		for (int i = 0; i < N_CALLS; i++)
			for (size_t variant = 0; variant < N_VARIANTS; variant++) {
				double *ns = round_ns[provider][i][variant];

				qsort(ns, ROUNDS, sizeof(*ns), compare);
				printf("time %s %s %s %.2f %.2f\n", inline_calls[i].name, providers[provider].name,
				       variants[variant].name, ns[0], ns[ROUNDS / 2]);
			}
}

/* Dumps what callgrind counted during n calls, and the few instructions around them. */
static void count_calls(const char *provider, const struct variant *variant, const struct call *call, unsigned long n)
{
	char title[128];

	snprintf(title, sizeof(title), "%s %s %s %lu", call->name, provider, variant->name, n);
	CALLGRIND_ZERO_STATS;
	run(call, n);
	CALLGRIND_DUMP_STATS_AT(title);
}

static void count_all(void)
{
	for (size_t provider = 0; provider < N_PROVIDERS; provider++) {
		context.ops = *providers[provider].ops;
		for (int i = 0; i < N_CALLS; i++)
			for (size_t variant = 0; variant < N_VARIANTS; variant++) {
				const struct call *call = &variants[variant].calls[i];

				/* The first call binds symbols and finds the provider. */
				run(call, 1);
				count_calls(providers[provider].name, &variants[variant], call, 1000);
				count_calls(providers[provider].name, &variants[variant], call, 2000);
			}
	}
}

int main(int argc, char **argv)
{
	init();
	if (argc == 2 && !strcmp(argv[1], "time")) {
		time_calls();
	} else if (argc == 2 && !strcmp(argv[1], "count") && RUNNING_ON_VALGRIND) {
		count_all();
	} else if (argc == 3 && !strcmp(argv[1], "repeat")) {
		context.ops = wqe_ops;
		for (int i = 0; i < N_CALLS; i++)
			run(&lib_calls[i], strtoul(argv[2], NULL, 0));
	} else {
		fputs("usage: posts time | valgrind --tool=callgrind posts count | posts repeat N\n", stderr);
		return 1;
	}
	return 0;
}
