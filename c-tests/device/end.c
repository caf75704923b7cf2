/* SPDX-License-Identifier: MIT OR Apache-2.0 */

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include "end.h"

int end_resolve(struct rdma_cm_id **id, const char *address, uint16_t port, int flags, bool datagrams)
{
	struct rdma_addrinfo hints = {
		.ai_flags = flags | RAI_NUMERICHOST,
		.ai_port_space = datagrams ? RDMA_PS_UDP : RDMA_PS_TCP,
	};
	struct rdma_addrinfo *info;
	char service[8];
	int ret;

	snprintf(service, sizeof(service), "%u", port);
	ret = rdma_getaddrinfo(address, service, &hints, &info);
	if (ret) {
		/* -1 says that errno is set; the others are codes of getaddrinfo(3). */
		if (ret != -1)
			errno = EADDRNOTAVAIL;
		return -1;
	}
	ret = rdma_create_ep(id, info, NULL, NULL);
	rdma_freeaddrinfo(info);
	return ret;
}

int end_make_srq(struct end *end, const struct shape *shape)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = shape->recv_wr, .max_sge = shape->recv_sge } };

	return rdma_create_srq(end->id, NULL, &attr);
}

int end_make_qp(struct end *end, const struct shape *shape)
{
	/* The caller may have set queues of its own. */
	end->attr.cap = (struct ibv_qp_cap) {
		.max_send_wr = shape->send_wr,
		.max_recv_wr = shape->recv_wr,
		.max_send_sge = shape->send_sge,
		.max_recv_sge = shape->recv_sge,
		.max_inline_data = shape->inline_data,
	};
	end->attr.sq_sig_all = !shape->unsignaled;
	end->attr.qp_type = shape->datagrams ? IBV_QPT_UD : IBV_QPT_RC;
	return rdma_create_qp(end->id, NULL, &end->attr);
}

int end_register(struct end *end)
{
	/* On a page boundary, as large buffers are. */
	end->buffer = aligned_alloc(4096, BUFFER_SIZE);
	if (!end->buffer)
		return -1;
	memset(end->buffer, 0xee, BUFFER_SIZE);
	end->mr = rdma_reg_msgs(end->id, end->buffer, BUFFER_SIZE);
	return end->mr ? 0 : -1;
}

void end_free(struct end *end)
{
	if (end->id && end->id->qp)
		rdma_destroy_qp(end->id);
	if (end->mr)
		rdma_dereg_mr(end->mr);
	free(end->buffer);
	if (end->id)
		rdma_destroy_ep(end->id);
	memset(end, 0, sizeof(*end));
}

struct ibv_sge *end_divide(const struct end *end, struct ibv_sge *sgl, int nsge, size_t offset, size_t length)
{
	/* Entry i has i + 1 shares of the bytes, and the last one what is left. */
	size_t shares = (size_t)nsge * (nsge + 1) / 2;
	size_t done = 0;

	for (int i = 0; i < nsge; i++) {
		size_t piece = i == nsge - 1 ? length - done : length * (i + 1) / shares;

		sgl[i] = (struct ibv_sge) {
			.addr = (uintptr_t)end->buffer + offset + done,
			.length = piece,
			.lkey = end->mr->lkey,
		};
		done += piece;
	}
	return nsge > 0 ? sgl : NULL;
}

int end_recv(struct end *end, void *context, int nsge, size_t offset, size_t length)
{
	struct ibv_sge sgl[MAX_SGE];

	if (nsge == SIMPLE)
		return rdma_post_recv(end->id, context, end->buffer + offset, length, end->mr);
	return rdma_post_recvv(end->id, context, end_divide(end, sgl, nsge, offset, length), nsge);
}

int end_send(struct end *end, void *context, int nsge, size_t offset, size_t length, int flags)
{
	struct ibv_sge sgl[MAX_SGE];

	if (nsge == SIMPLE)
		return rdma_post_send(end->id, context, end->buffer + offset, length, end->mr, flags);
	return rdma_post_sendv(end->id, context, end_divide(end, sgl, nsge, offset, length), nsge, flags);
}

static uint8_t byte_at(size_t i, unsigned int seed)
{
	/* 251 is a prime: bytes that end up a page away do not match. */
	return (i + 37 * seed) % 251;
}

void fill(uint8_t *bytes, size_t length, unsigned int seed)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = byte_at(i, seed);
}

size_t matching(const uint8_t *bytes, size_t length, unsigned int seed)
{
	size_t i = 0;

	while (i < length && bytes[i] == byte_at(i, seed))
		i++;
	return i;
}
