/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * observe_cm [CASE...]  plays scenarios of connection management on the device that has the address in DEVICE_ADDRESS,
 * and prints what it sees: a line for each, "CASE<tab>observation", the same on every device that does the same
 *
 * Each case has a process of its own, so that a crash and a call that does not return are observations, too. Both ends
 * are in it; the server's events come on one channel, the client's on another.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <rdma/rdma_verbs.h>
#include "observe.h"

/* How long what has to come may take, and how long what must not come is waited for; milliseconds. */
#define PATIENCE 20000
#define SILENCE 300
/* For one case. */
#define LIMIT 30000

extern char **environ;

static const char *address;
static struct rdma_event_channel *server, *client;

/* ---- Addresses ---- */

static struct sockaddr *at_family(const char *ip, int port)
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
		need(inet_pton(AF_INET6, ip, &in6->sin6_addr) == 1);
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(port);
	}
	return (struct sockaddr *)to;
}

static struct sockaddr *at(int port)
{
	return at_family(address, port);
}

/* An IPv6 address of the interface that has the IPv4 address. */
static struct sockaddr *at_v6(int port)
{
	static struct sockaddr_in6 found;
	const char *interface = NULL;
	struct ifaddrs *all;

	need(!getifaddrs(&all));
	for (struct ifaddrs *one = all; one; one = one->ifa_next)
		if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET &&
		    ((struct sockaddr_in *)one->ifa_addr)->sin_addr.s_addr == inet_addr(address))
			interface = one->ifa_name;
	need(interface);
	found.sin6_family = 0;
	for (struct ifaddrs *one = all; one; one = one->ifa_next)
		if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET6 && !strcmp(one->ifa_name, interface))
			found = *(struct sockaddr_in6 *)one->ifa_addr;
	need(found.sin6_family);
	found.sin6_port = htons(port);
	freeifaddrs(all);
	return (struct sockaddr *)&found;
}

/* ---- What is seen ---- */

static void called(const char *what, int result)
{
	say("%s %s", what, result == -1 ? error(errno) : error(result));
}

#define call(what, expression) called(what, (errno = 0, (expression)))

static const char *side(struct rdma_event_channel *channel)
{
	return channel == server ? "server" : channel == client ? "client" : "own";
}

static bool readable(int fd, int ms)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };

	return poll(&wait, 1, ms) == 1;
}

/* Says what has happened; NULL where that is nothing. */
static struct rdma_cm_event *seen(struct rdma_event_channel *channel, int ms)
{
	struct rdma_cm_event *event;
	const char *kind;

	if (!readable(channel->fd, ms)) {
		say("%s: nothing", side(channel));
		return NULL;
	}
	need(!rdma_get_cm_event(channel, &event));
	kind = rdma_event_str(event->event) + strlen("RDMA_CM_EVENT_");
	if (event->status < 0)
		say("%s: %s -%s", side(channel), kind, error(-event->status));
	else if (event->status)
		say("%s: %s %d", side(channel), kind, event->status);
	else
		say("%s: %s", side(channel), kind);
	return event;
}

/* The same, acknowledged; whom it is about. */
static struct rdma_cm_id *see_within(struct rdma_event_channel *channel, int ms)
{
	struct rdma_cm_event *event = seen(channel, ms);
	struct rdma_cm_id *id = event ? event->id : NULL;

	if (event)
		need(!rdma_ack_cm_event(event));
	return id;
}

static struct rdma_cm_id *see(struct rdma_event_channel *channel)
{
	return see_within(channel, PATIENCE);
}

static void see_nothing(struct rdma_event_channel *channel)
{
	see_within(channel, SILENCE);
}

static void say_data(const struct rdma_cm_event *event)
{
	const struct rdma_conn_param *conn = &event->param.conn;
	const unsigned char *data = conn->private_data;
	unsigned after = 0;

	if (!conn->private_data_len || !data) {
		say("%d bytes%s", conn->private_data_len, data ? "" : " at NULL");
		return;
	}
	for (unsigned i = 8; i < conn->private_data_len; i++)
		after += data[i] != 0;
	say("%d bytes, \"%.8s\" and %u more", conn->private_data_len, data, after);
}

static struct rdma_cm_id *see_all(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event = seen(channel, PATIENCE);
	const struct rdma_conn_param *conn;
	struct rdma_cm_id *id;

	if (!event)
		return NULL;
	conn = &event->param.conn;
	say("resources %d depth %d flow %d retry %d rnr %d srq %d qp %s", conn->responder_resources, conn->initiator_depth,
	    conn->flow_control, conn->retry_count, conn->rnr_retry_count, conn->srq, conn->qp_num ? "named" : "0");
	say_data(event);
	id = event->id;
	need(!rdma_ack_cm_event(event));
	return id;
}

/* An event with its data. */
static struct rdma_cm_id *see_data(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event = seen(channel, PATIENCE);
	struct rdma_cm_id *id;

	if (!event)
		return NULL;
	say_data(event);
	id = event->id;
	need(!rdma_ack_cm_event(event));
	return id;
}

static struct ibv_qp_attr attributes(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	need(!ibv_query_qp(id->qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			   IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC |
			   IBV_QP_AV, &init));
	return attr;
}

static void say_state(const char *whose, struct rdma_cm_id *id)
{
	say("%s in %s", whose, state(attributes(id).qp_state));
}

static void say_attributes(const char *whose, struct rdma_cm_id *id)
{
	struct ibv_qp_attr attr = attributes(id);

	say("%s in %s, rights 0x%x timeout %d retry %d rnr %d timer %d reads out %d in %d class 0x%x", whose,
	    state(attr.qp_state), attr.qp_access_flags, attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer,
	    attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.ah_attr.grh.traffic_class);
}

static void say_completion(const char *whose, struct ibv_cq *cq)
{
	long until = now() + PATIENCE;
	struct ibv_wc wc;
	int found;

	while (!(found = ibv_poll_cq(cq, 1, &wc)) && now() < until)
		poll(NULL, 0, 1);
	if (found == 1)
		say("%s: 0x%llx %s", whose, (unsigned long long)wc.wr_id, status(wc.status));
	else
		say("%s: no completion", whose);
}

static void say_nothing_completed(const char *whose, struct ibv_cq *cq)
{
	struct ibv_wc wc;

	say("%s: %s", whose, ibv_poll_cq(cq, 1, &wc) ? "a completion" : "no completion");
}

/* ---- The usual steps, which have to go well ---- */

static struct rdma_cm_id *identifier(struct rdma_event_channel *on)
{
	struct rdma_cm_id *id;

	need(!rdma_create_id(on, &id, NULL, RDMA_PS_TCP));
	return id;
}

static void await(struct rdma_event_channel *on, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;

	need(readable(on->fd, PATIENCE));
	need(!rdma_get_cm_event(on, &event));
	if (event->event != kind)
		die("%s where %s should be", rdma_event_str(event->event), rdma_event_str(kind));
	need(!rdma_ack_cm_event(event));
}

static int port_of(struct rdma_cm_id *id)
{
	return ntohs(rdma_get_src_port(id));
}

static struct rdma_cm_id *listener(void)
{
	struct rdma_cm_id *id = identifier(server);

	need(!rdma_bind_addr(id, at(0)));
	need(!rdma_listen(id, 0));
	return id;
}

static struct ibv_qp_init_attr usual(void)
{
	return (struct ibv_qp_init_attr) {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
	};
}

static void create_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = usual();

	need(!rdma_create_qp(id, NULL, &attr));
}

static struct rdma_cm_id *resolved_to(struct sockaddr *to)
{
	struct rdma_cm_id *id = identifier(client);

