/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Where the verbs come from: loading the provider, once in a process, and every way in which that can go wrong.
 *
 * Each case runs in children of this program, because a process has one provider for good. The program itself never
 * calls the library and is not linked to libibverbs.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "suite.h"

#define VARIABLE "RDMA_VERBS_PROVIDER"

/* The exit status of a child that cannot do here what it should. */
enum { CANNOT = 77 };

/* A file next to this program. */
static const char *beside(const char *name)
{
	static char path[8][512];
	static unsigned int next;
	char *p = path[next++ % 8];
	char program[256];
	ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);

	check(n > 0);
	program[n] = '\0';
	*strrchr(program, '/') = '\0';
	snprintf(p, sizeof(path[0]), "%s/%s", program, name);
	return p;
}

/* The library's calls of dlopen. The loader finds this definition before its own. */
static atomic_uint opened;
static char opened_name[512];
static int opened_flags;

static void *open_uncounted(const char *name, int flags)
{
	void *(*next)(const char *, int);

	*(void **)&next = dlsym(RTLD_NEXT, "dlopen");
	return next(name, flags);
}

void *dlopen(const char *name, int flags)
{
	void *handle;

	opened++;
	snprintf(opened_name, sizeof(opened_name), "%s", name ? name : "");
	opened_flags = flags;
	handle = open_uncounted(name, flags);
	errno = ENOTTY;	/* what a loader may leave behind */
	return handle;
}

/* Takes one of the providers as the script of this child, before the library does. */
static void take_script(const char *name)
{
	script = attach(beside(name));
	opened = 0;
	fresh_fixture(NULL);
}

static void set_provider(const char *value)
{
	check(setenv(VARIABLE, value, 1) == 0);
}

/* A provider that this child is to use, by name; and its script. */
static void use(const char *name)
{
	take_script(name);
	set_provider(beside(name));
	data_path_route = strstr(name, "control") ? BY_TABLE : BY_NAME;
}

/* Objects of a program that uses its own verbs, and nothing else: the tables of the scripted provider. */
static void use_tables(void)
{
	take_script("libscripted.so");
	unsetenv(VARIABLE);
	data_path_route = BY_TABLE;
}

struct child {
	int status;		/* as of waitpid */
	char failure[1024];
	char output[16384];	/* what it wrote to standard error */
};

static void collect(int fd, char *text, size_t size)
{
	size_t used = 0;
	ssize_t n;

	while (used < size - 1 && (n = read(fd, text + used, size - 1 - used)) > 0)
		used += n;
	text[used] = '\0';
	close(fd);
}

static int failure_fd;

static void fail_child(const char *file, int line, const char *text)
{
	dprintf(failure_fd, "%s:%d: %s", file, line, text);
	_exit(EXIT_FAILURE);
}

static struct child run(void (*body)(void))
{
	static struct child child;
	int failures[2], output[2];
	pid_t pid;

	assert_int_equal(pipe2(failures, O_CLOEXEC), 0);
	assert_int_equal(pipe2(output, O_CLOEXEC), 0);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		signal(SIGABRT, SIG_DFL);
		signal(SIGALRM, SIG_DFL);
		signal(SIGSEGV, SIG_DFL);
		alarm(60);
		dup2(output[1], STDERR_FILENO);
		failure_fd = failures[1];
		fail_case = fail_child;
		body();
		_exit(EXIT_SUCCESS);
	}
	close(failures[1]);
	close(output[1]);
	collect(failures[0], child.failure, sizeof(child.failure));
	collect(output[0], child.output, sizeof(child.output));
	assert_int_equal(waitpid(pid, &child.status, 0), pid);
	return child;
}

/* Runs the body in a child, which must succeed, and returns what it wrote to standard error. */
static const char *run_output(void (*body)(void))
{
	static struct child child;

	child = run(body);
	if (WIFEXITED(child.status) && WEXITSTATUS(child.status) == CANNOT) {
		print_message("# %s\n", child.output);
		skip();
	}
	if (WIFSIGNALED(child.status))
		fail_msg("the child ended by signal %d: %s", WTERMSIG(child.status), child.failure);
	if (WEXITSTATUS(child.status))
		fail_msg("%s\n%s", child.failure, child.output);
	return child.output;
}

