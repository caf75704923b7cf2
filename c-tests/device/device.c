/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The library on a real RDMA device: connections between this process and a peer, here or on another host. TAP on
 * standard output; --help has the options.
 */

#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "device.h"

/* A case that has not ended after so many seconds has hung. */
#define PATIENCE 30
/* The address of the RDMA port of the peer, and the TCP port where peers are served. */
static const char *address;
static uint16_t port = 7471;

struct end end;
static struct shape shape;
static int peer_fd = -1;
static uint16_t peer_port;
static struct helper *running;
static volatile sig_atomic_t alarmed;

const struct shape usual = {
	.send_wr = 4, .recv_wr = 4, .send_sge = 4, .recv_sge = 4, .inline_data = 16,
};

void open_bare_pair(const struct shape *wanted)
{
	struct answer listening;

	shape = *wanted;
	peer_fd = peer_connect(address, port);
	assert_int_not_equal(peer_fd, -1);
	peer_begin((struct order) { .request = PEER_LISTEN });
	listening = peer_end();
	skip_unless(!shape.datagrams || listening.result >= 0 || listening.error != EOPNOTSUPP, "the device has no datagrams");
	assert_true(listening.result >= 0);
	peer_port = listening.port;
	assert_int_equal(end_resolve(&end.id, address, peer_port, 0, shape.datagrams), 0);
	if (shape.datagrams)
		skip_unless(end.id->verbs->device->transport_type == IBV_TRANSPORT_IB, "the device has no datagrams");
}

void open_pair(const struct shape *wanted)
{
	open_bare_pair(wanted);
	if (shape.srq) {
		int ret = end_make_srq(&end, &shape);

		skip_unless(ret == 0 || (errno != EOPNOTSUPP && errno != ENOSYS), "the device has no SRQ");
		assert_int_equal(ret, 0);
	}
	assert_int_equal(end_make_qp(&end, &shape), 0);
	assert_int_equal(end_register(&end), 0);
}

void connect_pair(void)
{
	/* The peer accepts while this end connects. */
	peer_begin((struct order) { .request = PEER_ACCEPT });
	assert_int_equal(rdma_connect(end.id, NULL), 0);
	assert_int_equal(peer_end().result, 0);
}

void connected_pair(const struct shape *wanted)
{
	open_pair(wanted);
	connect_pair();
}

static void be_patient(unsigned int seconds)
{
	alarmed = 0;
	alarm(seconds);
}

void close_pair(void)
{
	be_patient(PATIENCE);
	/* A case that failed may have left its helper behind. */
	if (running)
		pthread_join(running->thread, NULL);
	running = NULL;
	end_free(&end);
	if (peer_fd >= 0)
		close(peer_fd);
	peer_fd = -1;
	be_patient(PATIENCE);
}

static int close_case(void **state)
{
	(void)state;
	close_pair();
	alarm(0);
	return 0;
}

static int open_case(void **state)
{
	(void)state;
	be_patient(PATIENCE);
	return 0;
}

void skip_unless(bool possible, const char *reason)
{
	if (!possible) {
		print_message("# %s\n", reason);
		skip();
	}
}

int peer_tell(struct order order)
{
	order.shape = shape;
	return peer_order(peer_fd, &order);
}

void peer_begin(struct order order)
{
	assert_int_equal(peer_tell(order), 0);
}

struct answer peer_end(void)
{
	struct answer answer;

	assert_int_equal(peer_answer(peer_fd, &answer), 0);
	if (answer.result < 0)
		print_message("# the peer: %s\n", strerror(answer.error));
	return answer;
}

struct answer peer(struct order order)
{
	struct answer answer;

	peer_begin(order);
	answer = peer_end();
	assert_true(answer.result >= 0);
	return answer;
}

struct ibv_wc peer_completion(enum request request)
{
	struct answer answer = peer((struct order) { .request = request });

	assert_int_equal(answer.result, 1);
	return answer.wc;
}

void peer_recv(int nsge, size_t offset, size_t length)
{
	peer((struct order) {
		.request = PEER_RECV, .nsge = nsge, .wr_id = offset, .offset = offset, .length = length,
	});
}

void peer_send(int nsge, size_t offset, size_t length)
{
	peer((struct order) {
		.request = PEER_SEND, .nsge = nsge, .wr_id = offset, .offset = offset, .length = length,
	});
	assert_int_equal(peer_completion(PEER_SEND_COMP).status, IBV_WC_SUCCESS);
}

void check_peer(size_t offset, size_t length, unsigned int seed)
{
	struct order check = { .request = PEER_CHECK, .offset = offset, .length = length, .seed = seed };

	assert_int_equal(peer(check).matching, length);
}

void peer_received(size_t offset, size_t length, unsigned int seed)
{
	struct ibv_wc wc = peer_completion(PEER_RECV_COMP);

	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.byte_len, length);
	check_peer(offset, length, seed);
}

struct answer peer_offer(enum rights rights)
{
	return peer((struct order) { .request = PEER_OFFER, .rights = rights });
}

struct ibv_wc send_completion(void)
{
	struct ibv_wc wc;

	assert_returns(1, rdma_get_send_comp(end.id, &wc));
	return wc;
}

