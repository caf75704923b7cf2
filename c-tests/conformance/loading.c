/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What else may happen while the provider is loaded: other threads, constructors, fork, cancellation, signals; and where
 * the library itself was loaded from.
 *
 * Each case runs in children of this program, because a process has one provider for good. A child that hangs is ended
 * by its alarm. The program is not linked to libibverbs.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "suite.h"

#define VARIABLE "RDMA_VERBS_PROVIDER"
#define LIBIBVERBS "libibverbs.so.1"

/* Seconds after which a child hangs. */
enum { HANGS = 20 };

static const char no_provider[] = "/nonexistent/libverbs.so";

/* A file next to this program. */
static const char *beside(const char *name)
{
	static char path[512];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) / 2);

	check(n > 0 && n < (ssize_t)sizeof(path) / 2);
	path[n] = '\0';
	n = strrchr(path, '/') + 1 - path;
	snprintf(path + n, sizeof(path) - n, "%s", name);
	return path;
}

/* Children. */

static int failure_fd;

static void fail_child(const char *file, int line, const char *text)
{
	dprintf(failure_fd, "%s:%d: %s", file, line, text);
	_exit(EXIT_FAILURE);
}

static void collect(int fd, char *text, size_t size)
{
	size_t used = 0;
	ssize_t n;

	while (used < size - 1 && (n = read(fd, text + used, size - 1 - used)) > 0)
		used += n;
	text[used] = '\0';
	close(fd);
}

/* Runs the body in a child, which must succeed, and returns what it wrote to standard error. */
static const char *run_output(void (*body)(void))
{
	static char output[4096];
	char text[1024];
	int failures[2], errors[2], status;
	pid_t pid;

	assert_int_equal(pipe2(failures, O_CLOEXEC), 0);
	assert_int_equal(pipe2(errors, O_CLOEXEC), 0);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		signal(SIGABRT, SIG_DFL);
		signal(SIGALRM, SIG_DFL);
		signal(SIGSEGV, SIG_DFL);
		alarm(HANGS);
		dup2(errors[1], STDERR_FILENO);
		failure_fd = failures[1];
		fail_case = fail_child;
		body();
		_exit(EXIT_SUCCESS);
	}
	close(failures[1]);
	close(errors[1]);
	collect(failures[0], text, sizeof(text));
	collect(errors[0], output, sizeof(output));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status))
		failure(__FILE__, __LINE__, "the child %s: signal %d; %s",
			WTERMSIG(status) == SIGALRM ? "hangs" : "crashed", WTERMSIG(status), output);
	if (WEXITSTATUS(status))
		failure(__FILE__, __LINE__, "%s\n%s", text, output);
	return output;
}

static void run_quiet(void (*body)(void))
{
	const char *output = run_output(body);

	if (*output)
		failure(__FILE__, __LINE__, "standard error says: %s", output);
}

/* One line of this program's own child, which names the provider; or none. */
static void check_at_most_one_line(const char *output)
{
	if (*output && (strchr(output, '\n') != output + strlen(output) - 1 || !strstr(output, no_provider)))
		failure(__FILE__, __LINE__, "not one line: \"%s\"", output);
}

/* Where the verbs of a child come from. */

enum source {
	NAMED,		/* a provider that RDMA_VERBS_PROVIDER names */
	OWN,		/* the process's own libibverbs */
	SOURCES,
};
static enum source source;

static void choose(const char *provider)
{
	if (provider)
		check_equal(setenv(VARIABLE, provider, 1), 0);
	else
		check_equal(unsetenv(VARIABLE), 0);
	data_path_route = source == NAMED ? BY_NAME : BY_TABLE;
}

/* One that is there already, with its script. */
static void use_loaded(void)
{
	script = attach(beside(source == NAMED ? "libscripted.so" : LIBIBVERBS));
	choose(source == NAMED ? beside("libscripted.so") : NULL);
	fresh_fixture(NULL);
}

/* One that is not there yet: its constructor brings the script. */
static void use_unloaded(void)
{
	choose(source == NAMED ? beside("libscripted-constructor.so") : NULL);
	fresh_fixture(NULL);
}

/* While the library loads, it calls this program, whose definitions the loader finds first. */

/* It has begun. */
static void (*on_variable)(void);

