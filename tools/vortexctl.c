/* SPDX-License-Identifier: Apache-2.0 */
/* vortexctl: looks at the processes that run under libvortex-rdma.so on this host. */
#include <errno.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "reasons.h"

/* ask - send "stats" to one process's socket; the answer in buf, NUL-terminated; false (and a message) when it does not answer. */
static bool ask(const char *name, char *buf, size_t size)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	struct timeval limit = {2, 0};
	struct ucred cred = {0};
	socklen_t len = sizeof(cred);
	size_t have = 0, n = strlen(name);
	ssize_t k = -1;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || n >= sizeof(un.sun_path))
		return false;
	memcpy(un.sun_path + 1, name + 1, n - 1); /* '@' stands for the leading NUL */
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (!connect(fd, (struct sockaddr *)&un, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) &&
	    !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len)) {
		if (cred.uid != 0 && cred.uid != geteuid() && geteuid() != 0) {
			/* anyone may bind such a name */
			fprintf(stderr, "vortexctl: %s belongs to user %u, ignored\n", name, cred.uid);
		} else if (send(fd, "stats\n", 6, MSG_NOSIGNAL) == 6) {
			while (have < size - 1 && (k = recv(fd, buf + have, size - 1 - have, 0)) > 0)
				have += (size_t)k;
		}
	}
	close(fd);
	buf[have] = 0;
	return have > 0;
}

static void comm_of(const char *pid, char *buf, size_t size)
{
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%s/comm", pid);
	buf[0] = 0;
	f = fopen(path, "re");
	if (f && fgets(buf, (int)size, f))
		buf[strcspn(buf, "\n")] = 0;
	if (f)
		fclose(f);
	for (char *c = buf; *c; c++)
		if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
			*c = '?';
}

static void print_process(const char *pid, char *text, bool json, bool first)
{
	char comm[64], *save = NULL;
	const char *sep = "";

	comm_of(pid, comm, sizeof(comm));
	if (json)
		printf("%s{\"pid\":%s,\"comm\":\"%s\",\"stats\":{", first ? "" : ",\n", pid, comm);
	else
		printf("%s%s (pid %s)\n", first ? "" : "\n", comm, pid);
	for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
		char *v = strchr(l, ' ');

		if (!v || !strncmp(l, "pid ", 4))
			continue;
		*v++ = 0;
		if (!json)
			printf("  %-32s %s\n", l, v);
		else if (!strcmp(l, "version"))
			printf("%s\"%s\":\"%s\"", sep, l, v);
		else
			printf("%s\"%s\":%s", sep, l, v);
		sep = ",";
	}
	if (json)
		printf("}}");
}

static int cmd_stats(int argc, char **argv)
{
	bool json = false, any = false;
	const char *only = NULL;
	char line[512], text[16384];
	FILE *f;

	for (int i = 0; i < argc; i++) {
		if (!strcmp(argv[i], "--json")) {
			json = true;
		} else if (!strcmp(argv[i], "--pid") && i + 1 < argc) {
			only = argv[++i];
		} else {
			fprintf(stderr, "usage: vortexctl stats [--json] [--pid PID]\n");
			return 2;
		}
	}
	f = fopen("/proc/net/unix", "re");
	if (!f) {
		fprintf(stderr, "vortexctl: /proc/net/unix: %s\n", strerror(errno));
		return 1;
	}
	if (json)
		printf("[");
	while (fgets(line, sizeof(line), f)) {
		char *name = strstr(line, "@vortex-rdma/"), pid[32];
		unsigned flags = 0;

		/* the listening socket has __SO_ACCEPTCON set; connections from it carry the same name */
		if (!name || sscanf(line, "%*s %*s %*s %x", &flags) != 1 || !(flags & 0x10000))
			continue;
		name[strcspn(name, "\n")] = 0;
		if (sscanf(name, "@vortex-rdma/%31[0-9]/", pid) != 1 || (only && strcmp(pid, only)))
			continue;
		if (!ask(name, text, sizeof(text)))
			continue;
		print_process(pid, text, json, !any);
		any = true;
	}
	fclose(f);
	if (json)
		printf("]\n");
	if (!any && !json)
		fprintf(stderr, "vortexctl: no process under libvortex-rdma.so answers\n");
	return any ? 0 : 1;
}

static int cmd_reasons(int argc, char **argv)
{
	if (argc) {
		fprintf(stderr, "usage: vortexctl reasons\n");
		return 2;
	}
	for (unsigned i = 1; i < VR_REASON_COUNT; i++)
		printf("%2u %-20s %s%s%s\n", i, vr_reason_name(i), vr_reason_text(i), *vr_reason_advice(i) ? "; " : "", vr_reason_advice(i));
	return 0;
}

static const struct { const char *name; int (*run)(int, char **); const char *help; } commands[] = {
	{"stats", cmd_stats, "stats [--json] [--pid PID]   counters of every process under the shim"},
	{"reasons", cmd_reasons, "reasons                      why a connection may stay on TCP, and what to do"},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(argv[1], commands[i].name))
			return commands[i].run(argc - 2, argv + 2);
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		fprintf(stderr, "%s vortexctl %s\n", i ? "      " : "usage:", commands[i].help);
	return 2;
}
