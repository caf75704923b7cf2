/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Requests that the post refuses. */

#include "device.h"

/* Each function that posts to the send queue. */
static void refuse_all(int code)
{
	struct ibv_sge sge;
	/* Where a window of the peer would be; no request that carries it is ever sent. */
	uint64_t addr = 0x1000;
	uint32_t rkey = 1;

	end_divide(&end, &sge, 1, 0, 16);
	assert_refused(code, rdma_post_send(end.id, NULL, end.buffer, 16, end.mr, 0));
	assert_refused(code, rdma_post_send(end.id, NULL, end.buffer, 16, NULL, IBV_SEND_INLINE));
	assert_refused(code, rdma_post_sendv(end.id, NULL, &sge, 1, 0));
	assert_refused(code, rdma_post_write(end.id, NULL, end.buffer, 16, end.mr, 0, addr, rkey));
	assert_refused(code, rdma_post_writev(end.id, NULL, &sge, 1, 0, addr, rkey));
	assert_refused(code, rdma_post_read(end.id, NULL, end.buffer, 16, end.mr, 0, addr, rkey));
	assert_refused(code, rdma_post_readv(end.id, NULL, &sge, 1, 0, addr, rkey));
	assert_refused(code, rdma_post_ud_send(end.id, NULL, end.buffer, 16, end.mr, 0, NULL, 0));
}

void before_connecting(void **state)
{
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };

	(void)state;
	open_pair(&usual);
	skip_unless(end.id->verbs->device->transport_type == IBV_TRANSPORT_IB,
		    "on iWARP the state of a connecting QP is not known");
	assert_int_equal(ibv_modify_qp(end.id->qp, &reset, IBV_QP_STATE), 0);
	assert_int_equal(end.id->qp->state, IBV_QPS_RESET);
	refuse_all(ENOTCONN);
	rdma_destroy_qp(end.id);

	memset(&end.attr, 0, sizeof(end.attr));
	assert_int_equal(end_make_qp(&end, &usual), 0);
	assert_int_equal(end.id->qp->state, IBV_QPS_INIT);
	refuse_all(ENOTCONN);

	/* Once connected, none of them is in the queue: the first message is the next one. */
	connect_pair();
	peer_recv(SIMPLE, 0, 100);
	fill_own(0, 100, 1);
	assert_posted(end_send(&end, (void *)1, SIMPLE, 0, 100, 0));
	sent(1);
	peer_received(0, 100, 1);
	assert_empty(end.id->send_cq);
}

void invalid_requests(void **state)
{
	uint8_t *past_end;
	struct ibv_mr *part;
	struct answer window;
	struct ibv_sge sge;

	(void)state;
	connected_pair(&usual);
	window = peer_offer(REG_WRITE);
	/* A region within the buffer, so that there is memory before and after it. */
	part = rdma_reg_msgs(end.id, end.buffer + 4096, 4096);
	assert_non_null(part);
	past_end = end.buffer + 8192;
	end_divide(&end, &sge, 1, 0, 16);

	assert_refused(EINVAL, rdma_post_recv(end.id, NULL, end.buffer, 16, NULL));
	assert_refused(EINVAL, rdma_post_recv(end.id, NULL, past_end - 8, 16, part));
	assert_refused(EINVAL, rdma_post_recv(end.id, NULL, part->addr, 4097, part));
	assert_refused(EINVAL, rdma_post_recv(end.id, NULL, end.buffer, (size_t)UINT32_MAX + 1, end.mr));
	assert_refused(EINVAL, rdma_post_recvv(end.id, NULL, NULL, 1));
	assert_refused(EINVAL, rdma_post_recvv(end.id, NULL, &sge, -1));

	assert_refused(EINVAL, rdma_post_send(end.id, NULL, end.buffer, 16, NULL, 0));
	assert_refused(EINVAL, rdma_post_send(end.id, NULL, past_end - 8, 16, part, 0));
	assert_refused(EINVAL, rdma_post_send(end.id, NULL, (uint8_t *)part->addr - 1, 16, part, 0));
	assert_refused(EINVAL, rdma_post_send(end.id, NULL, (uint8_t *)part->addr - 1, 4098, part, 0));
	assert_refused(EINVAL, rdma_post_send(end.id, NULL, (void *)(UINTPTR_MAX - 7), 16, part, 0));
	assert_refused(EINVAL, rdma_post_send(end.id, NULL, part->addr, (size_t)UINT32_MAX + 17, part, 0));
	assert_refused(EINVAL, rdma_post_send(end.id, NULL, NULL, 16, NULL, IBV_SEND_INLINE));
	assert_refused(EINVAL, rdma_post_sendv(end.id, NULL, NULL, 1, 0));
	assert_refused(EINVAL, rdma_post_sendv(end.id, NULL, &sge, -1, 0));

	assert_refused(EINVAL, rdma_post_write(end.id, NULL, end.buffer, 16, NULL, 0, window.addr, window.rkey));
	assert_refused(EINVAL, rdma_post_write(end.id, NULL, past_end - 8, 16, part, 0, window.addr, window.rkey));
	assert_refused(EINVAL, rdma_post_writev(end.id, NULL, NULL, 1, 0, window.addr, window.rkey));
	assert_refused(EINVAL, rdma_post_read(end.id, NULL, end.buffer, 16, NULL, 0, window.addr, window.rkey));
	assert_refused(EINVAL, rdma_post_read(end.id, NULL, past_end - 8, 16, part, 0, window.addr, window.rkey));
	assert_refused(EINVAL, rdma_post_readv(end.id, NULL, &sge, -1, 0, window.addr, window.rkey));
	assert_refused(EINVAL, rdma_post_ud_send(end.id, NULL, end.buffer, 16, NULL, 0, NULL, 0));

	/* Messages both ways, each the first one that arrives, into the first receive that was posted. */
	peer_recv(SIMPLE, 0, 100);
	fill_own(0, 100, 1);
	assert_posted(end_send(&end, (void *)1, SIMPLE, 0, 100, 0));
	sent(1);
	assert_empty(end.id->send_cq);
	peer_received(0, 100, 1);
	assert_posted(end_recv(&end, (void *)2, SIMPLE, 4096, 100));
	peer_send(SIMPLE, 0, 100);
	received(2, 100);
	check_own(4096, 100, 1);
	assert_returns(0, rdma_dereg_mr(part));
}