static void run_quiet(void (*body)(void))
{
	const char *output = run_output(body);

	if (*output)
		fail_msg("standard error says: %s", output);
}

static _Noreturn void cannot(const char *what)
{
	fprintf(stderr, "cannot %s: %s", what, strerror(errno));
	_exit(CANNOT);
}

/* A provider that loads. */

static void with_all_functions(void)
{
	use("libscripted.so");
	check_all_work();
	check_waiting_works();
}

static void a_named_provider_is_used_for_everything_that_it_exports(void **state)
{
	(void)state;
	run_quiet(with_all_functions);
}

static void with_control_functions(void)
{
	use("libscripted-control.so");
	check_all_work();
	check_waiting_works();
}

static void what_a_named_provider_does_not_export_of_the_data_path_is_in_the_table(void **state)
{
	(void)state;
	run_quiet(with_control_functions);
}

static void once_and_not_too_early(void)
{
	use("libscripted.so");
	check_refusals();
	check_equal(opened, 0);
	check_all_work();
	check_waiting_works();
	check_equal(opened, 1);
	check(!strcmp(opened_name, getenv(VARIABLE)));
	check_equal(opened_flags, RTLD_NOW | RTLD_LOCAL);
}

static void a_named_provider_is_loaded_once_by_the_first_call_that_needs_it(void **state)
{
	(void)state;
	run_quiet(once_and_not_too_early);
}

static const struct function *first_function;
static int first_before;

static void first_call_succeeds(void)
{
	struct arguments args = good_arguments();
	struct outcome outcome;

	use("libscripted.so");
	say(verb_of(first_function, &fx.id), (struct answer){
		.result = first_function->success, .mr = &fx.mr, .error = EBADF,
	});
	outcome = call(first_function, &args, first_before);
	check_equal(outcome.status, first_function->success);
	check_equal(outcome.error, first_before);
	check_equal(opened, 1);
}

static void the_call_that_loads_the_provider_leaves_errno_alone_too(void **state)
{
	static const int befores[] = { 0, 1, 4242, -7, INT_MIN };

	(void)state;
	for_each_function(f, ANY) {
		for (size_t i = 0; i < ARRAY_SIZE(befores); i++) {
			first_function = f;
			first_before = befores[i];
			run_quiet(first_call_succeeds);
		}
	}
}

static void first_call_fails_without_reason(void)
{
	struct arguments args = good_arguments();
	enum verb verb = verb_of(first_function, &fx.id);

	use("libscripted.so");
	/* NULL from ibv_reg_mr. */
	say(verb, (struct answer){ .result = -1 });
	check_fails(first_function, &args, verb <= POST_SRQ_RECV ? ENOMEM : EIO);
	check_equal(opened, 1);
}

static void the_call_that_loads_the_provider_does_not_report_the_errno_of_the_loader(void **state)
{
	(void)state;
	for_each_function(f, ANY) {
		first_function = f;
		run_quiet(first_call_fails_without_reason);
	}
}

static void by_soname(void)
{
	take_script("libibverbs.so.1");
	set_provider("libibverbs.so.1");
	data_path_route = BY_TABLE;
	check_all_work();
	check_waiting_works();
}

static void a_name_without_a_slash_is_a_soname(void **state)
{
	(void)state;
	run_quiet(by_soname);
}

static void changed_after_loading(void)
{
	use("libscripted.so");
	check_all_work();
	set_provider("/nonexistent/libother.so");
	check_all_work();
	unsetenv(VARIABLE);
	check_all_work();
	check_equal(opened, 1);
}

static void a_change_of_the_variable_after_loading_has_no_effect(void **state)
{
	(void)state;
	run_quiet(changed_after_loading);
}

