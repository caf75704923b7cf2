/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Serves one connection of client.c, which says what happens in it, or of rdma_client of rdma-core. */

#include "common.h"

static bool use_srq;

static void options(int argc, char **argv)
{
	static const struct option names[] = { { "help", no_argument, NULL, 'h' }, { 0 } };
	static const char usage[] =
		"usage: server [-s ADDRESS] [-p PORT] [-q]\n"
		"  -s ADDRESS  where to listen (0.0.0.0, all addresses)\n"
		"  -p PORT     at which port (7471)\n"
		"  -q          receive through a shared receive queue\n";
	int option;

	address = "0.0.0.0";
	while ((option = getopt_long(argc, argv, "s:p:qh", names, NULL)) != -1) {
		switch (option) {
		case 's':
			address = optarg;
			break;
		case 'p':
			port = optarg;
			break;
		case 'q':
			use_srq = true;
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

/* What follows the greetings where the client has a window. Returns whether all that it sent is right. */
static bool exchange(struct rdma_cm_id *id, struct ibv_mr *messages_mr, struct ibv_mr *window_mr)
{
	uint64_t addr = be64toh(messages.theirs.addr);
	uint32_t rkey = be32toh(messages.theirs.rkey);
	struct ibv_sge out[] = {
		entry(messages.out, 3000, messages_mr),
		entry(messages.out + 3000, MESSAGE_SIZE - 3000, messages_mr),
	};
	bool good;

	/* The client writes first and sends then: once its message is here, so is what it wrote. */
	wait_recv(id, MESSAGE_SIZE);
	good = check("received a message into two buffers", messages.in, MESSAGE_SIZE, CLIENT_PATTERN);
	good &= check("the client wrote into our window", window, WINDOW_SIZE, CLIENT_PATTERN);

	memset(window, 0, WINDOW_SIZE);
	if (rdma_post_read(id, NULL, window, WINDOW_SIZE, window_mr, 0, addr, rkey))
		die("rdma_post_read");
	wait_send(id);
	good &= check("read from the client's window", window, WINDOW_SIZE, CLIENT_PATTERN);

	fill(messages.out, MESSAGE_SIZE, SERVER_PATTERN);
	if (rdma_post_sendv(id, NULL, out, 2, 0))
		die("rdma_post_sendv");
	wait_send(id);
	printf("sent a message of %d bytes from two buffers\n", MESSAGE_SIZE);
	return good;
}

int main(int argc, char **argv)
{
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 1, .max_sge = 2 } };
	struct ibv_qp_init_attr attr = queues();
	struct ibv_mr *messages_mr, *window_mr;
	struct rdma_cm_id *listener, *id;
	struct rdma_addrinfo *info;
	struct ibv_sge in[2];
	bool window_offered, good = true;

	options(argc, argv);
	setlinebuf(stdout);

	info = resolve(RAI_PASSIVE);
	if (rdma_create_ep(&listener, info, NULL, NULL))
		die("rdma_create_ep");
	rdma_freeaddrinfo(info);
	if (rdma_listen(listener, 1))
		die("rdma_listen");
	printf("listening at %s port %s\n", address, port);

	/* A client asks for a connection. Its id knows the device; the queues are ours to make. */
	if (rdma_get_request(listener, &id))
		die("rdma_get_request");
	if (use_srq && rdma_create_srq(id, NULL, &srq_attr))
		die("rdma_create_srq");
	if (rdma_create_qp(id, NULL, &attr))
		die("rdma_create_qp");

	/* The device only touches memory that was registered, and lets the peer do only what it was registered for. */
	messages_mr = rdma_reg_msgs(id, &messages, sizeof(messages));
	if (!messages_mr)
		die("rdma_reg_msgs");
	window_mr = rdma_reg_write(id, window, sizeof(window));
	if (!window_mr)
		die("rdma_reg_write");

	/* A message needs a receive that waits for it: it is posted before the peer can send. */
	if (rdma_post_recv(id, NULL, &messages.theirs, sizeof(messages.theirs), messages_mr))
		die("rdma_post_recv");
	if (rdma_accept(id, NULL))
		die("rdma_accept");
	printf("accepted a connection%s\n", use_srq ? ", with a shared receive queue" : "");

	wait_recv(id, sizeof(messages.theirs));
	window_offered = offers_window();
	if (window_offered) {
		greet(window_mr);
		in[0] = entry(messages.in, 3000, messages_mr);
		in[1] = entry(messages.in + 3000, MESSAGE_SIZE - 3000, messages_mr);
		if (rdma_post_recvv(id, NULL, in, 2))
			die("rdma_post_recvv");
	}
	if (rdma_post_send(id, NULL, &messages.ours, sizeof(messages.ours), messages_mr, inline_flag(&attr)))
		die("rdma_post_send");
	wait_send(id);
	printf("sent a greeting%s\n", inline_flag(&attr) ? " (inline)" : "");
	if (window_offered)
		good = exchange(id, messages_mr, window_mr);

	if (rdma_disconnect(id))
		die("rdma_disconnect");
	if (rdma_dereg_mr(window_mr) || rdma_dereg_mr(messages_mr))
		die("rdma_dereg_mr");
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	printf("done\n");
	return good ? 0 : 1;
}
