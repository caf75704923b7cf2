/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What all cases use: objects to call the functions with, the fifteen functions as a table, and the checks.
 */
#ifndef SUITE_H
#define SUITE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <rdma/rdma_verbs.h>
#include "scripted.h"

#ifndef LIBRDMA_VERBS_VERSION_NUM
#error "not the header of librdma_verbs"
#endif

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))

/* Finds the script of a provider that is a file, or with NULL, in this program. */
struct scripted *attach(const char *provider);
/* The script of the case that runs. */
extern struct scripted *script;
/* How the data path is to be reached. */
extern enum route data_path_route;

/*
 * The objects of a connected id on an InfiniBand device, as good as new for each case. The id has a queue pair of type
 * RC in state RTS, and no shared receive queue.
 */
struct fixture {
	struct ibv_device device;
	struct ibv_context context;
	struct ibv_pd pd;
	struct ibv_comp_channel send_channel, recv_channel;
	struct ibv_cq send_cq, recv_cq;
	struct ibv_srq srq;
	struct ibv_qp qp;
	struct ibv_ah ah;
	char buffer[4096];
	struct ibv_mr mr;	/* all of the buffer */
	struct ibv_sge sge;
	struct ibv_wc wc;
	struct rdma_cm_id id;
};
extern struct fixture fx;
int fresh_fixture(void **state);

/* Every argument that one of the functions takes. */
struct arguments {
	struct rdma_cm_id *id;
	void *context;
	struct ibv_sge *sgl;
	int nsge;
	void *addr;
	size_t length;
	struct ibv_mr *mr;
	int flags;
	uint64_t remote_addr;
	uint32_t rkey;
	struct ibv_ah *ah;
	uint32_t remote_qpn;
	struct ibv_wc *wc;
};
/* Arguments that nothing is wrong with. */
struct arguments good_arguments(void);

struct outcome {
	int status;		/* of the rdma_reg functions: 0, or -1 for NULL */
	struct ibv_mr *region;
	int error;		/* errno after the call */
};

enum kind {
	RECEIVE = 1 << 0,
	SEND_SIDE = 1 << 1,	/* sends, reads and writes, datagrams too */
	SIMPLE = 1 << 2,	/* one buffer */
	VECTOR = 1 << 3,	/* a scatter/gather list */
	INLINE = 1 << 4,	/* simple, and IBV_SEND_INLINE has a meaning */
	DATAGRAM = 1 << 5,
	REMOTE = 1 << 6,	/* names memory of the peer */
	COMPLETION = 1 << 7,
	REGISTRATION = 1 << 8,
	DEREGISTRATION = 1 << 9,
	POST = RECEIVE | SEND_SIDE,
	ANY = ~0,
};

struct function {
	const char *name;
	unsigned int is;	/* enum kind */
	int success;		/* what it returns then */
	/* What tells it from others of its kind. */
	enum ibv_wr_opcode opcode;
	int access;
	void (*call)(const struct arguments *, struct outcome *);
};

/* In the order of the header; the posts stand together. */
extern const struct function functions[15];
enum { FIRST_POST = 4, POSTS = 9 };

#define for_each_function(f, kinds) \
	for (const struct function *f = functions; f < functions + ARRAY_SIZE(functions); f++) \
		if (f->is & (kinds))

/* Calls a function whose caller's errno is `before`. */
struct outcome call(const struct function *f, const struct arguments *args, int before);

/* The verb that a function calls first. */
enum verb verb_of(const struct function *f, const struct rdma_cm_id *id);

/* The script: what the next call of that verb answers that has no answer yet. */
void say(enum verb verb, struct answer answer);
/* Forgets all answers and calls. */
void new_script(void);

/* Says in a failure which row of a table it is about. */
void row(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Ends the case that runs. `fail_case` is how, and does not return; NULL ends the program. */
extern void (*fail_case)(const char *file, int line, const char *text);
void failure(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));

#define check(condition) \
	do { \
		if (!(condition)) \
			failure(__FILE__, __LINE__, "%s is false", #condition); \
	} while (0)

/* For integers and pointers. */
#define check_equal(actual, expected) \
	do { \
		long long actual_ = (long long)(actual), expected_ = (long long)(expected); \
		if (actual_ != expected_) \
			failure(__FILE__, __LINE__, "%s is %lld (%#llx), not %lld (%#llx)", #actual, \
				actual_, actual_, expected_, expected_); \
	} while (0)

#define check_bytes(actual, expected, size) \
	check_bytes_(__FILE__, __LINE__, #actual, actual, expected, size)
void check_bytes_(const char *file, int line, const char *what, const void *actual, const void *expected, size_t size);

/* Which verbs were called, in order: "poll arm poll". */
#define check_calls(expected) check_calls_(__FILE__, __LINE__, expected)
void check_calls_(const char *file, int line, const char *expected);

/* The call fails with that errno, whatever it was before. */
#define check_fails(f, args, error) check_fails_(__FILE__, __LINE__, f, args, error)
void check_fails_(const char *file, int line, const struct function *f, const struct arguments *args, int error);

/* As check_fails, and the provider never hears of it. */
#define check_refused(f, args, error) check_refused_(__FILE__, __LINE__, f, args, error)
void check_refused_(const char *file, int line, const struct function *f, const struct arguments *args, int error);

/* The call reaches the provider once, by the expected route, and succeeds as the provider does. */
#define check_accepted(f, args) check_accepted_(__FILE__, __LINE__, f, args)
void check_accepted_(const char *file, int line, const struct function *f, const struct arguments *args);

/* All functions at once. */

/* All fifteen succeed, where no completion has to be waited for. */
void check_all_work(void);
/* Posts and completions succeed. */
void check_data_path_works(void);
/* A completion that has to be waited for is found, or the wait fails before the provider is asked for an event. */
void check_waiting_works(void);
void check_waiting_fails(int error);
/* The calls that need functions of a library, and not only the operations table, fail. */
void check_control_fails(int error);
/* Every call that is not refused fails, and the provider hears of none. */
void check_all_fail(int error);
/* Calls are refused as they are whatever the provider. */
void check_refusals(void);

/* A list of cases that a file contributes. */
struct cases {
	const struct CMUnitTest *tests;
	size_t count;
};
#define CASE(function) { #function, function, fresh_fixture, NULL, NULL }
#define CASES(name, array) const struct cases name = { array, ARRAY_SIZE(array) }

/*
 * Takes the script of the provider that RDMA_VERBS_PROVIDER names, or where it is not set, of this program itself; the
 * one argument says how the library has to reach the data path: by-name or by-table.
 */
void use_provider(int argc, char **argv);

/* Runs all cases as one program, with TAP on standard output. Returns the program's exit status. */
int run_cases(const char *name, const struct cases *const *lists, size_t count);

#endif