	need(!rdma_resolve_addr(id, NULL, to, 2000));
	await(client, RDMA_CM_EVENT_ADDR_RESOLVED);
	need(!rdma_resolve_route(id, 2000));
	await(client, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

static struct rdma_cm_id *resolved(struct rdma_cm_id *listening)
{
	return resolved_to(at(port_of(listening)));
}

/* A client that asks, and what the server has of it: the queue pairs are there. */
struct pair {
	struct rdma_cm_id *listening, *client, *server;
};

static struct rdma_cm_id *requested(void)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	need(readable(server->fd, PATIENCE));
	need(!rdma_get_cm_event(server, &event));
	need(event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	id = event->id;
	need(!rdma_ack_cm_event(event));
	return id;
}

static struct pair asked(struct rdma_conn_param *param)
{
	struct pair pair = { .listening = listener() };

	pair.client = resolved(pair.listening);
	create_qp(pair.client);
	need(!rdma_connect(pair.client, param));
	pair.server = requested();
	create_qp(pair.server);
	return pair;
}

static struct pair connected(void)
{
	struct pair pair = asked(NULL);

	need(!rdma_accept(pair.server, NULL));
	await(client, RDMA_CM_EVENT_ESTABLISHED);
	await(server, RDMA_CM_EVENT_ESTABLISHED);
	return pair;
}

static void post_recv(struct rdma_cm_id *id, uint64_t wr_id)
{
	struct ibv_recv_wr *bad, wr = { .wr_id = wr_id };

	need(!ibv_post_recv(id->qp, &wr, &bad));
}

static int post_send(struct rdma_cm_id *id, uint64_t wr_id)
{
	struct ibv_send_wr *bad, wr = { .wr_id = wr_id, .opcode = IBV_WR_SEND };

	return ibv_post_send(id->qp, &wr, &bad);
}

/* A call that may wait, in a thread of its own. */
struct job {
	int (*function)(struct rdma_cm_id *);
	struct rdma_cm_id *id;
	pthread_t thread;
	int result, error;
	bool done;
};

static void *work(void *argument)
{
	struct job *job = argument;

	errno = 0;
	job->result = job->function(job->id);
	job->error = errno;
	__atomic_store_n(&job->done, true, __ATOMIC_SEQ_CST);
	return NULL;
}

static void start(struct job *job, int (*function)(struct rdma_cm_id *), struct rdma_cm_id *id)
{
	*job = (struct job) { .function = function, .id = id };
	need(!pthread_create(&job->thread, NULL, work, job));
}

static void say_whether_done(const char *what, struct job *job)
{
	poll(NULL, 0, SILENCE);
	say("%s %s", what, __atomic_load_n(&job->done, __ATOMIC_SEQ_CST) ? "is done" : "waits");
}

static void finish(const char *what, struct job *job)
{
	need(!pthread_join(job->thread, NULL));
	errno = job->error;
	called(what, job->result);
}

/* ---- A life ---- */

static void life(void)
{
	struct rdma_conn_param asking = { .private_data = "question", .private_data_len = 8, .responder_resources = 2,
					  .initiator_depth = 3, .flow_control = 1, .retry_count = 6, .rnr_retry_count = 4 };
	struct rdma_conn_param answering = { .private_data = "answer", .private_data_len = 6, .responder_resources = 1,
					     .initiator_depth = 2, .rnr_retry_count = 5 };
	struct rdma_cm_id *listening = identifier(server), *id = identifier(client), *request;

	call("bind", rdma_bind_addr(listening, at(0)));
	call("listen", rdma_listen(listening, 0));
	call("resolve address", rdma_resolve_addr(id, NULL, at(port_of(listening)), 2000));
	see(client);
	call("resolve route", rdma_resolve_route(id, 2000));
	see(client);
	create_qp(id);
	say_attributes("client", id);
	call("connect", rdma_connect(id, &asking));
	say_state("client", id);
	request = see_all(server);
	create_qp(request);
	say_state("server", request);
	call("accept", rdma_accept(request, &answering));
	say_state("server", request);
	see_all(client);
	see_all(server);
	say_attributes("client", id);
	say_attributes("server", request);
	call("disconnect", rdma_disconnect(id));
	say_state("client", id);
	see_all(server);
	say_state("server", request);
	call("disconnect", rdma_disconnect(request));
	say_state("server", request);
	see_all(client);
	see_all(client);
	see_all(server);
	rdma_destroy_qp(id);
	rdma_destroy_qp(request);
	call("destroy", rdma_destroy_id(id));
	call("destroy", rdma_destroy_id(request));
	call("destroy", rdma_destroy_id(listening));
}

static void no_parameters(void)
{
	struct pair pair = { .listening = listener() };
	struct ibv_device_attr device;
	struct rdma_cm_event *event;
	struct ibv_qp_attr attr;

	pair.client = resolved(pair.listening);
	create_qp(pair.client);
	need(!ibv_query_device(pair.client->verbs, &device));
	call("connect", rdma_connect(pair.client, NULL));
	need(event = seen(server, PATIENCE));
	say("as many reads as the device can: %d %d",
	    event->param.conn.responder_resources == (uint8_t)device.max_qp_init_rd_atom,
	    event->param.conn.initiator_depth == (uint8_t)device.max_qp_rd_atom);
	say("retry %d rnr %d flow %d", event->param.conn.retry_count, event->param.conn.rnr_retry_count,
	    event->param.conn.flow_control);
	say_data(event);
	pair.server = event->id;
	need(!rdma_ack_cm_event(event));
	create_qp(pair.server);
	call("accept", rdma_accept(pair.server, NULL));
	need(event = seen(client, PATIENCE));
	say("retry %d rnr %d flow %d", event->param.conn.retry_count, event->param.conn.rnr_retry_count,
	    event->param.conn.flow_control);
	say_data(event);
	need(!rdma_ack_cm_event(event));
	attr = attributes(pair.client);
	say("client timeout %d retry %d rnr %d rights 0x%x", attr.timeout, attr.retry_cnt, attr.rnr_retry,
	    attr.qp_access_flags);
	attr = attributes(pair.server);
	say("server timeout %d retry %d rnr %d rights 0x%x", attr.timeout, attr.retry_cnt, attr.rnr_retry,
	    attr.qp_access_flags);
}

static void counts_beyond_seven(void)
{
	struct rdma_conn_param param = { .retry_count = 15, .rnr_retry_count = 200 };
	struct rdma_cm_id *listening = listener(), *id = resolved(listening), *request;

	create_qp(id);
	call("connect", rdma_connect(id, &param));
	request = see_all(server);
	create_qp(request);
	call("accept", rdma_accept(request, &param));
	see_all(client);
	say_attributes("client", id);
	say_attributes("server", request);
}

static void too_many_reads(void)
{
	struct rdma_conn_param param = { .responder_resources = 254, .initiator_depth = 254, .retry_count = 7 };
	struct pair pair = { .listening = listener() };

	pair.client = resolved(pair.listening);
	create_qp(pair.client);
	call("connect with 254", rdma_connect(pair.client, &param));
	param.responder_resources = 0;
	call("connect with 254 out", rdma_connect(pair.client, &param));
	param.initiator_depth = RDMA_MAX_INIT_DEPTH;
	call("connect", rdma_connect(pair.client, &param));
	pair.server = see(server);
	create_qp(pair.server);
	param.initiator_depth = 254;
	call("accept with 254", rdma_accept(pair.server, &param));
	param.initiator_depth = RDMA_MAX_INIT_DEPTH;
	call("accept", rdma_accept(pair.server, &param));
	see(client);
}

static void long_data(void)
{
	static const char data[255] = "12345678abcdefgh";
	struct rdma_conn_param param = { .private_data = data, .private_data_len = 57, .retry_count = 7 };
	struct rdma_cm_id *listening = listener(), *id = resolved(listening), *request;

	create_qp(id);
	call("connect with 57", rdma_connect(id, &param));
	say_state("client", id);
	param.private_data_len = 56;
	call("connect with 56", rdma_connect(id, &param));
	request = see_data(server);
	create_qp(request);
	call("reject with 149", rdma_reject(request, data, 149));
	call("reject with 148", rdma_reject(request, data, 148));
	see_data(client);
}

static void long_data_of_an_answer(void)
{
	static const char data[255] = "12345678abcdefgh";
	struct rdma_conn_param param = { .private_data = data, .private_data_len = 197, .retry_count = 7 };
	struct pair pair = asked(NULL);

	call("accept with 197", rdma_accept(pair.server, &param));
	say_state("server", pair.server);
	see_data(client);
	call("reject", rdma_reject(pair.server, NULL, 0));
}

static void data_of_an_answer(void)
{
	static const char data[255] = "12345678abcdefgh";
	struct rdma_conn_param param = { .private_data = data, .private_data_len = 196, .retry_count = 7 };
	struct pair pair = asked(NULL);

	call("accept with 196", rdma_accept(pair.server, &param));
	see_data(client);
	see_data(server);
}

/* ---- In vain ---- */

static void nobody_listens(void)
{
	struct rdma_cm_id *listening = listener(), *id = resolved(listening);

	need(!rdma_destroy_id(listening));
	create_qp(id);
	call("connect", rdma_connect(id, NULL));
	see_all(client);
	say_state("client", id);
	call("connect again", rdma_connect(id, NULL));
	call("disconnect", rdma_disconnect(id));
	see_nothing(client);
}

static void bound_only(void)
{
	struct rdma_cm_id *bound = identifier(server), *id;

	need(!rdma_bind_addr(bound, at(0)));
	id = resolved(bound);
	create_qp(id);
	call("connect", rdma_connect(id, NULL));
	see_data(client);
	see_nothing(server);
}

static void rejected(void)
{
	struct pair pair = asked(NULL);

	call("reject", rdma_reject(pair.server, "not now", 7));
	say_state("server", pair.server);
	call("reject again", rdma_reject(pair.server, NULL, 0));
	call("disconnect", rdma_disconnect(pair.server));
	see_all(client);
	say_state("client", pair.client);
	call("connect again", rdma_connect(pair.client, NULL));
	call("disconnect", rdma_disconnect(pair.client));
	see_nothing(client);
	see_nothing(server);
}

static void accepted_after_rejecting(void)
{
	struct pair pair = asked(NULL);

	call("reject", rdma_reject(pair.server, NULL, 0));
	see_data(client);
	call("accept", rdma_accept(pair.server, NULL));
	say_state("server", pair.server);
}

static void rejected_without_a_queue_pair(void)
{
	struct rdma_conn_param param = { .qp_num = 0x1234 };
	struct rdma_cm_id *listening = listener(), *id = resolved(listening), *request;

	call("connect", rdma_connect(id, &param));
	request = see(server);
	call("reject", rdma_reject(request, "no", 2));
	see_data(client);
}

static void client_rejects_the_answer(void)
{
	struct rdma_conn_param param = { .qp_num = 0x1234 };
	struct rdma_cm_id *listening = listener(), *id = resolved(listening), *request;

	call("connect", rdma_connect(id, &param));
	request = see(server);
	create_qp(request);
	call("accept", rdma_accept(request, NULL));
	see(client);
	call("reject", rdma_reject(id, "changed", 7));
	see_data(server);
	say_state("server", request);
	call("disconnect", rdma_disconnect(request));
	see_nothing(server);
}

static void the_client_gives_up(void)
{
	struct pair pair = asked(NULL);

	rdma_destroy_qp(pair.client);
	call("destroy", rdma_destroy_id(pair.client));
	poll(NULL, 0, SILENCE);
	see_nothing(server);
	call("accept", rdma_accept(pair.server, NULL));
	say_state("server", pair.server);
	call("reject", rdma_reject(pair.server, NULL, 0));
	call("disconnect", rdma_disconnect(pair.server));
	see_nothing(server);
}

static void the_client_leaves_while_it_asks(void)
{
	struct pair pair = asked(NULL);

	call("disconnect", rdma_disconnect(pair.client));
	say_state("client", pair.client);
	see_nothing(client);
	see_nothing(server);
	call("accept", rdma_accept(pair.server, NULL));
	see(client);
}

static void the_listener_goes(void)
{
	struct rdma_cm_id *listening = listener(), *id = resolved(listening);

	create_qp(id);
	call("connect", rdma_connect(id, NULL));
	say("a request: %d", readable(server->fd, PATIENCE));
	call("destroy", rdma_destroy_id(listening));
	see_data(client);
	say("a request: %d", readable(server->fd, 0));
}

static void the_listener_goes_after_the_request(void)
{
	struct pair pair = asked(NULL);

	call("destroy", rdma_destroy_id(pair.listening));
	call("accept", rdma_accept(pair.server, NULL));
	see(client);
	see(server);
	call("disconnect", rdma_disconnect(pair.client));
	see(server);
}

static void the_request_is_destroyed(void)
{
	struct pair pair = asked(NULL);

	rdma_destroy_qp(pair.server);
	call("destroy", rdma_destroy_id(pair.server));
	see_data(client);
	say_state("client", pair.client);
}

/* ---- The end ---- */

static void disconnecting(void)
{
	struct pair pair = connected();

	post_recv(pair.client, 1);
	post_recv(pair.server, 2);
	call("disconnect", rdma_disconnect(pair.client));
	say_state("client", pair.client);
	say_completion("client", pair.client->recv_cq);
	see(server);
	say_state("server", pair.server);
	say_nothing_completed("server", pair.server->recv_cq);
	see_nothing(client);
	call("disconnect", rdma_disconnect(pair.server));
	say_completion("server", pair.server->recv_cq);
	see(client);
	see(client);
	see(server);
}

static void disconnecting_twice(void)
{
	struct pair pair = connected();

	call("disconnect", rdma_disconnect(pair.client));
	call("again", rdma_disconnect(pair.client));
	see(server);
	call("disconnect", rdma_disconnect(pair.server));
	call("again", rdma_disconnect(pair.server));
	see(client);
	see(client);
	see(server);
	call("afterwards", rdma_disconnect(pair.client));
	see_nothing(client);
	see_nothing(server);
}

static void both_disconnect(void)
{
	struct pair pair = connected();

	call("disconnect", rdma_disconnect(pair.client));
	call("disconnect", rdma_disconnect(pair.server));
	see(server);
	see(client);
	see(server);
	see(client);
	see_nothing(server);
	see_nothing(client);
}

static void disconnected_before_it_hears(void)
{
	struct pair pair = asked(NULL);

	call("accept", rdma_accept(pair.server, NULL));
	call("disconnect", rdma_disconnect(pair.server));
	see(client);
	say_state("client", pair.client);
	see_nothing(client);
	see(server);
}

static void destroying_a_connection(void)
{
	struct pair pair = connected();

	rdma_destroy_qp(pair.client);
	call("destroy", rdma_destroy_id(pair.client));
	see(server);
	say_state("server", pair.server);
	call("disconnect", rdma_disconnect(pair.server));
	say_state("server", pair.server);
	see(server);
}

static void destroying_the_server(void)
{
	struct pair pair = connected();

	rdma_destroy_qp(pair.server);
	call("destroy", rdma_destroy_id(pair.server));
	see(client);
	say_state("client", pair.client);
	call("destroy", rdma_destroy_id(pair.client));
}

static void a_queue_pair_in_error_is_still_connected(void)
{
	struct pair pair = connected();
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	need(!ibv_modify_qp(pair.client->qp, &attr, IBV_QP_STATE));
	see_nothing(server);
	see_nothing(client);
	rdma_destroy_qp(pair.server);
	see_nothing(server);
	see_nothing(client);
	call("disconnect", rdma_disconnect(pair.server));
	see(client);
}

static void sends_are_flushed(void)
{
	struct pair pair = connected();

	need(!post_send(pair.client, 1));
	poll(NULL, 0, SILENCE);
	call("disconnect", rdma_disconnect(pair.client));
	say_completion("client", pair.client->send_cq);
	say("send %s", error(post_send(pair.client, 2)));
	say_completion("client", pair.client->send_cq);
}

/* ---- Another process ---- */

/* Connects to a port, and waits to be killed; as a parent it has a child, which lives on. */
static void peer(const char *port, bool parent)
{
	struct rdma_cm_id *id;

	client = rdma_create_event_channel();
	need(client);
	id = resolved_to(at(atoi(port)));
	create_qp(id);
	need(!rdma_connect(id, NULL));
	await(client, RDMA_CM_EVENT_ESTABLISHED);
	if (parent)
		need(fork() >= 0);
	for (;;)
		pause();
}

static pid_t spawn(struct rdma_cm_id *listening, const char *how)
{
	char port[8], *argv[] = { "observe_cm", (char *)how, port, NULL };
	pid_t pid;

	snprintf(port, sizeof(port), "%d", port_of(listening));
	need(!posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ));
	return pid;
}

static void end_process(pid_t pid)
{
	int status;

	need(!kill(pid, SIGKILL));
	need(waitpid(pid, &status, 0) == pid);
	need(WIFSIGNALED(status));
}

static void dying(const char *how)
{
	struct rdma_cm_id *listening = listener(), *id;
	pid_t pid = spawn(listening, how);

	id = see(server);
	create_qp(id);
	call("accept", rdma_accept(id, NULL));
	see(server);
	post_recv(id, 1);
	see_nothing(server);
	end_process(pid);
	/* Within a second; nothing else comes for as long as the connection lives. */
	if (see_within(server, 3000) != id)
		return;
	say_state("server", id);
	say_nothing_completed("server", id->recv_cq);
	call("disconnect", rdma_disconnect(id));
	say_completion("server", id->recv_cq);
	see(server);
}

static void a_peer_dies(void)
{
	dying("--peer");
}

static void a_parent_dies(void)
{
	dying("--parent");
}

static void a_peer_dies_while_it_asks(void)
{
	struct rdma_cm_id *listening = listener(), *id;
	pid_t pid = spawn(listening, "--peer");

	id = see(server);
	create_qp(id);
	end_process(pid);
	see_nothing(server);
	call("accept", rdma_accept(id, NULL));
	see_nothing(server);
}

/* ---- Steps ---- */

static void steps_of_a_new_identifier(void)
{
	struct rdma_cm_id *id = identifier(client), *out;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	int mask;

	call("disconnect", rdma_disconnect(id));
	call("reject", rdma_reject(id, NULL, 0));
	call("establish", rdma_establish(id));
	call("notify", rdma_notify(id, IBV_EVENT_COMM_EST));
	call("attributes", rdma_init_qp_attr(id, &attr, &mask));
	call("request", rdma_get_request(id, &out));
	say("ports %d %d", rdma_get_src_port(id), rdma_get_dst_port(id));
	say("families %d %d", rdma_get_local_addr(id)->sa_family, rdma_get_peer_addr(id)->sa_family);
	say("device %d, domain %d, port %d, paths %d", id->verbs != NULL, id->pd != NULL, id->port_num, id->route.num_paths);
	call("destroy", rdma_destroy_id(id));
}

/* Each of these ends the case where librdmacm does not look first. */
static void accept_without_a_request(void)
{
	call("accept", rdma_accept(identifier(client), NULL));
}

static void accept_while_bound(void)
{
	struct rdma_cm_id *id = identifier(client);

	need(!rdma_bind_addr(id, at(0)));
	call("accept", rdma_accept(id, NULL));
}

static void route_without_an_address(void)
{
	call("resolve route", rdma_resolve_route(identifier(client), 100));
}

static void route_while_bound(void)
{
	struct rdma_cm_id *id = identifier(client);

	need(!rdma_bind_addr(id, at(0)));
	call("resolve route", rdma_resolve_route(id, 100));
}

static void queue_pair_without_an_address(void)
{
	struct ibv_qp_init_attr attr = usual();

	call("create", rdma_create_qp(identifier(client), NULL, &attr));
}

static void connect_without_an_address(void)
{
	struct rdma_conn_param param = { .qp_num = 1 };

	call("connect", rdma_connect(identifier(client), &param));
}

static void connect_with_nothing(void)
{
	call("connect", rdma_connect(identifier(client), NULL));
}

static void listen_without_an_address(void)
{
	struct rdma_cm_id *id = identifier(server);

	call("listen", rdma_listen(id, 0));
	say("a port: %d, family %d", rdma_get_src_port(id) != 0, rdma_get_local_addr(id)->sa_family);
}

static void binding(void)
{
	struct rdma_cm_id *id = identifier(server), *other = identifier(server), *wild = identifier(server);
	struct sockaddr strange = { .sa_family = AF_UNIX };
	struct sockaddr_in *local;

	call("elsewhere", rdma_bind_addr(id, at_family("192.0.2.1", 0)));
	call("of another family", rdma_bind_addr(id, &strange));
	call("bind", rdma_bind_addr(id, at(0)));
	say("a port: %d", port_of(id) != 0);
	local = (void *)rdma_get_local_addr(id);
	say("address right %d, port right %d", local->sin_addr.s_addr == inet_addr(address),
	    local->sin_port == rdma_get_src_port(id));
	say("device %d, domain %d, port %d", id->verbs != NULL, id->pd != NULL, id->port_num);
	call("again", rdma_bind_addr(id, at(0)));
	call("the same", rdma_bind_addr(other, at(port_of(id))));
	call("wild", rdma_bind_addr(wild, at_family("0.0.0.0", 0)));
	say("device %d, a port: %d", wild->verbs != NULL, port_of(wild) != 0);
	need(!rdma_destroy_id(id));
	call("anew", rdma_bind_addr(other, at(0)));
}

static void binding_beside_a_wildcard(void)
{
	struct rdma_cm_id *id = identifier(server), *wild = identifier(server), *other = identifier(server);

	need(!rdma_bind_addr(id, at(0)));
	need(!rdma_bind_addr(wild, at_family("0.0.0.0", 0)));
	call("everywhere", rdma_bind_addr(other, at_family("0.0.0.0", port_of(id))));
	call("here", rdma_bind_addr(other, at(port_of(wild))));
}

static void bound_to_nothing(void)
{
	call("bind to NULL", rdma_bind_addr(identifier(server), NULL));
}

static void listening(void)
{
	struct rdma_cm_id *id = identifier(server), *many = identifier(server);

	need(!rdma_bind_addr(id, at(0)));
	need(!rdma_bind_addr(many, at(0)));
	call("listen", rdma_listen(id, 3));
	call("again", rdma_listen(id, 3));
	call("resolve", rdma_resolve_addr(id, NULL, at(1), 100));
	call("bind", rdma_bind_addr(id, at(0)));
	call("-1", rdma_listen(many, -1));
	call("request", rdma_get_request(many, &id));
}

static void a_port_is_free_again(void)
{
	struct rdma_cm_id *first = listener(), *next = identifier(server);
	int port = port_of(first);

	call("bind", rdma_bind_addr(next, at(port)));
	need(!rdma_destroy_id(first));
	call("bind", rdma_bind_addr(next, at(port)));
	call("listen", rdma_listen(next, 0));
}

static void sharing_a_port(void)
{
	struct rdma_cm_id *id = identifier(server), *other = identifier(server), *third = identifier(server);
	int on = 1;

	need(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)));
	need(!rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)));
	call("bind", rdma_bind_addr(id, at(0)));
	call("beside", rdma_bind_addr(other, at(port_of(id))));
	call("unasked", rdma_bind_addr(third, at(port_of(id))));
	call("listen", rdma_listen(id, 0));
	call("beside", rdma_listen(other, 0));
	need(!rdma_destroy_id(other));
	call("alone", rdma_listen(id, 0));
	other = identifier(server);
	need(!rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)));
	call("bind beside a listener", rdma_bind_addr(other, at(port_of(id))));
}

