/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * A program with functions of its own under names that upstream's inlines call: as a call from inside the library
 * would find the program's first, there must be none. Exits with 0 if there was none.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <string.h>

static int own_calls;

int rdma_post_recvv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge)
{
	(void)id, (void)context, (void)sgl, (void)nsge;
	return own_calls++;
}

int rdma_post_sendv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags)
{
	(void)id, (void)context, (void)sgl, (void)nsge, (void)flags;
	return own_calls++;
}

int rdma_post_readv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags,
		    uint64_t remote_addr, uint32_t rkey)
{
	(void)id, (void)context, (void)sgl, (void)nsge, (void)flags, (void)remote_addr, (void)rkey;
	return own_calls++;
}

int rdma_post_writev(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags,
		     uint64_t remote_addr, uint32_t rkey)
{
	(void)id, (void)context, (void)sgl, (void)nsge, (void)flags, (void)remote_addr, (void)rkey;
	return own_calls++;
}

/* The header's is an inline, so this one needs another name in C. */
int own_seterrno(int result) __asm__("rdma_seterrno");
int own_seterrno(int result)
{
	(void)result;
	return own_calls++;
}

static int posts;

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp, (void)wr, (void)bad;
	posts++;
	return ENOMEM;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)qp, (void)wr, (void)bad;
	posts++;
	return ENOMEM;
}

int main(void)
{
	static const char *const own[] = {
		"rdma_post_recvv", "rdma_post_sendv", "rdma_post_readv", "rdma_post_writev", "rdma_seterrno",
	};
	struct ibv_context context = { .ops = { .post_send = post_send, .post_recv = post_recv } };
	struct ibv_qp qp = { .context = &context, .state = IBV_QPS_RTS, .qp_type = IBV_QPT_RC };
	struct ibv_mr mr = { .addr = &qp, .length = sizeof(qp) };
	struct rdma_cm_id id = { .qp = &qp };
	int failed;
	Dl_info where;

	/* Else there would be nothing to call by mistake. */
	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
		if (!dladdr(dlsym(RTLD_DEFAULT, own[i]), &where) || strstr(where.dli_fname, "librdma_verbs")) {
			printf("%s is not the program's\n", own[i]);
			return 1;
		}
	}

	failed = rdma_post_recv(&id, NULL, &qp, 8, &mr) + rdma_post_send(&id, NULL, &qp, 8, &mr, 0) +
		 rdma_post_read(&id, NULL, &qp, 8, &mr, 0, 0, 0) + rdma_post_write(&id, NULL, &qp, 8, &mr, 0, 0, 0) +
		 rdma_post_ud_send(&id, NULL, &qp, 8, &mr, 0, NULL, 0);
	if (failed != -5 || posts != 5 || own_calls) {
		printf("%d failures and %d posts of 5; %d calls of the program's own functions\n", -failed, posts, own_calls);
		return 1;
	}
	return 0;
}
