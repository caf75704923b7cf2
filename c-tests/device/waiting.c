/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* rdma_get_recv_comp and rdma_get_send_comp where they have to wait. */

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include "device.h"

static void *have_peer_send(void *arg)
{
	struct helper *helper = arg;

	until_main_sleeps(helper);
	helper->result = peer_tell((struct order) { .request = PEER_SEND, .nsge = SIMPLE, .length = 16 });
	return NULL;
}

void wait_for_message(void **state)
{
	static struct helper helper;

	(void)state;
	connected_pair(&usual);
	peer((struct order) { .request = PEER_FILL, .length = 16, .seed = 1 });
	/* Twice: after a wait, the next one works, too. */
	for (uintptr_t i = 0; i < 2; i++) {
		assert_posted(end_recv(&end, (void *)i, SIMPLE, i * 16, 16));
		helper_start(&helper, have_peer_send);
		received(i, 16);
		helper_join(&helper);
		assert_int_equal(peer_end().result, 0);
		assert_int_equal(peer_completion(PEER_SEND_COMP).status, IBV_WC_SUCCESS);
		check_own(i * 16, 16, 1);
	}
}

static void *send_own(void *arg)
{
	struct helper *helper = arg;

	until_main_sleeps(helper);
	helper->result = end_send(&end, (void *)1, SIMPLE, 0, 16, 0);
	return NULL;
}

void wait_for_own_request(void **state)
{
	static struct helper helper;

	(void)state;
	connected_pair(&usual);
	for (int i = 0; i < 2; i++) {
		peer_recv(SIMPLE, 0, 16);
		fill_own(0, 16, i);
		helper_start(&helper, send_own);
		sent(1);
		helper_join(&helper);
		peer_received(0, 16, i);
	}
}

static void on_signal(int number)
{
	(void)number;
}

static void *send_signal(void *arg)
{
	struct helper *helper = arg;

	until_main_sleeps(helper);
	helper->result = pthread_kill(helper->main_thread, SIGUSR1);
	return NULL;
}

void wait_interrupted(void **state)
{
	/* Without SA_RESTART. */
	struct sigaction action = { .sa_handler = on_signal };
	static struct helper helper;
	struct ibv_wc wc;

	(void)state;
	connected_pair(&usual);
	assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
	helper_start(&helper, send_signal);
	assert_refused(EINTR, rdma_get_recv_comp(end.id, &wc));
	helper_join(&helper);
	helper_start(&helper, send_signal);
	assert_refused(EINTR, rdma_get_send_comp(end.id, &wc));
	helper_join(&helper);

	/* Nothing is lost by that. */
	assert_posted(end_recv(&end, (void *)1, SIMPLE, 0, 16));
	peer_send(SIMPLE, 0, 16);
	received(1, 16);
	peer_recv(SIMPLE, 0, 16);
	assert_posted(end_send(&end, (void *)2, SIMPLE, 0, 16, 0));
	sent(2);
}

static void make_non_blocking(struct ibv_comp_channel *channel)
{
	int flags = fcntl(channel->fd, F_GETFL);

	assert_int_equal(fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK), 0);
}

static void await_event(struct ibv_comp_channel *channel)
{
	struct pollfd event = { .fd = channel->fd, .events = POLLIN };

	assert_int_equal(poll(&event, 1, -1), 1);
}

void wait_non_blocking(void **state)
{
	struct ibv_wc wc;

	(void)state;
	connected_pair(&usual);
	make_non_blocking(end.id->recv_cq_channel);
	make_non_blocking(end.id->send_cq_channel);
	assert_refused(EAGAIN, rdma_get_recv_comp(end.id, &wc));
	assert_refused(EAGAIN, rdma_get_send_comp(end.id, &wc));

	/* As a program does that polls the descriptor: EAGAIN has left the CQ armed. */
	assert_posted(end_recv(&end, (void *)1, SIMPLE, 0, 16));
	peer_send(SIMPLE, 0, 16);
	await_event(end.id->recv_cq_channel);
	received(1, 16);
	assert_refused(EAGAIN, rdma_get_recv_comp(end.id, &wc));
	peer_recv(SIMPLE, 0, 16);
	assert_posted(end_send(&end, (void *)2, SIMPLE, 0, 16, 0));
	await_event(end.id->send_cq_channel);
	sent(2);
	assert_refused(EAGAIN, rdma_get_send_comp(end.id, &wc));
}

