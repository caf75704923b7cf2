/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Connection management: events, statuses, what queue pairs get, errno. Only librdmacm is asked, so that the same cases
 * run on any device: cm [ADDRESS], an address of it. Without one it is the loopback address, which is the software
 * device's alone, and then what librdmacm itself cannot do is tested, too.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <rdma/rdma_verbs.h>
#include <cmocka.h>

extern char **environ;

static const char *self;
static const char *address = "127.0.0.1";
static int is_soft = 1;

/* Long enough for what comes; nothing waits as long as that when all is well. */
enum { PATIENCE_MS = 60000, MANY = 500 };

#define assert_minus_one(call, error) do { \
	errno = 0; \
	assert_int_equal(call, -1); \
	assert_int_equal(errno, error); \
} while (0)

/* ---- Addresses, identifiers, events ---- */

static struct sockaddr *at(const char *ip, uint16_t port)
{
	static struct sockaddr_storage storage[8];
	static unsigned next;
	struct sockaddr_storage *to = &storage[next++ % 8];
	struct sockaddr_in *in = (void *)to;
	struct sockaddr_in6 *in6 = (void *)to;

	memset(to, 0, sizeof(*to));
	if (inet_pton(AF_INET, ip, &in->sin_addr) == 1) {
		in->sin_family = AF_INET;
		in->sin_port = htons(port);
	} else {
		assert_int_equal(inet_pton(AF_INET6, ip, &in6->sin6_addr), 1);
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(port);
	}
	return (struct sockaddr *)to;
}

static struct rdma_event_channel *channel(void)
{
	struct rdma_event_channel *made = rdma_create_event_channel();

	assert_non_null(made);
	return made;
}

static struct rdma_cm_id *identifier(struct rdma_event_channel *on)
{
	struct rdma_cm_id *id;

	assert_int_equal(rdma_create_id(on, &id, NULL, RDMA_PS_TCP), 0);
	return id;
}

static int readable(int fd, int ms)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };

	return poll(&wait, 1, ms) == 1;
}

/* The next event, which must be of this kind and have this status. */
static struct rdma_cm_event *expect_status(struct rdma_event_channel *on, enum rdma_cm_event_type kind, int status)
{
	struct rdma_cm_event *event;

	if (!readable(on->fd, PATIENCE_MS))
		fail_msg("no event, where there should be %s", rdma_event_str(kind));
	assert_int_equal(rdma_get_cm_event(on, &event), 0);
	if (event->event != kind || event->status != status)
		fail_msg("%s, status %d, where there should be %s, status %d", rdma_event_str(event->event), event->status,
			 rdma_event_str(kind), status);
	return event;
}

static struct rdma_cm_event *expect(struct rdma_event_channel *on, enum rdma_cm_event_type kind)
{
	return expect_status(on, kind, 0);
}

static void take_status(struct rdma_event_channel *on, enum rdma_cm_event_type kind, int status)
{
	assert_int_equal(rdma_ack_cm_event(expect_status(on, kind, status)), 0);
}

static void take(struct rdma_event_channel *on, enum rdma_cm_event_type kind)
{
	take_status(on, kind, 0);
}

static struct rdma_cm_id *listener_at(struct rdma_event_channel *on, const char *ip, int backlog)
{
	struct rdma_cm_id *id = identifier(on);

	assert_int_equal(rdma_bind_addr(id, at(ip, 0)), 0);
	assert_int_equal(rdma_listen(id, backlog), 0);
	assert_int_not_equal(rdma_get_src_port(id), 0);
	return id;
}

static struct rdma_cm_id *listener(struct rdma_event_channel *on)
{
	return listener_at(on, address, 0);
}

static uint16_t port_of(struct rdma_cm_id *id)
{
	return ntohs(rdma_get_src_port(id));
}

static void create_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};

	assert_int_equal(rdma_create_qp(id, NULL, &attr), 0);
	assert_non_null(id->qp);
}

/* An identifier that knows its way to a port; events come on its channel. */
static struct rdma_cm_id *resolved(struct rdma_event_channel *on, const char *ip, uint16_t port)
{
	struct rdma_cm_id *id = identifier(on);

