/* SPDX-License-Identifier: MIT OR Apache-2.0 */

#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device.h"

struct device dev;

const char *errno_name(int err)
{
	static char number[16];
	const char *name = strerrorname_np(err);

	if (err > 0 && name)
		return name;
	snprintf(number, sizeof(number), "%d", err);
	return number;
}

/* Addresses differ from run to run, names do not. */
static const char *object(const void *p)
{
	return !p ? "NULL" :
	       p == &dev.qp ? "qp" :
	       p == &dev.srq ? "srq" :
	       p == &dev.pd ? "pd" :
	       p == &dev.ah ? "ah" :
	       p == &dev.mr ? "mr" :
	       p == &dev.send_cq ? "send_cq" :
	       p == &dev.recv_cq ? "recv_cq" :
	       p == &dev.other_cq ? "other_cq" :
	       p == &dev.send_channel ? "send_channel" :
	       p == &dev.recv_channel ? "recv_channel" : "unknown";
}

/* The answer to a call of this verb; any other call than the script's next ends the scenario. */
static const struct step *play(enum verb verb)
{
	static const char *const names[] = {
		[END] = "nothing",
		[POST_SEND] = "post_send",
		[POST_RECV] = "post_recv",
		[POST_SRQ_RECV] = "post_srq_recv",
		[POLL_CQ] = "poll_cq",
		[REQ_NOTIFY_CQ] = "req_notify_cq",
		[GET_CQ_EVENT] = "get_cq_event",
		[REG_MR] = "reg_mr",
		[DEREG_MR] = "dereg_mr",
	};
	const struct step *step = dev.script;

	if (step->verb != verb) {
		printf("%s was called where the scenario has %s\n", names[verb], names[step->verb]);
		exit(1);
	}
	dev.script++;
	if (step->err)
		errno = step->err;
	return step;
}

int device_done(void)
{
	return dev.script->verb == END;
}

/* A device walks the list and, of an inline request, copies the bytes; so this crashes where a device would. */
static void print_list(const struct ibv_sge *list, int count, int is_inline)
{
	for (int i = 0; i < count; i++) {
		const volatile struct ibv_sge *sge = &list[i];

		printf("  sge addr=0x%llx length=%u lkey=0x%x", (unsigned long long)sge->addr, sge->length, sge->lkey);
		if (is_inline) {
			const volatile unsigned char *bytes = (void *)(uintptr_t)sge->addr;

			printf(" inline=");
			for (uint32_t n = 0; n < sge->length && n < 16; n++)
				printf("%02x", bytes[n]);
		}
		putchar('\n');
	}
}

/* In a request whose meaningful fields have been set to 0. */
static void look_for_garbage(const void *rest, size_t size)
{
	const unsigned char *bytes = rest;

	for (size_t i = 0; dev.look_for_garbage && i < size; i++)
		dev.garbage |= bytes[i] != 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	const struct step *step;
	struct ibv_send_wr rest;

	memcpy(&rest, wr, sizeof(rest));
	printf("post_send %s wr_id=0x%llx next=%s num_sge=%d opcode=%d send_flags=0x%x", object(qp),
	       (unsigned long long)wr->wr_id, wr->next ? "something" : "NULL", wr->num_sge, wr->opcode, wr->send_flags);
	memset(&rest, 0, offsetof(struct ibv_send_wr, imm_data));
	if (wr->opcode == IBV_WR_RDMA_READ || wr->opcode == IBV_WR_RDMA_WRITE) {
		printf(" remote_addr=0x%llx rkey=0x%x", (unsigned long long)wr->wr.rdma.remote_addr, wr->wr.rdma.rkey);
		rest.wr.rdma.remote_addr = 0;
		rest.wr.rdma.rkey = 0;
	} else if (dev.datagram) {
		printf(" ah=%s remote_qpn=0x%x remote_qkey=0x%x", object(wr->wr.ud.ah), wr->wr.ud.remote_qpn,
		       wr->wr.ud.remote_qkey);
		memset(&rest.wr.ud, 0, sizeof(rest.wr.ud));
	} else if (qp->qp_type == IBV_QPT_UD) {
		printf(" ah=%s", object(wr->wr.ud.ah));
	}
	putchar('\n');
	look_for_garbage(&rest, sizeof(rest));
	print_list(wr->sg_list, wr->num_sge, wr->opcode != IBV_WR_RDMA_READ && wr->send_flags & IBV_SEND_INLINE);

	step = play(POST_SEND);
	*bad = step->result ? wr : NULL;
	return step->result;
}