void foreign_event(void **state)
{
	static struct helper helper;
	struct ibv_comp_channel *channel;

	(void)state;
	open_bare_pair(&usual);
	/* librdmacm makes a channel for each CQ, and does not keep CQs that the program made: by hand, then. */
	channel = ibv_create_comp_channel(end.id->verbs);
	assert_non_null(channel);
	end.id->send_cq_channel = channel;
	end.id->recv_cq_channel = channel;
	end.id->send_cq = ibv_create_cq(end.id->verbs, 8, end.id, channel, 0);
	assert_non_null(end.id->send_cq);
	end.id->recv_cq = ibv_create_cq(end.id->verbs, 8, end.id, channel, 0);
	assert_non_null(end.id->recv_cq);
	end.attr.send_cq = end.id->send_cq;
	end.attr.recv_cq = end.id->recv_cq;
	assert_int_equal(end_make_qp(&end, &usual), 0);
	assert_int_equal(end_register(&end), 0);
	connect_pair();

	/* An event of the receive CQ waits in the channel. */
	assert_posted(end_recv(&end, (void *)7, SIMPLE, 4096, 16));
	assert_int_equal(ibv_req_notify_cq(end.id->recv_cq, 0), 0);
	peer_send(SIMPLE, 0, 16);
	await_event(channel);

	/* The wait for a send takes it and goes on, until there is a send. */
	peer_recv(SIMPLE, 0, 16);
	fill_own(0, 16, 1);
	helper_start(&helper, send_own);
	sent(1);
	helper_join(&helper);
	peer_received(0, 16, 1);
	received(7, 16);
	/* An event that was not acknowledged to its CQ would keep ibv_destroy_cq, in close_pair, waiting for ever. */
}

void no_channel(void **state)
{
	struct ibv_comp_channel *channel;
	struct ibv_wc wc;

	(void)state;
	connected_pair(&usual);
	channel = end.id->recv_cq_channel;
	assert_posted(end_recv(&end, (void *)1, SIMPLE, 0, 16));
	assert_int_equal(ibv_req_notify_cq(end.id->recv_cq, 0), 0);
	peer_send(SIMPLE, 0, 16);
	await_event(channel);

	end.id->recv_cq_channel = NULL;
	received(1, 16);
	assert_refused(EINVAL, rdma_get_recv_comp(end.id, &wc));
	end.id->recv_cq_channel = channel;
}

void no_completion_queue(void **state)
{
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_wc wc;

	(void)state;
	open_bare_pair(&usual);
	/* No queue pair yet, so no CQ. */
	assert_refused(EINVAL, rdma_get_recv_comp(end.id, &wc));
	assert_refused(EINVAL, rdma_get_send_comp(end.id, &wc));

	/* CQs that the program made are not in the id. */
	send_cq = ibv_create_cq(end.id->verbs, 8, NULL, NULL, 0);
	assert_non_null(send_cq);
	recv_cq = ibv_create_cq(end.id->verbs, 8, NULL, NULL, 0);
	assert_non_null(recv_cq);
	end.attr.send_cq = send_cq;
	end.attr.recv_cq = recv_cq;
	assert_int_equal(end_make_qp(&end, &usual), 0);
	assert_null(end.id->recv_cq);
	assert_null(end.id->send_cq);
	assert_refused(EINVAL, rdma_get_recv_comp(end.id, &wc));
	assert_refused(EINVAL, rdma_get_send_comp(end.id, &wc));
	rdma_destroy_qp(end.id);
	assert_int_equal(ibv_destroy_cq(send_cq), 0);
	assert_int_equal(ibv_destroy_cq(recv_cq), 0);

	memset(&end.attr, 0, sizeof(end.attr));
	assert_int_equal(end_make_qp(&end, &usual), 0);
	assert_refused(EINVAL, rdma_get_recv_comp(end.id, NULL));
	assert_refused(EINVAL, rdma_get_send_comp(end.id, NULL));
}

#define MESSAGES 200

static void *send_many(void *arg)
{
	struct helper *helper = arg;
	struct ibv_wc wc;

	helper->result = -1;
	for (uintptr_t i = 0; i < MESSAGES; i++) {
		if (end_send(&end, (void *)i, SIMPLE, i * 64, 64, 0))
			return NULL;
		if (rdma_get_send_comp(end.id, &wc) != 1 || wc.status != IBV_WC_SUCCESS || wc.wr_id != i)
			return NULL;
	}
	helper->result = 0;
	return NULL;
}

void two_threads(void **state)
{
	static struct helper helper;
	struct shape shape = usual;

	(void)state;
	shape.recv_wr = MESSAGES;
	connected_pair(&shape);
	for (uintptr_t i = 0; i < MESSAGES; i++) {
		peer_recv(SIMPLE, i * 64, 64);
		fill_own(i * 64, 64, i);
		assert_posted(end_recv(&end, (void *)i, SIMPLE, (MESSAGES + i) * 64, 64));
	}
	peer_begin((struct order) { .request = PEER_ECHO, .count = MESSAGES });
	helper_start(&helper, send_many);
	for (uintptr_t i = 0; i < MESSAGES; i++) {
		received(i, 64);
		check_own((MESSAGES + i) * 64, 64, i);
	}
	helper_join(&helper);
	assert_int_equal(peer_end().result, 0);
}
