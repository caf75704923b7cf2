/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The other end of a connection: a process, here or on another host, that does what a case tells it over TCP.
 * Each TCP connection gets a process of its own, so that no case meets what another one has left.
 */

#ifndef PEER_H
#define PEER_H

#include "end.h"

enum request {
	PEER_LISTEN,	/* answers the port */
	PEER_ACCEPT,	/* takes one request for a connection */
	PEER_FILL,	/* fills a part of its buffer from the seed */
	PEER_CHECK,	/* answers how many bytes are as PEER_FILL makes them */
	PEER_RECV,	/* posts a receive */
	PEER_SEND,	/* posts a send */
	PEER_RECV_COMP,	/* waits for a completion */
	PEER_SEND_COMP,
	PEER_ECHO,	/* takes messages and sends each back, count times */
	PEER_REPLY,	/* sends the datagram of the last completion back, by rdma_post_ud_send */
	PEER_OFFER,	/* registers its buffer for the peer; answers its address and rkey */
	PEER_WITHDRAW,	/* deregisters it */
	PEER_DISCONNECT,
};

/* Which function registers what is offered. */
enum rights { REG_MSGS, REG_READ, REG_WRITE };

struct order {
	enum request request;
	struct shape shape;
	int nsge;
	uint64_t wr_id, offset, length;
	unsigned int seed, count;
	enum rights rights;
};

struct answer {
	int result, error;	/* as the call returned it, and errno */
	uint16_t port;
	uint64_t matching;
	uint64_t addr;
	uint32_t rkey;
	struct ibv_wc wc;
};

/* The TCP socket at which peers are served; *port 0 is any, and becomes the one taken. Ends the program on errors. */
int peer_listen(const char *address, uint16_t *port);
/* Serves until it is killed. */
void peer_serve(int listener, const char *address) __attribute__((noreturn));

/* A connection to a new peer, or -1 with errno set. */
int peer_connect(const char *address, uint16_t port);
/* These return 0, or -1 where the peer is gone. */
int peer_order(int peer, const struct order *order);
int peer_answer(int peer, struct answer *answer);

#endif
