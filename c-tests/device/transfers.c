/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Requests that succeed: real bytes, compared at the end where they arrive. */

#include "device.h"

static const size_t sizes[] = { 0, 1, 16, 4096, 1 << 20 };
#define NSIZES (sizeof(sizes) / sizeof(sizes[0]))
#define BIG (1 << 20)

void messages_of_every_size(void **state)
{
	(void)state;
	connected_pair(&usual);
	for (unsigned int i = 0; i < NSIZES; i++) {
		peer_recv(SIMPLE, 0, sizes[i]);
		fill_own(0, sizes[i], i);
		assert_posted(end_send(&end, NULL, SIMPLE, 0, sizes[i], 0));
		sent(0);
		peer_received(0, sizes[i], i);

		memset(end.buffer, 0xee, sizes[i] + 1);
		assert_posted(end_recv(&end, NULL, SIMPLE, 0, sizes[i]));
		peer((struct order) { .request = PEER_FILL, .length = sizes[i] + 1, .seed = 100 + i });
		peer_send(SIMPLE, 0, sizes[i]);
		received(0, sizes[i]);
		check_own(0, sizes[i], 100 + i);
		/* And not a byte more. */
		assert_int_equal(end.buffer[sizes[i]], 0xee);
	}
}

void messages_in_pieces(void **state)
{
	/* Entries at the sender and at the receiver, so that they end at different bytes. */
	static const int nsge[][2] = { { 1, 4 }, { 4, 1 }, { 3, 2 }, { 4, 3 } };

	(void)state;
	connected_pair(&usual);
	for (unsigned int i = 0; i < sizeof(nsge) / sizeof(nsge[0]); i++) {
		peer_recv(nsge[i][1], 0, 10000);
		fill_own(0, 10000, i);
		assert_posted(end_send(&end, NULL, nsge[i][0], 0, 10000, 0));
		sent(0);
		peer_received(0, 10000, i);

		assert_posted(end_recv(&end, NULL, nsge[i][1], 0, 10000));
		peer((struct order) { .request = PEER_FILL, .length = 10000, .seed = 100 + i });
		peer_send(nsge[i][0], 0, 10000);
		received(0, 10000);
		check_own(0, 10000, 100 + i);
	}
}

void messages_without_entries(void **state)
{
	struct ibv_sge sge = { 0 };

	(void)state;
	connected_pair(&usual);
	peer_recv(0, 0, 0);
	assert_posted(rdma_post_sendv(end.id, NULL, NULL, 0, 0));
	sent(0);
	peer_received(0, 0, 0);

	assert_posted(rdma_post_recvv(end.id, NULL, &sge, 0));
	peer_send(0, 0, 0);
	received(0, 0);
	/* The simple functions without a region. */
	assert_posted(rdma_post_recv(end.id, NULL, NULL, 0, NULL));
	peer_send(SIMPLE, 0, 0);
	received(0, 0);
	peer_recv(SIMPLE, 0, 0);
	assert_posted(rdma_post_send(end.id, NULL, NULL, 0, NULL, 0));
	sent(0);
	peer_received(0, 0, 0);
}

void inline_without_region(void **state)
{
	uint8_t bytes[16];
	struct answer window;

	(void)state;
	connected_pair(&usual);
	skip_unless(end.attr.cap.max_inline_data >= sizeof(bytes), "the device takes nothing inline");

	peer_recv(SIMPLE, 0, sizeof(bytes));
	fill(bytes, sizeof(bytes), 1);
	assert_posted(rdma_post_send(end.id, NULL, bytes, sizeof(bytes), NULL, IBV_SEND_INLINE));
	memset(bytes, 0, sizeof(bytes));
	sent(0);
	peer_received(0, sizeof(bytes), 1);

	window = peer_offer(REG_WRITE);
	fill(bytes, sizeof(bytes), 2);
	assert_posted(rdma_post_write(end.id, NULL, bytes, sizeof(bytes), NULL, IBV_SEND_INLINE,
				      window.addr + 4096, window.rkey));
	memset(bytes, 0, sizeof(bytes));
	sent(0);
	check_peer(4096, sizeof(bytes), 2);
}

