/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stats socket: abstract Unix stream socket "@vortex-rdma/<pid>/<random hex>", one request line, a text answer, end of file.
 * Only the process's own user and root are answered.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "internal.h"
#include "log.h"
#include "util.h"

#define CLIENTS 16

static int listener = -1;
static struct vr_io listener_io = {VR_IO_CTL, NULL};
static struct client {
	struct vr_io io;
	int fd;
	char line[64];
	size_t len;
} clients[CLIENTS];

void vr_ctl_open(void)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	uint32_t r;
	int n;

	for (int i = 0; i < CLIENTS; i++)
		clients[i].fd = -1;
	vr_random(&r, sizeof(r));
	n = snprintf(un.sun_path + 1, sizeof(un.sun_path) - 1, "vortex-rdma/%d/%08x", (int)getpid(), r);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (listener < 0)
		return;
	vr_engine_hide(listener, true);
	if (bind(listener, (struct sockaddr *)&un, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) ||
	    listen(listener, 8)) {
		vr_info("stats socket: %s", strerror(errno));
		listener = vr_engine_close(listener);
		return;
	}
	vr_engine_watch(listener, &listener_io, EPOLLIN);
}

static void answer(struct client *c)
{
	char text[8192];
	size_t n = (size_t)snprintf(text, sizeof(text), "pid %d\nversion %s\n", (int)getpid(), VR_VERSION);

	if (!strncmp(c->line, "stats", 5))
		n += vr_stats_print(text + n, sizeof(text) - n);
	else
		n += (size_t)snprintf(text + n, sizeof(text) - n, "error unknown request\n");
	(void)!send(c->fd, text, n, MSG_DONTWAIT | MSG_NOSIGNAL); /* fits the socket's buffer; else the client is not served */
	c->fd = vr_engine_close(c->fd);
}

static void accept_client(void)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	vr_engine_hide(fd, true);
	if (!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) && (cred.uid == 0 || cred.uid == geteuid()))
		for (int i = 0; i < CLIENTS; i++)
			if (clients[i].fd < 0) {
				clients[i] = (struct client){.io = {VR_IO_CTL_CLIENT, &clients[i]}, .fd = fd};
				vr_engine_watch(fd, &clients[i].io, EPOLLIN | EPOLLRDHUP);
				return;
			}
	vr_engine_close(fd);
}

void vr_ctl_event(struct vr_io *io, uint32_t events)
{
	struct client *c = io->owner;
	ssize_t n;

	if (io->kind == VR_IO_CTL) {
		accept_client();
		return;
	}
	if (c->fd < 0)
		return;
	n = recv(c->fd, c->line + c->len, sizeof(c->line) - 1 - c->len, MSG_DONTWAIT);
	if (n < 0 && errno == EAGAIN && !(events & (EPOLLHUP | EPOLLERR)))
		return;
	if (n > 0)
		c->len += (size_t)n;
	if (n > 0 && memchr(c->line, '\n', c->len))
		answer(c);
	else if (n <= 0 || c->len == sizeof(c->line) - 1)
		c->fd = vr_engine_close(c->fd);
}
