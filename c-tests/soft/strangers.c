/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Who speaks something else to the process than connection management: the one stream ends, and nothing else does.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
#include <cmocka.h>

enum { PATIENCE_MS = 60000, HELLO = 56, FRAME = 4 + 256 };

static struct rdma_event_channel *events;
static struct rdma_cm_id *listening;

static int readable(int fd, int ms)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };

	return poll(&wait, 1, ms) == 1;
}

static struct sockaddr_in local(uint16_t port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return to;
}

static int open_socket(int type, uint16_t port)
{
	struct sockaddr_in to = local(port);
	int fd = socket(AF_INET, type, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	return fd;
}

/* The question where the process is reached: magic number, version, kind, port, reserved, nonce. */
static void question(unsigned char *to)
{
	memset(to, 0, 24);
	memcpy(to, "RDMAPORT\1", 9);
	memcpy(to + 16, "a number", 8);
}

static uint16_t tcp_port(void)
{
	int fd = open_socket(SOCK_DGRAM, ntohs(rdma_get_src_port(listening)));
	unsigned char bytes[64];

	question(bytes);
	assert_int_equal(send(fd, bytes, 24, 0), 24);
	assert_true(readable(fd, PATIENCE_MS));
	assert_int_equal(recv(fd, bytes, sizeof(bytes), 0), 24);
	assert_memory_equal(bytes, "RDMAPORT\1\1", 10);
	assert_memory_equal(bytes + 16, "a number", 8);
	close(fd);
	return (uint16_t)(bytes[10] << 8 | bytes[11]);
}

/* A first frame that promises messages of connection management. */
static void hello(unsigned char *to)
{
	memset(to, 0, HELLO);
	to[3] = HELLO - 4;
	memcpy(to + 4, "RDMASOFT\1\1", 10);
}

/* A frame with the header of a message: class, version, method, and which message it is. */
static void frame(unsigned char *to, uint16_t attribute)
{
	memset(to, 0, FRAME);
	to[2] = 1;
	memcpy(to + 4, "\1\7\2\3", 4);
	to[4 + 16] = (unsigned char)(attribute >> 8);
	to[4 + 17] = (unsigned char)attribute;
}

/* Says it, and waits until the process has had enough. */
static void say(const void *bytes, size_t length)
{
	int fd = open_socket(SOCK_STREAM, tcp_port());
	char answer[FRAME];
	ssize_t got;

	assert_int_equal(send(fd, bytes, length, MSG_NOSIGNAL), length);
	do {
		assert_true(readable(fd, PATIENCE_MS));
		got = recv(fd, answer, sizeof(answer), 0);
	} while (got > 0);
	assert_true(got == 0 || errno == ECONNRESET);
	close(fd);
}

/* Others connect all the same. */
static int still_serves(void **state)
{
	struct rdma_event_channel *own = rdma_create_event_channel();
	struct sockaddr_in to = local(ntohs(rdma_get_src_port(listening)));
	struct rdma_conn_param param = { .qp_num = 1 };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	(void)state;
	assert_non_null(own);
	assert_int_equal(rdma_create_id(own, &id, NULL, RDMA_PS_TCP), 0);
	assert_int_equal(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000), 0);
	assert_int_equal(rdma_get_cm_event(own, &event), 0);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	assert_int_equal(rdma_resolve_route(id, 2000), 0);
	assert_int_equal(rdma_get_cm_event(own, &event), 0);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	assert_int_equal(rdma_connect(id, &param), 0);
	/* Nothing of what strangers said has become an event. */
	assert_true(readable(events->fd, PATIENCE_MS));
	assert_int_equal(rdma_get_cm_event(events, &event), 0);
	assert_int_equal(event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
	assert_int_equal(event->param.conn.qp_num, 1);
	assert_int_equal(rdma_reject(event->id, NULL, 0), 0);
	assert_int_equal(rdma_destroy_id(event->id), 0);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	assert_true(readable(own->fd, PATIENCE_MS));
	assert_int_equal(rdma_get_cm_event(own, &event), 0);
	assert_int_equal(event->event, RDMA_CM_EVENT_REJECTED);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	assert_int_equal(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(own);
	return 0;
}

static void datagrams_that_are_no_questions(void **state)
{
	int fd = open_socket(SOCK_DGRAM, ntohs(rdma_get_src_port(listening)));
	unsigned char bytes[2000] = "";
	size_t at;

	(void)state;
	for (at = 0; at < 16; at++) {
		question(bytes);
		bytes[at] ^= 0x55;
		assert_int_equal(send(fd, bytes, 24, 0), 24);
	}
	question(bytes);
	for (at = 0; at < sizeof(bytes); at = at * 2 + 1)
		if (at != 24)
			assert_int_equal(send(fd, bytes, at, 0), at);
	assert_int_equal(send(fd, bytes, 25, 0), 25);
	/* The one answer is to the one question. */
	memcpy(bytes + 16, "the last", 8);
	assert_int_equal(send(fd, bytes, 24, 0), 24);
	assert_true(readable(fd, PATIENCE_MS));
	assert_int_equal(recv(fd, bytes, sizeof(bytes), 0), 24);
	assert_memory_equal(bytes + 16, "the last", 8);
	close(fd);
}

static void streams_of_something_else(void **state)
{
	unsigned char bytes[4096];
	size_t i;

	(void)state;
	say("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a browser that has lost its way\r\n\r\n", 80);
	memset(bytes, 0xff, sizeof(bytes));
	say(bytes, sizeof(bytes));
	memset(bytes, 0, sizeof(bytes));
	say(bytes, sizeof(bytes));
	srand(1);
	for (i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)rand();
	say(bytes, sizeof(bytes));
}

static void frames_of_another_length(void **state)
{
	static const uint32_t lengths[] = { 0, 1, 255, 257, 32768, 0x7fffffff, 0xffffffff };
	unsigned char bytes[HELLO + FRAME];
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		uint32_t length = htonl(lengths[i]);

		hello(bytes);
		frame(bytes + HELLO, 0x10);
		memcpy(bytes + HELLO, &length, sizeof(length));
		say(bytes, sizeof(bytes));
	}
}

/* REQ to DREP, and attributes that are none, all of zeros but for their headers. */
static void messages_out_of_place(void **state)
{
	unsigned char bytes[HELLO + FRAME];
	uint16_t attribute;

	(void)state;
	for (attribute = 0x0f; attribute <= 0x1b; attribute++) {
		hello(bytes);
		frame(bytes + HELLO, attribute);
		say(bytes, sizeof(bytes));
	}
}

static void messages_of_noise(void **state)
{
	unsigned char bytes[HELLO + FRAME];
	int round, i;

	(void)state;
	srand(2);
	for (round = 0; round < 100; round++) {
		hello(bytes);
		/* A REQ, as far as its header goes. */
		frame(bytes + HELLO, 0x10);
		for (i = HELLO + 4 + 24; i < HELLO + FRAME; i++)
			bytes[i] = (unsigned char)rand();
		say(bytes, sizeof(bytes));
	}
}

static void streams_that_end_in_the_middle(void **state)
{
	unsigned char bytes[HELLO + FRAME];
	uint16_t port = tcp_port();
	size_t length;

	(void)state;
	hello(bytes);
	frame(bytes + HELLO, 0x10);
	for (length = 0; length < sizeof(bytes); length += 7) {
		int fd = open_socket(SOCK_STREAM, port);

		assert_int_equal(send(fd, bytes, length, MSG_NOSIGNAL), length);
		close(fd);
	}
}

/* What a client says to a server: this is the server, up to its listener. */
static void record(unsigned char *said, size_t length)
{
	struct rdma_event_channel *own = rdma_create_event_channel();
	struct rdma_conn_param param = { .qp_num = 1 };
	struct sockaddr_in at = local(0), from;
	int udp = socket(AF_INET, SOCK_DGRAM, 0), tcp = socket(AF_INET, SOCK_STREAM, 0), fd;
	socklen_t size = sizeof(at);
	struct rdma_cm_event *event;
	unsigned char bytes[24];
	struct rdma_cm_id *id;

	assert_int_equal(bind(tcp, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(tcp, 1), 0);
	assert_int_equal(bind(udp, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(getsockname(udp, (struct sockaddr *)&at, &size), 0);
	assert_int_equal(rdma_create_id(own, &id, NULL, RDMA_PS_TCP), 0);
	assert_int_equal(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000), 0);
	assert_int_equal(rdma_get_cm_event(own, &event), 0);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	assert_int_equal(rdma_resolve_route(id, 2000), 0);
	assert_int_equal(rdma_get_cm_event(own, &event), 0);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	assert_int_equal(rdma_connect(id, &param), 0);
	assert_true(readable(udp, PATIENCE_MS));
	assert_int_equal(recvfrom(udp, bytes, sizeof(bytes), 0, (struct sockaddr *)&from, &size), sizeof(bytes));
	assert_int_equal(getsockname(tcp, (struct sockaddr *)&at, &size), 0);
	bytes[9] = 1;
	memcpy(bytes + 10, &at.sin_port, sizeof(at.sin_port));
	assert_int_equal(sendto(udp, bytes, sizeof(bytes), 0, (struct sockaddr *)&from, size), sizeof(bytes));
	assert_true(readable(tcp, PATIENCE_MS));
	fd = accept(tcp, NULL, NULL);
	assert_int_equal(recv(fd, said, length, MSG_WAITALL), length);
	assert_int_equal(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(own);
	close(fd);
	close(tcp);
	close(udp);
}

/* A REQ is believed only where its addresses are those of its stream: the queue pair connects to what it names. */
static void requests_in_the_name_of_others(void **state)
{
	static const unsigned char loopback[] = { 127, 0, 0, 1 };
	enum { SERVICE_PORT = HELLO + 4 + 24 + 8 + 6, REASON = 4 + 24 + 10, INVALID_GID = 12 };
	unsigned char said[HELLO + FRAME], answer[FRAME];
	uint16_t port = rdma_get_src_port(listening);
	struct rdma_cm_event *event;
	size_t i, places = 0;
	int fd;

	(void)state;
	record(said, sizeof(said));
	memcpy(said + SERVICE_PORT, &port, sizeof(port));
	/* As it is, it becomes an event. */
	fd = open_socket(SOCK_STREAM, tcp_port());
	assert_int_equal(send(fd, said, sizeof(said), MSG_NOSIGNAL), sizeof(said));
	assert_true(readable(events->fd, PATIENCE_MS));
	assert_int_equal(rdma_get_cm_event(events, &event), 0);
	assert_int_equal(event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
	assert_int_equal(rdma_destroy_id(event->id), 0);
	assert_int_equal(rdma_ack_cm_event(event), 0);
	close(fd);
	for (i = HELLO; i + sizeof(loopback) <= sizeof(said); i++) {
		if (memcmp(said + i, loopback, sizeof(loopback)))
			continue;
		places++;
		said[i + 3] = 9;
		fd = open_socket(SOCK_STREAM, tcp_port());
		assert_int_equal(send(fd, said, sizeof(said), MSG_NOSIGNAL), sizeof(said));
		assert_true(readable(fd, PATIENCE_MS));
		assert_int_equal(recv(fd, answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
		assert_int_equal(answer[REASON] << 8 | answer[REASON + 1], INVALID_GID);
		close(fd);
		said[i + 3] = 1;
	}
	/* Two GIDs and two addresses. */
	assert_int_equal(places, 4);
}

/* Those who came first must go, so that others get in. */
static void streams_that_say_nothing(void **state)
{
	enum { STREAMS = 300 };
	unsigned char bytes[HELLO];
	uint16_t port = tcp_port();
	int fds[STREAMS], i;

	hello(bytes);
	for (i = 0; i < STREAMS; i++) {
		fds[i] = open_socket(SOCK_STREAM, port);
		assert_int_equal(send(fds[i], bytes, sizeof(bytes), MSG_NOSIGNAL), sizeof(bytes));
	}
	assert_true(readable(fds[0], PATIENCE_MS));
	assert_int_equal(recv(fds[0], bytes, sizeof(bytes), 0), 0);
	still_serves(state);
	/* The last one has not had to go for it. */
	assert_false(readable(fds[STREAMS - 1], 0));
	for (i = 0; i < STREAMS; i++)
		close(fds[i]);
}

static int begin(void **state)
{
	struct sockaddr_in here = local(0);

	(void)state;
	events = rdma_create_event_channel();
	return !events || rdma_create_id(events, &listening, NULL, RDMA_PS_TCP) ||
	       rdma_bind_addr(listening, (struct sockaddr *)&here) || rdma_listen(listening, 0);
}

static int end(void **state)
{
	(void)state;
	if (rdma_destroy_id(listening))
		return 1;
	rdma_destroy_event_channel(events);
	return 0;
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, NULL, still_serves)
	static const struct CMUnitTest cases[] = {
		CASE(datagrams_that_are_no_questions),
		CASE(streams_of_something_else),
		CASE(frames_of_another_length),
		CASE(messages_out_of_place),
		CASE(messages_of_noise),
		CASE(streams_that_end_in_the_middle),
		CASE(requests_in_the_name_of_others),
		CASE(streams_that_say_nothing),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(cases, begin, end);
}