char *secure_getenv(const char *name)
{
	char *(*next)(const char *);

	if (on_variable && !strcmp(name, VARIABLE))
		on_variable();
	*(void **)&next = dlsym(RTLD_NEXT, "secure_getenv");
	return next(name);
}

/* A constructor runs; libibverbs gets one, too, where a case has to do with it. */
static void (*on_constructor)(struct scripted *loaded);

void while_loading(struct scripted *loaded)
{
	check(on_constructor != NULL);
	on_constructor(loaded);
}

void *dlopen(const char *name, int flags)
{
	void *(*next)(const char *, int);

	*(void **)&next = dlsym(RTLD_NEXT, "dlopen");
	if (on_constructor && name && !strcmp(name, LIBIBVERBS))
		name = beside("libscripted-constructor.so");
	return next(name, flags);
}

/* Calls with which a thread, or a constructor, comes first. */

static const struct function *outer, *inner;
static struct outcome outer_outcome, inner_outcome;

static void call_outer(void)
{
	struct arguments args = good_arguments();

	outer_outcome = call(outer, &args, 4242);
}

static void *call_outer_in_thread(void *unused)
{
	call_outer();
	return unused;
}

static void wait_for(sem_t *event)
{
	while (sem_wait(event))
		check_equal(errno, EINTR);
}

/* What an obliging script lets a call return: it registers nothing. */
static void check_obliged(const struct function *f, struct outcome outcome)
{
	check_equal(outcome.status, f->is & REGISTRATION ? -1 : f->success);
	check_equal(outcome.error, f->is & REGISTRATION ? EIO : 4242);
}

/*
 * The loader's lock: one thread holds it, in a constructor of whatever it loads, and calls; another one is in its first
 * call by then and waits for the lock, or will.
 */

static sem_t constructing, has_begun;

static void announce_begin(void)
{
	on_variable = NULL;
	sem_post(&has_begun);
}

static void call_once_other_has_begun(struct scripted *loaded)
{
	struct arguments args = good_arguments();

	(void)loaded;
	on_variable = announce_begin;
	sem_post(&constructing);
	wait_for(&has_begun);
	inner_outcome = call(inner, &args, 4242);
}

static void *load_something(void *library)
{
	void *(*next)(const char *, int);

	*(void **)&next = dlsym(RTLD_NEXT, "dlopen");
	check(next(library, RTLD_NOW | RTLD_LOCAL) != NULL);
	return NULL;
}

static void call_in_constructor_of_another_thread(void)
{
	char library[512];
	pthread_t thread;

	use_loaded();
	script->obliging = true;
	check_equal(sem_init(&constructing, 0, 0), 0);
	check_equal(sem_init(&has_begun, 0, 0), 0);
	snprintf(library, sizeof(library), "%s", beside("libscripted-constructor.so"));
	on_constructor = call_once_other_has_begun;
	check_equal(pthread_create(&thread, NULL, load_something, library), 0);
	wait_for(&constructing);
	on_constructor = NULL;
	call_outer();
	check_equal(pthread_join(thread, NULL), 0);
	check_obliged(outer, outer_outcome);
	check_obliged(inner, inner_outcome);
}

static void a_thread_in_a_constructor_calls_while_another_makes_its_first_call(void **state)
{
	(void)state;
	outer = &functions[FIRST_POST];
	for (source = 0; source < SOURCES; source++) {
		for_each_function(f, ANY) {
			row("source %d, %s", source, f->name);
			inner = f;
			run_quiet(call_in_constructor_of_another_thread);
		}
	}
}

/* A provider whose constructor calls the functions that are about to be found in it. */

static void call_from_constructor(struct scripted *loaded)
{
	struct arguments args = good_arguments();

	script = loaded;
	fresh_fixture(NULL);
	row("%s within %s", inner->name, outer->name);
	check_accepted(inner, &args);
	/* Now the call that the provider is loaded for. */
	new_script();
	say(verb_of(outer, &fx.id), (struct answer){ .result = outer->success, .mr = &fx.mr, .error = EBADF });
}

static void call_within_call(void)
{
	use_unloaded();
	on_constructor = call_from_constructor;
	call_outer();
	check(script != NULL);
	check_equal(outer_outcome.status, outer->success);
	check_equal(outer_outcome.error, 4242);
	check_equal(script->count, 1);
	check_all_work();
	check_waiting_works();
}