void writes(void **state)
{
	struct ibv_sge sgl[4];
	struct answer window;

	(void)state;
	connected_pair(&usual);
	window = peer_offer(REG_WRITE);
	for (unsigned int i = 0; i < NSIZES; i++) {
		fill_own(0, sizes[i], i);
		assert_posted(rdma_post_write(end.id, NULL, end.buffer, sizes[i], end.mr, 0,
					      window.addr + 1, window.rkey));
		sent(0);
		check_peer(1, sizes[i], i);

		fill_own(0, sizes[i], 100 + i);
		assert_posted(rdma_post_writev(end.id, NULL, end_divide(&end, sgl, 4, 0, sizes[i]), 4, 0,
					       window.addr + 2 * BIG, window.rkey));
		sent(0);
		check_peer(2 * BIG, sizes[i], 100 + i);
	}
}

void reads(void **state)
{
	struct ibv_sge sgl[4];
	struct answer window;

	(void)state;
	connected_pair(&usual);
	window = peer_offer(REG_READ);
	for (unsigned int i = 0; i < NSIZES; i++) {
		peer((struct order) { .request = PEER_FILL, .offset = 1, .length = sizes[i], .seed = i });
		memset(end.buffer, 0xee, sizes[i]);
		assert_posted(rdma_post_read(end.id, NULL, end.buffer, sizes[i], end.mr, 0,
					     window.addr + 1, window.rkey));
		sent(0);
		check_own(0, sizes[i], i);

		/* These bytes would match, too. */
		memset(end.buffer, 0xee, sizes[i]);
		assert_posted(rdma_post_readv(end.id, NULL, end_divide(&end, sgl, 4, 0, sizes[i]), 4, 0,
					      window.addr + 1, window.rkey));
		sent(0);
		check_own(0, sizes[i], i);
	}
}

void unsignaled_requests(void **state)
{
	struct shape shape = usual;

	(void)state;
	shape.unsignaled = true;
	connected_pair(&shape);
	/* More rounds than the queue has places. */
	for (uint64_t round = 0; round < 16; round++) {
		for (int i = 0; i < 4; i++) {
			peer_recv(SIMPLE, i * 16, 16);
			fill_own(i * 16, 16, round * 4 + i);
		}
		for (int i = 0; i < 4; i++) {
			assert_posted(end_send(&end, (void *)(uintptr_t)(round * 4 + i), SIMPLE, i * 16, 16,
					       i == 3 ? IBV_SEND_SIGNALED : 0));
		}
		sent(round * 4 + 3);
		assert_empty(end.id->send_cq);
		for (int i = 0; i < 4; i++)
			peer_received(i * 16, 16, round * 4 + i);
	}
}

void contexts(void **state)
{
	const uint64_t values[] = { 0, UINT64_MAX, (uintptr_t)&values, 1, UINT64_C(0x8000000000000000) };
	struct answer window;

	(void)state;
	/* A pointer is as wide as wr_id wherever there are RDMA devices to test; else this does not compile. */
	_Static_assert(sizeof(void *) == sizeof(uint64_t), "context and wr_id differ in size");
	connected_pair(&usual);
	window = peer_offer(REG_READ);
	for (unsigned int i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		void *context = (void *)values[i];

		assert_posted(end_recv(&end, context, SIMPLE, 0, 16));
		peer_send(SIMPLE, 0, 16);
		received(values[i], 16);
		assert_posted(end_recv(&end, context, 2, 0, 16));
		peer_send(SIMPLE, 0, 16);
		received(values[i], 16);

		peer_recv(SIMPLE, 0, 16);
		assert_posted(end_send(&end, context, SIMPLE, 0, 16, 0));
		sent(values[i]);
		assert_int_equal(peer_completion(PEER_RECV_COMP).status, IBV_WC_SUCCESS);
		peer_recv(SIMPLE, 0, 16);
		assert_posted(end_send(&end, context, 2, 0, 16, 0));
		sent(values[i]);
		assert_int_equal(peer_completion(PEER_RECV_COMP).status, IBV_WC_SUCCESS);

		assert_posted(rdma_post_read(end.id, context, end.buffer, 16, end.mr, 0, window.addr, window.rkey));
		sent(values[i]);
	}
}

