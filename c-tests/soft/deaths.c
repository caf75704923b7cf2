/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * deaths [N]  kills peers, N times in each way; TAP on standard output
 *
 * A server stays, and clients, each a process of its own, are killed in the middle of a write, of a read, of writes and
 * reads that the server makes to them, and of connecting. Each time the server must hear of the end, its requests must
 * complete with an error, and nothing may be left: no descriptor, no memory.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <dirent.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define SIZE (8 << 20)
/* Milliseconds, for what has to happen; far more than it takes. */
#define PATIENCE 60000

#define die(...) do { fprintf(stderr, "deaths: " __VA_ARGS__); fputs("\n", stderr); exit(1); } while (0)
#define need(truth) do { if (!(truth)) die("%s:%d: not so: %s: %m", __FILE__, __LINE__, #truth); } while (0)

enum way { CLIENT_WRITES, CLIENT_READS, SERVER_WRITES, SERVER_READS, CONNECTING, WAYS };

static const char *const names[] = {
	"in the middle of its writes", "in the middle of its reads", "in the middle of writes to it",
	"in the middle of reads from it", "while it connects",
};

struct place {
	uint64_t addr;
	uint32_t rkey;
} __attribute__((packed));

static unsigned char *buffer;
static struct rdma_event_channel *channel;
static long longest;
static unsigned int seed = 1;

static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void pause_us(unsigned int us)
{
	struct timespec t = { .tv_nsec = us * 1000 };

	nanosleep(&t, NULL);
}

static struct ibv_mr *set_up(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
	};
	struct ibv_mr *mr;

	if (rdma_create_qp(id, NULL, &init))
		return NULL;
	mr = ibv_reg_mr(id->pd, buffer, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	need(mr);
	return mr;
}

static void post(struct rdma_cm_id *id, struct ibv_mr *mr, const struct place *to, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = SIZE, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode,
		.wr.rdma = { .remote_addr = to->addr, .rkey = to->rkey } }, *bad;

	need(!ibv_post_send(id->qp, &wr, &bad));
}

static void post_recv(struct rdma_cm_id *id, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 16, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 99, .sg_list = &sge, .num_sge = 1 }, *bad;

	need(!ibv_post_recv(id->qp, &wr, &bad));
}

static enum ibv_wc_status completion(struct ibv_cq *cq)
{
	long until = now() + PATIENCE;
	struct ibv_wc wc;
	int got;

	while (!(got = ibv_poll_cq(cq, 1, &wc)))
		if (now() > until)
			die("no completion");
	need(got == 1);
	return wc.status;
}

/* The client, which does not live long. It says on standard output when it is connected. */
static int victim(enum way way, const char *port)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *info;
	struct place here, server;
	struct rdma_conn_param param = { .private_data = &here, .private_data_len = sizeof(here), .retry_count = 7,
		.rnr_retry_count = 7, .responder_resources = 4, .initiator_depth = 4 };
	struct rdma_cm_id *id;
	struct ibv_mr *mr;

	need(!rdma_getaddrinfo("127.0.0.1", port, &hints, &info));
	need(!rdma_create_ep(&id, info, NULL, NULL));
	need(mr = set_up(id));
	post_recv(id, mr);
	here = (struct place){ .addr = (uintptr_t)buffer, .rkey = mr->rkey };
	if (way == CONNECTING)
		need(write(STDOUT_FILENO, ".", 1) == 1);
	need(!rdma_connect(id, &param));
	memcpy(&server, id->event->param.conn.private_data, sizeof(server));
	if (way != CONNECTING)
		need(write(STDOUT_FILENO, ".", 1) == 1);
	while (way == CLIENT_WRITES || way == CLIENT_READS) {
		post(id, mr, &server, way == CLIENT_WRITES ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ);
		post(id, mr, &server, way == CLIENT_WRITES ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ);
		need(completion(id->send_cq) == IBV_WC_SUCCESS);
		need(completion(id->send_cq) == IBV_WC_SUCCESS);
	}
	for (;;)
		pause();
}

/* The next event of the server; NULL where none comes in time. */
static struct rdma_cm_event *next_event(int patience)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	if (poll(&fd, 1, patience) != 1)
		return NULL;
	need(!rdma_get_cm_event(channel, &event));
	return event;
}

static enum rdma_cm_event_type take_event(int patience, struct rdma_cm_id **id)
{
	struct rdma_cm_event *event = next_event(patience);
	enum rdma_cm_event_type type;

	if (!event)
		return (enum rdma_cm_event_type)-1;
	type = event->event;
	if (id)
		*id = event->id;
	need(!rdma_ack_cm_event(event));
	return type;
}

static bool is_end(enum rdma_cm_event_type type)
{
	return type == RDMA_CM_EVENT_DISCONNECTED || type == RDMA_CM_EVENT_UNREACHABLE || type == RDMA_CM_EVENT_REJECTED ||
		type == RDMA_CM_EVENT_CONNECT_ERROR;
}