static void options(void)
{
	struct rdma_cm_id *id = identifier(client);
	uint8_t tos = 0x20, timeout = 14;
	int on = 1, off = 0;

	call("TOS", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1));
	call("TOS of 4", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 4));
	call("TOS of 0", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 0));
	call("timeout", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1));
	call("timeout of 4", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 4));
	call("reuse", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)));
	call("reuse of 1", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, 1));
	call("reuse off", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &off, sizeof(off)));
	call("only", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)));
	call("only of 1", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, 1));
	call("unknown", rdma_set_option(id, RDMA_OPTION_ID, 99, &on, sizeof(on)));
	call("unknown level", rdma_set_option(id, 99, 0, &on, sizeof(on)));
	call("path", rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &on, sizeof(on)));
	need(!rdma_bind_addr(id, at(0)));
	call("bound, reuse off", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &off, sizeof(off)));
	call("bound, reuse", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)));
	call("bound, only off", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &off, sizeof(off)));
	call("bound, TOS", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1));
}

static void a_timeout_of_six_bits(void)
{
	uint8_t timeout = 32;

	call("set", rdma_set_option(identifier(client), RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1));
}

static void options_reach_the_queue_pair(void)
{
	struct rdma_cm_id *listening = listener(), *id = identifier(client), *request;
	uint8_t tos = 0x20, timeout = 14, other = 12;

	need(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1));
	need(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1));
	need(!rdma_resolve_addr(id, NULL, at(port_of(listening)), 2000));
	await(client, RDMA_CM_EVENT_ADDR_RESOLVED);
	need(!rdma_resolve_route(id, 2000));
	await(client, RDMA_CM_EVENT_ROUTE_RESOLVED);
	create_qp(id);
	need(!rdma_connect(id, NULL));
	request = requested();
	call("of the request", rdma_set_option(request, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &other, 1));
	create_qp(request);
	call("accept", rdma_accept(request, NULL));
	see(client);
	say("client timeout %d class 0x%x", attributes(id).timeout, attributes(id).ah_attr.grh.traffic_class);
	say("server timeout %d class 0x%x", attributes(request).timeout, attributes(request).ah_attr.grh.traffic_class);
}