	assert_int_equal(rdma_resolve_addr(id, NULL, at(ip, port), 2000), 0);
	take(on, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_int_equal(rdma_resolve_route(id, 2000), 0);
	take(on, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

static struct rdma_cm_id *client_of(struct rdma_event_channel *on, struct rdma_cm_id *listening)
{
	return resolved(on, address, port_of(listening));
}

struct pair {
	struct rdma_event_channel *server_channel, *client_channel;
	struct rdma_cm_id *listening, *server, *client;
};

/* Two queue pairs that are connected. */
static struct pair connected(struct rdma_conn_param *asking, struct rdma_conn_param *answering)
{
	struct pair pair = { .server_channel = channel(), .client_channel = channel() };
	struct rdma_cm_event *event;

	pair.listening = listener(pair.server_channel);
	pair.client = client_of(pair.client_channel, pair.listening);
	create_qp(pair.client);
	assert_int_equal(rdma_connect(pair.client, asking), 0);
	event = expect(pair.server_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	pair.server = event->id;
	assert_ptr_equal(event->listen_id, pair.listening);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	create_qp(pair.server);
	assert_int_equal(rdma_accept(pair.server, answering), 0);
	take(pair.client_channel, RDMA_CM_EVENT_ESTABLISHED);
	take(pair.server_channel, RDMA_CM_EVENT_ESTABLISHED);
	return pair;
}

static void destroy(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	assert_int_equal(rdma_destroy_id(id), 0);
}

static void destroy_pair(struct pair *pair)
{
	destroy(pair->client);
	destroy(pair->server);
	destroy(pair->listening);
	rdma_destroy_event_channel(pair->client_channel);
	rdma_destroy_event_channel(pair->server_channel);
}

static struct ibv_qp_attr query(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	assert_int_equal(ibv_query_qp(id->qp, &attr,
				      IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT |
				      IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER |
				      IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_DEST_QPN |
				      IBV_QP_AV | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN, &init), 0);
	return attr;
}

static void assert_flushed(struct ibv_cq *cq, uint64_t wr_id)
{
	struct ibv_wc wc;
	int found, tries = PATIENCE_MS;

	while (!(found = ibv_poll_cq(cq, 1, &wc)) && tries--)
		poll(NULL, 0, 1);
	assert_int_equal(found, 1);
	assert_int_equal(wc.status, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(wc.wr_id, wr_id);
}

static void post_recv(struct rdma_cm_id *id, uint64_t wr_id)
{
	struct ibv_recv_wr *bad, wr = { .wr_id = wr_id };

	assert_int_equal(ibv_post_recv(id->qp, &wr, &bad), 0);
}

/* ---- Asking in vain ---- */

static void nobody_listens(void **state)
{
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *bound = listener(events), *id;
	uint16_t port = port_of(bound);

	(void)state;
	destroy(bound);
	id = resolved(events, address, port);
	create_qp(id);
	assert_int_equal(rdma_connect(id, NULL), 0);
	take_status(events, RDMA_CM_EVENT_REJECTED, 8);
	assert_minus_one(rdma_connect(id, NULL), EINVAL);
	destroy(id);
	rdma_destroy_event_channel(events);
}

static void bound_is_not_listening(void **state)
{
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *bound = identifier(events), *id;

	(void)state;
	assert_int_equal(rdma_bind_addr(bound, at(address, 0)), 0);
	id = client_of(events, bound);
	create_qp(id);
	assert_int_equal(rdma_connect(id, NULL), 0);
	take_status(events, RDMA_CM_EVENT_REJECTED, 8);
	destroy(id);
	destroy(bound);
	rdma_destroy_event_channel(events);
}

static void a_listener_may_come_a_moment_late(void **state)
{
	struct rdma_event_channel *server = channel(), *client = channel();
	struct rdma_cm_id *first = listener(server), *next, *id;
	struct rdma_cm_event *event;
	uint16_t port = port_of(first);

	(void)state;
	if (!is_soft)
		skip();
	id = client_of(client, first);
	create_qp(id);
	destroy(first);
	assert_int_equal(rdma_connect(id, NULL), 0);
	next = identifier(server);
	assert_int_equal(rdma_bind_addr(next, at(address, port)), 0);
	assert_int_equal(rdma_listen(next, 0), 0);
	event = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	destroy(event->id);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	destroy(next);
	destroy(id);
	rdma_destroy_event_channel(client);
	rdma_destroy_event_channel(server);
}

static void rejected_with_data(void **state)
{
	struct rdma_event_channel *server = channel(), *client = channel();
	struct rdma_cm_id *listening = listener(server), *id = client_of(client, listening);
	static const char zeros[148];
	struct rdma_cm_event *event;

	(void)state;
	create_qp(id);
	assert_int_equal(rdma_connect(id, NULL), 0);
	event = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	assert_int_equal(rdma_reject(event->id, "not today", 9), 0);
	assert_minus_one(rdma_reject(event->id, NULL, 0), EINVAL);
	if (is_soft)
		assert_minus_one(rdma_accept(event->id, NULL), EINVAL);
	destroy(event->id);
	assert_int_equal(rdma_ack_cm_event(event), 0);

	event = expect_status(client, RDMA_CM_EVENT_REJECTED, 28);
	assert_int_equal(event->param.conn.private_data_len, 148);
	assert_memory_equal(event->param.conn.private_data, "not today", 9);
	assert_memory_equal((const char *)event->param.conn.private_data + 9, zeros, 148 - 9);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	assert_minus_one(rdma_connect(id, NULL), EINVAL);
	/* The queue pair has been moved there. */
	assert_int_equal(query(id).qp_state, IBV_QPS_ERR);
	destroy(id);
	destroy(listening);
	rdma_destroy_event_channel(client);
	rdma_destroy_event_channel(server);
}

static void a_listener_that_goes_rejects_who_waits(void **state)
{
	struct rdma_event_channel *server = channel(), *client = channel();
	struct rdma_cm_id *listening = listener(server), *id = client_of(client, listening);

	(void)state;
	create_qp(id);
	assert_int_equal(rdma_connect(id, NULL), 0);
	assert_true(readable(server->fd, PATIENCE_MS));
	destroy(listening);
	/* Its events have gone with it. */
	assert_false(readable(server->fd, 0));
	take_status(client, RDMA_CM_EVENT_REJECTED, 28);
	destroy(id);
	rdma_destroy_event_channel(client);
	rdma_destroy_event_channel(server);
}

static void a_client_that_goes_leaves_a_request_that_cannot_be_accepted(void **state)
{
	struct rdma_event_channel *server = channel(), *client = channel();
	struct rdma_cm_id *listening = listener(server), *id = client_of(client, listening);
	struct rdma_cm_event *event;
	int result, tries = 1000;

	(void)state;
	create_qp(id);
	assert_int_equal(rdma_connect(id, NULL), 0);
	event = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	create_qp(event->id);
	destroy(id);
	/* When the server hears of it is not known; it hears nothing else of it. */
	do {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
		int mask;

		result = rdma_init_qp_attr(event->id, &attr, &mask);
	} while (!result && tries-- && !poll(NULL, 0, 10));
	assert_minus_one(rdma_accept(event->id, NULL), EINVAL);
	destroy(event->id);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	assert_false(readable(server->fd, 0));
	destroy(listening);
	rdma_destroy_event_channel(client);
	rdma_destroy_event_channel(server);
}

/* ---- What the two sides learn of each other ---- */

static void private_data_has_the_room_of_its_message(void **state)
{
	struct rdma_event_channel *server = channel(), *client = channel();
	struct rdma_cm_id *listening = listener(server), *id = client_of(client, listening), *request;
	char data[255] = "";
	struct rdma_conn_param param = { .private_data = data, .private_data_len = 57, .rnr_retry_count = 7 };
	struct rdma_cm_event *event;

	(void)state;
	memset(data, 'x', sizeof(data));
	create_qp(id);
	assert_minus_one(rdma_connect(id, &param), EINVAL);
	destroy(id);
	id = client_of(client, listening);
	create_qp(id);
	param.private_data_len = 3;
	assert_int_equal(rdma_connect(id, &param), 0);
	event = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	request = event->id;
	assert_int_equal(event->param.conn.private_data_len, 56);
	assert_memory_equal(event->param.conn.private_data, "xxx\0\0", 5);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	create_qp(request);
	param.private_data_len = 196;
	assert_int_equal(rdma_accept(request, &param), 0);
	event = expect(client, RDMA_CM_EVENT_ESTABLISHED);
	assert_int_equal(event->param.conn.private_data_len, 196);
	assert_memory_equal(event->param.conn.private_data, data, 196);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	event = expect(server, RDMA_CM_EVENT_ESTABLISHED);
	assert_int_equal(event->param.conn.private_data_len, 0);
	assert_null(event->param.conn.private_data);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	destroy(id);
	destroy(request);
	destroy(listening);
	rdma_destroy_event_channel(client);
	rdma_destroy_event_channel(server);
}

static void parameters_are_seen_from_the_other_side(void **state)
{
	struct rdma_event_channel *server = channel(), *client = channel();
	struct rdma_cm_id *listening = listener(server), *id = client_of(client, listening), *request;
	struct rdma_conn_param asking = { .responder_resources = 2, .initiator_depth = 3, .flow_control = 1,
					  .retry_count = 6, .rnr_retry_count = 4 };
	struct rdma_conn_param answering = { .responder_resources = 1, .initiator_depth = 2, .rnr_retry_count = 5 };
	struct rdma_cm_event *event;
	struct ibv_qp_attr of_client, of_server;

	(void)state;
	create_qp(id);
	assert_int_equal(query(id).qp_state, IBV_QPS_INIT);
	assert_int_equal(query(id).qp_access_flags, 0);
	assert_int_equal(rdma_connect(id, &asking), 0);
	event = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	request = event->id;
	assert_ptr_equal(event->listen_id, listening);
	assert_int_equal(event->param.conn.responder_resources, 3);
	assert_int_equal(event->param.conn.initiator_depth, 2);
	assert_int_equal(event->param.conn.retry_count, 6);
	assert_int_equal(event->param.conn.rnr_retry_count, 4);
	assert_int_equal(event->param.conn.flow_control, 1);
	assert_int_equal(event->param.conn.srq, 0);
	assert_int_equal(event->param.conn.qp_num, id->qp->qp_num);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	/* Each knows where the other is. */
	assert_int_equal(rdma_get_dst_port(id), rdma_get_src_port(listening));
	assert_int_equal(rdma_get_src_port(request), rdma_get_src_port(listening));
	assert_int_equal(rdma_get_dst_port(request), rdma_get_src_port(id));
	assert_int_equal(rdma_get_local_addr(request)->sa_family, AF_INET);
	assert_memory_equal(&((struct sockaddr_in *)rdma_get_peer_addr(request))->sin_addr,
			    &((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr, sizeof(struct in_addr));
	assert_ptr_equal(request->verbs, id->verbs);
	assert_ptr_equal(request->pd, id->pd);
	assert_int_equal(request->port_num, 1);
	create_qp(request);
	assert_int_equal(rdma_accept(request, &answering), 0);
	event = expect(client, RDMA_CM_EVENT_ESTABLISHED);
	assert_null(event->listen_id);
	assert_int_equal(event->param.conn.responder_resources, 2);
	assert_int_equal(event->param.conn.initiator_depth, 1);
	assert_int_equal(event->param.conn.rnr_retry_count, 5);
	assert_int_equal(event->param.conn.qp_num, request->qp->qp_num);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	take(server, RDMA_CM_EVENT_ESTABLISHED);

	of_client = query(id);
	of_server = query(request);
	assert_int_equal(of_client.qp_state, IBV_QPS_RTS);
	assert_int_equal(of_server.qp_state, IBV_QPS_RTS);
	assert_int_equal(of_client.qp_access_flags, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
						    IBV_ACCESS_REMOTE_ATOMIC);
	assert_int_equal(of_client.retry_cnt, 6);
	assert_int_equal(of_server.retry_cnt, 6);
	/* What one side gives governs the other side's sends. */
	assert_int_equal(of_client.rnr_retry, 5);
	assert_int_equal(of_server.rnr_retry, 4);
	assert_int_equal(of_client.max_dest_rd_atomic, 2);
	assert_int_equal(of_client.max_rd_atomic, 1);
	assert_int_equal(of_server.max_dest_rd_atomic, 1);
	assert_int_equal(of_server.max_rd_atomic, 2);
	assert_int_equal(of_client.timeout, of_server.timeout);
	assert_int_equal(of_client.path_mtu, of_server.path_mtu);
	assert_int_equal(of_client.min_rnr_timer, 0);
	assert_int_equal(of_client.dest_qp_num, request->qp->qp_num);
	assert_int_equal(of_server.dest_qp_num, id->qp->qp_num);
	assert_int_equal(of_client.ah_attr.is_global, 1);
	destroy(id);
	destroy(request);
	destroy(listening);
	rdma_destroy_event_channel(client);
	rdma_destroy_event_channel(server);
}

static void without_parameters_as_much_as_the_device_can(void **state)
{
	struct pair pair = connected(NULL, NULL);
	struct ibv_qp_attr of_client = query(pair.client), of_server = query(pair.server);
	struct ibv_device_attr device;

	(void)state;
	assert_int_equal(ibv_query_device(pair.client->verbs, &device), 0);
	assert_int_equal(of_client.max_rd_atomic, (uint8_t)device.max_qp_init_rd_atom);
	assert_int_equal(of_server.max_dest_rd_atomic, (uint8_t)device.max_qp_rd_atom);
	assert_int_equal(of_client.retry_cnt, 7);
	assert_int_equal(of_client.rnr_retry, 7);
	assert_int_equal(of_server.rnr_retry, 7);
	destroy_pair(&pair);
}

static void more_reads_than_the_device_can_are_refused(void **state)
{
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *listening = listener(events), *id = client_of(events, listening);
	struct rdma_conn_param param = { .responder_resources = 254, .initiator_depth = 254 };

	(void)state;
	create_qp(id);
	assert_minus_one(rdma_connect(id, &param), EINVAL);
	destroy(id);
	destroy(listening);
	rdma_destroy_event_channel(events);
}

static void options_reach_the_queue_pair(void **state)
{
	struct rdma_event_channel *server = channel(), *client = channel();
	struct rdma_cm_id *listening = listener(server), *id = identifier(client);
	struct rdma_cm_event *event;
	uint8_t tos = 0x20, timeout = 14, too_long = 32;
	int on = 1;

	(void)state;
	assert_int_equal(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1), 0);
	assert_int_equal(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1), 0);
	assert_minus_one(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 4), EINVAL);
	if (is_soft)
		assert_minus_one(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &too_long, 1), EINVAL);
	assert_int_equal(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)), 0);
	assert_minus_one(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, 1), EINVAL);
	assert_int_equal(rdma_resolve_addr(id, NULL, at(address, port_of(listening)), 2000), 0);
	take(client, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_int_equal(rdma_resolve_route(id, 2000), 0);
	take(client, RDMA_CM_EVENT_ROUTE_RESOLVED);
	create_qp(id);
	assert_int_equal(rdma_connect(id, NULL), 0);
	event = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	create_qp(event->id);
	assert_int_equal(rdma_accept(event->id, NULL), 0);
	take(client, RDMA_CM_EVENT_ESTABLISHED);
	take(server, RDMA_CM_EVENT_ESTABLISHED);
	assert_int_equal(query(id).timeout, 14);
	assert_int_equal(query(id).ah_attr.grh.traffic_class, 0x20);
	destroy(id);
	destroy(event->id);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	destroy(listening);
	rdma_destroy_event_channel(client);
	rdma_destroy_event_channel(server);
}

static void a_program_may_move_its_queue_pairs_itself(void **state)
{
	struct rdma_event_channel *server = channel(), *client = channel();
	struct rdma_cm_id *listening = listener(server), *id = client_of(client, listening), *request;
	struct rdma_conn_param param = { .qp_num = 0x1234, .srq = 1, .responder_resources = 1, .initiator_depth = 1 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	struct rdma_cm_event *event;
	int mask;

	(void)state;
	/* Without a queue pair and without a number there is nothing to ask with. */
	assert_minus_one(rdma_connect(id, NULL), EINVAL);
	assert_int_equal(rdma_init_qp_attr(id, &attr, &mask), 0);
	assert_int_equal(mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	assert_int_equal(attr.port_num, 1);
	assert_int_equal(rdma_connect(id, &param), 0);
	event = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	request = event->id;
	assert_int_equal(event->param.conn.qp_num, 0x1234);
	assert_int_equal(event->param.conn.srq, 1);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	param.qp_num = 0x4321;
	assert_int_equal(rdma_accept(request, &param), 0);
	event = expect(client, RDMA_CM_EVENT_CONNECT_RESPONSE);
	assert_int_equal(event->param.conn.qp_num, 0x4321);
	assert_int_equal(event->param.conn.private_data_len, 196);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	attr.qp_state = IBV_QPS_RTR;
	assert_int_equal(rdma_init_qp_attr(id, &attr, &mask), 0);
	assert_int_equal(attr.dest_qp_num, 0x4321);
	assert_int_equal(mask & (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), mask);
	assert_false(readable(server->fd, 20));
	assert_int_equal(rdma_establish(id), 0);
	assert_minus_one(rdma_establish(id), EINVAL);
	take(server, RDMA_CM_EVENT_ESTABLISHED);
	assert_int_equal(rdma_disconnect(id), 0);
	take(server, RDMA_CM_EVENT_DISCONNECTED);
	assert_int_equal(rdma_disconnect(request), 0);
	take(client, RDMA_CM_EVENT_DISCONNECTED);
	destroy(id);
	destroy(request);
	destroy(listening);
	rdma_destroy_event_channel(client);
	rdma_destroy_event_channel(server);
}

/* ---- The end ---- */

static void disconnecting_flushes_one_side_and_tells_the_other(void **state)
{
	struct pair pair = connected(NULL, NULL);

	(void)state;
	post_recv(pair.client, 1);
	post_recv(pair.server, 2);
	assert_int_equal(rdma_disconnect(pair.client), 0);
	assert_int_equal(query(pair.client).qp_state, IBV_QPS_ERR);
	assert_flushed(pair.client->recv_cq, 1);
	take(pair.server_channel, RDMA_CM_EVENT_DISCONNECTED);
	/* The other side keeps what it has until it leaves, too. */
	assert_int_equal(query(pair.server).qp_state, IBV_QPS_RTS);
	assert_false(readable(pair.client_channel->fd, 20));
	assert_int_equal(rdma_disconnect(pair.server), 0);
	assert_flushed(pair.server->recv_cq, 2);
	take(pair.client_channel, RDMA_CM_EVENT_DISCONNECTED);
	assert_int_equal(rdma_disconnect(pair.client), 0);
	take(pair.client_channel, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	take(pair.server_channel, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	destroy_pair(&pair);
}

static void both_may_disconnect_at_once(void **state)
{
	struct pair pair = connected(NULL, NULL);

	(void)state;
	assert_int_equal(rdma_disconnect(pair.client), 0);
	assert_int_equal(rdma_disconnect(pair.server), 0);
	take(pair.server_channel, RDMA_CM_EVENT_DISCONNECTED);
	take(pair.client_channel, RDMA_CM_EVENT_DISCONNECTED);
	destroy_pair(&pair);
}

static void destroying_an_identifier_disconnects_it(void **state)
{
	struct pair pair = connected(NULL, NULL);

	(void)state;
	destroy(pair.client);
	take(pair.server_channel, RDMA_CM_EVENT_DISCONNECTED);
	assert_int_equal(query(pair.server).qp_state, IBV_QPS_RTS);
	assert_int_equal(rdma_disconnect(pair.server), 0);
	assert_int_equal(query(pair.server).qp_state, IBV_QPS_ERR);
	destroy(pair.server);
	destroy(pair.listening);
	rdma_destroy_event_channel(pair.client_channel);
	rdma_destroy_event_channel(pair.server_channel);
}

/*
 * Another process: connects to a port, and waits to be killed. As a parent it has a child that lives on, until the test
 * closes the pipe that is its standard input.
 */
static void peer(const char *ip, uint16_t port, int parent)
{
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *id = resolved(events, ip, port);
	struct rdma_cm_event *event;

	create_qp(id);
	assert_int_equal(rdma_connect(id, NULL), 0);
	take(events, RDMA_CM_EVENT_ESTABLISHED);
	if (parent && fork() == 0) {
		/* The device is the parent's alone: nothing of it works, and nothing disturbs the parent. */
		errno = 0;
		if (is_soft && (rdma_disconnect(id) != -1 || errno != ENODEV || rdma_destroy_id(id) != -1 ||
				errno != ENODEV || rdma_create_event_channel())) {
			/* The test sees the parent end too early. */
			kill(getppid(), SIGKILL);
			_exit(1);
		}
		close(STDOUT_FILENO);
		close(STDERR_FILENO);
		readable(STDIN_FILENO, 2 * PATIENCE_MS);
		_exit(0);
	}
	for (;;)
		if (!rdma_get_cm_event(events, &event))
			rdma_ack_cm_event(event);
}

static int pipe_to_peer;

static pid_t spawn_peer(uint16_t port, const char *how)
{
	char text[8], *argv[] = { (char *)self, (char *)how, (char *)address, text, NULL };
	posix_spawn_file_actions_t actions;
	int ends[2];
	pid_t pid;

	snprintf(text, sizeof(text), "%u", port);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
	assert_int_equal(posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO), 0);
	assert_int_equal(posix_spawn(&pid, self, &actions, NULL, argv, environ), 0);
	assert_int_equal(posix_spawn_file_actions_destroy(&actions), 0);
	close(ends[0]);
	pipe_to_peer = ends[1];
	return pid;
}

static void end_peer(pid_t pid)
{
	int status;

	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
}

static void dying_peer(const char *how)
{
	struct rdma_event_channel *server = channel();
	struct rdma_cm_id *listening = listener(server);
	pid_t pid = spawn_peer(port_of(listening), how);
	struct rdma_cm_event *event = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;

	assert_int_equal(rdma_ack_cm_event(event), 0);
	create_qp(id);
	assert_int_equal(rdma_accept(id, NULL), 0);
	take(server, RDMA_CM_EVENT_ESTABLISHED);
	post_recv(id, 7);
	/* Nothing ends before that. */
	assert_false(readable(server->fd, 200));
	end_peer(pid);
	take(server, RDMA_CM_EVENT_DISCONNECTED);
	assert_int_equal(query(id).qp_state, IBV_QPS_RTS);
	close(pipe_to_peer);
	assert_int_equal(rdma_disconnect(id), 0);
	assert_flushed(id->recv_cq, 7);
	destroy(id);
	destroy(listening);
	rdma_destroy_event_channel(server);
}

static void a_peer_that_dies_is_disconnected(void **state)
{
	(void)state;
	dying_peer("--peer");
}

static void a_peer_that_dies_is_disconnected_though_its_child_lives(void **state)
{
	(void)state;
	/* Elsewhere the child has the connection, too. */
	if (!is_soft)
		skip();
	dying_peer("--parent");
}

static void a_peer_that_dies_before_it_is_accepted_says_nothing(void **state)
{
	struct rdma_event_channel *server = channel();
	struct rdma_cm_id *listening = listener(server);
	pid_t pid = spawn_peer(port_of(listening), "--peer");
	struct rdma_cm_event *event = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);

	(void)state;
	end_peer(pid);
	close(pipe_to_peer);
	assert_false(readable(server->fd, 50));
	destroy(event->id);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	destroy(listening);
	rdma_destroy_event_channel(server);
}

/* ---- Synchronous identifiers ---- */

struct served {
	struct rdma_cm_id *listening, *id;
	int result, error;
};

static void *serve(void *argument)
{
	struct served *served = argument;

	served->result = rdma_get_request(served->listening, &served->id);
	if (!served->result)
		served->result = rdma_accept(served->id, NULL);
	served->error = errno;
	return NULL;
}

static struct rdma_addrinfo *info(const char *ip, uint16_t port, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP }, *found;
	char text[8];

	snprintf(text, sizeof(text), "%u", port);
	assert_int_equal(rdma_getaddrinfo(ip, text, &hints, &found), 0);
	return found;
}

static void endpoints(void **state)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 }, .sq_sig_all = 1,
	};
	struct served served = { 0 };
	struct rdma_addrinfo *here, *there;
	struct rdma_cm_id *id;
	struct ibv_mr *in, *out;
	char sent[8] = "message", received[8] = "";
	struct ibv_wc wc;
	pthread_t thread;

	(void)state;
	here = info(address, 0, RAI_PASSIVE);
	assert_int_equal(rdma_create_ep(&served.listening, here, NULL, &attr), 0);
	assert_null(served.listening->qp);
	assert_int_equal(rdma_listen(served.listening, 0), 0);
	there = info(address, port_of(served.listening), 0);
	assert_int_equal(pthread_create(&thread, NULL, serve, &served), 0);

	assert_int_equal(rdma_create_ep(&id, there, NULL, &attr), 0);
	assert_non_null(id->qp);
	assert_non_null(id->send_cq);
	assert_non_null(id->recv_cq);
	assert_ptr_not_equal(id->send_cq, id->recv_cq);
	assert_ptr_equal(id->send_cq->cq_context, id);
	assert_ptr_equal(id->send_cq->channel, id->send_cq_channel);
	assert_int_equal(query(id).qp_state, IBV_QPS_INIT);
	in = rdma_reg_msgs(id, received, sizeof(received));
	out = rdma_reg_msgs(id, sent, sizeof(sent));
	assert_non_null(in);
	assert_non_null(out);
	assert_int_equal(rdma_connect(id, NULL), 0);
	assert_int_equal(id->event->event, RDMA_CM_EVENT_ESTABLISHED);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(served.result, 0);
	assert_ptr_equal(served.id->pd, id->pd);
	assert_ptr_not_equal(served.id->channel, served.listening->channel);
	assert_int_equal(served.id->event->event, RDMA_CM_EVENT_ESTABLISHED);

	assert_int_equal(rdma_post_recv(served.id, &served, received, sizeof(received), in), 0);
	assert_int_equal(rdma_post_send(id, id, sent, sizeof(sent), out, 0), 0);
	assert_int_equal(rdma_get_send_comp(id, &wc), 1);
	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(rdma_get_recv_comp(served.id, &wc), 1);
	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.wr_id, (uintptr_t)&served);
	assert_string_equal(received, "message");

	/* Connected identifiers do nothing of this twice. */
	assert_minus_one(rdma_connect(id, NULL), EINVAL);
	assert_minus_one(rdma_accept(served.id, NULL), EINVAL);
	assert_minus_one(rdma_create_qp(id, NULL, &attr), EINVAL);
	assert_int_equal(ibv_dereg_mr(in), 0);
	assert_int_equal(ibv_dereg_mr(out), 0);
	rdma_destroy_ep(id);
	/* The peer's event is there. */
	assert_int_equal(rdma_disconnect(served.id), 0);
	assert_int_equal(served.id->event->event, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_ep(served.id);
	rdma_destroy_ep(served.listening);
	rdma_freeaddrinfo(here);
	rdma_freeaddrinfo(there);
}