static void one_death(enum way way, const char *self, const char *port)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id = NULL;
	struct place here, client = { 0 };
	struct rdma_conn_param param = { .private_data = &here, .private_data_len = sizeof(here), .rnr_retry_count = 7,
		.responder_resources = 4, .initiator_depth = 4 };
	struct ibv_mr *mr = NULL;
	int connected[2], outstanding = 0;
	bool ended = false;
	long killed;
	pid_t pid;
	char c;

	need(!pipe2(connected, O_CLOEXEC));
	pid = fork();
	need(pid >= 0);
	if (!pid) {
		char number[2] = { '0' + way };

		dup2(connected[1], STDOUT_FILENO);
		execl(self, self, "victim", number, port, NULL);
		_exit(127);
	}
	close(connected[1]);
	if (way != CONNECTING) {
		need(event = next_event(PATIENCE));
		need(event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
		id = event->id;
		memcpy(&client, event->param.conn.private_data, sizeof(client));
		need(!rdma_ack_cm_event(event));
		need(mr = set_up(id));
		post_recv(id, mr);
		here = (struct place){ .addr = (uintptr_t)buffer, .rkey = mr->rkey };
		need(!rdma_accept(id, &param));
		need(take_event(PATIENCE, NULL) == RDMA_CM_EVENT_ESTABLISHED);
		need(read(connected[0], &c, 1) == 1);
		for (; way == SERVER_WRITES || way == SERVER_READS; outstanding++) {
			if (outstanding == 4)
				break;
			post(id, mr, &client, way == SERVER_WRITES ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ);
		}
	} else {
		need(read(connected[0], &c, 1) == 1);
	}
	pause_us(rand_r(&seed) % (way == CONNECTING ? 1500 : 4000));
	killed = now();
	need(!kill(pid, SIGKILL));
	need(waitpid(pid, NULL, 0) == pid);
	close(connected[0]);

	while (!ended) {
		/* One that was killed early has not been heard of at all. */
		event = next_event(way == CONNECTING && !id ? 50 : PATIENCE);
		if (!event) {
			if (id)
				die("%s: no event of the end", names[way]);
			return;
		}
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			id = event->id;
			need(!rdma_ack_cm_event(event));
			/* It may be known by now that there is nobody. */
			mr = set_up(id);
			if (!mr)
				break;
			post_recv(id, mr);
			here = (struct place){ .addr = (uintptr_t)buffer, .rkey = mr->rkey };
			if (rdma_accept(id, &param))
				break;
			continue;
		}
		ended = is_end(event->event);
		need(event->id == id);
		need(!rdma_ack_cm_event(event));
	}
	if (now() - killed > longest)
		longest = now() - killed;

	/* Those that were done before the end are good; of the others the first says why. */
	for (; outstanding; outstanding--)
		completion(id->send_cq);
	if (ended) {
		enum ibv_wc_status status;

		post(id, mr, &client, IBV_WR_RDMA_WRITE);
		status = completion(id->send_cq);
		if (status != IBV_WC_RETRY_EXC_ERR && status != IBV_WC_WR_FLUSH_ERR)
			die("%s: a write to the dead: status %d", names[way], status);
		need(completion(id->recv_cq) == IBV_WC_WR_FLUSH_ERR);
		rdma_disconnect(id);
	}
	if (id->qp)
		rdma_destroy_qp(id);
	if (mr)
		need(!ibv_dereg_mr(mr));
	/* Events that still come, as TIMEWAIT_EXIT, go with it. */
	need(!rdma_destroy_id(id));
}

static int descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int n = 0;

	need(directory);
	while (readdir(directory))
		n++;
	closedir(directory);
	return n;
}

/* Connections of the dead are closed when the device comes to it. */
static int descriptors_in_the_end(int expected)
{
	long until = now() + PATIENCE;
	int n;

	while ((n = descriptors()) != expected && now() < until)
		pause_us(1000);
	return n;
}

static long pages(void)
{
	long size = 0, resident = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	need(file && fscanf(file, "%ld %ld", &size, &resident) == 2);
	fclose(file);
	return resident;
}

int main(int argc, char **argv)
{
	struct rdma_cm_id *listener;
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int n = argc > 1 ? atoi(argv[1]) : 10;
	char port[8];

	need(buffer = aligned_alloc(4096, SIZE));
	memset(buffer, 1, SIZE);
	if (argc == 4 && !strcmp(argv[1], "victim"))
		return victim(argv[2][0] - '0', argv[3]);

	need(channel = rdma_create_event_channel());
	need(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	need(!rdma_bind_addr(listener, (struct sockaddr *)&any));
	need(!rdma_listen(listener, 8));
	snprintf(port, sizeof(port), "%u", ntohs(rdma_get_src_port(listener)));

	printf("1..%d\n", WAYS + 1);
	/* What is made once is there before anything is counted. */
	for (int way = 0; way < WAYS; way++)
		one_death(way, argv[0], port);
	int fds = descriptors();
	long before = pages();

	for (int way = 0; way < WAYS; way++) {
		int left;

		for (int i = 0; i < n; i++)
			one_death(way, argv[0], port);
		left = descriptors_in_the_end(fds);
		printf("%sok %d - a peer is killed %s, %d times: %d descriptors, %d before\n", left == fds ? "" : "not ", way + 1,
			names[way], n, left, fds);
		fflush(stdout);
	}
	/* Less than a page a death. */
	printf("%sok %d - no memory is lost\n", pages() - before < WAYS * n ? "" : "not ", WAYS + 1);
	printf("# resident pages: %ld, before %ld; longest time from a death to its event: %ld ms\n", pages(), before, longest);
	need(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
	return 0;
}
