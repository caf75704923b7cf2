/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* All cases, in the order in which they run: CASE(function, name). No include guard: it is read more than once. */

/* transfers.c */
CASE(messages_of_every_size, "send, recv: 0 bytes to 1 MiB, both ways")
CASE(messages_in_pieces, "sendv, recvv: several entries at both ends")
CASE(messages_without_entries, "sendv, recvv: nsge 0")
CASE(inline_without_region, "send, write: inline with mr NULL, copied during the call")
CASE(writes, "write, writev: the bytes are at the peer")
CASE(reads, "read, readv: the peer's bytes are here")
CASE(unsignaled_requests, "send: unsignaled requests complete in silence and free their place")
CASE(contexts, "the context comes back in wr_id bit for bit")
CASE(receive_before_connecting, "recv, recvv: posted before the connection, used by its first messages")
CASE(shared_receive_queue, "recv, recvv: through id->srq")
CASE(region_with_iova, "send, recv: addresses that count from an iova of the region's own")
CASE(ud_send_on_connection, "ud_send: a plain send where the QP is not UD")

/* refusals.c */
CASE(before_connecting, "every send-side function before the connection: ENOTCONN, and nothing is sent later")
CASE(invalid_requests, "invalid requests: EINVAL, and nothing reaches the wire")
CASE(qp_with_srq_of_its_own, "recv, recvv: EINVAL where only the QP has an SRQ")
CASE(send_queue_full, "send: ENOMEM when the queue is full, until completions are taken")
CASE(receive_queue_full, "recv: ENOMEM when the queue is full, until completions are taken")
CASE(srq_full, "recv: ENOMEM when the SRQ is full, until completions are taken")

/* failures.c */
CASE(send_with_bad_lkey, "sendv with a bad lkey: a completion with an error, at this end only")
CASE(receive_with_bad_lkey, "recvv with a bad lkey: completions with errors at both ends")
CASE(write_with_bad_rkey, "write with a bad rkey: REM_ACCESS_ERR")
CASE(read_with_bad_rkey, "read with a bad rkey: REM_ACCESS_ERR")
CASE(receive_too_small, "a receive too small for the message: completions with errors at both ends")
CASE(qp_in_error, "requests to a QP in state ERR: flushed")
CASE(after_disconnecting, "requests after rdma_disconnect, and receives before it: flushed")
CASE(rights_of_reg_msgs, "reg_msgs: no access for the peer")
CASE(rights_of_reg_read, "reg_read: the peer may read, not write")
CASE(rights_of_reg_write, "reg_write: the peer may write, not read")
CASE(deregistered, "dereg_mr: no access for the peer any more")

/* waiting.c */
CASE(wait_for_message, "get_recv_comp: a wait ended by a message")
CASE(wait_for_own_request, "get_send_comp: a wait ended by a request of another thread")
CASE(wait_interrupted, "get_recv_comp, get_send_comp: EINTR")
CASE(wait_non_blocking, "get_recv_comp, get_send_comp: EAGAIN on a non-blocking channel")
CASE(foreign_event, "get_send_comp: an event of another CQ on the channel")
CASE(no_channel, "get_recv_comp: without a channel, EINVAL only where it would have to wait")
CASE(no_completion_queue, "get_recv_comp, get_send_comp: EINVAL without a CQ or wc")
CASE(two_threads, "one thread posts sends while another waits for receives")

/* datagrams.c */
CASE(datagrams, "ud_send: datagrams there and back, after 40 bytes of header")
CASE(datagram_refusals, "on a UD QP: EINVAL without an address handle, and for every other function")
