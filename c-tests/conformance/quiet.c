/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What a post does not do: no lock, no allocation, no system call.
 *
 *   quiet by-name|by-table		with RDMA_VERBS_PROVIDER set, as for conformance
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <dlfcn.h>
#include "suite.h"

enum { TIMES = 1000 };

/* Every allocation and every mutex of the process, of the library too: the loader finds these definitions first. */
static atomic_uint allocations, locks;

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

void *malloc(size_t size)
{
	allocations++;
	return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	allocations++;
	return __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
	allocations++;
	return __libc_realloc(p, size);
}

int posix_memalign(void **p, size_t alignment, size_t size)
{
	allocations++;
	*p = __libc_memalign(alignment, size);
	return *p ? 0 : ENOMEM;
}

void *aligned_alloc(size_t alignment, size_t size)
{
	allocations++;
	return __libc_memalign(alignment, size);
}

void free(void *p)
{
	allocations++;
	__libc_free(p);
}

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
	int (*next)(pthread_mutex_t *);

	locks++;
	*(void **)&next = dlsym(RTLD_NEXT, "pthread_mutex_lock");
	return next(mutex);
}

/* All that a busy program does: each post, also into a shared receive queue, and taking completions that are there. */
static void post_and_poll(int times)
{
	struct arguments args = good_arguments();

	for (int i = 0; i < times; i++) {
		for_each_function(f, POST | COMPLETION) {
			struct outcome outcome = { 0 };

			f->call(&args, &outcome);
			if (outcome.status != f->success)
				failure(__FILE__, __LINE__, "%s returned %d", f->name, outcome.status);
		}
		fx.id.srq = &fx.srq;
		for_each_function(f, RECEIVE) {
			struct outcome outcome = { 0 };

			f->call(&args, &outcome);
			if (outcome.status != f->success)
				failure(__FILE__, __LINE__, "%s returned %d", f->name, outcome.status);
		}
		fx.id.srq = NULL;
	}
}

/* The provider answers and does nothing else; the library has it. */
static int obliging_provider(void **state)
{
	fresh_fixture(state);
	script->obliging = true;
	memset(script->obliged, 0, sizeof(script->obliged));
	post_and_poll(1);
	return 0;
}

static int end_of_obligation(void **state)
{
	(void)state;
	script->obliging = false;
	return 0;
}

static void check_provider_was_called(int times)
{
	check_equal(script->obliged[POST_SEND], 7 * times);
	check_equal(script->obliged[POST_RECV], 2 * times);
	check_equal(script->obliged[POST_SRQ_RECV], 2 * times);
	check_equal(script->obliged[POLL_CQ], 2 * times);
}

static void no_memory_is_allocated_or_freed(void **state)
{
	unsigned int before = allocations, after;

	(void)state;
	post_and_poll(TIMES);
	after = allocations;
	check_equal(after - before, 0);
	check_provider_was_called(1 + TIMES);
	/* One would have been noticed, of the library too. */
	check(dlsym(RTLD_DEFAULT, "malloc") == (void *)malloc);
	before = allocations;
	free(malloc(1));
	check_equal(allocations - before, 2);
}

static void no_mutex_is_locked(void **state)
{
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	unsigned int before = locks, after;

	(void)state;
	post_and_poll(TIMES);
	after = locks;
	check_equal(after - before, 0);
	check_provider_was_called(1 + TIMES);
	/* One would have been noticed. */
	check(dlsym(RTLD_DEFAULT, "pthread_mutex_lock") == (void *)pthread_mutex_lock);
	pthread_mutex_lock(&mutex);
	pthread_mutex_unlock(&mutex);
	check_equal(locks - before, 1);
}

