/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * A program that uses all fifteen functions, in what C and C++ have in common. Its device is an operations table that
 * counts the requests it is given. Exits with 0 if all came as they were posted.
 *
 *   program [static]       static: there is no libibverbs to be loaded
 */

#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <string.h>

#include "second.h"

#define CHECK(condition) check(condition, #condition, __LINE__)

static int failures;

static void check(int holds, const char *condition, int line)
{
	if (holds)
		return;
	failures++;
	printf("program.c:%d: %s (errno: %s)\n", line, condition, strerror(errno));
}

static struct ibv_send_wr sent;
static struct ibv_recv_wr received;
static int sends, receives, shared_receives, polls;

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp;
	(void)bad;
	sends++;
	sent = *wr;
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)qp;
	(void)bad;
	receives++;
	received = *wr;
	return 0;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)srq;
	(void)wr;
	(void)bad;
	shared_receives++;
	return -ENOMEM;
}

static int found;

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
	(void)cq;
	polls++;
	if (found && count == 1)
		wc->wr_id = 42;
	return found;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	(void)cq;
	(void)solicited_only;
	return 0;
}

int main(int argc, char **argv)
{
	int is_static = argc > 1 && !strcmp(argv[1], "static");
	char buffer[64];
	struct ibv_context context;
	struct ibv_comp_channel channel;
	struct ibv_qp qp;
	struct ibv_srq srq;
	struct ibv_cq cq;
	struct ibv_pd pd;
	struct ibv_mr mr;
	struct ibv_ah ah;
	struct ibv_wc wc;
	struct ibv_sge sge;
	struct rdma_cm_id id;

	memset(&context, 0, sizeof(context));
	context.ops.post_send = post_send;
	context.ops.post_recv = post_recv;
	context.ops.post_srq_recv = post_srq_recv;
	context.ops.poll_cq = poll_cq;
	context.ops.req_notify_cq = req_notify_cq;
	memset(&qp, 0, sizeof(qp));
	qp.context = &context;
	qp.state = IBV_QPS_RTS;
	qp.qp_type = IBV_QPT_RC;
	memset(&srq, 0, sizeof(srq));
	srq.context = &context;
	memset(&cq, 0, sizeof(cq));
	cq.context = &context;
	memset(&pd, 0, sizeof(pd));
	pd.context = &context;
	memset(&channel, 0, sizeof(channel));
	memset(&ah, 0, sizeof(ah));
	memset(&mr, 0, sizeof(mr));
	mr.addr = buffer;
	mr.length = sizeof(buffer);
	mr.lkey = 7;
	memset(&wc, 0, sizeof(wc));
	memset(&id, 0, sizeof(id));
	id.qp = &qp;
	id.send_cq = id.recv_cq = &cq;
	sge.addr = (uintptr_t)buffer;
	sge.length = sizeof(buffer);
	sge.lkey = mr.lkey;

	errno = EXFULL;
	CHECK(rdma_post_send(&id, &id, buffer, sizeof(buffer), &mr, IBV_SEND_SIGNALED) == 0);
	CHECK(sends == 1 && sent.opcode == IBV_WR_SEND && sent.wr_id == (uintptr_t)&id && sent.num_sge == 1);
	CHECK(sent.send_flags == IBV_SEND_SIGNALED);
	CHECK(rdma_post_write(&id, NULL, buffer, 8, &mr, 0, 0x1234567890, 3) == 0);
	CHECK(sends == 2 && sent.opcode == IBV_WR_RDMA_WRITE && sent.wr.rdma.remote_addr == 0x1234567890);
	CHECK(rdma_post_read(&id, NULL, buffer, 8, &mr, 0, 0x987654321, 5) == 0);
	CHECK(sends == 3 && sent.opcode == IBV_WR_RDMA_READ && sent.wr.rdma.rkey == 5);
	CHECK(rdma_post_ud_send(&id, NULL, buffer, 8, &mr, 0, &ah, 77) == 0);
	CHECK(sends == 4 && sent.wr.ud.ah == &ah && sent.wr.ud.remote_qpn == 77);
	CHECK(sent.wr.ud.remote_qkey == RDMA_UDP_QKEY);
	CHECK(rdma_post_sendv(&id, NULL, &sge, 1, 0) == 0);
	CHECK(rdma_post_writev(&id, NULL, &sge, 1, 0, 1, 2) == 0);
	CHECK(rdma_post_readv(&id, NULL, &sge, 1, 0, 1, 2) == 0);
	CHECK(sends == 7 && sent.sg_list == &sge && sent.opcode == IBV_WR_RDMA_READ);
	CHECK(rdma_post_recv(&id, &cq, buffer, sizeof(buffer), &mr) == 0);
	CHECK(receives == 1 && received.wr_id == (uintptr_t)&cq);
	CHECK(rdma_post_recvv(&id, NULL, &sge, 1) == 0);
	CHECK(receives == 2 && received.sg_list == &sge);
	CHECK(second_post(&id, &sge) == 0);
	CHECK(sends == 8);
	found = 1;
	CHECK(rdma_get_send_comp(&id, &wc) == 1 && wc.wr_id == 42);
	CHECK(rdma_get_recv_comp(&id, &wc) == 1);
	CHECK(polls == 2);
	CHECK(errno == EXFULL);

	id.srq = &srq;
	CHECK(rdma_post_recv(&id, NULL, buffer, 8, &mr) == -1 && errno == ENOMEM);
	CHECK(shared_receives == 1);
	CHECK(rdma_reg_msgs(&id, buffer, sizeof(buffer)) == NULL && errno == EINVAL);
	CHECK(rdma_reg_read(NULL, buffer, sizeof(buffer)) == NULL && errno == EINVAL);
	CHECK(rdma_reg_write(NULL, buffer, sizeof(buffer)) == NULL && errno == EINVAL);
	CHECK(rdma_dereg_mr(NULL) == -1 && errno == EINVAL);
	CHECK(rdma_seterrno(-EINVAL) == -1 && errno == EINVAL);
	CHECK(rdma_seterrno(0) == 0);

	if (is_static) {
		found = 0;
		id.pd = &pd;
		id.send_cq_channel = &channel;
		CHECK(rdma_reg_msgs(&id, buffer, sizeof(buffer)) == NULL && errno == ELIBACC);
		CHECK(rdma_dereg_mr(&mr) == -1 && errno == ELIBACC);
		CHECK(rdma_get_send_comp(&id, &wc) == -1 && errno == ELIBACC);
	}
	return failures != 0;
}