static void a_small_backlog(void)
{
	struct rdma_cm_id *listening = identifier(server), *one, *two, *first, *second;

	need(!rdma_bind_addr(listening, at(0)));
	call("listen", rdma_listen(listening, 1));
	one = resolved(listening);
	two = resolved(listening);
	create_qp(one);
	create_qp(two);
	call("connect", rdma_connect(one, NULL));
	need(readable(server->fd, PATIENCE));
	call("connect", rdma_connect(two, NULL));
	see_nothing(client);
	first = see(server);
	second = see(server);
	need(first && second);
	call("reject", rdma_reject(first, "first", 5));
	see_data(client);
	call("reject", rdma_reject(second, "second", 6));
	see_data(client);
}

static void resolving(void)
{
	struct rdma_cm_id *id = identifier(client);
	struct sockaddr strange = { .sa_family = AF_UNIX };
	struct sockaddr_in *to;

	call("of another family", rdma_resolve_addr(id, NULL, &strange, 100));
	call("from elsewhere", rdma_resolve_addr(id, at_family("192.0.2.1", 0), at(1), 100));
	call("resolve", rdma_resolve_addr(id, NULL, at(1234), 2000));
	see_all(client);
	to = (void *)rdma_get_peer_addr(id);
	say("to the address %d, port %d", to->sin_addr.s_addr == inet_addr(address), ntohs(rdma_get_dst_port(id)));
	to = (void *)rdma_get_local_addr(id);
	say("from the address %d, a port: %d", to->sin_addr.s_addr == inet_addr(address), rdma_get_src_port(id) != 0);
	say("device %d, domain %d, port %d, paths %d", id->verbs != NULL, id->pd != NULL, id->port_num, id->route.num_paths);
	call("again", rdma_resolve_addr(id, NULL, at(1234), 2000));
	call("bind", rdma_bind_addr(id, at(0)));
	call("listen", rdma_listen(id, 0));
	call("route", rdma_resolve_route(id, 2000));
	see(client);
	say("paths %d", id->route.num_paths);
	call("route again", rdma_resolve_route(id, 2000));
	call("listen", rdma_listen(id, 0));
}

