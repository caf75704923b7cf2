/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Two providers for the operations table of a device context, and the objects that they work on. */

#ifndef PROVIDER_H
#define PROVIDER_H

#include <infiniband/verbs.h>
#include <pthread.h>

#define QUEUE_DEPTH 128
#define MAX_SGE 2

/* A queue entry as devices have them: 64 bytes, big endian. */
struct entry {
	__be32 opcode_index;
	__be32 qpn;
	__be32 flags;
	__be32 imm;
	union {
		struct {
			__be64 addr;
			__be32 rkey;
			__be32 reserved;
		} remote;
		struct {
			uint64_t ah;
			__be32 qpn;
			__be32 qkey;
		} datagram;
	};
	struct {
		__be32 length;
		__be32 lkey;
		__be64 addr;
	} sge[MAX_SGE];
};

struct queue {
	pthread_spinlock_t lock;
	uint32_t head;
	uint32_t tail;
	__be32 doorbell;
	uint64_t wr_id[QUEUE_DEPTH];
	struct entry entries[QUEUE_DEPTH] __attribute__((aligned(64)));
};

struct provider_qp {
	struct ibv_qp qp;
	struct queue send;
	struct queue recv;
};

struct provider_srq {
	struct ibv_srq srq;
	struct queue recv;
};

struct provider_cq {
	struct ibv_cq cq;
	struct queue completions;
};

/* Does nothing and succeeds; a poll finds one. */
extern const struct ibv_context_ops null_ops;

/* Does what a driver does between its entry and the device's doorbell; a poll finds one. */
extern const struct ibv_context_ops wqe_ops;

#endif