static void fork_after_loading(void)
{
	int status;
	pid_t pid;

	use("libscripted.so");
	check_all_work();
	pid = fork();
	check(pid >= 0);
	if (pid == 0) {
		check_all_work();
		check_waiting_works();
		check_equal(opened, 1);
		_exit(EXIT_SUCCESS);
	}
	check_equal(waitpid(pid, &status, 0), pid);
	check_equal(status, 0);
	check_all_work();
}

static void a_child_of_a_process_that_has_its_provider_uses_it_too(void **state)
{
	(void)state;
	run_quiet(fork_after_loading);
}

/* A provider that lacks something. */

static struct {
	const char *provider;
	unsigned int kinds;	/* what fails... */
	bool waiting;
} lacking;

static void without_one(void)
{
	struct arguments args = good_arguments();

	use(lacking.provider);
	for_each_function(f, ANY) {
		row("%s: %s", lacking.provider, f->name);
		if (f->is & lacking.kinds)
			check_refused(f, &args, EOPNOTSUPP);
		else
			check_accepted(f, &args);
	}
	if (lacking.waiting)
		check_waiting_fails(EOPNOTSUPP);
	else
		check_waiting_works();
	check_refusals();
}

static void one_control_function_that_a_provider_lacks_is_EOPNOTSUPP_where_it_is_needed(void **state)
{
	(void)state;
	lacking.provider = "libscripted-no-reg_mr.so";
	lacking.kinds = REGISTRATION;
	lacking.waiting = false;
	run_quiet(without_one);
	lacking.provider = "libscripted-no-dereg_mr.so";
	lacking.kinds = DEREGISTRATION;
	run_quiet(without_one);
	lacking.provider = "libscripted-no-get_cq_event.so";
	lacking.kinds = 0;
	lacking.waiting = true;
	run_quiet(without_one);
	lacking.provider = "libscripted-no-ack_cq_events.so";
	run_quiet(without_one);
}

/* What the rest of the process exports, with a script of its own. */
static struct scripted *visible(const char *name)
{
	void *handle = open_uncounted(beside(name), RTLD_NOW | RTLD_GLOBAL);
	struct scripted *found = handle ? dlsym(handle, "scripted") : NULL;

	check(found != NULL);
	check(dlsym(RTLD_DEFAULT, "ibv_reg_mr") == dlsym(handle, "ibv_reg_mr"));
	return found;
}

static void without_one_while_others_have_it(void)
{
	struct scripted *others = visible("libscripted.so");

	without_one();
	check_equal(others->count, 0);
}

static void what_a_named_provider_lacks_is_not_taken_from_elsewhere_in_the_process(void **state)
{
	(void)state;
	lacking.provider = "libscripted-no-reg_mr.so";
	lacking.kinds = REGISTRATION;
	lacking.waiting = false;
	run_quiet(without_one_while_others_have_it);
	/* Lacks the data path: that is in the table. */
	lacking.provider = "libscripted-control.so";
	lacking.kinds = 0;
	run_quiet(without_one_while_others_have_it);
}

/* Each entry of the table, and who cannot do without it. */
static const struct {
	size_t offset;
	unsigned int kinds;
	bool srq;		/* ...only with a shared receive queue */
} table_entries[] = {
	{ offsetof(struct ibv_context_ops, post_send), SEND_SIDE, false },
	{ offsetof(struct ibv_context_ops, post_recv), RECEIVE, false },
	{ offsetof(struct ibv_context_ops, post_srq_recv), RECEIVE, true },
	{ offsetof(struct ibv_context_ops, poll_cq), COMPLETION, false },
};

