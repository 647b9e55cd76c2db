// SPDX-License-Identifier: Apache-2.0
/* reuse PID ROUNDS MS ALPHA OMEGA: starts ALPHA and OMEGA (identity.c) in turn, ROUNDS processes
 * one after another that all have the process ID PID. */
#define _GNU_SOURCE
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc != 6)
		return 2;
	for (int round = 0; round < atoi(argv[2]); round++) {
		char *program = argv[4 + (round & 1)];
		pid_t pid = atoi(argv[1]);
		struct clone_args arguments = {
		    .exit_signal = SIGCHLD, .set_tid = (uintptr_t)&pid, .set_tid_size = 1};
		long child = syscall(SYS_clone3, &arguments, sizeof(arguments));
		int status;

		if (child == 0) {
			execl(program, program, "0", argv[3], (char *)NULL);
			_exit(1);
		}
		if (child != pid || waitpid(pid, &status, 0) != pid || status) {
			perror("reuse");
			return 1;
		}
	}
	return 0;
}