struct ibv_wc recv_completion(void)
{
	struct ibv_wc wc;

	assert_returns(1, rdma_get_recv_comp(end.id, &wc));
	return wc;
}

void sent(uint64_t wr_id)
{
	struct ibv_wc wc = send_completion();

	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.wr_id, wr_id);
}

void received(uint64_t wr_id, size_t length)
{
	struct ibv_wc wc = recv_completion();

	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.wr_id, wr_id);
	assert_int_equal(wc.byte_len, length);
}

void assert_empty(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	assert_int_equal(ibv_poll_cq(cq, 1, &wc), 0);
}

void fill_own(size_t offset, size_t length, unsigned int seed)
{
	fill(end.buffer + offset, length, seed);
}

void check_own(size_t offset, size_t length, unsigned int seed)
{
	assert_int_equal(matching(end.buffer + offset, length, seed), length);
}

void helper_start(struct helper *helper, void *(*run)(void *))
{
	sigset_t all, before;

	helper->main_thread = pthread_self();
	helper->main_tid = syscall(SYS_gettid);
	/* Signals are for the case's thread: SIGALRM has to wake it. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	assert_int_equal(pthread_create(&helper->thread, NULL, run, helper), 0);
	running = helper;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void helper_join(struct helper *helper)
{
	running = NULL;
	assert_int_equal(pthread_join(helper->thread, NULL), 0);
	assert_int_equal(helper->result, 0);
}

void until_main_sleeps(const struct helper *helper)
{
	char path[64], stat[256], state = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", helper->main_tid);
	while (state != 'S') {
		FILE *file = fopen(path, "r");

		usleep(1000);
		if (!file)
			continue;
		/* "TID (NAME) STATE ..." */
		if (fgets(stat, sizeof(stat), file) && strrchr(stat, ')'))
			state = strrchr(stat, ')')[2];
		fclose(file);
	}
}

/*
 * The first alarm interrupts the call that hangs, so that the case fails and the next one can run. The second one,
 * where that did not help, ends the program.
 */
static void on_alarm(int number)
{
	static const char hung[] = "# hung: interrupted\n";
	static const char out[] = "# hung for good: no more cases\n";

	(void)number;
	if (alarmed++ == 0) {
		if (write(STDOUT_FILENO, hung, sizeof(hung) - 1) >= 0)
			alarm(5);
	} else if (write(STDOUT_FILENO, out, sizeof(out) - 1) >= 0) {
		_exit(1);
	}
}

static int run_cases(void)
{
	static const struct CMUnitTest cases[] = {
#define CASE(function, name) { name, function, open_case, close_case, NULL },
#include "cases.h"
#undef CASE
	};
	struct sigaction action = { .sa_handler = on_alarm };

	sigaction(SIGALRM, &action, NULL);
	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests_name("device", cases, NULL, NULL) == 0 ? 0 : 1;
}

/* Serves the peers in a process of its own, which has to exist before this one opens the device. */
static pid_t serve(void)
{
	int listener;
	pid_t pid;

	port = 0;
	listener = peer_listen(address, &port);
	pid = fork();
	if (pid < 0) {
		perror("fork");
		exit(1);
	}
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		peer_serve(listener, address);
	}
	close(listener);
	return pid;
}

static const char usage[] =
	"usage: device --address ADDRESS [--only PATTERN]\n"
	"       device --server ADDRESS [--port PORT]\n"
	"       device --client ADDRESS [--port PORT] [--only PATTERN]\n"
	"  --address ADDRESS  both ends on this host, at this address of its RDMA device\n"
	"  --server ADDRESS   be the peer for another host, at this address of the RDMA device\n"
	"  --client ADDRESS   run the cases with the peer that serves at this address\n"
	"  --port PORT        the server's TCP port (7471)\n"
	"  --only PATTERN     the cases whose name matches; * and ? are wildcards\n";

static void misused(void)
{
	fputs(usage, stderr);
	exit(2);
}

static uint16_t parse_port(const char *text)
{
	char *end_of_number;
	unsigned long number = strtoul(text, &end_of_number, 10);

	if (*text == '\0' || *end_of_number != '\0' || number == 0 || number > UINT16_MAX)
		misused();
	return number;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "address", required_argument, NULL, 'a' },
		{ "server", required_argument, NULL, 's' },
		{ "client", required_argument, NULL, 'c' },
		{ "port", required_argument, NULL, 'p' },
		{ "only", required_argument, NULL, 'o' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int option, mode = 0, ret;
	pid_t server;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (option) {
		case 'a':
		case 's':
		case 'c':
			if (mode)
				misused();
			mode = option;
			address = optarg;
			break;
		case 'p':
			port = parse_port(optarg);
			break;
		case 'o':
			cmocka_set_test_filter(optarg);
			break;
		case 'h':
			fputs(usage, stdout);
			return 0;
		default:
			misused();
		}
	}
	if (optind < argc)
		misused();

	switch (mode) {
	case 's':
		peer_serve(peer_listen(address, &port), address);
	case 'c':
		return run_cases();
	case 'a':
		server = serve();
		ret = run_cases();
		kill(server, SIGKILL);
		waitpid(server, NULL, 0);
		return ret;
	default:
		misused();
	}
	return 2;
}