static void resolving_from_a_port(void)
{
	struct rdma_cm_id *id = identifier(client), *bound = identifier(client), *used = identifier(client);
	int port;

	need(!rdma_bind_addr(bound, at(0)));
	port = port_of(bound);
	call("from a port in use", rdma_resolve_addr(used, at(port), at(1), 100));
	call("from the address", rdma_resolve_addr(id, at(0), at(1), 2000));
	see(client);
	say("a port: %d", port_of(id) != 0);
	call("bound", rdma_resolve_addr(bound, NULL, at(1), 2000));
	see(client);
	say("its port: %d", port_of(bound) == port);
}

static void resolving_from_another_family(void)
{
	struct rdma_cm_id *id = identifier(client);

	need(!rdma_bind_addr(id, at(0)));
	call("resolve", rdma_resolve_addr(id, NULL, at_v6(1), 2000));
}

static void resolving_everywhere(void)
{
	struct rdma_cm_id *id = identifier(client), *bound = identifier(client);

	need(!rdma_bind_addr(bound, at_family("0.0.0.0", 0)));
	call("from everywhere", rdma_resolve_addr(bound, NULL, at(1), 2000));
	see(client);
	say("device %d, from the address %d", bound->verbs != NULL,
	    ((struct sockaddr_in *)rdma_get_local_addr(bound))->sin_addr.s_addr == inet_addr(address));
	call("to NULL", rdma_resolve_addr(id, NULL, NULL, 100));
}

static void connecting_too_early(void)
{
	struct rdma_cm_id *listening = listener(), *id = identifier(client);
	struct rdma_conn_param param = { .qp_num = 1 };

	need(!rdma_resolve_addr(id, NULL, at(port_of(listening)), 2000));
	await(client, RDMA_CM_EVENT_ADDR_RESOLVED);
	call("connect", rdma_connect(id, &param));
	create_qp(id);
	call("with a queue pair", rdma_connect(id, NULL));
	say_state("client", id);
	need(!rdma_resolve_route(id, 2000));
	await(client, RDMA_CM_EVENT_ROUTE_RESOLVED);
	call("connect", rdma_connect(id, NULL));
	call("twice", rdma_connect(id, NULL));
	see(server);
}

static void accepting_twice(void)
{
	struct pair pair = asked(NULL);

	call("accept", rdma_accept(pair.server, NULL));
	see(client);
	see(server);
	call("again", rdma_accept(pair.server, NULL));
	say_state("server", pair.server);
	call("reject", rdma_reject(pair.server, NULL, 0));
	call("connect", rdma_connect(pair.client, NULL));
	say_state("client", pair.client);
	see_nothing(client);
	see_nothing(server);
}

static void no_queue_pairs(void)
{
	struct rdma_cm_id *listening = listener(), *id = resolved(listening), *request;
	struct rdma_conn_param param = { .qp_num = 0x1234, .srq = 1, .responder_resources = 1, .initiator_depth = 1 };

	call("connect", rdma_connect(id, &param));
	request = see_all(server);
	param.qp_num = 0x4321;
	call("accept", rdma_accept(request, &param));
	see_all(client);
	see_nothing(server);
	call("establish", rdma_establish(id));
	see_all(server);
	call("again", rdma_establish(id));
	see_nothing(client);
	call("disconnect", rdma_disconnect(id));
	see(server);
	call("disconnect", rdma_disconnect(request));
	see(client);
}

static void establishing_what_is_asked(void)
{
	struct rdma_conn_param param = { .qp_num = 0x1234 };
	struct rdma_cm_id *listening = listener(), *id = resolved(listening), *request;

	call("connect", rdma_connect(id, &param));
	request = see(server);
	call("establish", rdma_establish(request));
	see_data(client);
	param.qp_num = 0x4321;
	call("accept", rdma_accept(request, &param));
}

static void connecting_without_a_number(void)
{
	struct rdma_cm_id *listening = listener(), *id = resolved(listening);

	call("connect with nothing", rdma_connect(id, NULL));
	see(server);
}

static void say_mask(struct rdma_cm_id *id, const char *when)
{
	static const enum ibv_qp_state states[] = { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR };

	for (int i = 0; i < 4; i++) {
		struct ibv_qp_attr attr = { .qp_state = states[i] };
		int mask = 0, result = rdma_init_qp_attr(id, &attr, &mask);

		if (result)
			say("%s %s: %s", when, state(states[i]), error(errno));
		else
			say("%s %s: 0x%x rights 0x%x", when, state(states[i]), mask, attr.qp_access_flags);
	}
}

static void attributes_on_the_way(void)
{
	struct rdma_cm_id *listening = listener(), *id = identifier(client), *request;
	struct rdma_conn_param param = { .qp_num = 0x1234 };

	need(!rdma_resolve_addr(id, NULL, at(port_of(listening)), 2000));
	await(client, RDMA_CM_EVENT_ADDR_RESOLVED);
	say_mask(id, "address");
	need(!rdma_resolve_route(id, 2000));
	await(client, RDMA_CM_EVENT_ROUTE_RESOLVED);
	say_mask(id, "route");
	need(!rdma_connect(id, &param));
	request = requested();
	say_mask(id, "connecting");
	say_mask(request, "asked");
	/* Both on one device: the number of one is not that of the other. */
	param.qp_num = 0x4321;
	need(!rdma_accept(request, &param));
	await(client, RDMA_CM_EVENT_CONNECT_RESPONSE);
	say_mask(id, "answered");
	need(!rdma_establish(id));
	await(server, RDMA_CM_EVENT_ESTABLISHED);
	say_mask(id, "established");
	say_mask(request, "established");
	need(!rdma_disconnect(id));
	await(server, RDMA_CM_EVENT_DISCONNECTED);
	say_mask(id, "left");
	say_mask(request, "told");
	need(!rdma_disconnect(request));
	await(client, RDMA_CM_EVENT_DISCONNECTED);
	say_mask(request, "over");
}

static void notifying(void)
{
	struct pair pair = asked(NULL);

	call("asking", rdma_notify(pair.client, IBV_EVENT_COMM_EST));
	call("asked", rdma_notify(pair.server, IBV_EVENT_COMM_EST));
	call("of another event", rdma_notify(pair.server, IBV_EVENT_SQ_DRAINED));
	call("accept", rdma_accept(pair.server, NULL));
	call("accepted", rdma_notify(pair.server, IBV_EVENT_COMM_EST));
	see(server);
	see(client);
	call("established", rdma_notify(pair.server, IBV_EVENT_COMM_EST));
	call("client established", rdma_notify(pair.client, IBV_EVENT_COMM_EST));
	call("establish with a queue pair", rdma_establish(pair.client));
	see_nothing(server);
}

static void ports_and_addresses(void)
{
	struct pair pair = connected();
	struct sockaddr_in *of_client = (void *)rdma_get_local_addr(pair.client);
	struct sockaddr_in *to_client = (void *)rdma_get_peer_addr(pair.server);

	say("%d", rdma_get_dst_port(pair.client) == rdma_get_src_port(pair.listening));
	say("%d", rdma_get_src_port(pair.server) == rdma_get_src_port(pair.listening));
	say("%d", rdma_get_src_port(pair.client) == rdma_get_dst_port(pair.server));
	say("%d", of_client->sin_addr.s_addr == to_client->sin_addr.s_addr && of_client->sin_port == to_client->sin_port);
	say("one device %d, one domain %d", pair.client->verbs == pair.server->verbs, pair.client->pd == pair.server->pd);
	say("paths %d %d", pair.client->route.num_paths, pair.server->route.num_paths);
	say("one channel %d, context inherited %d, space %x", pair.server->channel == pair.listening->channel,
	    pair.server->context == pair.listening->context, pair.server->ps);
	say("pkey 0x%x", ntohs(pair.client->route.addr.addr.ibaddr.pkey));
}

/* ---- Identifiers, channels, events ---- */

static void port_spaces(void)
{
	static const struct { const char *name; int ps; } spaces[] = {
		{ "TCP", RDMA_PS_TCP }, { "IB", RDMA_PS_IB }, { "0", 0 }, { "SDP", 1 },
	};

	for (size_t i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++) {
		struct rdma_cm_id *id = NULL;

		call(spaces[i].name, rdma_create_id(client, &id, &id, spaces[i].ps));
		if (id)
			say("context %d, type %d", id->context == &id, id->qp_type);
	}
}

