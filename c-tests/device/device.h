/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* What the cases share. A case opens a pair of ends: this one, and the peer, which does as it is told. */

#ifndef DEVICE_H
#define DEVICE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <cmocka.h>
#include "peer.h"

#define CASE(function, name) void function(void **state);
#include "cases.h"
#undef CASE

extern struct end end;
extern const struct shape usual;

/* Both ends, not yet connected: this one has its queues and its buffer, the peer listens. */
void open_pair(const struct shape *shape);
/* The same without queues at this end, to be made by the case. */
void open_bare_pair(const struct shape *shape);
/* Connects the two. */
void connect_pair(void);
/* Both in one. */
void connected_pair(const struct shape *shape);
/* Ends what was opened. Every case ends so; one that opens a second pair calls it in between. */
void close_pair(void);
/* Ends the case where the device cannot do it. */
void skip_unless(bool possible, const char *reason);

/* The peer does as told, and its call must succeed. */
struct answer peer(struct order order);
/* The same in two steps, for what only ends after something happens here; the result may be anything. */
void peer_begin(struct order order);
struct answer peer_end(void);
/* The first step for helpers: 0, or -1 where the peer is gone. */
int peer_tell(struct order order);
/* The completion that the peer gets, whatever its status. */
struct ibv_wc peer_completion(enum request request);
void peer_recv(int nsge, size_t offset, size_t length);
void peer_send(int nsge, size_t offset, size_t length);
/* The peer's buffer has these bytes there. */
void check_peer(size_t offset, size_t length, unsigned int seed);
/* The peer takes the completion of a receive, with these bytes. */
void peer_received(size_t offset, size_t length, unsigned int seed);
/* The peer's buffer as it offers it. */
struct answer peer_offer(enum rights rights);

/* Any value that no call sets errno to. */
#define UNTOUCHED 4711

/* The call returns this and leaves errno alone. */
#define assert_returns(value, call)			\
	do {						\
		errno = UNTOUCHED;			\
		assert_int_equal(call, value);		\
		assert_int_equal(errno, UNTOUCHED);	\
	} while (0)

#define assert_posted(call) assert_returns(0, call)

/* The call returns -1 with this errno. */
#define assert_refused(code, call)			\
	do {						\
		errno = 0;				\
		assert_int_equal(call, -1);		\
		assert_int_equal(errno, code);		\
	} while (0)

/* The next completion of this end, whatever its status. */
struct ibv_wc send_completion(void);
struct ibv_wc recv_completion(void);
/* The next completion of this end, which must be a success and have this wr_id. */
void sent(uint64_t wr_id);
void received(uint64_t wr_id, size_t length);
/* There is no completion. */
void assert_empty(struct ibv_cq *cq);

/* The buffer of this end. */
void fill_own(size_t offset, size_t length, unsigned int seed);
void check_own(size_t offset, size_t length, unsigned int seed);

/* A thread beside the case's own one. It gets its struct helper, which is static; it must not use asserts. */
struct helper {
	pthread_t thread;
	pthread_t main_thread;
	int main_tid;
	int result;	/* set by the thread: 0 if all went well */
};
void helper_start(struct helper *helper, void *(*run)(void *));
/* Waits for its end, which must be a good one. */
void helper_join(struct helper *helper);
/* Returns when the case's thread sleeps: in the helper, before that which wakes it. */
void until_main_sleeps(const struct helper *helper);

#endif