static void synchronous_calls_say_why(void **state)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_event_channel *server = channel();
	struct rdma_cm_id *listening = listener(server), *id;
	struct rdma_addrinfo *there = info(address, port_of(listening), 0), *strange, *here;

	(void)state;
	destroy(listening);
	assert_int_equal(rdma_create_ep(&id, there, NULL, &attr), 0);
	assert_minus_one(rdma_connect(id, NULL), ECONNREFUSED);
	assert_int_equal(id->event->event, RDMA_CM_EVENT_REJECTED);
	assert_int_equal(id->event->status, 8);
	assert_minus_one(rdma_connect(id, NULL), EINVAL);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(there);

	strange = info("192.0.2.1", 0, RAI_PASSIVE);
	assert_minus_one(rdma_create_ep(&id, strange, NULL, &attr), EADDRNOTAVAIL);
	rdma_freeaddrinfo(strange);

	listening = listener(server);
	here = info(address, port_of(listening), RAI_PASSIVE);
	assert_minus_one(rdma_create_ep(&id, here, NULL, &attr), EADDRINUSE);
	rdma_freeaddrinfo(here);
	destroy(listening);
	rdma_destroy_event_channel(server);
}

static void *disconnect(void *id)
{
	return (void *)(intptr_t)rdma_disconnect(id);
}