static void port_spaces_of_datagrams(void)
{
	struct rdma_cm_id *id;

	call("UDP", rdma_create_id(client, &id, NULL, RDMA_PS_UDP));
	call("IPOIB", rdma_create_id(client, &id, NULL, RDMA_PS_IPOIB));
}

static void an_empty_channel(void)
{
	struct rdma_cm_event *event;

	say("close on exec %d", (fcntl(client->fd, F_GETFD) & FD_CLOEXEC) != 0);
	need(!fcntl(client->fd, F_SETFL, O_NONBLOCK));
	call("get", rdma_get_cm_event(client, &event));
	call("get into NULL", rdma_get_cm_event(client, NULL));
	call("acknowledge NULL", rdma_ack_cm_event(NULL));
}

static void events_wait_their_turn(void)
{
	struct rdma_cm_id *one = identifier(client), *two = identifier(client);
	struct rdma_cm_event *first, *second;

	need(!rdma_resolve_addr(one, NULL, at(1), 2000));
	poll(NULL, 0, SILENCE);
	need(!rdma_resolve_addr(two, NULL, at(1), 2000));
	poll(NULL, 0, SILENCE);
	first = seen(client, PATIENCE);
	second = seen(client, PATIENCE);
	say("in order %d %d", first->id == one, second->id == two);
	say("readable %d", readable(client->fd, 0));
	call("acknowledge", rdma_ack_cm_event(second));
	call("acknowledge", rdma_ack_cm_event(first));
}

static void destroying_waits_for_acknowledgement(void)
{
	struct rdma_cm_id *id = identifier(client);
	struct rdma_cm_event *event;
	struct job job;

	need(!rdma_resolve_addr(id, NULL, at(1), 2000));
	need(event = seen(client, PATIENCE));
	start(&job, rdma_destroy_id, id);
	say_whether_done("destroy", &job);
	need(!rdma_ack_cm_event(event));
	finish("destroy", &job);
}

static void destroying_takes_unread_events_along(void)
{
	struct rdma_cm_id *id = identifier(client);

	need(!rdma_resolve_addr(id, NULL, at(1), 2000));
	say("readable %d", readable(client->fd, PATIENCE));
	call("destroy", rdma_destroy_id(id));
	say("readable %d", readable(client->fd, 0));
}

static void destroying_twice(void)
{
	struct rdma_cm_id *id = identifier(client);

	call("destroy", rdma_destroy_id(id));
	call("and resolve", rdma_resolve_addr(id, NULL, at(1), 100));
}

static void destroying_nothing(void)
{
	call("destroy", rdma_destroy_id(NULL));
}

static int migrate_to_server(struct rdma_cm_id *id)
{
	return rdma_migrate_id(id, server);
}

static void migrating(void)
{
	struct rdma_cm_id *id = identifier(client);
	struct rdma_cm_event *event;
	struct job job;

	need(!rdma_resolve_addr(id, NULL, at(1), 2000));
	need(readable(client->fd, PATIENCE));
	call("migrate", rdma_migrate_id(id, server));
	say("on the new channel %d; readable %d", id->channel == server, readable(client->fd, 0));
	see(server);
	call("to itself", rdma_migrate_id(id, server));
	call("back", rdma_migrate_id(id, client));
	call("route", rdma_resolve_route(id, 2000));
	need(event = seen(client, PATIENCE));
	start(&job, migrate_to_server, id);
	say_whether_done("migrate", &job);
	need(!rdma_ack_cm_event(event));
	finish("migrate", &job);
}

static void migrating_a_listener(void)
{
	struct rdma_cm_id *listening = listener(), *id = resolved(listening), *request;

	create_qp(id);
	call("connect", rdma_connect(id, NULL));
	need(readable(server->fd, PATIENCE));
	call("migrate", rdma_migrate_id(listening, client));
	say("readable %d", readable(server->fd, 0));
	/* Elsewhere it never comes. */
	alarm(5);
	request = see(client);
	say("the request on the new channel: %d", request && request->channel == client);
}

/* ---- Calls that wait ---- */

static void synchronous(void)
{
	struct rdma_cm_id *id, *listening = listener();

	call("create", rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	say("a channel of its own: %d, event %d", id->channel && id->channel != server, id->event != NULL);
	call("address", rdma_resolve_addr(id, NULL, at(port_of(listening)), 2000));
	say("event %s", id->event ? rdma_event_str(id->event->event) : "none");
	call("route", rdma_resolve_route(id, 2000));
	say("event %s", id->event ? rdma_event_str(id->event->event) : "none");
	create_qp(id);
	need(!rdma_destroy_id(listening));
	call("connect", rdma_connect(id, NULL));
	say("event %s %d", id->event ? rdma_event_str(id->event->event) : "none", id->event ? id->event->status : 0);
	say_state("client", id);
	call("again", rdma_connect(id, NULL));
	say("event %s", id->event ? rdma_event_str(id->event->event) : "none");
	call("migrate to none", rdma_migrate_id(id, NULL));
	call("migrate", rdma_migrate_id(id, client));
	say("event %s", id->event ? rdma_event_str(id->event->event) : "none");
}

static void disconnecting_twice_and_waiting(void)
{
	struct pair pair = connected();
	struct job job;

	call("migrate", rdma_migrate_id(pair.client, NULL));
	start(&job, rdma_disconnect, pair.client);
	see(server);
	call("disconnect", rdma_disconnect(pair.server));
	finish("disconnect", &job);
	start(&job, rdma_disconnect, pair.client);
	say_whether_done("again", &job);
	finish("again", &job);
}

static struct rdma_cm_id *request_of_listener;

static int get_request(struct rdma_cm_id *listening)
{
	int result = rdma_get_request(listening, &request_of_listener);

	return result ? result : rdma_accept(request_of_listener, NULL);
}

static struct rdma_addrinfo *information(int port, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP }, *found;
	char text[8];

	snprintf(text, sizeof(text), "%d", port);
	need(!rdma_getaddrinfo(address, text, &hints, &found));
	return found;
}

static void endpoints(void)
{
	struct ibv_qp_init_attr attr = usual();
	struct rdma_cm_id *listening, *id;
	struct job job;

	call("passive", rdma_create_ep(&listening, information(0, RAI_PASSIVE), NULL, &attr));
	say("queue pair %d, event %d", listening->qp != NULL, listening->event != NULL);
	call("listen", rdma_listen(listening, 0));
	start(&job, get_request, listening);
	call("active", rdma_create_ep(&id, information(port_of(listening), 0), NULL, &attr));
	say("queue pair %d, queues %d %d, channels %d %d, event %s", id->qp != NULL, id->send_cq != NULL, id->recv_cq != NULL,
	    id->send_cq_channel != NULL, id->recv_cq_channel != NULL, id->event ? rdma_event_str(id->event->event) : "none");
	say_state("client", id);
	call("connect", rdma_connect(id, NULL));
	say("event %s", id->event ? rdma_event_str(id->event->event) : "none");
	finish("request and accept", &job);
	say("event %s", request_of_listener->event ? rdma_event_str(request_of_listener->event->event) : "none");
	say("own channel %d, queue pair %d, own domain %d", request_of_listener->channel != listening->channel,
	    request_of_listener->qp != NULL, request_of_listener->pd != id->pd);
	say_state("client", id);
	say_state("server", request_of_listener);
	start(&job, rdma_disconnect, id);
	say_whether_done("disconnect", &job);
	call("disconnect", rdma_disconnect(request_of_listener));
	say("event %s", request_of_listener->event ? rdma_event_str(request_of_listener->event->event) : "none");
	finish("disconnect", &job);
	say("event %s", id->event ? rdma_event_str(id->event->event) : "none");
	rdma_destroy_ep(id);
	rdma_destroy_ep(request_of_listener);
	rdma_destroy_ep(listening);
}

static void endpoints_of_less(void)
{
	struct ibv_qp_init_attr attr = usual();
	struct rdma_addrinfo *there, *strange;
	struct rdma_cm_id *id = NULL, *listening = listener();

	there = information(port_of(listening), 0);
	call("without attributes", rdma_create_ep(&id, there, NULL, NULL));
	say("queue pair %d, device %d, paths %d", id->qp != NULL, id->verbs != NULL, id->route.num_paths);
	rdma_destroy_ep(id);
	there->ai_connect = strdup("hello");
	there->ai_connect_len = 5;
	call("with data", rdma_create_ep(&id, there, NULL, &attr));
	call("migrate", rdma_migrate_id(id, client));
	call("connect", rdma_connect(id, NULL));
	see_data(server);
	strange = information(port_of(listening), RAI_PASSIVE);
	call("on a port in use", rdma_create_ep(&id, strange, NULL, &attr));
	attr.cap.max_send_wr = 20000000;
	call("too large", rdma_create_ep(&id, there, NULL, &attr));
}

