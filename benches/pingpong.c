/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * pingpong ADDRESS  times round trips between two ids of this process over the RDMA device that has the address
 */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "exchange.h"

#define PORT "7473"
#define ROUNDS 501
#define TRIPS_PER_ROUND 20

static exchange_function *const variants[] = { exchange_inline, exchange_lib };
static const char *const names[] = { "inline", "lib" };

#define N_VARIANTS (sizeof(variants) / sizeof(variants[0]))

static struct end client, server;

static void die(const char *call)
{
	perror(call);
	exit(1);
}

static void create(const char *address, int flags, struct rdma_cm_id **id)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP };
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_addrinfo *info;

	if (rdma_getaddrinfo(address, PORT, &hints, &info))
		die("rdma_getaddrinfo");
	if (rdma_create_ep(id, info, NULL, &attr))
		die("rdma_create_ep");
	rdma_freeaddrinfo(info);
}

/* Accepting and connecting each wait for the other. */
static void *accept_one(void *listener)
{
	if (rdma_get_request(listener, &server.id))
		die("rdma_get_request");
	if (rdma_accept(server.id, NULL))
		die("rdma_accept");
	return NULL;
}

static void connect_ends(const char *address)
{
	struct rdma_cm_id *listener;
	pthread_t thread;

	create(address, RAI_PASSIVE, &listener);
	if (rdma_listen(listener, 1))
		die("rdma_listen");
	create(address, 0, &client.id);
	if (pthread_create(&thread, NULL, accept_one, listener))
		die("pthread_create");
	if (rdma_connect(client.id, NULL))
		die("rdma_connect");
	pthread_join(thread, NULL);
}

static void register_end(struct end *end)
{
	end->mr = ibv_reg_mr(end->id->pd, end, sizeof(*end), IBV_ACCESS_LOCAL_WRITE);
	if (!end->mr)
		die("ibv_reg_mr");
}

/* Microseconds for a round trip. */
static double time_round(exchange_function *exchange)
{
	struct timespec start, end;

	clock_gettime(CLOCK_MONOTONIC, &start);
	exchange(&client, &server, TRIPS_PER_ROUND);
	clock_gettime(CLOCK_MONOTONIC, &end);
	return ((end.tv_sec - start.tv_sec) * 1e6 + (end.tv_nsec - start.tv_nsec) / 1e3) / TRIPS_PER_ROUND;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	static double us[N_VARIANTS][ROUNDS];

	if (argc != 2) {
		fputs("usage: pingpong ADDRESS\n", stderr);
		return 1;
	}
	connect_ends(argv[1]);
	register_end(&client);
	register_end(&server);
	for (size_t variant = 0; variant < N_VARIANTS; variant++)
		variants[variant](&client, &server, TRIPS_PER_ROUND);
	for (int round = 0; round < ROUNDS; round++)
		for (size_t variant = 0; variant < N_VARIANTS; variant++)
			us[variant][round] = time_round(variants[variant]);
	for (size_t variant = 0; variant < N_VARIANTS; variant++) {
		qsort(us[variant], ROUNDS, sizeof(double), compare);
		printf("pingpong %s %s %.2f %.2f\n", client.id->verbs->device->name, names[variant], us[variant][0],
		       us[variant][ROUNDS / 2]);
	}
	return 0;
}