static void print_recv(const char *verb, const void *queue, struct ibv_recv_wr *wr)
{
	struct ibv_recv_wr rest;

	memcpy(&rest, wr, sizeof(rest));
	printf("%s %s wr_id=0x%llx next=%s num_sge=%d\n", verb, object(queue), (unsigned long long)wr->wr_id,
	       wr->next ? "something" : "NULL", wr->num_sge);
	memset(&rest, 0, offsetof(struct ibv_recv_wr, num_sge) + sizeof(rest.num_sge));
	look_for_garbage(&rest, sizeof(rest));
	print_list(wr->sg_list, wr->num_sge, 0);
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	const struct step *step;

	print_recv("post_recv", qp, wr);
	step = play(POST_RECV);
	*bad = step->result ? wr : NULL;
	return step->result;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	const struct step *step;

	print_recv("post_srq_recv", srq, wr);
	step = play(POST_SRQ_RECV);
	*bad = step->result ? wr : NULL;
	return step->result;
}

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
	const struct step *step;

	printf("poll_cq %s count=%d\n", object(cq), count);
	step = play(POLL_CQ);
	if (step->result == 1) {
		memset(wc, 0, sizeof(*wc));
		wc->wr_id = 0xfeedfacecafef00d;
		wc->status = step->status;
		wc->opcode = IBV_WC_RECV;
		wc->byte_len = 4096;
		wc->qp_num = 0x111213;
		wc->slid = 0x1415;
	}
	return step->result;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	printf("req_notify_cq %s solicited_only=%d\n", object(cq), solicited_only);
	return play(REQ_NOTIFY_CQ)->result;
}

/* The definitions of libibverbs look into the object first, and so do these. */
static void look_at(const void *object)
{
	(void)*(const volatile char *)object;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	const struct step *step;

	look_at(channel);
	printf("get_cq_event %s\n", object(channel));
	step = play(GET_CQ_EVENT);
	if (step->result)
		return step->result;
	*cq = step->cq;
	*cq_context = step->cq_context;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	look_at(cq);
	printf("ack_cq_events %s count=%u\n", object(cq), count);
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	look_at(pd);
	printf("reg_mr %s addr=%p length=%zu access=0x%x\n", object(pd), addr, length, access);
	return play(REG_MR)->mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	look_at(mr);
	printf("dereg_mr %s\n", object(mr));
	return play(DEREG_MR)->result;
}

void device_init(void)
{
	static const struct step nothing[1];
	unsigned char *memory;

	memset(&dev, 0, sizeof(dev));
	dev.script = nothing;
	dev.device.transport_type = IBV_TRANSPORT_IB;
	dev.context.device = &dev.device;
	dev.context.ops.post_send = post_send;
	dev.context.ops.post_recv = post_recv;
	dev.context.ops.post_srq_recv = post_srq_recv;
	dev.context.ops.poll_cq = poll_cq;
	dev.context.ops.req_notify_cq = req_notify_cq;

	dev.pd.context = dev.srq.context = dev.qp.context = dev.ah.context = dev.mr.context = &dev.context;
	dev.send_cq.context = dev.recv_cq.context = dev.other_cq.context = &dev.context;
	dev.send_channel.context = dev.recv_channel.context = &dev.context;
	dev.qp.qp_type = IBV_QPT_RC;
	dev.qp.state = IBV_QPS_RTS;

	memory = mmap((void *)MEMORY, MEMORY_SIZE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (memory != (void *)MEMORY) {
		perror("mmap");
		exit(1);
	}
	for (size_t i = 0; i < MEMORY_SIZE; i++)
		memory[i] = i;
	dev.mr.pd = &dev.pd;
	dev.mr.addr = memory;
	dev.mr.length = MEMORY_SIZE;
	dev.mr.lkey = 0x1a2b3c4d;
	dev.mr.rkey = 0x5e6f7081;
}