/* From here on every system call but the end of the process kills it. */
static void forbid_system_calls(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_exit_group, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog filter = { .len = ARRAY_SIZE(code), .filter = code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		_exit(2);
}

static void fail_at_once(const char *file, int line, const char *text)
{
	(void)file;
	(void)line;
	(void)text;
	_exit(3);
}

/* The status, as of waitpid, of a child that does this without system calls. */
static int without_system_calls(void (*body)(void))
{
	int status;
	pid_t pid = fork();

	check(pid >= 0);
	if (pid == 0) {
		signal(SIGSYS, SIG_DFL);
		fail_case = fail_at_once;
		forbid_system_calls();
		body();
		_exit(EXIT_SUCCESS);
	}
	check_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void busy(void)
{
	post_and_poll(TIMES);
	check_provider_was_called(1 + TIMES);
}

static void one_system_call(void)
{
	syscall(__NR_getppid);
}

static void no_system_call_is_made(void **state)
{
	int status;

	(void)state;
	status = without_system_calls(busy);
	check(!WIFSIGNALED(status));
	check_equal(WEXITSTATUS(status), 0);
	/* One would have been noticed. */
	status = without_system_calls(one_system_call);
	check(WIFSIGNALED(status));
	check_equal(WTERMSIG(status), SIGSYS);
}

/* A post from inside the provider: a lock that is held around it would be taken twice. */

static struct outcome inner[15];

static void post_everything(void)
{
	struct arguments args = good_arguments();

	script->obliging = true;
	for_each_function(f, POST | COMPLETION)
		inner[f - functions] = call(f, &args, 77);
	script->obliging = false;
}

static void check_inner(void)
{
	for_each_function(f, POST | COMPLETION) {
		check_equal(inner[f - functions].status, f->success);
		check_equal(inner[f - functions].error, 77);
	}
	memset(inner, 0, sizeof(inner));
}

static void no_lock_is_held_while_the_provider_works(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	for_each_function(f, ANY) {
		struct outcome outcome;

		row("%s", f->name);
		new_script();
		say(verb_of(f, &fx.id), (struct answer){
			.result = f->success, .mr = &fx.mr, .meanwhile = post_everything,
		});
		outcome = call(f, &args, 4242);
		check_equal(outcome.status, f->success);
		check_equal(outcome.error, 4242);
		check_inner();
	}
	for (int i = 0; i < 2; i++) {
		fx.id.srq = i ? &fx.srq : NULL;
		new_script();
		say(verb_of(&functions[FIRST_POST], &fx.id), (struct answer){
			.result = -1, .error = EAGAIN, .meanwhile = post_everything,
		});
		check_fails(&functions[FIRST_POST], &args, EAGAIN);
		check_inner();
	}
}

static void no_lock_is_held_while_a_completion_is_waited_for(void **state)
{
	struct arguments args = good_arguments();

	(void)state;
	for_each_function(f, COMPLETION) {
		struct outcome outcome;

		row("%s", f->name);
		new_script();
		say(POLL_CQ, (struct answer){ 0 });
		say(REQ_NOTIFY_CQ, (struct answer){ 0 });
		say(POLL_CQ, (struct answer){ 0 });
		say(GET_CQ_EVENT, (struct answer){ .cq = &fx.send_cq, .meanwhile = post_everything });
		say(ACK_CQ_EVENTS, (struct answer){ 0 });
		say(POLL_CQ, (struct answer){ .result = 1 });
		outcome = call(f, &args, 4242);
		check_equal(outcome.status, 1);
		check_equal(outcome.error, 4242);
		check_inner();
	}
}

/* The same from another thread. */

static sem_t waiting, posted;

static void wait_for_posts(void)
{
	sem_post(&waiting);
	while (sem_wait(&posted))
		;
}

static struct outcome waited;

static void *wait_for_completion(void *f)
{
	struct arguments args = good_arguments();

	waited = call(f, &args, 4242);
	return NULL;
}

static void other_threads_post_while_one_waits_for_a_completion(void **state)
{
	(void)state;
	for_each_function(f, COMPLETION) {
		pthread_t thread;

		row("%s", f->name);
		new_script();
		check_equal(sem_init(&waiting, 0, 0), 0);
		check_equal(sem_init(&posted, 0, 0), 0);
		say(POLL_CQ, (struct answer){ 0 });
		say(REQ_NOTIFY_CQ, (struct answer){ 0 });
		say(POLL_CQ, (struct answer){ 0 });
		say(GET_CQ_EVENT, (struct answer){ .cq = &fx.send_cq, .meanwhile = wait_for_posts });
		say(ACK_CQ_EVENTS, (struct answer){ 0 });
		say(POLL_CQ, (struct answer){ .result = 1 });
		check_equal(pthread_create(&thread, NULL, wait_for_completion, (void *)f), 0);
		while (sem_wait(&waiting))
			;
		post_everything();
		check_inner();
		sem_post(&posted);
		check_equal(pthread_join(thread, NULL), 0);
		check_equal(waited.status, 1);
		check_equal(waited.error, 4242);
		check_calls("poll arm poll wait ack poll");
	}
}

#define QUIET_CASE(function) { #function, function, obliging_provider, end_of_obligation, NULL }

static const struct CMUnitTest tests[] = {
	QUIET_CASE(no_memory_is_allocated_or_freed),
	QUIET_CASE(no_mutex_is_locked),
	QUIET_CASE(no_system_call_is_made),
	CASE(no_lock_is_held_while_the_provider_works),
	CASE(no_lock_is_held_while_a_completion_is_waited_for),
	CASE(other_threads_post_while_one_waits_for_a_completion),
};
static CASES(quiet, tests);

int main(int argc, char **argv)
{
	static const struct cases *const lists[] = { &quiet };

	use_provider(argc, argv);
	return run_cases("quiet", lists, ARRAY_SIZE(lists));
}