static void the_constructor_of_a_provider_may_call_any_function(void **state)
{
	(void)state;
	for (source = 0; source < SOURCES; source++) {
		for_each_function(within, ANY) {
			for_each_function(f, ANY) {
				row("source %d, %s within %s", source, f->name, within->name);
				outer = within;
				inner = f;
				run_quiet(call_within_call);
			}
		}
	}
}

/* A fork, while another thread loads and cannot go on. */

static sem_t loading, forked;

static void stop_loading(void)
{
	on_variable = NULL;
	sem_post(&loading);
	wait_for(&forked);
}

static void stop_constructing(struct scripted *loaded)
{
	script = loaded;
	fresh_fixture(NULL);
	script->obliging = true;
	sem_post(&loading);
	wait_for(&forked);
}

static void fork_while_loading(void (*in_child)(void))
{
	pthread_t thread;
	int status;
	pid_t pid;

	check_equal(sem_init(&loading, 0, 0), 0);
	check_equal(sem_init(&forked, 0, 0), 0);
	check_equal(pthread_create(&thread, NULL, call_outer_in_thread, NULL), 0);
	wait_for(&loading);
	pid = fork();
	check(pid >= 0);
	if (pid == 0) {
		alarm(HANGS);
		in_child();
		_exit(EXIT_SUCCESS);
	}
	/* The child is the one that may hang. */
	alarm(2 * HANGS);
	check_equal(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status))
		failure(__FILE__, __LINE__, "the child %s: signal %d",
			WTERMSIG(status) == SIGALRM ? "hangs" : "crashed", WTERMSIG(status));
	check_equal(WEXITSTATUS(status), EXIT_SUCCESS);
	sem_post(&forked);
	check_equal(pthread_join(thread, NULL), 0);
}

static void everything_works(void)
{
	script->obliging = false;
	check_all_work();
	check_waiting_works();
}

static void fork_at_begin(void)
{
	use_loaded();
	script->obliging = true;
	on_variable = stop_loading;
	fork_while_loading(everything_works);
	check_obliged(outer, outer_outcome);
	everything_works();
}

static void fork_in_constructor(void)
{
	use_unloaded();
	on_constructor = stop_constructing;
	fork_while_loading(everything_works);
	check_obliged(outer, outer_outcome);
	everything_works();
}

static void everything_fails(void)
{
	check_all_fail(ELIBACC);
}

static void fork_before_failure(void)
{
	use_loaded();
	choose(no_provider);
	/* Both processes say so. */
	close(STDERR_FILENO);
	on_variable = stop_loading;
	fork_while_loading(everything_fails);
	check_equal(outer_outcome.status, -1);
	check_equal(outer_outcome.error, ELIBACC);
	everything_fails();
}

static void the_child_of_a_fork_loads_for_itself_what_another_thread_was_loading(void **state)
{
	(void)state;
	for (source = 0; source < SOURCES; source++) {
		row("source %d", source);
		outer = &functions[FIRST_POST];
		run_quiet(fork_at_begin);
		/* Of libibverbs only the control functions are needed, and loaded at once with the rest. */
		run_quiet(fork_in_constructor);
	}
	source = NAMED;
	run_quiet(fork_before_failure);
}

/* A thread that is cancelled in its first call, or right after: the call may write a message. */

static void *call_cancelled(void *unused)
{
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cancel(pthread_self());
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	call_outer();
	pthread_testcancel();
	return unused;
}

static void cancel_first_call(void)
{
	pthread_t thread;
	void *result;

	check_equal(pthread_create(&thread, NULL, call_cancelled, NULL), 0);
	check_equal(pthread_join(thread, &result), 0);
	check(result == PTHREAD_CANCELED);
}

static void cancelled_while_loading(void)
{
	use_loaded();
	script->obliging = true;
	cancel_first_call();
	everything_works();
}

static void cancelled_while_failing(void)
{
	use_loaded();
	choose(no_provider);
	cancel_first_call();
	everything_fails();
}

static void calls_go_on_after_a_thread_was_cancelled_in_the_first_one(void **state)
{
	(void)state;
	for_each_function(f, ANY) {
		row("%s", f->name);
		outer = f;
		source = NAMED;
		check_at_most_one_line(run_output(cancelled_while_failing));
		for (source = 0; source < SOURCES; source++)
			run_quiet(cancelled_while_loading);
	}
}

