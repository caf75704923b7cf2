/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Two connected queue pairs of one process, on the device that has the address in DEVICE_ADDRESS. */

#ifndef LINK_H
#define LINK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <infiniband/verbs.h>

#define BUFFER_SIZE 4096

struct link {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;		/* of both; set before, it is used */
	struct ibv_qp *qp[2];
	char *buffer;			/* of BUFFER_SIZE */
	struct ibv_mr *mr;		/* all of it */
};

/* What a link begins with; a program changes it before link_open. */
struct ibv_qp_init_attr link_attr(void);
/* RNR retries of both ends: 0 to 6, or 7 for without end. */
extern uint8_t link_rnr_retry;

/* Opens the device. Prints its name and, where the link is made, the numbers of the queue pairs. */
void link_device(struct link *link);
void link_make(struct link *link, struct ibv_qp_init_attr attr);
void link_open(struct link *link, struct ibv_qp_init_attr attr);
/* Takes all down, as the manual pages say. Parts that are NULL are gone already. */
void link_close(struct link *link);

/* Posts one request of a buffer of the link; ends the program if it is not accepted. */
void link_send(struct link *link, int end, uint64_t wr_id, size_t length, int flags);
void link_recv(struct link *link, int end, uint64_t wr_id, size_t length);
/* The next completion of the link; ends the program if there is none for too long. */
struct ibv_wc link_wait(struct link *link);
/* So many completions, all of which have to be good. */
void link_drain(struct link *link, int completions);
void link_region(struct link *link);

#define die(...) do { fprintf(stderr, __VA_ARGS__); fprintf(stderr, "\n"); exit(99); } while (0)
#define need(truth) do { if (!(truth)) die("%s:%d: not so: %s: %m", __FILE__, __LINE__, #truth); } while (0)

/* Programs break their rule unless they are told to be "correct". */
static inline bool correct(int argc, char **argv)
{
	return argc > 1 && !strcmp(argv[1], "correct");
}

#endif
