/* SPDX-License-Identifier: MIT OR Apache-2.0 */

#include <endian.h>
#include <errno.h>
#include <stddef.h>

#include "provider.h"

#define container_of(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))

static int null_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	(void)qp, (void)wr, (void)bad_wr;
	return 0;
}

static int null_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	(void)qp, (void)wr, (void)bad_wr;
	return 0;
}

static int null_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	(void)srq, (void)wr, (void)bad_wr;
	return 0;
}

static int null_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	(void)cq, (void)n, (void)wc;
	return 1;
}

const struct ibv_context_ops null_ops = {
	.post_send = null_post_send,
	.post_recv = null_post_recv,
	.post_srq_recv = null_post_srq_recv,
	.poll_cq = null_poll_cq,
};

/* The next free entry. The device of this provider has always just finished when the queue is full. */
static struct entry *next_entry(struct queue *queue, uint64_t wr_id)
{
	uint32_t index = queue->head % QUEUE_DEPTH;

	if (queue->head - queue->tail == QUEUE_DEPTH)
		queue->tail = queue->head;
	queue->wr_id[index] = wr_id;
	return &queue->entries[index];
}

static void write_sges(struct entry *entry, const struct ibv_sge *sge, int n)
{
	for (int i = 0; i < n; i++) {
		entry->sge[i].length = htobe32(sge[i].length);
		entry->sge[i].lkey = htobe32(sge[i].lkey);
		entry->sge[i].addr = htobe64(sge[i].addr);
	}
	if (n < MAX_SGE) {
		entry->sge[n].length = 0;
		entry->sge[n].lkey = htobe32(0x100);
		entry->sge[n].addr = 0;
	}
}

/* The entries are visible before the index that announces them. */
static void ring(struct queue *queue)
{
	__atomic_store_n(&queue->doorbell, htobe32(queue->head), __ATOMIC_RELEASE);
}

static int wqe_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	struct provider_qp *qp = container_of(ibqp, struct provider_qp, qp);
	struct queue *queue = &qp->send;
	int ret = 0;

	pthread_spin_lock(&queue->lock);
	for (; wr; wr = wr->next) {
		struct entry *entry;

		if (wr->num_sge < 0 || wr->num_sge > MAX_SGE) {
			*bad_wr = wr;
			ret = EINVAL;
			break;
		}
		entry = next_entry(queue, wr->wr_id);
		switch (wr->opcode) {
		case IBV_WR_RDMA_WRITE:
		case IBV_WR_RDMA_READ:
			entry->remote.addr = htobe64(wr->wr.rdma.remote_addr);
			entry->remote.rkey = htobe32(wr->wr.rdma.rkey);
			entry->remote.reserved = 0;
			break;
		case IBV_WR_SEND:
			if (ibqp->qp_type == IBV_QPT_UD) {
				entry->datagram.ah = (uintptr_t)wr->wr.ud.ah;
				entry->datagram.qpn = htobe32(wr->wr.ud.remote_qpn);
				entry->datagram.qkey = htobe32(wr->wr.ud.remote_qkey);
			}
			break;
		default:
			*bad_wr = wr;
			ret = EOPNOTSUPP;
			goto out;
		}
		write_sges(entry, wr->sg_list, wr->num_sge);
		entry->imm = wr->imm_data;
		entry->flags = htobe32(wr->send_flags);
		entry->qpn = htobe32(ibqp->qp_num << 8 | wr->num_sge);
		entry->opcode_index = htobe32(wr->opcode << 24 | (queue->head & 0xffff));
		queue->head++;
	}
out:
	ring(queue);
	pthread_spin_unlock(&queue->lock);
	return ret;
}

static int write_recv(struct queue *queue, uint32_t number, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	int ret = 0;

	pthread_spin_lock(&queue->lock);
	for (; wr; wr = wr->next) {
		struct entry *entry;

		if (wr->num_sge < 0 || wr->num_sge > MAX_SGE) {
			*bad_wr = wr;
			ret = EINVAL;
			break;
		}
		entry = next_entry(queue, wr->wr_id);
		write_sges(entry, wr->sg_list, wr->num_sge);
		entry->qpn = htobe32(number << 8 | wr->num_sge);
		entry->opcode_index = htobe32(queue->head & 0xffff);
		queue->head++;
	}
	ring(queue);
	pthread_spin_unlock(&queue->lock);
	return ret;
}

static int wqe_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	struct provider_qp *qp = container_of(ibqp, struct provider_qp, qp);

	return write_recv(&qp->recv, ibqp->qp_num, wr, bad_wr);
}

static int wqe_post_srq_recv(struct ibv_srq *ibsrq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	struct provider_srq *srq = container_of(ibsrq, struct provider_srq, srq);

	return write_recv(&srq->recv, ibsrq->handle, wr, bad_wr);
}

static int wqe_poll_cq(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	struct provider_cq *cq = container_of(ibcq, struct provider_cq, cq);
	struct queue *queue = &cq->completions;
	int found = 0;

	pthread_spin_lock(&queue->lock);
	for (; found < n && found < 1; found++, wc++) {
		uint32_t index = queue->tail % QUEUE_DEPTH;
		const struct entry *entry = &queue->entries[index];

		wc->wr_id = queue->wr_id[index];
		wc->status = IBV_WC_SUCCESS;
		wc->opcode = be32toh(entry->opcode_index) >> 24;
		wc->vendor_err = 0;
		wc->byte_len = be32toh(entry->sge[0].length);
		wc->imm_data = entry->imm;
		wc->qp_num = be32toh(entry->qpn) >> 8;
		wc->src_qp = 0;
		wc->wc_flags = be32toh(entry->flags);
		queue->tail++;
	}
	__atomic_store_n(&queue->doorbell, htobe32(queue->tail), __ATOMIC_RELEASE);
	pthread_spin_unlock(&queue->lock);
	return found;
}

const struct ibv_context_ops wqe_ops = {
	.post_send = wqe_post_send,
	.post_recv = wqe_post_recv,
	.post_srq_recv = wqe_post_srq_recv,
	.poll_cq = wqe_poll_cq,
};
