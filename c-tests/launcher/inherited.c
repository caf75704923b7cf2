/* Prints what a program inherits from whoever executes it, apart from its environment. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Defined by the library in front, if there is one. */
extern const int fake_library_is_here __attribute__((weak));

int main(int argc, char **argv)
{
	struct sigaction action;
	sigset_t blocked;
	int i;

	for (i = 0; i < argc; i++)
		printf("argument: [%s]\n", argv[i]);
	for (i = 0; i < 10; i++)
		if (fcntl(i, F_GETFD) >= 0)
			printf("open: %d\n", i);
	sigprocmask(SIG_SETMASK, NULL, &blocked);
	for (i = 1; i < NSIG; i++) {
		if (sigismember(&blocked, i) == 1)
			printf("blocked: %s\n", strsignal(i));
		if (sigaction(i, NULL, &action) == 0 && action.sa_handler != SIG_DFL)
			printf("%s: %s\n", action.sa_handler == SIG_IGN ? "ignored" : "handled", strsignal(i));
	}
	printf("library: %s\n", &fake_library_is_here ? "loaded" : "none");
	return fflush(stdout) ? 1 : 0;
}