static void a_synchronous_disconnect_waits_for_the_peer(void **state)
{
	struct pair pair = connected(NULL, NULL);
	struct rdma_event_channel *old = pair.client_channel;
	pthread_t thread;
	void *result;

	(void)state;
	assert_int_equal(rdma_migrate_id(pair.client, NULL), 0);
	assert_ptr_not_equal(pair.client->channel, old);
	assert_int_equal(pthread_create(&thread, NULL, disconnect, pair.client), 0);
	take(pair.server_channel, RDMA_CM_EVENT_DISCONNECTED);
	assert_int_equal(query(pair.client).qp_state, IBV_QPS_ERR);
	assert_int_equal(rdma_disconnect(pair.server), 0);
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_null(result);
	/* Once more does no harm, and does not wait for what will not come. */
	assert_int_equal(rdma_disconnect(pair.client), 0);
	destroy_pair(&pair);
}

/* ---- Identifiers and events ---- */

static void migrating_takes_waiting_events_along(void **state)
{
	struct rdma_event_channel *old = channel(), *new = channel();
	struct rdma_cm_id *id = identifier(old);

	(void)state;
	assert_int_equal(rdma_resolve_addr(id, NULL, at(address, 7471), 2000), 0);
	assert_true(readable(old->fd, PATIENCE_MS));
	assert_int_equal(rdma_migrate_id(id, new), 0);
	assert_ptr_equal(id->channel, new);
	assert_false(readable(old->fd, 0));
	take(new, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_int_equal(rdma_resolve_route(id, 2000), 0);
	take(new, RDMA_CM_EVENT_ROUTE_RESOLVED);
	assert_false(readable(old->fd, 0));
	/* The old channel may go. */
	rdma_destroy_event_channel(old);
	destroy(id);
	rdma_destroy_event_channel(new);
}

static void a_synchronous_identifier_can_become_asynchronous(void **state)
{
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *id;

	(void)state;
	assert_int_equal(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	assert_int_equal(rdma_resolve_addr(id, NULL, at(address, 7471), 2000), 0);
	assert_int_equal(id->event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_minus_one(rdma_migrate_id(id, NULL), EINVAL);
	assert_int_equal(rdma_migrate_id(id, events), 0);
	assert_null(id->event);
	assert_int_equal(rdma_resolve_route(id, 2000), 0);
	take(events, RDMA_CM_EVENT_ROUTE_RESOLVED);
	destroy(id);
	rdma_destroy_event_channel(events);
}

static int destroyed;

static void *destroy_later(void *id)
{
	assert_int_equal(rdma_destroy_id(id), 0);
	__atomic_store_n(&destroyed, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static void an_identifier_lives_until_its_events_are_acknowledged(void **state)
{
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *id = identifier(events);
	struct rdma_cm_event *event;
	pthread_t thread;

	(void)state;
	assert_int_equal(rdma_resolve_addr(id, NULL, at(address, 7471), 2000), 0);
	event = expect(events, RDMA_CM_EVENT_ADDR_RESOLVED);
	destroyed = 0;
	assert_int_equal(pthread_create(&thread, NULL, destroy_later, id), 0);
	poll(NULL, 0, 50);
	assert_int_equal(__atomic_load_n(&destroyed, __ATOMIC_SEQ_CST), 0);
	assert_ptr_equal(event->id, id);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(destroyed, 1);
	rdma_destroy_event_channel(events);
}

static void an_empty_channel(void **state)
{
	struct rdma_event_channel *events = channel();
	struct rdma_cm_event *event;

	(void)state;
	assert_true(fcntl(events->fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(fcntl(events->fd, F_SETFL, O_NONBLOCK), 0);
	assert_minus_one(rdma_get_cm_event(events, &event), EAGAIN);
	assert_minus_one(rdma_get_cm_event(events, NULL), EINVAL);
	assert_minus_one(rdma_ack_cm_event(NULL), EINVAL);
	rdma_destroy_event_channel(events);
}

static void steps_out_of_order(void **state)
{
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *id = identifier(events), *other = identifier(events), *out;
	struct rdma_conn_param param = { .qp_num = 1 };
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC };

	(void)state;
	assert_minus_one(rdma_disconnect(id), EINVAL);
	assert_minus_one(rdma_get_request(id, &out), EINVAL);
	assert_minus_one(rdma_reject(id, NULL, 0), EINVAL);
	assert_minus_one(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	assert_minus_one(rdma_create_id(events, &out, NULL, (enum rdma_port_space)1), EINVAL);
	if (is_soft) {
		assert_minus_one(rdma_connect(id, &param), EINVAL);
		assert_minus_one(rdma_resolve_route(id, 1), EINVAL);
		assert_minus_one(rdma_accept(id, NULL), EINVAL);
		assert_minus_one(rdma_create_qp(id, NULL, &attr), EINVAL);
		assert_minus_one(rdma_destroy_id(NULL), EINVAL);
		assert_minus_one(rdma_get_cm_event(NULL, NULL), EINVAL);
		assert_minus_one(rdma_create_id(events, &out, NULL, RDMA_PS_UDP), EOPNOTSUPP);
	}
	assert_int_equal(rdma_bind_addr(id, at(address, 0)), 0);
	assert_minus_one(rdma_bind_addr(id, at(address, 0)), EINVAL);
	assert_minus_one(rdma_bind_addr(other, at("192.0.2.1", 0)), EADDRNOTAVAIL);
	assert_minus_one(rdma_bind_addr(other, at(address, port_of(id))), EADDRINUSE);
	assert_int_equal(rdma_listen(id, 1), 0);
	assert_minus_one(rdma_listen(id, 1), EINVAL);
	assert_minus_one(rdma_resolve_addr(id, NULL, at(address, 1), 1), EINVAL);
	assert_int_equal(rdma_resolve_addr(other, NULL, at(address, 1), 2000), 0);
	take(events, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_minus_one(rdma_resolve_addr(other, NULL, at(address, 1), 1), EINVAL);
	assert_minus_one(rdma_connect(other, &param), EINVAL);
	destroy(id);
	destroy(other);
	/* Unbound, it listens where it likes. */
	id = identifier(events);
	assert_int_equal(rdma_listen(id, 0), 0);
	assert_int_not_equal(rdma_get_src_port(id), 0);
	destroy(id);
	rdma_destroy_event_channel(events);
}

static void an_identifier_that_was_destroyed(void **state)
{
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *id = identifier(events);

	(void)state;
	if (!is_soft)
		skip();
	destroy(id);
	assert_minus_one(rdma_resolve_addr(id, NULL, at(address, 1), 1), EINVAL);
	assert_minus_one(rdma_connect(id, NULL), EINVAL);
	assert_minus_one(rdma_destroy_id(id), EINVAL);
	rdma_destroy_ep(id);
	rdma_destroy_event_channel(events);
}

static void a_port_is_free_again(void **state)
{
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *id = listener(events), *other = identifier(events);
	uint16_t port = port_of(id);

	(void)state;
	assert_minus_one(rdma_bind_addr(other, at(address, port)), EADDRINUSE);
	destroy(id);
	assert_int_equal(rdma_bind_addr(other, at(address, port)), 0);
	destroy(other);
	rdma_destroy_event_channel(events);
}

static void who_listens_has_the_port_alone(void **state)
{
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *id = identifier(events), *other = identifier(events);
	int on = 1;

	(void)state;
	assert_int_equal(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)), 0);
	assert_int_equal(rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)), 0);
	assert_int_equal(rdma_bind_addr(id, at(address, 0)), 0);
	assert_int_equal(rdma_bind_addr(other, at(address, port_of(id))), 0);
	assert_minus_one(rdma_listen(id, 0), EADDRINUSE);
	assert_minus_one(rdma_listen(other, 0), EADDRINUSE);
	destroy(other);
	assert_int_equal(rdma_listen(id, 0), 0);
	other = identifier(events);
	assert_int_equal(rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)), 0);
	assert_minus_one(rdma_bind_addr(other, at(address, port_of(id))), EADDRINUSE);
	destroy(id);
	destroy(other);
	rdma_destroy_event_channel(events);
}

static void a_backlog_holds_back_who_is_too_many(void **state)
{
	struct rdma_event_channel *server = channel(), *client = channel();
	struct rdma_cm_id *listening = listener_at(server, address, 1), *one, *two;
	struct rdma_cm_event *first, *second;

	(void)state;
	one = client_of(client, listening);
	two = client_of(client, listening);
	create_qp(one);
	create_qp(two);
	assert_int_equal(rdma_connect(one, NULL), 0);
	assert_true(readable(server->fd, PATIENCE_MS));
	assert_int_equal(rdma_connect(two, NULL), 0);
	poll(NULL, 0, 100);
	first = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	assert_int_equal(first->param.conn.qp_num, one->qp->qp_num);
	/* Now there is room, and it asks again. */
	second = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	assert_int_equal(second->param.conn.qp_num, two->qp->qp_num);
	destroy(first->id);
	destroy(second->id);
	assert_int_equal(rdma_ack_cm_event(first), 0);
	assert_int_equal(rdma_ack_cm_event(second), 0);
	take_status(client, RDMA_CM_EVENT_REJECTED, 28);
	take_status(client, RDMA_CM_EVENT_REJECTED, 28);
	destroy(one);
	destroy(two);
	destroy(listening);
	rdma_destroy_event_channel(client);
	rdma_destroy_event_channel(server);
}

static void many_connections(void **state)
{
	enum { COUNT = 100 };
	struct rdma_event_channel *server = channel(), *client = channel();
	struct rdma_cm_id *listening = listener(server), *clients[COUNT], *servers[COUNT];
	int i, established = 0;

	(void)state;
	for (i = 0; i < COUNT; i++) {
		clients[i] = client_of(client, listening);
		create_qp(clients[i]);
	}
	for (i = 0; i < COUNT; i++)
		assert_int_equal(rdma_connect(clients[i], NULL), 0);
	for (i = 0; i < COUNT || established < COUNT;) {
		struct rdma_cm_event *event;

		assert_true(readable(server->fd, PATIENCE_MS) || i == COUNT);
		assert_int_equal(rdma_get_cm_event(server, &event), 0);
		assert_int_equal(event->status, 0);
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			servers[i] = event->id;
			assert_int_equal(rdma_ack_cm_event(event), 0);
			create_qp(servers[i]);
			assert_int_equal(rdma_accept(servers[i++], NULL), 0);
			take(client, RDMA_CM_EVENT_ESTABLISHED);
		} else {
			assert_int_equal(event->event, RDMA_CM_EVENT_ESTABLISHED);
			assert_int_equal(rdma_ack_cm_event(event), 0);
			established++;
		}
	}
	for (i = 0; i < COUNT; i++)
		assert_int_equal(rdma_disconnect(clients[i]), 0);
	for (i = 0; i < COUNT; i++) {
		struct rdma_cm_event *event = expect(server, RDMA_CM_EVENT_DISCONNECTED);

		assert_int_equal(rdma_disconnect(event->id), 0);
		assert_int_equal(rdma_ack_cm_event(event), 0);
		take(client, RDMA_CM_EVENT_DISCONNECTED);
	}
	for (i = 0; i < COUNT; i++) {
		destroy(clients[i]);
		destroy(servers[i]);
	}
	destroy(listening);
	rdma_destroy_event_channel(client);
	rdma_destroy_event_channel(server);
}

static void a_shared_receive_queue(void **state)
{
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *id = resolved(events, address, 7471);
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };

	(void)state;
	assert_int_equal(rdma_create_srq(id, NULL, &attr), 0);
	assert_non_null(id->srq);
	create_qp(id);
	assert_ptr_equal(id->qp->srq, id->srq);
	rdma_destroy_qp(id);
	assert_null(id->qp);
	assert_null(id->send_cq);
	assert_null(id->recv_cq_channel);
	rdma_destroy_srq(id);
	assert_null(id->srq);
	destroy(id);
	rdma_destroy_event_channel(events);
}