static void without_table_entries(void)
{
	struct arguments args = good_arguments();

	use("libscripted-control.so");
	for (size_t i = 0; i < ARRAY_SIZE(table_entries); i++) {
		for (int srq = 0; srq < 2; srq++) {
			fresh_fixture(NULL);
			if (srq)
				fx.id.srq = &fx.srq;
			*(void **)((char *)&fx.context.ops + table_entries[i].offset) = NULL;
			for_each_function(f, ANY) {
				bool lacks = (f->is & table_entries[i].kinds) &&
					     (!(f->is & RECEIVE) || table_entries[i].srq == srq);

				row("%s, entry %zu, shared receive queue %d", f->name, i, srq);
				if (lacks)
					check_refused(f, &args, EOPNOTSUPP);
				else
					check_accepted(f, &args);
			}
		}
	}
	fresh_fixture(NULL);
	fx.context.ops.req_notify_cq = NULL;
	for_each_function(f, COMPLETION) {
		row("%s, without arming", f->name);
		check_accepted(f, &args);
		new_script();
		say(POLL_CQ, (struct answer){ 0 });
		check_fails(f, &args, EOPNOTSUPP);
		check_calls("poll");
	}
}

static void an_operation_that_neither_provider_nor_table_has_is_EOPNOTSUPP(void **state)
{
	(void)state;
	run_quiet(without_table_entries);
}

static void empty_tables(void)
{
	use("libscripted.so");
	memset(&fx.context.ops, 0, sizeof(fx.context.ops));
	check_all_work();
	check_waiting_works();
}

static void the_table_is_not_needed_where_the_provider_exports_the_data_path(void **state)
{
	(void)state;
	run_quiet(empty_tables);
}

/* A provider that does not load. */

static char broken_name[512];

static void with_broken_provider(void)
{
	take_script("libscripted.so");
	set_provider(broken_name);
	check_refusals();
	check_equal(opened, 0);
	check_all_fail(ELIBACC);
	check_equal(opened, 1);
	check_refusals();
	/* What no provider could do is not looked at. */
	memset(&fx.context.ops, 0, sizeof(fx.context.ops));
	check_all_fail(ELIBACC);
	check_equal(opened, 1);
}

/* Exactly one line, which names the variable, its value, and why. */
static void check_line(const char *output, const char *value, const char *why)
{
	size_t length = strlen(output);

	if (length == 0 || strchr(output, '\n') != output + length - 1)
		fail_msg("not one line: \"%s\"", output);
	if (!strstr(output, VARIABLE) || !strstr(output, value) || !strstr(output, why))
		fail_msg("the line \"%s\" does not say %s, %s and %s", output, VARIABLE, value, why);
}

static const char *write_file(const char *name, const char *text)
{
	const char *path = beside(name);
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	fputs(text, file);
	fclose(file);
	return path;
}

static void a_provider_that_does_not_load_is_ELIBACC_everywhere_and_one_line_says_so(void **state)
{
	static const struct {
		const char *name;	/* with a slash: as it is */
		const char *why;
	} rows[] = {
		{ "/nonexistent/libverbs.so", "No such file or directory" },
		{ "libnonexistent_verbs.so.7", "No such file or directory" },
		{ "beside/text", "invalid ELF header" },
		{ "beside/empty", "file too short" },
		{ "/", "Is a directory" },
		{ " ", "No such file or directory" },
	};

	(void)state;
	write_file("text", "This is no library, however long it may be. This is no library, however long it may be.\n");
	write_file("empty", "");
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		bool is_beside = !strncmp(rows[i].name, "beside/", 7);
		const char *output;

		snprintf(broken_name, sizeof(broken_name), "%s",
			 is_beside ? beside(rows[i].name + 7) : rows[i].name);
		output = run_output(with_broken_provider);
		/* What a directory says depends on the loader's version. */
		check_line(output, broken_name, strcmp(rows[i].name, "/") ? rows[i].why : broken_name);
	}
}

static void the_line_stays_one_line_whatever_the_variable_contains(void **state)
{
	(void)state;
	strcpy(broken_name, "/nonexistent/\n\n\r\033[1mlib\nverbs\n.so\n");
	check_line(run_output(with_broken_provider), "/nonexistent/", "No such file or directory");
	/* No valid UTF-8. */
	strcpy(broken_name, "/nonexistent/\xff\xc0lib.so");
	check_line(run_output(with_broken_provider), "/nonexistent/", "No such file or directory");
	strcpy(broken_name, "%s%n%n%n%d{}{0}");
	check_line(run_output(with_broken_provider), "%s%n%n%n%d{}{0}", "No such file or directory");
}

