/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* UD queue pairs. */

#include "device.h"

/* A datagram is received after as many bytes of global route header. */
#define HEADER sizeof(struct ibv_grh)

static struct ibv_ah *ah;
static uint32_t remote_qpn;

/* Both ends, and what the connection manager knows of the peer. */
static void open_datagrams(void)
{
	struct shape shape = usual;

	shape.datagrams = true;
	connected_pair(&shape);
	assert_non_null(end.id->event);
	ah = ibv_create_ah(end.id->pd, &end.id->event->param.ud.ah_attr);
	assert_non_null(ah);
	remote_qpn = end.id->event->param.ud.qp_num;
}

void datagrams(void **state)
{
	struct ibv_wc wc;

	(void)state;
	open_datagrams();
	peer_recv(SIMPLE, 0, HEADER + 1000);
	fill_own(0, 1000, 1);
	assert_posted(rdma_post_ud_send(end.id, (void *)1, end.buffer, 1000, end.mr, 0, ah, remote_qpn));
	sent(1);
	wc = peer_completion(PEER_RECV_COMP);
	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.byte_len, HEADER + 1000);
	assert_int_equal(wc.src_qp, end.id->qp->qp_num);
	check_peer(HEADER, 1000, 1);

	/* And back, to where that one came from. */
	assert_posted(end_recv(&end, (void *)2, SIMPLE, 4096, HEADER + 1000));
	peer((struct order) { .request = PEER_REPLY, .offset = HEADER, .length = 1000 });
	received(2, HEADER + 1000);
	check_own(4096 + HEADER, 1000, 1);

	/* Inline, and empty. */
	if (end.attr.cap.max_inline_data >= 16) {
		uint8_t bytes[16];

		fill(bytes, sizeof(bytes), 3);
		peer_recv(SIMPLE, 0, HEADER + sizeof(bytes));
		assert_posted(rdma_post_ud_send(end.id, (void *)3, bytes, sizeof(bytes), NULL, IBV_SEND_INLINE,
						ah, remote_qpn));
		sent(3);
		assert_int_equal(peer_completion(PEER_RECV_COMP).byte_len, HEADER + sizeof(bytes));
		check_peer(HEADER, sizeof(bytes), 3);
	}
	peer_recv(SIMPLE, 0, HEADER);
	assert_posted(rdma_post_ud_send(end.id, (void *)4, NULL, 0, NULL, 0, ah, remote_qpn));
	sent(4);
	assert_int_equal(peer_completion(PEER_RECV_COMP).byte_len, HEADER);
	assert_int_equal(ibv_destroy_ah(ah), 0);
}

void datagram_refusals(void **state)
{
	struct ibv_sge sge;

	(void)state;
	open_datagrams();
	end_divide(&end, &sge, 1, 0, 16);
	assert_refused(EINVAL, rdma_post_ud_send(end.id, NULL, end.buffer, 16, end.mr, 0, NULL, remote_qpn));
	assert_refused(EINVAL, rdma_post_ud_send(end.id, NULL, end.buffer, 16, NULL, 0, ah, remote_qpn));
	assert_refused(EINVAL, rdma_post_send(end.id, NULL, end.buffer, 16, end.mr, 0));
	assert_refused(EINVAL, rdma_post_sendv(end.id, NULL, &sge, 1, 0));
	assert_refused(EINVAL, rdma_post_write(end.id, NULL, end.buffer, 16, end.mr, 0, 0x1000, 1));
	assert_refused(EINVAL, rdma_post_writev(end.id, NULL, &sge, 1, 0, 0x1000, 1));
	assert_refused(EINVAL, rdma_post_read(end.id, NULL, end.buffer, 16, end.mr, 0, 0x1000, 1));
	assert_refused(EINVAL, rdma_post_readv(end.id, NULL, &sge, 1, 0, 0x1000, 1));

	/* The next one is the first one that arrives. */
	peer_recv(SIMPLE, 0, HEADER + 100);
	fill_own(0, 100, 1);
	assert_posted(rdma_post_ud_send(end.id, (void *)1, end.buffer, 100, end.mr, 0, ah, remote_qpn));
	sent(1);
	assert_empty(end.id->send_cq);
	assert_int_equal(peer_completion(PEER_RECV_COMP).byte_len, HEADER + 100);
	check_peer(HEADER, 100, 1);
	assert_int_equal(ibv_destroy_ah(ah), 0);
}