static void requests_of_others(void)
{
	struct rdma_cm_id *id;

	call("of a listener with a channel", rdma_get_request(listener(), &id));
}

static void requests_without_listening(void)
{
	struct rdma_cm_id *bound, *id;

	need(!rdma_create_id(NULL, &bound, NULL, RDMA_PS_TCP));
	need(!rdma_bind_addr(bound, at(0)));
	alarm(5);
	call("request", rdma_get_request(bound, &id));
}

/* ---- Names ---- */

static void say_information(const char *what, int result, struct rdma_addrinfo *found)
{
	if (result)
		say("%s: %s", what, result == -1 ? error(errno) : gai_strerror(result));
	else
		say("%s: flags 0x%x family %d type %d space 0x%x source %d destination %d route %d connect %d more %d", what,
		    found->ai_flags, found->ai_family, found->ai_qp_type, found->ai_port_space, found->ai_src_len,
		    found->ai_dst_len, found->ai_route_len, found->ai_connect_len, found->ai_next != NULL);
}

#define ask(what, node, service, hints) \
	(errno = 0, found = NULL, result = rdma_getaddrinfo(node, service, hints, &found), \
	 say_information(what, result, found))

static void names(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST }, *found;
	int result;

	ask("nothing", NULL, NULL, NULL);
	ask("a node", address, NULL, NULL);
	ask("node and service", address, "7471", NULL);
	ask("with hints", address, "7471", &hints);
	ask("no service", address, "no such service", &hints);
	ask("no number", "no number", "7471", &hints);
	hints.ai_port_space = RDMA_PS_TCP;
	ask("TCP", address, "7471", &hints);
	hints.ai_port_space = RDMA_PS_UDP;
	ask("UDP", address, "7471", &hints);
	hints.ai_port_space = RDMA_PS_IB;
	ask("IB", address, "7471", &hints);
	hints.ai_qp_type = IBV_QPT_UD;
	ask("IB, UD", address, "7471", &hints);
	hints.ai_port_space = 0;
	ask("UD", address, "7471", &hints);
	hints.ai_qp_type = IBV_QPT_RC;
	ask("RC", address, "7471", &hints);
	hints.ai_flags |= RAI_PASSIVE;
	ask("passive", address, "7471", &hints);
	ask("passive, any", NULL, "7471", &hints);
	hints.ai_flags = RAI_NUMERICHOST | RAI_NOROUTE;
	ask("without a route", address, "7471", &hints);
	hints.ai_flags = RAI_NUMERICHOST | RAI_FAMILY;
	hints.ai_family = AF_INET6;
	ask("of the other family", address, "7471", &hints);
	hints.ai_family = 77;
	ask("of no family", address, "7471", &hints);
}

static void names_in_hints(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC }, *found;
	int result;

	ask("empty hints", NULL, NULL, &hints);
	hints.ai_dst_addr = at(1);
	hints.ai_dst_len = sizeof(struct sockaddr_in);
	ask("a destination", NULL, NULL, &hints);
	hints.ai_src_addr = at(2);
	hints.ai_src_len = sizeof(struct sockaddr_in);
	ask("and a source", NULL, NULL, &hints);
	ask("a source and a node", address, "3", &hints);
	hints.ai_flags = RAI_PASSIVE;
	ask("passive", NULL, NULL, &hints);
}

static void names_of_events(void)
{
	for (int i = 0; i < 21; i++)
		if (i < 16 || i > 18)	/* of later versions */
			say("%s", rdma_event_str(i));
}

static void devices(void)
{
	int count = -1;
	struct ibv_context **list = rdma_get_devices(&count), **again = rdma_get_devices(NULL);
	struct rdma_cm_id *id = identifier(client);

	need(!rdma_bind_addr(id, at(0)));
	say("%d, last %d, the identifier's %d, the same again %d", count, list && !list[count], list && list[0] == id->verbs,
	    again && again[0] == list[0]);
	rdma_free_devices(list);
	rdma_free_devices(again);
}

/* ---- Queue pairs ---- */

static void say_fields(struct rdma_cm_id *id)
{
	say("queue pair %d, queues %d %d, channels %d %d, shared %d", id->qp != NULL, id->send_cq != NULL, id->recv_cq != NULL,
	    id->send_cq_channel != NULL, id->recv_cq_channel != NULL, id->srq != NULL);
}

static void queue_pairs(void)
{
	struct rdma_cm_id *id = identifier(client);
	struct ibv_qp_init_attr attr = usual();
	struct ibv_cq *cq;
	struct ibv_pd *pd;

	need(!rdma_bind_addr(id, at(0)));
	call("create", rdma_create_qp(id, NULL, &attr));
	say_fields(id);
	say("in the attributes %d, context %d %d", attr.send_cq == id->send_cq, id->qp->qp_context == id,
	    id->send_cq->cq_context == id);
	say("domain %d, rights 0x%x", id->qp->pd == id->pd, attributes(id).qp_access_flags);
	say_state("queue pair", id);
	call("again", rdma_create_qp(id, NULL, &attr));
	rdma_destroy_qp(id);
	say_fields(id);

	need(pd = ibv_alloc_pd(id->verbs));
	need(cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0));
	attr = usual();
	attr.send_cq = attr.recv_cq = cq;
	call("of the program's queues", rdma_create_qp(id, pd, &attr));
	say_fields(id);
	say("domain %d %d", id->qp->pd == pd, id->pd == pd);
	rdma_destroy_qp(id);
	say_fields(id);

	attr = usual();
	attr.recv_cq = cq;
	call("one queue given", rdma_create_qp(id, NULL, &attr));
	say_fields(id);
	rdma_destroy_qp(id);
	call("destroy", rdma_destroy_id(id));
}

static void destroying_a_queue_pair_twice(void)
{
	struct rdma_cm_id *id = identifier(client);

	need(!rdma_bind_addr(id, at(0)));
	create_qp(id);
	rdma_destroy_qp(id);
	rdma_destroy_qp(id);
	say("ok");
}

static void a_queue_pair_that_receives_nothing(void)
{
	struct rdma_cm_id *id = identifier(client);
	struct ibv_qp_init_attr attr = usual();

	need(!rdma_bind_addr(id, at(0)));
	attr.cap.max_recv_wr = 0;
	call("create", rdma_create_qp(id, NULL, &attr));
	say_fields(id);
}

static void a_queue_pair_that_sends_nothing(void)
{
	struct rdma_cm_id *id = identifier(client);
	struct ibv_qp_init_attr attr = usual();

	need(!rdma_bind_addr(id, at(0)));
	attr.cap.max_send_wr = 0;
	call("create", rdma_create_qp(id, NULL, &attr));
	say_fields(id);
}

static void queue_pairs_that_cannot_be(void)
{
	struct rdma_cm_id *id = identifier(client);
	struct ibv_qp_init_attr attr = usual();

	need(!rdma_bind_addr(id, at(0)));
	attr.cap.max_send_wr = 20000000;
	call("too many sends", rdma_create_qp(id, NULL, &attr));
	say_fields(id);
	attr = usual();
	attr.cap.max_send_sge = 1000;
	call("too many entries", rdma_create_qp(id, NULL, &attr));
	attr = usual();
	attr.cap.max_inline_data = 1 << 20;
	call("too much inline data", rdma_create_qp(id, NULL, &attr));
	say_fields(id);
	attr = usual();
	attr.qp_type = 77;
	call("of no type", rdma_create_qp(id, NULL, &attr));
	say_fields(id);
	attr = usual();
	call("at last", rdma_create_qp(id, NULL, &attr));
}

static void shared_receive_queues(void)
{
	struct rdma_cm_id *id = identifier(client);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_qp_init_attr attr = usual();

	need(!rdma_bind_addr(id, at(0)));
	call("create", rdma_create_srq(id, NULL, &shared));
	say_fields(id);
	say("context %d, domain %d", id->srq->srq_context == id, id->srq->pd == id->pd);
	call("queue pair", rdma_create_qp(id, NULL, &attr));
	say("its queue %d", id->qp->srq == id->srq);
	say_fields(id);
	rdma_destroy_qp(id);
	rdma_destroy_srq(id);
	say_fields(id);
	shared.attr.max_wr = 20000000;
	call("too large", rdma_create_srq(id, NULL, &shared));
	say_fields(id);
}

static void shared_receives_are_told(void)
{
	struct rdma_cm_id *listening = listener(), *id = resolved(listening);
	struct rdma_conn_param param = { .retry_count = 7 };
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1 } };

	need(!rdma_create_srq(id, NULL, &shared));
	create_qp(id);
	call("connect", rdma_connect(id, &param));
	see_all(server);
}

/* ---- Wildcards and families ---- */