static void closed_stderr(void)
{
	close(STDERR_FILENO);
	with_broken_provider();
	/* Nothing else was opened in its place. */
	check_equal(fcntl(STDERR_FILENO, F_GETFD), -1);
}

static void full_stderr(void)
{
	int fd = open("/dev/full", O_WRONLY);

	check(fd >= 0);
	dup2(fd, STDERR_FILENO);
	with_broken_provider();
}

static void broken_pipe_as_stderr(void)
{
	int fds[2];

	signal(SIGPIPE, SIG_IGN);
	check_equal(pipe(fds), 0);
	close(fds[0]);
	dup2(fds[1], STDERR_FILENO);
	with_broken_provider();
}

static void a_line_that_cannot_be_written_is_no_error(void **state)
{
	(void)state;
	strcpy(broken_name, "/nonexistent/libverbs.so");
	run_quiet(closed_stderr);
	run_quiet(full_stderr);
	run_quiet(broken_pipe_as_stderr);
}

static void provider_appears_later(void)
{
	take_script("libscripted.so");
	set_provider(broken_name);
	check_all_fail(ELIBACC);
	check_equal(symlink(beside("libscripted.so"), broken_name), 0);
	/* It would load now. */
	check(open_uncounted(broken_name, RTLD_NOW | RTLD_LOCAL) != NULL);
	check_all_fail(ELIBACC);
	unsetenv(VARIABLE);
	check_all_fail(ELIBACC);
	check_equal(opened, 1);
}

static void a_failure_to_load_is_remembered_for_good(void **state)
{
	(void)state;
	snprintf(broken_name, sizeof(broken_name), "%s", beside("appears-later.so"));
	unlink(broken_name);
	check_line(run_output(provider_appears_later), broken_name, "No such file or directory");
	unlink(broken_name);
}

static void fork_after_failure(void)
{
	int status;
	pid_t pid;

	take_script("libscripted.so");
	set_provider(broken_name);
	check_all_fail(ELIBACC);
	pid = fork();
	check(pid >= 0);
	if (pid == 0) {
		check_all_fail(ELIBACC);
		check_equal(opened, 1);
		_exit(EXIT_SUCCESS);
	}
	check_equal(waitpid(pid, &status, 0), pid);
	check_equal(status, 0);
}

static void a_failure_to_load_is_remembered_by_children_too(void **state)
{
	(void)state;
	strcpy(broken_name, "/nonexistent/libverbs.so");
	check_line(run_output(fork_after_failure), broken_name, "No such file or directory");
}

/* Threads. */

enum { THREADS = 8 };

static pthread_barrier_t barrier;
static struct outcome outcomes[THREADS];

static void *first_call(void *index)
{
	const struct function *f = &functions[FIRST_POST + (uintptr_t)index % POSTS];
	struct arguments args = good_arguments();

	pthread_barrier_wait(&barrier);
	outcomes[(uintptr_t)index] = call(f, &args, 4242);
	return NULL;
}

/* A call after the first ones. */
static void call_once_more(void)
{
	const struct function *f = &functions[FIRST_POST];
	struct arguments args = good_arguments();

	call(f, &args, 4242);
}

static void make_first_calls(void)
{
	pthread_t threads[THREADS];

	check_equal(pthread_barrier_init(&barrier, NULL, THREADS), 0);
	for (uintptr_t i = 0; i < THREADS; i++)
		check_equal(pthread_create(&threads[i], NULL, first_call, (void *)i), 0);
	for (int i = 0; i < THREADS; i++)
		check_equal(pthread_join(threads[i], NULL), 0);
	/* Threads that come first together may each load; the outcome of one of them stays. */
	unsigned int at_first = opened;
	check(at_first >= 1 && at_first <= THREADS);
	call_once_more();
	check_equal(opened, at_first);
}

