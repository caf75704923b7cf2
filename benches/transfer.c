/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * transfer ADDRESS [FRACTION]  times messages between two processes over the RDMA device that has the address, and over plain TCP
 * between the same two
 *
 * TCP and RDMA take turns, round by round. For each measurement a line: its name, the size of a message in bytes, and
 * for TCP and RDMA the least and the median time in nanoseconds: a round trip, or a message of a stream. With FRACTION
 * there are so many times fewer rounds.
 */

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define PORT "7474"
#define MAX_SIZE (1 << 20)
/* Messages under way in a stream. */
#define WINDOW 16
#define MAX_ROUNDS 201

enum what { TRIPS, WRITES, SENDS };

static const struct measurement {
	const char *name;
	enum what what;
	size_t size;
	/* Messages, or round trips, in a round. */
	int n;
	int rounds;
} measurements[] = {
	{ "roundtrip", TRIPS, 64, 200, 201 },
	{ "write", WRITES, 64 << 10, 512, 31 },
	{ "write", WRITES, 1 << 20, 64, 31 },
	{ "send", SENDS, 64 << 10, 512, 31 },
	{ "send", SENDS, 1 << 20, 64, 31 },
};

#define N_MEASUREMENTS (sizeof(measurements) / sizeof(measurements[0]))

/* What an end tells the other when they connect. */
struct place {
	uint64_t addr;
	uint32_t rkey;
} __attribute__((packed));

static struct rdma_cm_id *id;
static struct ibv_mr *mr;
static struct place remote;
static int tcp;
static bool client;
/* With one processor a poll that finds nothing lets the other side run. */
static bool one_processor;
/* A slot for each message of the window, out of which or into which it goes. */
static unsigned char *buffer;

static void die(const char *call)
{
	fprintf(stderr, "transfer: %s: ", client ? "client" : "server");
	perror(call);
	exit(1);
}

static unsigned char *slot(int i)
{
	return buffer + (size_t)(i % WINDOW) * MAX_SIZE;
}

static void nothing_there(void)
{
	if (one_processor)
		sched_yield();
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * UINT64_C(1000000000) + t.tv_nsec;
}

/* Connecting: the server listens for both, and says so through the pipe. */

static struct rdma_cm_id *endpoint(const char *address, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP };
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 2 * WINDOW, .max_recv_wr = 2 * WINDOW, .max_send_sge = 1, .max_recv_sge = 1,
			.max_inline_data = 64 },
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *new;
	struct rdma_addrinfo *info;

	if (rdma_getaddrinfo(address, PORT, &hints, &info))
		die("rdma_getaddrinfo");
	if (rdma_create_ep(&new, info, NULL, &attr))
		die("rdma_create_ep");
	rdma_freeaddrinfo(info);
	return new;
}

static void register_buffer(void)
{
	mr = ibv_reg_mr(id->pd, buffer, (size_t)WINDOW * MAX_SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!mr)
		die("ibv_reg_mr");
}

static void post_recv(void)
{
	static int n;
	struct ibv_sge sge = { .addr = (uintptr_t)slot(n++), .length = MAX_SIZE, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(id->qp, &wr, &bad))
		die("ibv_post_recv");
}

static void connect_rdma(struct rdma_cm_id *listener, const char *address)
{
	struct place here;
	struct rdma_conn_param param = { .private_data = &here, .private_data_len = sizeof(here), .retry_count = 7,
		.rnr_retry_count = 7, .responder_resources = 1, .initiator_depth = 1 };

	if (client)
		id = endpoint(address, 0);
	else if (rdma_get_request(listener, &id))
		die("rdma_get_request");
	register_buffer();
	here = (struct place){ .addr = (uintptr_t)buffer, .rkey = mr->rkey };
	for (int i = 0; i < 2 * WINDOW; i++)
		post_recv();
	if (!client)
		memcpy(&remote, id->event->param.conn.private_data, sizeof(remote));
	if (client ? rdma_connect(id, &param) : rdma_accept(id, &param))
		die(client ? "rdma_connect" : "rdma_accept");
	if (client)
		memcpy(&remote, id->event->param.conn.private_data, sizeof(remote));
}

static int tcp_socket(const char *address, bool listening)
{
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_port = htons(atoi(PORT)) };
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || inet_pton(AF_INET, address, &sin.sin_addr) != 1)
		die("socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (listening ? bind(fd, (void *)&sin, sizeof(sin)) || listen(fd, 1) : connect(fd, (void *)&sin, sizeof(sin)))
		die(listening ? "bind" : "connect");
	return fd;
}