/* The library in a namespace of its own, where another C library has another errno: a program of its own. */

static const char in_a_namespace[] = "in-a-namespace";

#define FIND(name) __typeof__(name) *name##_there = dlsym(library, #name)

static int namespace_main(void)
{
	void *library, *provider;
	int *(*errno_there)(void);
	Lmid_t namespace;
	Dl_info here;

	source = getenv(VARIABLE) ? NAMED : OWN;
	data_path_route = source == NAMED ? BY_NAME : BY_TABLE;
	check(dladdr(dlsym(RTLD_DEFAULT, "rdma_post_send"), &here));
	library = dlmopen(LM_ID_NEWLM, here.dli_fname, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		failure(__FILE__, __LINE__, "%s", dlerror());
	check_equal(dlinfo(library, RTLD_DI_LMID, &namespace), 0);
	provider = dlmopen(namespace, beside(source == NAMED ? "libscripted.so" : LIBIBVERBS), RTLD_NOW | RTLD_LOCAL);
	if (!provider)
		failure(__FILE__, __LINE__, "%s", dlerror());
	script = dlsym(provider, "scripted");
	*(void **)&errno_there = dlsym(library, "__errno_location");
	check(script && errno_there && errno_there() != &errno);
	FIND(rdma_post_send);
	FIND(rdma_dereg_mr);
	FIND(rdma_reg_msgs);
	FIND(rdma_get_recv_comp);
	check(rdma_post_send_there && rdma_post_send_there != rdma_post_send);
	fresh_fixture(NULL);

	*errno_there() = 4242;
	say(POST_SEND, (struct answer){ .error = EBADF });
	check_equal(rdma_post_send_there(&fx.id, NULL, fx.buffer, 1, &fx.mr, 0), 0);
	check_equal(*errno_there(), 4242);
	say(POST_SEND, (struct answer){ .result = ENOBUFS });
	check_equal(rdma_post_send_there(&fx.id, NULL, fx.buffer, 1, &fx.mr, 0), -1);
	check_equal(*errno_there(), ENOBUFS);
	check_calls("post_send post_send");

	new_script();
	*errno_there() = 4242;
	say(REG_MR, (struct answer){ .mr = &fx.mr });
	check(rdma_reg_msgs_there(&fx.id, fx.buffer, 1) == &fx.mr);
	check_equal(*errno_there(), 4242);
	say(REG_MR, (struct answer){ .error = EDQUOT });
	check(rdma_reg_msgs_there(&fx.id, fx.buffer, 1) == NULL);
	check_equal(*errno_there(), EDQUOT);
	say(DEREG_MR, (struct answer){ .result = EBUSY });
	check_equal(rdma_dereg_mr_there(&fx.mr), -1);
	check_equal(*errno_there(), EBUSY);
	check_calls("reg reg dereg");

	new_script();
	say(POLL_CQ, (struct answer){ 0 });
	say(REQ_NOTIFY_CQ, (struct answer){ 0 });
	say(POLL_CQ, (struct answer){ 0 });
	say(GET_CQ_EVENT, (struct answer){ .result = -1, .error = EINTR });
	check_equal(rdma_get_recv_comp_there(&fx.id, &fx.wc), -1);
	check_equal(*errno_there(), EINTR);
	check_calls("poll arm poll wait");
	return EXIT_SUCCESS;
}

static void start_in_namespace(void)
{
	/* The C library over there has the environment that the program started with. */
	choose(source == NAMED ? beside("libscripted.so") : NULL);
	execl("/proc/self/exe", "loading", in_a_namespace, NULL);
	failure(__FILE__, __LINE__, "the program did not start: %s", strerror(errno));
}

static void a_library_in_a_namespace_of_its_own_has_its_provider_there(void **state)
{
	(void)state;
	for (source = 0; source < SOURCES; source++) {
		row("source %d", source);
		run_quiet(start_in_namespace);
	}
}

/* SIGPIPE, which the message must not raise, nor take from the program, nor let through, nor hold back. */

static volatile sig_atomic_t caught;

static void count_signal(int signal)
{
	(void)signal;
	caught++;
}

static const struct {
	const char *name;
	void (*handler)(int);
} dispositions[] = {
	{ "default", SIG_DFL },
	{ "ignored", SIG_IGN },
	{ "handled", count_signal },
};

static const struct before {
	const char *name;
	bool blocked;
	bool pending;		/* ...and for this thread */
	bool pending_for_all;	/* ...and for the process */
} befores[] = {
	{ "not blocked", false, false, false },
	{ "blocked", true, false, false },
	{ "pending for the thread", true, true, false },
	{ "pending for the process", true, false, true },
};

static void closed_pipe(void)
{
	int fds[2];

	check_equal(pipe(fds), 0);
	close(fds[0]);
	check_equal(dup2(fds[1], STDERR_FILENO), STDERR_FILENO);
}

static void closed_descriptor(void)
{
	close(STDERR_FILENO);
}

static void open_pipe(void)
{
}

static const struct {
	const char *name;
	void (*open)(void);
} messages_to[] = {
	{ "a pipe that nobody reads", closed_pipe },
	{ "a descriptor that is not open", closed_descriptor },
	{ "a pipe that is read", open_pipe },
};

static struct {
	unsigned int disposition, before, message_to;
} now;

static void fail_with_signal_state(void)
{
	void (*handler)(int) = dispositions[now.disposition].handler;
	const struct before *before = &befores[now.before];
	bool pending = before->pending || before->pending_for_all;
	sigset_t mask, mask_after, pending_after;
	struct sigaction action;

	use_loaded();
	choose(no_provider);
	check(signal(SIGPIPE, handler) != SIG_ERR);
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	if (before->blocked)
		sigaddset(&mask, SIGPIPE);
	check_equal(pthread_sigmask(SIG_SETMASK, &mask, NULL), 0);
	if (before->pending)
		check_equal(raise(SIGPIPE), 0);
	if (before->pending_for_all)
		check_equal(kill(getpid(), SIGPIPE), 0);
	messages_to[now.message_to].open();

	everything_fails();

	row("%s", "afterwards");
	check_equal(caught, 0);
	check_equal(sigaction(SIGPIPE, NULL, &action), 0);
	check(action.sa_handler == handler);
	check_equal(pthread_sigmask(SIG_SETMASK, NULL, &mask_after), 0);
	check_equal(sigpending(&pending_after), 0);
	for (int signal = 1; signal <= SIGRTMAX; signal++) {
		check_equal(sigismember(&mask_after, signal), sigismember(&mask, signal));
		check_equal(sigismember(&pending_after, signal), signal == SIGPIPE && pending);
	}
	if (handler == count_signal) {
		/* What was pending comes, and once. */
		sigemptyset(&mask);
		check_equal(pthread_sigmask(SIG_SETMASK, &mask, NULL), 0);
		check_equal(caught, pending);
	}
}

static void the_message_raises_no_SIGPIPE_and_leaves_the_signal_as_it_was(void **state)
{
	(void)state;
	source = NAMED;
	for (now.disposition = 0; now.disposition < ARRAY_SIZE(dispositions); now.disposition++) {
		for (now.before = 0; now.before < ARRAY_SIZE(befores); now.before++) {
			for (now.message_to = 0; now.message_to < ARRAY_SIZE(messages_to); now.message_to++) {
				row("SIGPIPE %s and %s, a message to %s", dispositions[now.disposition].name,
				    befores[now.before].name, messages_to[now.message_to].name);
				check_at_most_one_line(run_output(fail_with_signal_state));
			}
		}
	}
}

static const struct CMUnitTest tests[] = {
	CASE(a_thread_in_a_constructor_calls_while_another_makes_its_first_call),
	CASE(the_constructor_of_a_provider_may_call_any_function),
	CASE(the_child_of_a_fork_loads_for_itself_what_another_thread_was_loading),
	CASE(calls_go_on_after_a_thread_was_cancelled_in_the_first_one),
	CASE(a_library_in_a_namespace_of_its_own_has_its_provider_there),
	CASE(the_message_raises_no_SIGPIPE_and_leaves_the_signal_as_it_was),
};
static CASES(loading_cases, tests);

int main(int argc, char **argv)
{
	static const struct cases *const lists[] = { &loading_cases };

	if (argc == 2 && !strcmp(argv[1], in_a_namespace))
		return namespace_main();
	return run_cases("loading", lists, ARRAY_SIZE(lists));
}