static void threads_load(void)
{
	use("libscripted.so");
	script->obliging = true;
	make_first_calls();
	for (int i = 0; i < THREADS; i++) {
		check_equal(outcomes[i].status, 0);
		check_equal(outcomes[i].error, 4242);
	}
	/* Each call once, and the one more. */
	check_equal(script->obliged[POST_SEND] + script->obliged[POST_RECV], THREADS + 1);
}

static void eight_first_calls_at_once_agree_on_one_provider(void **state)
{
	(void)state;
	for (int i = 0; i < 20; i++)
		run_quiet(threads_load);
}

static void threads_fail(void)
{
	take_script("libscripted.so");
	set_provider(broken_name);
	make_first_calls();
	for (int i = 0; i < THREADS; i++) {
		check_equal(outcomes[i].status, -1);
		check_equal(outcomes[i].error, ELIBACC);
	}
}

static void eight_first_calls_at_once_fail_with_one_line(void **state)
{
	(void)state;
	strcpy(broken_name, "/nonexistent/libverbs.so");
	for (int i = 0; i < 20; i++)
		check_line(run_output(threads_fail), broken_name, "No such file or directory");
}

/* The process's own verbs. */

static void own_definitions(void)
{
	script = visible("libscripted.so");
	unsetenv(VARIABLE);
	data_path_route = BY_NAME;
	fresh_fixture(NULL);
	check_all_work();
	check_waiting_works();
}

static void a_definition_that_is_visible_in_the_process_comes_first(void **state)
{
	(void)state;
	run_quiet(own_definitions);
}

static void empty_variable(void)
{
	script = visible("libscripted.so");
	set_provider("");
	data_path_route = BY_NAME;
	fresh_fixture(NULL);
	check_all_work();
	check_waiting_works();
}

static void empty_variable_and_libibverbs(void)
{
	take_script("libibverbs.so.1");
	set_provider("");
	data_path_route = BY_TABLE;
	check_all_work();
	check_waiting_works();
}

static void an_empty_variable_is_as_good_as_none(void **state)
{
	(void)state;
	run_quiet(empty_variable);
	run_quiet(empty_variable_and_libibverbs);
}

static void set_too_late(void)
{
	own_definitions();
	set_provider("/nonexistent/libverbs.so");
	check_all_work();
}

static void setting_the_variable_after_the_first_call_has_no_effect(void **state)
{
	(void)state;
	run_quiet(set_too_late);
}