static void set_nodelay(void)
{
	int one = 1;

	if (setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
		die("TCP_NODELAY");
}

/* TCP. */

static void tcp_send(const unsigned char *buf, size_t size)
{
	for (size_t done = 0; done < size;) {
		ssize_t n = send(tcp, buf + done, size - done, MSG_NOSIGNAL);

		if (n < 0)
			die("send");
		done += n;
	}
}

static void tcp_recv(unsigned char *buf, size_t size, int flags)
{
	for (size_t done = 0; done < size;) {
		ssize_t n = recv(tcp, buf + done, size - done, flags);

		if (n > 0)
			done += n;
		else if (n == 0 || !(flags & MSG_DONTWAIT))
			die("recv");
		else
			nothing_there();
	}
}

static void tcp_round(const struct measurement *m)
{
	for (int i = 0; i < m->n; i++) {
		if (client)
			tcp_send(slot(i), m->size);
		else
			tcp_recv(slot(i), m->size, m->what == TRIPS ? MSG_DONTWAIT : 0);
		if (m->what != TRIPS)
			continue;
		if (client)
			tcp_recv(slot(i), m->size, MSG_DONTWAIT);
		else
			tcp_send(slot(i), m->size);
	}
	/* The stream has arrived. */
	if (m->what != TRIPS) {
		if (client)
			tcp_recv(buffer, 1, 0);
		else
			tcp_send(buffer, 1);
	}
}

/* RDMA. */

static void post(enum ibv_wr_opcode opcode, int i, size_t size)
{
	struct ibv_sge sge = { .addr = (uintptr_t)slot(i), .length = size, .lkey = mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = opcode,
		.send_flags = size <= 64 ? IBV_SEND_INLINE : 0,
		.wr.rdma = { .remote_addr = remote.addr + (slot(i) - buffer), .rkey = remote.rkey },
	}, *bad;

	if (ibv_post_send(id->qp, &wr, &bad))
		die("ibv_post_send");
}

/* Waits, without sleeping, for a number of completions; receives are posted again. */
static void complete(struct ibv_cq *cq, int n, bool post_again)
{
	struct ibv_wc wc[WINDOW];

	while (n > 0) {
		int got = ibv_poll_cq(cq, n < WINDOW ? n : WINDOW, wc);

		if (got < 0)
			die("ibv_poll_cq");
		if (!got)
			nothing_there();
		for (int i = 0; i < got; i++) {
			if (wc[i].status) {
				fprintf(stderr, "transfer: %s\n", ibv_wc_status_str(wc[i].status));
				exit(1);
			}
			if (post_again)
				post_recv();
		}
		n -= got;
	}
}

/* A message there is nothing in but that it comes; the sender's completion is taken. */
static void tell(void)
{
	post(IBV_WR_SEND, 0, 1);
	complete(id->send_cq, 1, false);
}

static void rdma_round(const struct measurement *m)
{
	enum ibv_wr_opcode opcode = m->what == WRITES ? IBV_WR_RDMA_WRITE : IBV_WR_SEND;

	if (m->what == TRIPS) {
		/* As a program does that answers first: completions of sends are taken when there is nothing else to do. */
		for (int i = 0; i < m->n; i++) {
			if (client)
				post(opcode, 0, m->size);
			complete(id->recv_cq, 1, true);
			if (!client)
				post(opcode, 0, m->size);
			if (i >= WINDOW)
				complete(id->send_cq, 1, false);
		}
		complete(id->send_cq, m->n < WINDOW ? m->n : WINDOW, false);
		return;
	}
	if (client) {
		for (int i = 0; i < m->n; i++) {
			if (i >= WINDOW)
				complete(id->send_cq, 1, false);
			post(opcode, i, m->size);
		}
		complete(id->send_cq, m->n < WINDOW ? m->n : WINDOW, false);
		tell();
		complete(id->recv_cq, 1, true);
	} else {
		/* Writes go on without us: what comes is word of their end. */
		complete(id->recv_cq, m->what == SENDS ? m->n + 1 : 1, true);
		tell();
	}
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void measure(const struct measurement *m, int n_rounds)
{
	static double times[2][MAX_ROUNDS];
	void (*const rounds[2])(const struct measurement *) = { tcp_round, rdma_round };

	/* The first is not counted. */
	for (int round = -1; round < n_rounds; round++) {
		for (int i = 0; i < 2; i++) {
			uint64_t start = now();

			rounds[i](m);
			if (round >= 0)
				times[i][round] = (double)(now() - start) / m->n;
		}
	}
	if (!client)
		return;
	printf("%s %zu", m->name, m->size);
	for (int i = 0; i < 2; i++) {
		qsort(times[i], n_rounds, sizeof(double), by_size);
		printf(" %.0f %.0f", times[i][0], times[i][n_rounds / 2]);
	}
	puts("");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct rdma_cm_id *listener = NULL;
	int ready[2], fd = -1, status = 0, fraction = argc > 2 ? atoi(argv[2]) : 1;
	pid_t server;
	char c = 0;

	if (argc < 2 || argc > 3 || fraction < 1) {
		fputs("usage: transfer ADDRESS [FRACTION]\n", stderr);
		return 2;
	}
	one_processor = sysconf(_SC_NPROCESSORS_ONLN) == 1;
	if (pipe(ready))
		die("pipe");
	/* Before any device is opened: a device does not survive in a child. */
	server = fork();
	if (server < 0)
		die("fork");
	client = server;
	buffer = aligned_alloc(4096, (size_t)WINDOW * MAX_SIZE);
	if (!buffer)
		die("aligned_alloc");
	memset(buffer, client, (size_t)WINDOW * MAX_SIZE);
	if (client) {
		close(ready[1]);
		if (read(ready[0], &c, 1) != 1)
			return 1;
		tcp = tcp_socket(argv[1], false);
	} else {
		fd = tcp_socket(argv[1], true);
		listener = endpoint(argv[1], RAI_PASSIVE);
		if (rdma_listen(listener, 1))
			die("rdma_listen");
		if (write(ready[1], &c, 1) != 1)
			die("write");
		tcp = accept(fd, NULL, NULL);
		if (tcp < 0)
			die("accept");
	}
	set_nodelay();
	connect_rdma(listener, argv[1]);
	for (size_t i = 0; i < N_MEASUREMENTS; i++)
		measure(&measurements[i], (measurements[i].rounds + fraction - 1) / fraction);
	if (client && (waitpid(server, &status, 0) != server || status)) {
		fputs("transfer: the server failed\n", stderr);
		return 1;
	}
	return 0;
}
