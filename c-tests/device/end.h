/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* One end of a connection, as both the case and the peer have it. */

#ifndef END_H
#define END_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <rdma/rdma_verbs.h>

#ifndef LIBRDMA_VERBS_VERSION_NUM
#error "this is not the library's header: what would be tested are upstream's inlines"
#endif

#define BUFFER_SIZE (4u << 20)
/* The value of nsge that stands for the function that takes one buffer. */
#define SIMPLE (-1)
#define MAX_SGE 8

/* What an end is asked to have. */
struct shape {
	uint32_t send_wr, recv_wr, send_sge, recv_sge, inline_data;
	bool unsignaled;	/* requests complete only where IBV_SEND_SIGNALED says so */
	bool srq;		/* receives come through id->srq */
	bool datagrams;		/* UD */
};

struct end {
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr attr;	/* what was granted */
	uint8_t *buffer;		/* of BUFFER_SIZE */
	struct ibv_mr *mr;		/* all of the buffer, by rdma_reg_msgs */
};

/* These return 0, or -1 with errno set. */
int end_resolve(struct rdma_cm_id **id, const char *address, uint16_t port, int flags, bool datagrams);
int end_make_srq(struct end *end, const struct shape *shape);
int end_make_qp(struct end *end, const struct shape *shape);
int end_register(struct end *end);
void end_free(struct end *end);

/* [offset, offset + length) of the buffer as a list of nsge entries of different lengths. */
struct ibv_sge *end_divide(const struct end *end, struct ibv_sge *sgl, int nsge, size_t offset, size_t length);

/* rdma_post_recv for SIMPLE, else rdma_post_recvv; and so on. */
int end_recv(struct end *end, void *context, int nsge, size_t offset, size_t length);
int end_send(struct end *end, void *context, int nsge, size_t offset, size_t length, int flags);

/* Bytes that only this seed makes at this place. */
void fill(uint8_t *bytes, size_t length, unsigned int seed);
/* The number of leading bytes that are as fill() made them. */
size_t matching(const uint8_t *bytes, size_t length, unsigned int seed);

#endif