void receive_before_connecting(void **state)
{
	(void)state;
	open_pair(&usual);
	assert_int_equal(end.id->qp->state, IBV_QPS_INIT);
	assert_posted(end_recv(&end, (void *)1, SIMPLE, 0, 16));
	assert_posted(end_recv(&end, (void *)2, 2, 4096, 4096));
	connect_pair();
	peer((struct order) { .request = PEER_FILL, .length = 4096, .seed = 7 });
	peer_send(SIMPLE, 0, 16);
	peer_send(SIMPLE, 0, 4096);
	received(1, 16);
	received(2, 4096);
	check_own(0, 16, 7);
	check_own(4096, 4096, 7);
}

void shared_receive_queue(void **state)
{
	struct shape shape = usual;

	(void)state;
	shape.srq = true;
	open_pair(&shape);
	assert_non_null(end.id->srq);
	assert_posted(end_recv(&end, (void *)1, SIMPLE, 0, 16));
	connect_pair();
	assert_posted(end_recv(&end, (void *)2, 3, 4096, 4096));
	peer((struct order) { .request = PEER_FILL, .length = 4096, .seed = 7 });
	peer_send(SIMPLE, 0, 16);
	received(1, 16);
	peer_send(SIMPLE, 0, 4096);
	received(2, 4096);
	check_own(0, 16, 7);
	check_own(4096, 4096, 7);
	/* The peer has an SRQ, too. */
	peer_recv(SIMPLE, 0, 16);
	fill_own(0, 16, 8);
	assert_posted(end_send(&end, NULL, SIMPLE, 0, 16, 0));
	sent(0);
	peer_received(0, 16, 8);
}

void region_with_iova(void **state)
{
	/* No memory of this process is there, and it is a page boundary as the buffer is. */
	uint8_t *iova = (uint8_t *)0x4000;
	struct ibv_mr *mr;

	(void)state;
	connected_pair(&usual);
	mr = ibv_reg_mr_iova(end.id->pd, end.buffer, BUFFER_SIZE, (uintptr_t)iova, IBV_ACCESS_LOCAL_WRITE);
	skip_unless(mr || (errno != EOPNOTSUPP && errno != ENOSYS), "the device has no regions with an iova");
	assert_non_null(mr);

	peer_recv(SIMPLE, 0, 5000);
	fill_own(4096, 5000, 1);
	assert_posted(rdma_post_send(end.id, NULL, iova + 4096, 5000, mr, 0));
	sent(0);
	peer_received(0, 5000, 1);

	assert_posted(rdma_post_recv(end.id, NULL, iova + 10000, 5000, mr));
	peer((struct order) { .request = PEER_FILL, .length = 5000, .seed = 2 });
	peer_send(SIMPLE, 0, 5000);
	received(0, 5000);
	check_own(10000, 5000, 2);
	assert_returns(0, rdma_dereg_mr(mr));
}

void ud_send_on_connection(void **state)
{
	(void)state;
	connected_pair(&usual);
	peer_recv(SIMPLE, 0, 16);
	fill_own(0, 16, 1);
	assert_posted(rdma_post_ud_send(end.id, NULL, end.buffer, 16, end.mr, 0, NULL, 0));
	sent(0);
	peer_received(0, 16, 1);
}
