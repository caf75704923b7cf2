/* SPDX-License-Identifier: MIT OR Apache-2.0 */

#include <arpa/inet.h>
#include <time.h>
#include "link.h"

/* Seconds, in a slow virtual machine. */
#define PATIENCE 30

uint8_t link_rnr_retry = 7;

/* Which entry of the port's table has the address; of several the last, which is that of RoCE v2. */
static int gid_index(struct ibv_context *context, union ibv_gid *gid)
{
	const char *address = getenv("DEVICE_ADDRESS");
	union ibv_gid wanted = { .raw = { [10] = 0xff, [11] = 0xff } };
	struct ibv_port_attr port;
	int found = -1;

	if (!address || !(inet_pton(AF_INET, address, wanted.raw + 12) == 1 ||
			inet_pton(AF_INET6, address, wanted.raw) == 1))
		die("no address in DEVICE_ADDRESS");
	need(!ibv_query_port(context, 1, &port));
	for (int i = 0; i < port.gid_tbl_len; i++) {
		union ibv_gid candidate;

		if (!ibv_query_gid(context, 1, i, &candidate) && !memcmp(&candidate, &wanted, sizeof(wanted))) {
			*gid = candidate;
			found = i;
		}
	}
	return found;
}

struct ibv_qp_init_attr link_attr(void)
{
	return (struct ibv_qp_init_attr) {
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 32 },
		.qp_type = IBV_QPT_RC,
	};
}

void link_device(struct link *link)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	union ibv_gid gid;

	need(devices);
	for (int i = 0; devices[i] && !link->context; i++) {
		link->context = ibv_open_device(devices[i]);
		need(link->context);
		if (gid_index(link->context, &gid) < 0) {
			need(!ibv_close_device(link->context));
			link->context = NULL;
		} else {
			printf("device %s\n", ibv_get_device_name(devices[i]));
		}
	}
	ibv_free_device_list(devices);
	need(link->context);
}

void link_region(struct link *link)
{
	link->mr = ibv_reg_mr(link->pd, link->buffer, BUFFER_SIZE,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	need(link->mr);
}

static void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};

	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

static void to_rts(struct ibv_qp *qp, const struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh.hop_limit = 1 },
	};
	int index = gid_index(qp->context, &attr.ah_attr.grh.dgid);

	attr.ah_attr.grh.sgid_index = index;
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr) {
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = link_rnr_retry,
		.max_rd_atomic = 1,
	};
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

void link_make(struct link *link, struct ibv_qp_init_attr attr)
{
	link->pd = ibv_alloc_pd(link->context);
	need(link->pd);
	if (!link->cq)
		link->cq = ibv_create_cq(link->context, 64, NULL, NULL, 0);
	need(link->cq);
	attr.send_cq = attr.recv_cq = link->cq;
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr granted = attr;

		link->qp[i] = ibv_create_qp(link->pd, &granted);
		need(link->qp[i]);
		printf("qp %d %#x\n", i, link->qp[i]->qp_num);
		to_init(link->qp[i]);
	}
	for (int i = 0; i < 2; i++)
		to_rts(link->qp[i], link->qp[!i]);
	link->buffer = aligned_alloc(4096, BUFFER_SIZE);
	need(link->buffer);
	memset(link->buffer, 0, BUFFER_SIZE);
	link_region(link);
	fflush(stdout);
}

void link_open(struct link *link, struct ibv_qp_init_attr attr)
{
	link_device(link);
	link_make(link, attr);
}

void link_close(struct link *link)
{
	for (int i = 0; i < 2; i++)
		if (link->qp[i])
			need(!ibv_destroy_qp(link->qp[i]));
	if (link->mr)
		need(!ibv_dereg_mr(link->mr));
	free(link->buffer);
	need(!ibv_destroy_cq(link->cq));
	need(!ibv_dealloc_pd(link->pd));
	need(!ibv_close_device(link->context));
}

void link_send(struct link *link, int end, uint64_t wr_id, size_t length, int flags)
{
	/* Inline data needs no region. */
	uint32_t lkey = flags & IBV_SEND_INLINE ? 0 : link->mr->lkey;
	struct ibv_sge sge = { .addr = (uintptr_t)link->buffer, .length = length, .lkey = lkey };
	struct ibv_send_wr wr = {
		.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags,
	};
	struct ibv_send_wr *bad;

	need(!ibv_post_send(link->qp[end], &wr, &bad));
}

void link_recv(struct link *link, int end, uint64_t wr_id, size_t length)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)link->buffer + BUFFER_SIZE / 2, .length = length, .lkey = link->mr->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad;

	need(!ibv_post_recv(link->qp[end], &wr, &bad));
}

struct ibv_wc link_wait(struct link *link)
{
	time_t end = time(NULL) + PATIENCE;
	struct ibv_wc wc;
	int count;

	do
		count = ibv_poll_cq(link->cq, 1, &wc);
	while (count == 0 && time(NULL) < end);
	need(count == 1);
	return wc;
}

void link_drain(struct link *link, int completions)
{
	while (completions--) {
		struct ibv_wc wc = link_wait(link);

		if (wc.status)
			die("wr_id %#llx: %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	}
}