/* ---- Addresses ---- */

static void wildcards(void **state)
{
	struct rdma_event_channel *server = channel(), *client = channel();
	struct rdma_cm_id *listening = listener_at(server, "0.0.0.0", 0), *id;
	struct rdma_cm_event *event;

	(void)state;
	assert_null(listening->verbs);
	id = client_of(client, listening);
	create_qp(id);
	assert_int_equal(rdma_connect(id, NULL), 0);
	event = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	assert_non_null(event->id->verbs);
	assert_memory_equal(&((struct sockaddr_in *)rdma_get_local_addr(event->id))->sin_addr,
			    &((struct sockaddr_in *)at(address, 0))->sin_addr, sizeof(struct in_addr));
	destroy(event->id);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	destroy(id);
	destroy(listening);
	rdma_destroy_event_channel(client);
	rdma_destroy_event_channel(server);
}

/* Whether who listens at one address hears of who asks another. */
static int hears(const char *here, const char *there, int only_v6)
{
	struct rdma_event_channel *server = channel(), *client = channel();
	struct rdma_cm_id *listening = identifier(server), *id;
	struct rdma_cm_event *event;
	int heard;

	if (only_v6)
		assert_int_equal(rdma_set_option(listening, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only_v6,
						 sizeof(only_v6)), 0);
	assert_int_equal(rdma_bind_addr(listening, at(here, 0)), 0);
	assert_int_equal(rdma_listen(listening, 0), 0);
	id = resolved(client, there, port_of(listening));
	create_qp(id);
	assert_int_equal(rdma_connect(id, NULL), 0);
	{
		struct pollfd either[] = { { .fd = server->fd, .events = POLLIN }, { .fd = client->fd, .events = POLLIN } };

		assert_true(poll(either, 2, PATIENCE_MS) > 0);
		heard = either[0].revents != 0;
	}
	if (heard) {
		event = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
		assert_int_equal(rdma_get_local_addr(event->id)->sa_family, at(there, 0)->sa_family);
		create_qp(event->id);
		assert_int_equal(rdma_accept(event->id, NULL), 0);
		take(client, RDMA_CM_EVENT_ESTABLISHED);
		destroy(event->id);
		assert_int_equal(rdma_ack_cm_event(event), 0);
	} else {
		take_status(client, RDMA_CM_EVENT_REJECTED, 8);
	}
	destroy(id);
	destroy(listening);
	rdma_destroy_event_channel(client);
	rdma_destroy_event_channel(server);
	return heard;
}

