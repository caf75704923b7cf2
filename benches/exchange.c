/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Compiled twice, as calls.c is. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/rdma_verbs.h>

#include "exchange.h"

#ifdef UPSTREAM
#ifdef LIBRDMA_VERBS_VERSION
#error "this is not upstream's header"
#endif
#define EXCHANGE exchange_inline
#else
#ifndef LIBRDMA_VERBS_VERSION
#error "this is not the library's header"
#endif
#define EXCHANGE exchange_lib
#endif

static void die(const char *call)
{
	perror(call);
	exit(1);
}

static void post_receive(struct end *end)
{
	if (rdma_post_recv(end->id, end, end->in, MESSAGE_SIZE, end->mr))
		die("rdma_post_recv");
}

static void post_send(struct end *end)
{
	if (rdma_post_send(end->id, end, end->out, MESSAGE_SIZE, end->mr, IBV_SEND_SIGNALED))
		die("rdma_post_send");
}

static void check(const struct end *end, int found, const struct ibv_wc *wc, const char *call)
{
	if (found != 1)
		die(call);
	if (wc->status != IBV_WC_SUCCESS || wc->wr_id != (uintptr_t)end) {
		fprintf(stderr, "%s: %s\n", call, ibv_wc_status_str(wc->status));
		exit(1);
	}
}

static void wait_received(struct end *end)
{
	struct ibv_wc wc;

	check(end, rdma_get_recv_comp(end->id, &wc), &wc, "rdma_get_recv_comp");
}

static void wait_sent(struct end *end)
{
	struct ibv_wc wc;

	check(end, rdma_get_send_comp(end->id, &wc), &wc, "rdma_get_send_comp");
}

void EXCHANGE(struct end *client, struct end *server, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++) {
		memcpy(client->out, &i, sizeof(i));
		post_receive(server);
		post_receive(client);
		post_send(client);
		wait_received(server);
		memcpy(server->out, server->in, MESSAGE_SIZE);
		post_send(server);
		wait_received(client);
		wait_sent(client);
		wait_sent(server);
		if (memcmp(client->in, client->out, MESSAGE_SIZE)) {
			fputs("another message came back\n", stderr);
			exit(1);
		}
	}
}
