/* SPDX-License-Identifier: MIT OR Apache-2.0 */

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "peer.h"

/* A peer whose case is gone, or that waits for what never comes, ends after so many seconds. */
#define PATIENCE 60

static void __attribute__((noreturn)) die(const char *what)
{
	perror(what);
	exit(1);
}

static struct addrinfo *lookup(const char *address, uint16_t port, int flags)
{
	struct addrinfo hints = { .ai_flags = flags | AI_NUMERICHOST, .ai_socktype = SOCK_STREAM };
	struct addrinfo *info;
	char service[8];
	int ret;

	snprintf(service, sizeof(service), "%u", port);
	ret = getaddrinfo(address, service, &hints, &info);
	if (ret) {
		fprintf(stderr, "%s: %s\n", address, gai_strerror(ret));
		exit(1);
	}
	return info;
}

int peer_listen(const char *address, uint16_t *port)
{
	struct addrinfo *info = lookup(address, *port, AI_PASSIVE);
	struct sockaddr_storage name;
	socklen_t size = sizeof(name);
	int yes = 1;
	int fd = socket(info->ai_family, SOCK_STREAM, 0);

	if (fd < 0)
		die("socket");
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)))
		die("setsockopt");
	if (bind(fd, info->ai_addr, info->ai_addrlen))
		die("bind");
	if (listen(fd, 8))
		die("listen");
	if (getsockname(fd, (struct sockaddr *)&name, &size))
		die("getsockname");
	/* The port has the same place for both families. */
	*port = ntohs(((struct sockaddr_in *)&name)->sin_port);
	freeaddrinfo(info);
	return fd;
}

int peer_connect(const char *address, uint16_t port)
{
	struct addrinfo *info = lookup(address, port, 0);
	int yes = 1;
	int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		die("socket");
	if (connect(fd, info->ai_addr, info->ai_addrlen)) {
		close(fd);
		fd = -1;
	} else {
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	}
	freeaddrinfo(info);
	return fd;
}

/* Orders and answers travel as they are in memory: both hosts run the same build. */
static int put(int fd, const void *bytes, size_t size)
{
	return send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size ? 0 : -1;
}

static int get(int fd, void *bytes, size_t size)
{
	return recv(fd, bytes, size, MSG_WAITALL) == (ssize_t)size ? 0 : -1;
}

int peer_order(int peer, const struct order *order)
{
	return put(peer, order, sizeof(*order));
}

int peer_answer(int peer, struct answer *answer)
{
	return get(peer, answer, sizeof(*answer));
}

/* What a peer has. */
static const char *own_address;
static struct rdma_cm_id *listener;
static struct end end;
static struct ibv_mr *offered;
static struct ibv_wc last;

static int do_listen(const struct order *order, struct answer *answer)
{
	if (end_resolve(&listener, own_address, 0, RAI_PASSIVE, order->shape.datagrams))
		return -1;
	if (rdma_listen(listener, 1))
		return -1;
	answer->port = ntohs(rdma_get_src_port(listener));
	return 0;
}

static int do_accept(const struct order *order)
{
	struct rdma_conn_param param = { .rnr_retry_count = 7, .retry_count = 7 };

	if (rdma_get_request(listener, &end.id))
		return -1;
	if (order->shape.srq && end_make_srq(&end, &order->shape))
		return -1;
	if (end_make_qp(&end, &order->shape) || end_register(&end))
		return -1;
	/* A peer's datagrams are sent to the number that the answer has; a connection takes it from the id. */
	param.qp_num = end.id->qp->qp_num;
	return rdma_accept(end.id, order->shape.datagrams ? &param : NULL);
}

static int do_echo(const struct order *order)
{
	struct ibv_wc wc;

	for (unsigned int i = 0; i < order->count; i++) {
		if (rdma_get_recv_comp(end.id, &wc) != 1 || wc.status != IBV_WC_SUCCESS)
			return -1;
		if (end_send(&end, NULL, SIMPLE, wc.wr_id, wc.byte_len, 0))
			return -1;
		if (rdma_get_send_comp(end.id, &wc) != 1 || wc.status != IBV_WC_SUCCESS)
			return -1;
	}
	return 0;
}