static void both_families(void **state)
{
	(void)state;
	if (!is_soft)
		skip();
	assert_true(hears("::1", "::1", 0));
	assert_true(hears("::", "::1", 0));
	assert_true(hears("::", "127.0.0.1", 0));
	assert_true(hears("127.0.0.1", "127.0.0.1", 0));
	assert_true(hears("::ffff:127.0.0.1", "127.0.0.1", 0));
	assert_true(hears("::ffff:0.0.0.0", "127.0.0.1", 0));
	assert_false(hears("::", "127.0.0.1", 1));
	assert_false(hears("::1", "127.0.0.1", 0));
	assert_false(hears("127.0.0.1", "127.0.0.2", 0));
}

/* Sends and polls for ever; the pair is connected. */
static void *keep_sending(void *argument)
{
	struct pair *pair = argument;
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;

	for (;;) {
		if (ibv_post_send(pair->client->qp, &wr, &bad))
			return "not posted";
		while (!ibv_poll_cq(pair->client->send_cq, 1, &wc))
			;
		if (wc.status)
			return "not completed";
	}
}

/* Verbs are no cancellation points: a thread that is cancelled goes on while it does nothing else, and the program can
 * still use the device. */
static void a_cancelled_thread_holds_nothing(void **state)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	pthread_t thread;
	void *result;
	int round;

	(void)state;
	/* Elsewhere a send is a write(2), which is one. */
	if (!is_soft)
		skip();
	/* At a different moment each time: while the device's thread still serves the sockets, and later. */
	for (round = 0; round < 40; round++) {
		struct pair pair = connected(NULL, NULL);

		assert_int_equal(pthread_create(&thread, NULL, keep_sending, &pair), 0);
		usleep(round * 100);
		assert_int_equal(pthread_cancel(thread), 0);
		usleep(5000);
		assert_int_equal(ibv_modify_qp(pair.client->qp, &attr, IBV_QP_STATE), 0);
		assert_int_equal(pthread_join(thread, &result), 0);
		assert_ptr_not_equal(result, PTHREAD_CANCELED);
		destroy_pair(&pair);
	}
}

