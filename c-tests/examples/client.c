/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Connects to server.c, or to rdma_server of rdma-core.
 *
 *   client                          server
 *   greeting            -- send -->
 *                       <-- send -- greeting (rdma_server: without a window, then both disconnect)
 *   bytes               -- write -> window
 *   message             -- send -->
 *   window              <-- read -- bytes
 *                       <-- send -- message
 */

#include "common.h"

static void options(int argc, char **argv)
{
	static const struct option names[] = { { "help", no_argument, NULL, 'h' }, { 0 } };
	static const char usage[] =
		"usage: client [-s ADDRESS] [-p PORT]\n"
		"  -s ADDRESS  the server (127.0.0.1)\n"
		"  -p PORT     its port (7471)\n";
	int option;

	address = "127.0.0.1";
	while ((option = getopt_long(argc, argv, "s:p:h", names, NULL)) != -1) {
		switch (option) {
		case 's':
			address = optarg;
			break;
		case 'p':
			port = optarg;
			break;
		case 'h':
			fputs(usage, stdout);
			exit(0);
		default:
			fputs(usage, stderr);
			exit(2);
		}
	}
	if (optind < argc) {
		fputs(usage, stderr);
		exit(2);
	}
}

/* What follows the greetings where the server has a window. Returns whether all that it sent is right. */
static bool exchange(struct rdma_cm_id *id, struct ibv_mr *messages_mr, struct ibv_mr *outgoing_mr, uint8_t *outgoing)
{
	uint64_t addr = be64toh(messages.theirs.addr);
	uint32_t rkey = be32toh(messages.theirs.rkey);
	/* Lists of two buffers; where they are divided differs from what server.c does. */
	struct ibv_sge in[] = {
		entry(messages.in, 1000, messages_mr),
		entry(messages.in + 1000, MESSAGE_SIZE - 1000, messages_mr),
	};
	struct ibv_sge out[] = {
		entry(messages.out, 2000, messages_mr),
		entry(messages.out + 2000, MESSAGE_SIZE - 2000, messages_mr),
	};
	struct ibv_sge bytes[] = {
		entry(outgoing, 30000, outgoing_mr),
		entry(outgoing + 30000, WINDOW_SIZE - 30000, outgoing_mr),
	};

	/* For the server's message, which is its answer to ours. */
	if (rdma_post_recvv(id, NULL, in, 2))
		die("rdma_post_recvv");

	/* The server does not notice a write; the message that follows tells it. */
	fill(outgoing, WINDOW_SIZE, CLIENT_PATTERN);
	if (rdma_post_writev(id, NULL, bytes, 2, 0, addr, rkey))
		die("rdma_post_writev");
	wait_send(id);
	printf("wrote %d bytes from two buffers into the server's window\n", WINDOW_SIZE);

	fill(messages.out, MESSAGE_SIZE, CLIENT_PATTERN);
	if (rdma_post_sendv(id, NULL, out, 2, 0))
		die("rdma_post_sendv");
	wait_send(id);
	printf("sent a message of %d bytes from two buffers\n", MESSAGE_SIZE);

	/* The server reads our window before it answers; there is nothing to do for that. */
	wait_recv(id, MESSAGE_SIZE);
	return check("received a message into two buffers", messages.in, MESSAGE_SIZE, SERVER_PATTERN);
}

int main(int argc, char **argv)
{
	static uint8_t outgoing[WINDOW_SIZE];
	struct ibv_qp_init_attr attr = queues();
	struct ibv_mr *messages_mr, *window_mr, *outgoing_mr;
	struct rdma_addrinfo *info;
	struct rdma_cm_id *id;
	bool good = true;

	options(argc, argv);
	setlinebuf(stdout);

	/* The endpoint: finds the device and the route, and makes the queues. */
	info = resolve(0);
	if (rdma_create_ep(&id, info, NULL, &attr))
		die("rdma_create_ep");
	rdma_freeaddrinfo(info);

	/* The device only touches memory that was registered, and lets the peer do only what it was registered for. */
	messages_mr = rdma_reg_msgs(id, &messages, sizeof(messages));
	if (!messages_mr)
		die("rdma_reg_msgs");
	outgoing_mr = rdma_reg_msgs(id, outgoing, sizeof(outgoing));
	if (!outgoing_mr)
		die("rdma_reg_msgs");
	fill(window, WINDOW_SIZE, CLIENT_PATTERN);
	window_mr = rdma_reg_read(id, window, sizeof(window));
	if (!window_mr)
		die("rdma_reg_read");

	/* A message needs a receive that waits for it: it is posted before the peer can send. */
	if (rdma_post_recv(id, NULL, &messages.theirs, sizeof(messages.theirs), messages_mr))
		die("rdma_post_recv");
	if (rdma_connect(id, NULL))
		die("rdma_connect");
	printf("connected to %s port %s\n", address, port);

	greet(window_mr);
	if (rdma_post_send(id, NULL, &messages.ours, sizeof(messages.ours), messages_mr, inline_flag(&attr)))
		die("rdma_post_send");
	wait_send(id);
	printf("sent a greeting%s\n", inline_flag(&attr) ? " (inline)" : "");
	wait_recv(id, sizeof(messages.theirs));
	if (offers_window())
		good = exchange(id, messages_mr, outgoing_mr, outgoing);

	if (rdma_disconnect(id))
		die("rdma_disconnect");
	if (rdma_dereg_mr(window_mr) || rdma_dereg_mr(outgoing_mr) || rdma_dereg_mr(messages_mr))
		die("rdma_dereg_mr");
	rdma_destroy_ep(id);
	printf("done\n");
	return good ? 0 : 1;
}
