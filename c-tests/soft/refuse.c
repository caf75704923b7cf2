/*
 * Runs a program to which the kernel refuses what containers refuse.
 *
 *   refuse EPERM COMMAND...      the system calls below, as Docker's filter does
 *   refuse ENOSYS COMMAND...     the same, as an old kernel does
 *   refuse netlink COMMAND...    netlink, as systemd's RestrictAddressFamilies= does
 */

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static const unsigned int refused[] = {
	SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register, SYS_sched_setattr,
	SYS_sched_setscheduler, SYS_sched_setparam, SYS_setpriority, SYS_sched_setaffinity, SYS_membarrier,
	SYS_userfaultfd, SYS_memfd_create, SYS_process_vm_readv, SYS_process_vm_writev, SYS_ptrace, SYS_kcmp,
	SYS_pidfd_open, SYS_pidfd_getfd, SYS_preadv2, SYS_pwritev2, SYS_mlock, SYS_mlock2, SYS_mlockall,
	SYS_mbind, SYS_set_mempolicy, SYS_get_mempolicy, SYS_shmget,
};
#define REFUSED (sizeof refused / sizeof refused[0])

static struct sock_filter load(size_t offset)
{
	return (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned int)offset);
}

/* Skips the next statement unless the word that was loaded is `value`. */
static struct sock_filter skip_unless(unsigned int value)
{
	return (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
}

static struct sock_filter answer(unsigned int what)
{
	return (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, what);
}

int main(int argc, char **argv)
{
	struct sock_filter filter[2 * REFUSED + 2];
	struct sock_fprog program = { .filter = filter };
	unsigned short length = 0;

	if (argc < 3) {
		fprintf(stderr, "usage: refuse EPERM|ENOSYS|netlink COMMAND...\n");
		return 2;
	}
	filter[length++] = load(offsetof(struct seccomp_data, nr));
	if (strcmp(argv[1], "netlink") == 0) {
		filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3);
		filter[length++] = load(offsetof(struct seccomp_data, args));
		filter[length++] = skip_unless(AF_NETLINK);
		filter[length++] = answer(SECCOMP_RET_ERRNO | EAFNOSUPPORT);
	} else {
		unsigned int reason = strcmp(argv[1], "ENOSYS") == 0 ? ENOSYS : EPERM;

		for (size_t i = 0; i < REFUSED; i++) {
			filter[length++] = skip_unless(refused[i]);
			filter[length++] = answer(SECCOMP_RET_ERRNO | reason);
		}
	}
	filter[length++] = answer(SECCOMP_RET_ALLOW);
	program.len = length;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
		perror("refuse");
		return 125;
	}
	execvp(argv[2], argv + 2);
	perror(argv[2]);
	return 127;
}