/* Made on the second attempt, with the same attributes: nothing of the first is left in them. */
static void a_queue_pair_may_be_asked_for_again(void **state)
{
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *id = identifier(events);
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1,
			 .max_inline_data = 1 << 20 },
		.qp_type = IBV_QPT_RC,
	};
	int fd;

	(void)state;
	if (!is_soft)
		skip();
	assert_int_equal(rdma_bind_addr(id, at(address, 0)), 0);
	assert_minus_one(rdma_create_qp(id, NULL, &attr), EINVAL);
	assert_null(id->send_cq);
	assert_null(attr.send_cq);
	assert_null(attr.recv_cq);
	/* Nor a descriptor of what was made on the way. */
	fd = dup(0);
	close(fd);
	attr.cap.max_recv_wr = UINT32_MAX;
	assert_minus_one(rdma_create_qp(id, NULL, &attr), EINVAL);
	assert_int_equal(dup(0), fd);
	close(fd);
	attr.cap.max_recv_wr = 4;
	attr.cap.max_inline_data = 16;
	assert_int_equal(rdma_create_qp(id, NULL, &attr), 0);
	assert_ptr_equal(attr.send_cq, id->send_cq);
	destroy(id);
	rdma_destroy_event_channel(events);
}

/* Gets the event of each identifier, and destroys it at once, while the call that caused it may still run. */
static void *destroy_each(void *on)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	int rounds;

	for (rounds = 0; rounds < MANY; rounds++) {
		if (rdma_get_cm_event(on, &event))
			return "no event";
		id = event->id;
		if (event->event != RDMA_CM_EVENT_ADDR_RESOLVED || rdma_ack_cm_event(event) || rdma_destroy_id(id))
			return "not destroyed";
	}
	return NULL;
}

