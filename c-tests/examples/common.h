/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* What client.c and server.c share. */

#include <endian.h>
#include <getopt.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/rdma_verbs.h>

#define MESSAGE_SIZE 4096	/* bytes of a message; it is sent from two buffers and received into two */
#define WINDOW_SIZE 65536	/* bytes of the memory that the peer may access by RDMA */

/*
 * The first message of either side: where its window is, in network byte order. rdma_client and rdma_server of
 * rdma-core exchange 16 bytes of 0 and nothing else; here that says "no window", and the exchange ends there, too.
 */
struct greeting {
	uint64_t addr;
	uint32_t rkey;
	uint32_t length;
};

/* What the two sides send and receive: one memory region for all of it. */
static struct {
	struct greeting ours, theirs;
	uint8_t out[MESSAGE_SIZE], in[MESSAGE_SIZE];
} messages;

/* What the peer accesses by RDMA. */
static uint8_t window[WINDOW_SIZE];

/* Each side fills its bytes with a pattern of its own. */
enum pattern { CLIENT_PATTERN = 1, SERVER_PATTERN = 101 };

/* The options -s and -p. */
static const char *address, *port = "7471";

/* Where a call fails, the program ends: the system takes back all that it had. */
static void die(const char *call)
{
	perror(call);
	exit(1);
}

/* The address to listen at, or to connect to. */
static struct rdma_addrinfo *resolve(int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo *info;
	int ret = rdma_getaddrinfo(address, port, &hints, &info);

	if (ret) {
		/* A code of getaddrinfo(3), but for -1, with which librdmacm points to errno. */
		fprintf(stderr, "rdma_getaddrinfo: %s port %s: %s\n", address, port,
			ret == -1 ? strerror(errno) : gai_strerror(ret));
		exit(1);
	}
	return info;
}

/* The queues: one request at a time in each, of up to two buffers; greetings travel inside the request itself. */
static struct ibv_qp_init_attr queues(void)
{
	return (struct ibv_qp_init_attr) {
		.cap = {
			.max_send_wr = 1, .max_recv_wr = 1,
			.max_send_sge = 2, .max_recv_sge = 2,
			.max_inline_data = sizeof(struct greeting),
		},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,	/* every request reports its completion */
	};
}

/* IBV_SEND_INLINE where the device can take a greeting so. */
static int inline_flag(const struct ibv_qp_init_attr *attr)
{
	return attr->cap.max_inline_data >= sizeof(struct greeting) ? IBV_SEND_INLINE : 0;
}

static void expect_success(const char *call, const struct ibv_wc *wc)
{
	if (wc->status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s: the request failed: %s\n", call, ibv_wc_status_str(wc->status));
		exit(1);
	}
}

/* Waits until the send, write or read that was posted is done. */
static void wait_send(struct rdma_cm_id *id)
{
	struct ibv_wc wc;

	if (rdma_get_send_comp(id, &wc) < 0)
		die("rdma_get_send_comp");
	expect_success("rdma_get_send_comp", &wc);
}

/* Waits until the receive that was posted holds a message, which must have this many bytes. */
static void wait_recv(struct rdma_cm_id *id, uint32_t size)
{
	struct ibv_wc wc;

	if (rdma_get_recv_comp(id, &wc) < 0)
		die("rdma_get_recv_comp");
	expect_success("rdma_get_recv_comp", &wc);
	if (wc.byte_len != size) {
		fprintf(stderr, "received %u bytes instead of %u\n", wc.byte_len, size);
		exit(1);
	}
}

/* An entry of a scatter/gather list. */
static struct ibv_sge entry(void *addr, uint32_t length, struct ibv_mr *mr)
{
	return (struct ibv_sge) { .addr = (uintptr_t)addr, .length = length, .lkey = mr->lkey };
}

static void greet(struct ibv_mr *mr)
{
	messages.ours.addr = htobe64((uintptr_t)mr->addr);
	messages.ours.rkey = htobe32(mr->rkey);
	messages.ours.length = htobe32(mr->length);
}

/* Whether the peer's greeting offers a window; it is the whole window or, in all its bytes, none. */
static bool offers_window(void)
{
	static const struct greeting none;

	if (messages.theirs.length == htobe32(WINDOW_SIZE)) {
		printf("received a greeting: the peer offers a window of %d bytes\n", WINDOW_SIZE);
		return true;
	}
	if (memcmp(&messages.theirs, &none, sizeof(none)) != 0) {
		fprintf(stderr, "received %zu bytes that are not a greeting\n", sizeof(none));
		exit(1);
	}
	printf("received a greeting without a window: %zu bytes of 0, content checked\n", sizeof(none));
	return false;
}

static uint8_t pattern_byte(enum pattern pattern, size_t i)
{
	return (pattern + i) % 251;	/* a prime, so that bytes that end up a page away do not match */
}

static void fill(uint8_t *bytes, size_t size, enum pattern pattern)
{
	for (size_t i = 0; i < size; i++)
		bytes[i] = pattern_byte(pattern, i);
}

/* Says what was received and whether it is what the peer has sent. */
static bool check(const char *what, const uint8_t *bytes, size_t size, enum pattern pattern)
{
	for (size_t i = 0; i < size; i++) {
		if (bytes[i] != pattern_byte(pattern, i)) {
			printf("%s: %zu bytes, BYTE %zu IS WRONG\n", what, size, i);
			return false;
		}
	}
	printf("%s: %zu bytes, content checked\n", what, size);
	return true;
}