static int do_reply(const struct order *order)
{
	/* The receive began with the global route header of the datagram. */
	struct ibv_ah *ah = ibv_create_ah_from_wc(end.id->pd, &last, (struct ibv_grh *)end.buffer, end.id->port_num);
	struct ibv_wc wc;
	int ret;

	if (!ah)
		return -1;
	ret = rdma_post_ud_send(end.id, NULL, end.buffer + order->offset, order->length, end.mr, 0, ah, last.src_qp);
	if (ret == 0)
		ret = rdma_get_send_comp(end.id, &wc) == 1 && wc.status == IBV_WC_SUCCESS ? 0 : -1;
	ibv_destroy_ah(ah);
	return ret;
}

static int do_offer(const struct order *order, struct answer *answer)
{
	static struct ibv_mr *(*const functions[])(struct rdma_cm_id *, void *, size_t) = {
		[REG_MSGS] = rdma_reg_msgs, [REG_READ] = rdma_reg_read, [REG_WRITE] = rdma_reg_write,
	};

	offered = functions[order->rights](end.id, end.buffer, BUFFER_SIZE);
	if (!offered)
		return -1;
	answer->addr = (uintptr_t)offered->addr;
	answer->rkey = offered->rkey;
	return 0;
}

static int obey(const struct order *order, struct answer *answer)
{
	uint8_t *bytes = end.buffer + order->offset;
	void *context = (void *)(uintptr_t)order->wr_id;
	int ret;

	switch (order->request) {
	case PEER_LISTEN:
		return do_listen(order, answer);
	case PEER_ACCEPT:
		return do_accept(order);
	case PEER_FILL:
		fill(bytes, order->length, order->seed);
		return 0;
	case PEER_CHECK:
		answer->matching = matching(bytes, order->length, order->seed);
		return 0;
	case PEER_RECV:
		return end_recv(&end, context, order->nsge, order->offset, order->length);
	case PEER_SEND:
		return end_send(&end, context, order->nsge, order->offset, order->length, 0);
	case PEER_RECV_COMP:
		ret = rdma_get_recv_comp(end.id, &last);
		answer->wc = last;
		return ret;
	case PEER_SEND_COMP:
		return rdma_get_send_comp(end.id, &answer->wc);
	case PEER_ECHO:
		return do_echo(order);
	case PEER_REPLY:
		return do_reply(order);
	case PEER_OFFER:
		return do_offer(order, answer);
	case PEER_WITHDRAW:
		return rdma_dereg_mr(offered);
	case PEER_DISCONNECT:
		return rdma_disconnect(end.id);
	}
	errno = ENOSYS;
	return -1;
}

/* One peer: until the case closes the connection, or its patience is over. */
static void be_peer(int fd)
{
	struct order order;
	int yes = 1;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	for (alarm(PATIENCE); get(fd, &order, sizeof(order)) == 0; alarm(PATIENCE)) {
		struct answer answer = { 0 };

		errno = 0;
		answer.result = obey(&order, &answer);
		answer.error = errno;
		if (put(fd, &answer, sizeof(answer)))
			break;
	}
	/* The system takes back what is left. */
	_exit(0);
}

void peer_serve(int listener_fd, const char *address)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);

	/* That has loaded the drivers, once for all peers; no device is open that a peer could inherit. */
	if (devices)
		ibv_free_device_list(devices);
	own_address = address;
	/* Nobody waits for the peers. */
	signal(SIGCHLD, SIG_IGN);
	for (;;) {
		int fd = accept(listener_fd, NULL, NULL);

		if (fd < 0) {
			if (errno == EINTR || errno == ECONNABORTED)
				continue;
			die("accept");
		}
		switch (fork()) {
		case -1:
			die("fork");
		case 0:
			close(listener_fd);
			be_peer(fd);
		}
		close(fd);
	}
}