static void an_event_may_end_its_identifier(void **state)
{
	struct rdma_event_channel *events = channel();
	pthread_t thread;
	void *wrong;
	int rounds;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, destroy_each, events), 0);
	for (rounds = 0; rounds < MANY; rounds++)
		assert_int_equal(rdma_resolve_addr(identifier(events), NULL, at(address, 7), 2000), 0);
	assert_int_equal(pthread_join(thread, &wrong), 0);
	assert_null(wrong);
	rdma_destroy_event_channel(events);
}

static void questions_about_names(void **state)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP }, *found;

	(void)state;
	assert_minus_one(rdma_getaddrinfo(NULL, NULL, NULL, &found), EINVAL);
	assert_int_equal(rdma_getaddrinfo(address, "no such service", &hints, &found), EAI_SERVICE);
	assert_int_equal(rdma_getaddrinfo("no number", "1", &hints, &found), EAI_NONAME);
	assert_int_equal(rdma_getaddrinfo(address, "7471", NULL, &found), 0);
	assert_int_equal(found->ai_qp_type, IBV_QPT_RC);
	assert_int_equal(found->ai_port_space, RDMA_PS_TCP);
	assert_non_null(found->ai_dst_addr);
	assert_null(found->ai_src_addr);
	rdma_freeaddrinfo(found);
	/* A copy of the hints, where nothing else is asked. */
	hints.ai_dst_addr = at(address, 1);
	hints.ai_dst_len = sizeof(struct sockaddr_in);
	hints.ai_src_addr = at(address, 2);
	hints.ai_src_len = sizeof(struct sockaddr_in);
	assert_int_equal(rdma_getaddrinfo(NULL, NULL, &hints, &found), 0);
	assert_memory_equal(found->ai_dst_addr, hints.ai_dst_addr, sizeof(struct sockaddr_in));
	assert_memory_equal(found->ai_src_addr, hints.ai_src_addr, sizeof(struct sockaddr_in));
	rdma_freeaddrinfo(found);
}

static void no_way_to_an_address(void **state)
{
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *id = identifier(events);
	struct sockaddr unknown = { .sa_family = AF_UNIX };

	(void)state;
	assert_minus_one(rdma_resolve_addr(id, NULL, NULL, 1), EINVAL);
	assert_minus_one(rdma_resolve_addr(id, NULL, &unknown, 1), EINVAL);
	/* TEST-NET of no route, as a source that is not ours. */
	assert_minus_one(rdma_resolve_addr(id, at("192.0.2.1", 0), at(address, 1), 1), EADDRNOTAVAIL);
	destroy(id);
	rdma_destroy_event_channel(events);
}

static void names_of_events(void **state)
{
	(void)state;
	assert_string_equal(rdma_event_str(RDMA_CM_EVENT_ADDR_RESOLVED), "RDMA_CM_EVENT_ADDR_RESOLVED");
	assert_string_equal(rdma_event_str(RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT");
	assert_string_equal(rdma_event_str((enum rdma_cm_event_type)1000), "UNKNOWN EVENT");
}

static void devices(void **state)
{
	int count = -1;
	struct ibv_context **list = rdma_get_devices(&count);
	struct rdma_event_channel *events = channel();
	struct rdma_cm_id *id = resolved(events, address, 1);

	(void)state;
	assert_non_null(list);
	assert_true(count >= 1);
	assert_null(list[count]);
	if (count == 1)
		assert_ptr_equal(list[0], id->verbs);
	assert_non_null(id->route.path_rec);
	assert_int_equal(id->route.num_paths, 1);
	destroy(id);
	rdma_free_devices(list);
	rdma_destroy_event_channel(events);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_listens),
		cmocka_unit_test(bound_is_not_listening),
		cmocka_unit_test(a_listener_may_come_a_moment_late),
		cmocka_unit_test(rejected_with_data),
		cmocka_unit_test(a_listener_that_goes_rejects_who_waits),
		cmocka_unit_test(a_client_that_goes_leaves_a_request_that_cannot_be_accepted),
		cmocka_unit_test(private_data_has_the_room_of_its_message),
		cmocka_unit_test(parameters_are_seen_from_the_other_side),
		cmocka_unit_test(without_parameters_as_much_as_the_device_can),
		cmocka_unit_test(more_reads_than_the_device_can_are_refused),
		cmocka_unit_test(options_reach_the_queue_pair),
		cmocka_unit_test(a_program_may_move_its_queue_pairs_itself),
		cmocka_unit_test(disconnecting_flushes_one_side_and_tells_the_other),
		cmocka_unit_test(both_may_disconnect_at_once),
		cmocka_unit_test(destroying_an_identifier_disconnects_it),
		cmocka_unit_test(a_peer_that_dies_is_disconnected),
		cmocka_unit_test(a_peer_that_dies_is_disconnected_though_its_child_lives),
		cmocka_unit_test(a_peer_that_dies_before_it_is_accepted_says_nothing),
		cmocka_unit_test(endpoints),
		cmocka_unit_test(synchronous_calls_say_why),
		cmocka_unit_test(a_synchronous_disconnect_waits_for_the_peer),
		cmocka_unit_test(migrating_takes_waiting_events_along),
		cmocka_unit_test(a_synchronous_identifier_can_become_asynchronous),
		cmocka_unit_test(an_identifier_lives_until_its_events_are_acknowledged),
		cmocka_unit_test(an_empty_channel),
		cmocka_unit_test(steps_out_of_order),
		cmocka_unit_test(an_identifier_that_was_destroyed),
		cmocka_unit_test(a_port_is_free_again),
		cmocka_unit_test(who_listens_has_the_port_alone),
		cmocka_unit_test(a_backlog_holds_back_who_is_too_many),
		cmocka_unit_test(many_connections),
		cmocka_unit_test(a_shared_receive_queue),
		cmocka_unit_test(wildcards),
		cmocka_unit_test(both_families),
		cmocka_unit_test(a_cancelled_thread_holds_nothing),
		cmocka_unit_test(a_queue_pair_may_be_asked_for_again),
		cmocka_unit_test(an_event_may_end_its_identifier),
		cmocka_unit_test(questions_about_names),
		cmocka_unit_test(no_way_to_an_address),
		cmocka_unit_test(names_of_events),
		cmocka_unit_test(devices),
	};

	self = argv[0];
	if (argc == 4 && !strncmp(argv[1], "--", 2))
		peer(argv[2], (uint16_t)atoi(argv[3]), !strcmp(argv[1], "--parent"));
	if (argc == 2) {
		address = argv[1];
		is_soft = 0;
	}
	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