void qp_with_srq_of_its_own(void **state)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq;
	struct ibv_sge sge;

	(void)state;
	open_bare_pair(&usual);
	srq = ibv_create_srq(end.id->pd, &attr);
	skip_unless(srq || (errno != EOPNOTSUPP && errno != ENOSYS), "the device has no SRQ");
	assert_non_null(srq);
	end.attr.srq = srq;
	assert_int_equal(end_make_qp(&end, &usual), 0);
	assert_int_equal(end_register(&end), 0);
	assert_null(end.id->srq);
	end_divide(&end, &sge, 1, 0, 16);
	assert_refused(EINVAL, rdma_post_recv(end.id, NULL, end.buffer, 16, end.mr));
	assert_refused(EINVAL, rdma_post_recvv(end.id, NULL, &sge, 1));
	/* With the SRQ in the id they work, and the QP takes messages into it. */
	end.id->srq = srq;
	assert_posted(end_recv(&end, (void *)1, SIMPLE, 0, 16));
	connect_pair();
	peer((struct order) { .request = PEER_FILL, .length = 16, .seed = 1 });
	peer_send(SIMPLE, 0, 16);
	received(1, 16);
	check_own(0, 16, 1);
}

/* More than a device makes of a queue of 4. */
#define MANY 1024

void send_queue_full(void **state)
{
	struct shape shape = usual;
	uintptr_t posted = 0;

	(void)state;
	shape.recv_wr = MANY;
	connected_pair(&shape);
	/* The peer has no receive: the requests stay in the queue. */
	while (posted < MANY && end_send(&end, (void *)posted, SIMPLE, 0, 16, 0) == 0)
		posted++;
	assert_int_equal(errno, ENOMEM);
	assert_in_range(posted, usual.send_wr, MANY - 1);
	assert_refused(ENOMEM, end_send(&end, NULL, 2, 0, 16, 0));

	for (uintptr_t i = 0; i < posted; i++)
		peer_recv(SIMPLE, 0, 16);
	for (uintptr_t i = 0; i < posted; i++) {
		sent(i);
		assert_int_equal(peer_completion(PEER_RECV_COMP).status, IBV_WC_SUCCESS);
	}
	peer_recv(SIMPLE, 0, 16);
	fill_own(0, 16, 1);
	assert_posted(end_send(&end, (void *)posted, SIMPLE, 0, 16, 0));
	sent(posted);
	peer_received(0, 16, 1);
}

static void fill_receives(void)
{
	uintptr_t posted = 0;

	while (posted < MANY && end_recv(&end, (void *)posted, SIMPLE, posted * 16, 16) == 0)
		posted++;
	assert_int_equal(errno, ENOMEM);
	assert_in_range(posted, usual.recv_wr, MANY - 1);
	assert_refused(ENOMEM, end_recv(&end, NULL, 2, 0, 16));

	for (uintptr_t i = 0; i < posted; i++) {
		peer((struct order) { .request = PEER_FILL, .length = 16, .seed = i });
		peer_send(SIMPLE, 0, 16);
		received(i, 16);
		check_own(i * 16, 16, i);
	}
	assert_posted(end_recv(&end, (void *)posted, SIMPLE, 0, 16));
	peer_send(SIMPLE, 0, 16);
	received(posted, 16);
}

void receive_queue_full(void **state)
{
	(void)state;
	connected_pair(&usual);
	fill_receives();
}

void srq_full(void **state)
{
	struct shape shape = usual;

	(void)state;
	shape.srq = true;
	connected_pair(&shape);
	fill_receives();
}
