/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Requests that are taken, and fail. A completion with an error is a completion: get_send_comp and get_recv_comp return
 * 1 and leave errno alone, which send_completion() and recv_completion() assert.
 */

#include "device.h"

/*
 * What the InfiniBand specification asks for, and, where it is given, what Soft-RoCE (Linux 6.1) answers instead.
 */
static void assert_status(struct ibv_wc wc, enum ibv_wc_status specified, enum ibv_wc_status soft_roce)
{
	if (wc.status != specified && wc.status != soft_roce) {
		print_message("# %s\n", ibv_wc_status_str(wc.status));
		fail();
	}
}

/* No region has this key while there is only the one of the buffer. */
static uint32_t bad_key(uint32_t good)
{
	return good ^ 0x5a5a5a5a;
}

void send_with_bad_lkey(void **state)
{
	struct ibv_sge sge;
	struct ibv_wc wc;

	(void)state;
	connected_pair(&usual);
	peer_recv(SIMPLE, 0, 16);
	end_divide(&end, &sge, 1, 0, 16);
	sge.lkey = bad_key(sge.lkey);
	assert_posted(rdma_post_sendv(end.id, (void *)1, &sge, 1, 0));
	wc = send_completion();
	assert_status(wc, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR);
	assert_int_equal(wc.wr_id, 1);
	/* The peer does not notice: its receive is still good for nothing, but not flushed. */
	peer((struct order) { .request = PEER_RECV, .nsge = SIMPLE, .length = 16 });
}

void receive_with_bad_lkey(void **state)
{
	struct ibv_sge sge;
	struct ibv_wc wc;

	(void)state;
	connected_pair(&usual);
	end_divide(&end, &sge, 1, 0, 16);
	sge.lkey = bad_key(sge.lkey);
	assert_posted(rdma_post_recvv(end.id, (void *)1, &sge, 1));
	peer((struct order) { .request = PEER_SEND, .nsge = SIMPLE, .length = 16 });
	wc = recv_completion();
	assert_status(wc, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR);
	assert_int_equal(wc.wr_id, 1);
	assert_status(peer_completion(PEER_SEND_COMP), IBV_WC_REM_OP_ERR, IBV_WC_REM_OP_ERR);
}

/* A request that the peer's device must not grant. */
static void assert_denied(void)
{
	struct ibv_wc wc = send_completion();

	assert_status(wc, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(wc.wr_id, 1);
}

static int post_read(struct answer window)
{
	return rdma_post_read(end.id, (void *)1, end.buffer, 16, end.mr, 0, window.addr, window.rkey);
}

static int post_write(struct answer window)
{
	return rdma_post_write(end.id, (void *)1, end.buffer, 16, end.mr, 0, window.addr, window.rkey);
}

void write_with_bad_rkey(void **state)
{
	struct answer window;

	(void)state;
	connected_pair(&usual);
	window = peer_offer(REG_WRITE);
	window.rkey = bad_key(window.rkey);
	assert_posted(post_write(window));
	assert_denied();
}

void read_with_bad_rkey(void **state)
{
	struct answer window;

	(void)state;
	connected_pair(&usual);
	window = peer_offer(REG_READ);
	window.rkey = bad_key(window.rkey);
	assert_posted(post_read(window));
	assert_denied();
}

void receive_too_small(void **state)
{
	struct ibv_wc wc;

	(void)state;
	connected_pair(&usual);
	peer_recv(SIMPLE, 0, 16);
	assert_posted(end_send(&end, (void *)1, SIMPLE, 0, 17, 0));
	wc = send_completion();
	assert_status(wc, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR);
	assert_int_equal(wc.wr_id, 1);
	assert_status(peer_completion(PEER_RECV_COMP), IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR);
}

/* The QP of this end is in state ERR, with receives 1 and 2 posted before. */
static void assert_flushed(void)
{
	struct ibv_sge sge;

	for (uint64_t i = 1; i <= 2; i++) {
		struct ibv_wc wc = recv_completion();

		assert_int_equal(wc.status, IBV_WC_WR_FLUSH_ERR);
		assert_int_equal(wc.wr_id, i);
	}
	end_divide(&end, &sge, 1, 0, 16);
	assert_int_equal(end.id->qp->state, IBV_QPS_ERR);
	assert_posted(rdma_post_send(end.id, (void *)3, end.buffer, 16, end.mr, 0));
	assert_posted(rdma_post_sendv(end.id, (void *)4, &sge, 1, 0));
	for (uint64_t i = 3; i <= 4; i++) {
		struct ibv_wc wc = send_completion();

		assert_int_equal(wc.status, IBV_WC_WR_FLUSH_ERR);
		assert_int_equal(wc.wr_id, i);
	}
	assert_posted(rdma_post_read(end.id, (void *)5, end.buffer, 16, end.mr, 0, 0x1000, 1));
	assert_posted(rdma_post_write(end.id, (void *)6, end.buffer, 16, end.mr, 0, 0x1000, 1));
	for (uint64_t i = 5; i <= 6; i++) {
		struct ibv_wc wc = send_completion();

		assert_int_equal(wc.status, IBV_WC_WR_FLUSH_ERR);
		assert_int_equal(wc.wr_id, i);
	}
	/* Taken as well. Soft-RoCE never completes a receive that is posted in ERR, so its flush is not waited for. */
	assert_posted(end_recv(&end, NULL, SIMPLE, 0, 16));
}

void qp_in_error(void **state)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	(void)state;
	connected_pair(&usual);
	assert_posted(end_recv(&end, (void *)1, SIMPLE, 0, 16));
	assert_posted(end_recv(&end, (void *)2, 2, 0, 16));
	assert_int_equal(ibv_modify_qp(end.id->qp, &attr, IBV_QP_STATE), 0);
	assert_flushed();
}

void after_disconnecting(void **state)
{
	(void)state;
	connected_pair(&usual);
	assert_posted(end_recv(&end, (void *)1, SIMPLE, 0, 16));
	assert_posted(end_recv(&end, (void *)2, 2, 0, 16));
	/* Each side waits for the other. */
	peer_begin((struct order) { .request = PEER_DISCONNECT });
	assert_int_equal(rdma_disconnect(end.id), 0);
	assert_int_equal(peer_end().result, 0);
	assert_flushed();
}

/* An error ends the connection, so a pair sees one request only. */
static void check_rights(enum rights rights, bool readable, bool writable)
{
	connected_pair(&usual);
	assert_posted(post_read(peer_offer(rights)));
	if (readable)
		sent(1);
	else
		assert_denied();
	close_pair();
	connected_pair(&usual);
	assert_posted(post_write(peer_offer(rights)));
	if (writable)
		sent(1);
	else
		assert_denied();
}

void rights_of_reg_msgs(void **state)
{
	(void)state;
	check_rights(REG_MSGS, false, false);
}

void rights_of_reg_read(void **state)
{
	(void)state;
	check_rights(REG_READ, true, false);
}

void rights_of_reg_write(void **state)
{
	(void)state;
	check_rights(REG_WRITE, false, true);
}

void deregistered(void **state)
{
	struct answer window;

	(void)state;
	connected_pair(&usual);
	window = peer_offer(REG_READ);
	assert_posted(post_read(window));
	sent(1);
	peer((struct order) { .request = PEER_WITHDRAW });
	assert_posted(post_read(window));
	assert_denied();
	assert_refused(EINVAL, rdma_dereg_mr(NULL));
}