static void say_heard(const char *what, struct sockaddr *here, struct sockaddr *there, int only)
{
	struct rdma_cm_id *listening = identifier(server), *id, *request;
	struct pollfd either[] = { { .fd = server->fd, .events = POLLIN }, { .fd = client->fd, .events = POLLIN } };

	if (only)
		need(!rdma_set_option(listening, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only, sizeof(only)));
	need(!rdma_bind_addr(listening, here));
	need(!rdma_listen(listening, 0));
	((struct sockaddr_in *)there)->sin_port = rdma_get_src_port(listening);
	id = resolved_to(there);
	create_qp(id);
	need(!rdma_connect(id, NULL));
	need(poll(either, 2, PATIENCE) > 0);
	say("%s", what);
	if (!either[0].revents) {
		see(client);
		need(!rdma_destroy_id(listening));
		return;
	}
	request = see(server);
	say("families %d %d, device %d", rdma_get_local_addr(request)->sa_family, rdma_get_peer_addr(request)->sa_family,
	    request->verbs != NULL);
	create_qp(request);
	call("accept", rdma_accept(request, NULL));
	see(client);
	see(server);
	need(!rdma_destroy_id(listening));
}

static void families(void)
{
	struct sockaddr_in6 here = *(struct sockaddr_in6 *)at_v6(0);

	say_heard("4 to 4", at(0), at(0), 0);
	say_heard("4 to all of 4", at_family("0.0.0.0", 0), at(0), 0);
	say_heard("4 to all", at_family("::", 0), at(0), 0);
	say_heard("6 to all", at_family("::", 0), at_v6(0), 0);
	say_heard("6 to all of 6", at_family("::", 0), at_v6(0), 1);
	say_heard("6 to 6", (struct sockaddr *)&here, at_v6(0), 0);
}

static void the_other_family(void)
{
	struct sockaddr_in6 here = *(struct sockaddr_in6 *)at_v6(0);

	say_heard("4 to all of 6", at_family("::", 0), at(0), 1);
	say_heard("4 to 6", (struct sockaddr *)&here, at(0), 0);
	say_heard("6 to 4", at(0), at_v6(0), 0);
}

/* ---- The rest ---- */

static struct pair busy;

static void *keep_sending(void *unused)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc = { 0 };

	(void)unused;
	while (!wc.status && !ibv_post_send(busy.client->qp, &wr, &bad))
		while (!ibv_poll_cq(busy.client->send_cq, 1, &wc))
			;
	return NULL;
}

static void a_thread_is_cancelled(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	pthread_t thread;
	void *result;

	busy = connected();
	need(!pthread_create(&thread, NULL, keep_sending, NULL));
	poll(NULL, 0, SILENCE);
	need(!pthread_cancel(thread));
	poll(NULL, 0, SILENCE);
	call("error", ibv_modify_qp(busy.client->qp, &attr, IBV_QP_STATE));
	need(!pthread_join(thread, &result));
	say("it %s", result == PTHREAD_CANCELED ? "ends while it sends" : "sends until that fails");
}

static void what_is_for_others(void)
{
	struct pair pair = connected();
	struct ibv_ece ece = { .vendor_id = 1 };
	struct sockaddr *group = at_family("224.0.0.9", 0);

	call("join", rdma_join_multicast(pair.client, group, NULL));
	call("leave", rdma_leave_multicast(pair.client, group));
	call("set options", rdma_set_local_ece(pair.client, &ece));
	call("get options", rdma_get_remote_ece(pair.client, &ece));
	call("reject with options", rdma_reject_ece(pair.client, NULL, 0));
}

static void options_of_vendors(void)
{
	struct rdma_cm_id *id = resolved(listener());
	struct ibv_ece ece = { .vendor_id = 1 };

	call("set", rdma_set_local_ece(id, &ece));
	call("set to NULL", rdma_set_local_ece(id, NULL));
}

static const struct {
	const char *name;
	void (*play)(void);
} cases[] = {
#define CASE(name) { "cm_" #name, name }
	CASE(life), CASE(no_parameters), CASE(counts_beyond_seven), CASE(too_many_reads), CASE(long_data),
	CASE(long_data_of_an_answer), CASE(data_of_an_answer), CASE(nobody_listens), CASE(bound_only), CASE(rejected),
	CASE(accepted_after_rejecting), CASE(rejected_without_a_queue_pair), CASE(client_rejects_the_answer),
	CASE(the_client_gives_up), CASE(the_client_leaves_while_it_asks), CASE(the_listener_goes),
	CASE(the_listener_goes_after_the_request), CASE(the_request_is_destroyed), CASE(disconnecting),
	CASE(disconnecting_twice), CASE(both_disconnect), CASE(disconnected_before_it_hears),
	CASE(destroying_a_connection), CASE(destroying_the_server), CASE(a_queue_pair_in_error_is_still_connected),
	CASE(sends_are_flushed), CASE(a_peer_dies), CASE(a_parent_dies), CASE(a_peer_dies_while_it_asks),
	CASE(steps_of_a_new_identifier), CASE(accept_without_a_request), CASE(accept_while_bound),
	CASE(route_without_an_address), CASE(route_while_bound), CASE(queue_pair_without_an_address),
	CASE(connect_without_an_address), CASE(connect_with_nothing), CASE(listen_without_an_address), CASE(binding),
	CASE(binding_beside_a_wildcard), CASE(bound_to_nothing), CASE(listening), CASE(a_port_is_free_again),
	CASE(sharing_a_port), CASE(options), CASE(a_timeout_of_six_bits), CASE(options_reach_the_queue_pair),
	CASE(a_small_backlog), CASE(resolving), CASE(resolving_from_a_port), CASE(resolving_from_another_family),
	CASE(resolving_everywhere), CASE(connecting_too_early), CASE(accepting_twice), CASE(no_queue_pairs),
	CASE(establishing_what_is_asked), CASE(connecting_without_a_number), CASE(attributes_on_the_way),
	CASE(notifying), CASE(ports_and_addresses), CASE(port_spaces), CASE(port_spaces_of_datagrams),
	CASE(an_empty_channel), CASE(events_wait_their_turn), CASE(destroying_waits_for_acknowledgement),
	CASE(destroying_takes_unread_events_along), CASE(destroying_twice), CASE(destroying_nothing), CASE(migrating),
	CASE(migrating_a_listener), CASE(synchronous), CASE(disconnecting_twice_and_waiting), CASE(endpoints),
	CASE(endpoints_of_less), CASE(requests_of_others), CASE(requests_without_listening), CASE(names),
	CASE(names_in_hints), CASE(names_of_events), CASE(devices), CASE(queue_pairs), CASE(destroying_a_queue_pair_twice),
	CASE(a_queue_pair_that_receives_nothing), CASE(a_queue_pair_that_sends_nothing),
	CASE(queue_pairs_that_cannot_be), CASE(shared_receive_queues), CASE(shared_receives_are_told), CASE(families),
	CASE(the_other_family), CASE(a_thread_is_cancelled), CASE(what_is_for_others), CASE(options_of_vendors),
};

/* Plays a case in a process of its own, and adds to what it says how it ends where that is not well. */
static void play(void (*case_)(void))
{
	long until = now() + LIMIT;
	int status = 0;
	pid_t ended, pid = fork();

	need(pid >= 0);
	if (!pid) {
		need(!setpgid(0, 0));
		server = rdma_create_event_channel();
		client = rdma_create_event_channel();
		need(server && client);
		case_();
		_exit(0);
	}
	while (!(ended = waitpid(pid, &status, WNOHANG)) && now() < until)
		poll(NULL, 0, 5);
	/* With what it has started. */
	kill(-pid, SIGKILL);
	if (!ended || (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM))
		say("does not end");
	if (!ended) {
		/* Nor does a call in the kernel that cannot be interrupted. */
		for (until = now() + 1000; !waitpid(pid, &status, WNOHANG) && now() < until;)
			poll(NULL, 0, 5);
	} else if (WIFSIGNALED(status) && WTERMSIG(status) != SIGALRM) {
		say("SIG%s", sigabbrev_np(WTERMSIG(status)));
	} else if (WIFEXITED(status) && WEXITSTATUS(status)) {
		say("fails");
	}
}

int main(int argc, char **argv)
{
	address = getenv("DEVICE_ADDRESS");
	if (!address || inet_addr(address) == INADDR_NONE)
		die("no IPv4 address in DEVICE_ADDRESS");
	if (argc == 3 && !strncmp(argv[1], "--", 2))
		peer(argv[2], !strcmp(argv[1], "--parent"));
	observed = mmap(NULL, OBSERVED, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	need(observed != MAP_FAILED);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bool wanted = argc < 2;

		for (int j = 1; j < argc; j++)
			wanted |= !strcmp(argv[j], cases[i].name);
		if (!wanted)
			continue;
		observed[0] = 0;
		play(cases[i].play);
		printf("%s\t%s\n", cases[i].name, observed);
		fflush(stdout);
	}
	return 0;
}