/* A libibverbs is in the process already, under its soname, and not visible; it has functions of an old version, too. */
static void own_libibverbs(void)
{
	void *library;

	take_script("libibverbs.so.1");
	unsetenv(VARIABLE);
	library = open_uncounted("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	check(library != NULL);
	check(dlvsym(library, "ibv_reg_mr", "IBVERBS_1.0") != NULL);
	check(dlsym(RTLD_DEFAULT, "ibv_reg_mr") == NULL);
	data_path_route = BY_TABLE;
	check_all_work();
	check_waiting_works();
}

static void else_the_libibverbs_that_is_there_is_used_in_its_default_version(void **state)
{
	(void)state;
	run_quiet(own_libibverbs);
}

/* An interposer of registration alone. */
static void partly_visible(void)
{
	struct arguments args = good_arguments();
	struct scripted *interposer = visible("libscripted-only-reg_mr.so");
	struct scripted *libibverbs = attach(beside("libibverbs.so.1"));

	unsetenv(VARIABLE);
	data_path_route = BY_TABLE;
	script = interposer;
	fresh_fixture(NULL);
	for_each_function(f, REGISTRATION)
		check_accepted(f, &args);
	script = libibverbs;
	fresh_fixture(NULL);
	for_each_function(f, ANY & ~REGISTRATION)
		check_accepted(f, &args);
	check_waiting_works();
}

static void what_is_not_visible_is_taken_from_libibverbs_function_by_function(void **state)
{
	(void)state;
	run_quiet(partly_visible);
}

static void real_libibverbs(void)
{
	struct arguments args = good_arguments();
	int fds[2];

	check(open_uncounted("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) == NULL);
	use_tables();
	check_equal(pipe2(fds, O_NONBLOCK), 0);
	fx.send_channel.fd = fx.recv_channel.fd = fds[0];
	for_each_function(f, COMPLETION) {
		row("%s, nothing to read", f->name);
		new_script();
		say(POLL_CQ, (struct answer){ 0 });
		say(REQ_NOTIFY_CQ, (struct answer){ 0 });
		say(POLL_CQ, (struct answer){ 0 });
		check_fails(f, &args, EAGAIN);
	}
	close(fds[1]);
	for_each_function(f, COMPLETION) {
		row("%s, nobody to write", f->name);
		new_script();
		say(POLL_CQ, (struct answer){ 0 });
		say(REQ_NOTIFY_CQ, (struct answer){ 0 });
		say(POLL_CQ, (struct answer){ 0 });
		check_fails(f, &args, EIO);
	}
	check(open_uncounted("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) != NULL);
	check_data_path_works();
}

static void else_libibverbs_is_loaded(void **state)
{
	(void)state;
	run_quiet(real_libibverbs);
}

/* The loader finds no file at all any more. */
static void leave_the_file_system(void)
{
	const char *nothing = beside("nothing");

	check(mkdir(nothing, 0755) == 0 || errno == EEXIST);
	if (chroot(nothing) && (unshare(CLONE_NEWUSER) || chroot(nothing)))
		cannot("change the root directory");
	check_equal(chdir("/"), 0);
}

static void no_libibverbs(void)
{
	use_tables();
	leave_the_file_system();
	check(open_uncounted("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL) == NULL);
	check_refusals();
	check_data_path_works();
	check_control_fails(ELIBACC);
	check_data_path_works();
	check_refusals();
}

static void without_any_libibverbs_the_data_path_works_and_the_rest_is_ELIBACC(void **state)
{
	(void)state;
	run_quiet(no_libibverbs);
}

static void no_libibverbs_but_definitions(void)
{
	script = visible("libscripted.so");
	unsetenv(VARIABLE);
	data_path_route = BY_NAME;
	fresh_fixture(NULL);
	leave_the_file_system();
	check_all_work();
	check_waiting_works();
}

static void without_any_libibverbs_visible_definitions_are_enough(void **state)
{
	(void)state;
	run_quiet(no_libibverbs_but_definitions);
}

/* A static program. */

static const char *static_provider;

static void static_program(void)
{
	set_provider(static_provider);
	execl(beside("static"), "static", *static_provider ? "named" : "own", NULL);
	failure(__FILE__, __LINE__, "static did not start: %s", strerror(errno));
}

static void in_a_static_program_the_data_path_works_and_the_rest_is_ELIBACC(void **state)
{
	(void)state;
	static_provider = "";
	run_quiet(static_program);
}

static void in_a_static_program_a_named_provider_is_ELIBACC_and_one_line_says_so(void **state)
{
	(void)state;
	static_provider = beside("libscripted.so");
	check_line(run_output(static_program), static_provider, "static");
}

/* A program with privileges of its file. */

static const char ignores_the_variable[] = "ignores-the-variable";
static const char obeys_the_variable[] = "obeys-the-variable";

/* What the copy of this program does. */
static int privileged_main(const char *what)
{
	bool privileged = !strcmp(what, ignores_the_variable);

	script = attach(beside("libscripted.so"));
	fresh_fixture(NULL);
	if (privileged && !getauxval(AT_SECURE)) {
		errno = EPERM;
		cannot("run with the privileges of a file, here");
	}
	check(getenv(VARIABLE) != NULL);
	data_path_route = BY_TABLE;
	if (privileged)
		check_data_path_works();
	else
		check_all_fail(ELIBACC);
	return EXIT_SUCCESS;
}

/* A group of this process, or as root any, that is not its effective one. */
static gid_t other_group(void)
{
	gid_t groups[64];
	int n = getgroups(ARRAY_SIZE(groups), groups);

	if (geteuid() == 0)
		return getegid() + 1;
	for (int i = 0; i < n; i++)
		if (groups[i] != getegid())
			return groups[i];
	errno = EPERM;
	cannot("give a file to another group");
}

static void run_copy(const char *what, bool set_id)
{
	const char *copy = beside("provider-copy");
	char command[1200];

	snprintf(command, sizeof(command), "cp --remove-destination /proc/%d/exe '%s'", (int)getpid(), copy);
	check_equal(system(command), 0);
	if (set_id) {
		check_equal(chown(copy, -1, other_group()), 0);
		check_equal(chmod(copy, 02755), 0);
	}
	set_provider("/nonexistent/libverbs.so");
	execl(copy, copy, what, NULL);
	failure(__FILE__, __LINE__, "the copy did not start: %s", strerror(errno));
}

static void set_id_program(void)
{
	run_copy(ignores_the_variable, true);
}

static void same_program(void)
{
	run_copy(obeys_the_variable, false);
}

static void a_set_id_program_ignores_the_variable(void **state)
{
	(void)state;
	/* The same without the privileges does not. */
	check_line(run_output(same_program), "/nonexistent/libverbs.so", "No such file or directory");
	run_quiet(set_id_program);
	unlink(beside("provider-copy"));
}

static const struct CMUnitTest tests[] = {
	CASE(a_named_provider_is_used_for_everything_that_it_exports),
	CASE(what_a_named_provider_does_not_export_of_the_data_path_is_in_the_table),
	CASE(a_named_provider_is_loaded_once_by_the_first_call_that_needs_it),
	CASE(the_call_that_loads_the_provider_leaves_errno_alone_too),
	CASE(the_call_that_loads_the_provider_does_not_report_the_errno_of_the_loader),
	CASE(a_name_without_a_slash_is_a_soname),
	CASE(a_change_of_the_variable_after_loading_has_no_effect),
	CASE(a_child_of_a_process_that_has_its_provider_uses_it_too),
	CASE(one_control_function_that_a_provider_lacks_is_EOPNOTSUPP_where_it_is_needed),
	CASE(what_a_named_provider_lacks_is_not_taken_from_elsewhere_in_the_process),
	CASE(an_operation_that_neither_provider_nor_table_has_is_EOPNOTSUPP),
	CASE(the_table_is_not_needed_where_the_provider_exports_the_data_path),
	CASE(a_provider_that_does_not_load_is_ELIBACC_everywhere_and_one_line_says_so),
	CASE(the_line_stays_one_line_whatever_the_variable_contains),
	CASE(a_line_that_cannot_be_written_is_no_error),
	CASE(a_failure_to_load_is_remembered_for_good),
	CASE(a_failure_to_load_is_remembered_by_children_too),
	CASE(eight_first_calls_at_once_agree_on_one_provider),
	CASE(eight_first_calls_at_once_fail_with_one_line),
	CASE(a_definition_that_is_visible_in_the_process_comes_first),
	CASE(an_empty_variable_is_as_good_as_none),
	CASE(setting_the_variable_after_the_first_call_has_no_effect),
	CASE(else_the_libibverbs_that_is_there_is_used_in_its_default_version),
	CASE(what_is_not_visible_is_taken_from_libibverbs_function_by_function),
	CASE(else_libibverbs_is_loaded),
	CASE(without_any_libibverbs_the_data_path_works_and_the_rest_is_ELIBACC),
	CASE(without_any_libibverbs_visible_definitions_are_enough),
	CASE(in_a_static_program_the_data_path_works_and_the_rest_is_ELIBACC),
	CASE(in_a_static_program_a_named_provider_is_ELIBACC_and_one_line_says_so),
	CASE(a_set_id_program_ignores_the_variable),
};
static CASES(provider, tests);

int main(int argc, char **argv)
{
	static const struct cases *const lists[] = { &provider };

	if (argc == 2)
		return privileged_main(argv[1]);
	return run_cases("provider", lists, ARRAY_SIZE(lists));
}
