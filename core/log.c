/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config.h"

static int level = VR_LOG_OFF;
static char path[VR_PATH_MAX];
static _Atomic int file = -1;
static struct { dev_t dev; ino_t ino; } err_id, file_id; /* what the descriptors must still be */
static bool err_ok;

void vr_log_init(int lvl, const char *name)
{
	struct stat st;

	level = lvl;
	snprintf(path, sizeof(path), "%s", name);
	err_ok = !fstat(2, &st) && !S_ISSOCK(st.st_mode);
	if (err_ok) {
		err_id.dev = st.st_dev;
		err_id.ino = st.st_ino;
	}
}

int vr_log_level(void)
{
	return level;
}

int vr_log_fd(void)
{
	return atomic_load(&file);
}

static int destination(void)
{
	struct stat st;
	int fd, none = -1;

	/* Still the file it was, not a number that the program has closed and used again? */
	if (!path[0])
		return err_ok && !fstat(2, &st) && st.st_dev == err_id.dev && st.st_ino == err_id.ino ? 2 : -1;
	fd = atomic_load(&file);
	if (fd >= 0 && !fstat(fd, &st) && st.st_dev == file_id.dev && st.st_ino == file_id.ino)
		return fd;
	atomic_compare_exchange_strong(&file, &fd, -1); /* not closed: it is the program's now */
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644);
	if (fd >= 0 && !fstat(fd, &st)) {
		file_id.dev = st.st_dev; /* every opener of the path writes the same */
		file_id.ino = st.st_ino;
		int high = fcntl(fd, F_DUPFD_CLOEXEC, 512); /* out of the way of the application's numbers */

		if (high >= 0) {
			close(fd);
			fd = high;
		}
		if (!atomic_compare_exchange_strong(&file, &none, fd)) {
			close(fd);
			fd = none;
		}
	}
	return fd;
}

/* Nobody reads the pipe any more: that must not kill the program with SIGPIPE. */
static void write_line(int fd, const char *line, size_t n)
{
	sigset_t pipe, saved, pending;
	struct timespec now = {0, 0};
	bool was;

	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	sigpending(&pending);
	was = sigismember(&pending, SIGPIPE) == 1;
	pthread_sigmask(SIG_BLOCK, &pipe, &saved);
	if (write(fd, line, n) < 0 && errno == EPIPE && !was)
		sigtimedwait(&pipe, NULL, &now);
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
}

void vr_log(int lvl, const char *fmt, ...)
{
	static const char *const names[] = {"", "error", "warning", "info", "debug"};
	int saved = errno, fd, n, k;
	char line[4352];
	va_list ap;

	if (lvl > level || lvl <= VR_LOG_OFF)
		return;
	fd = destination();
	if (fd >= 0) {
		n = snprintf(line, sizeof(line), "vortex-rdma[%d] %s: ", (int)getpid(), names[lvl]);
		va_start(ap, fmt);
		k = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
		va_end(ap);
		if (k > 0)
			n += k < (int)sizeof(line) - n - 1 ? k : (int)sizeof(line) - n - 2;
		line[n++] = '\n';
		write_line(fd, line, (size_t)n);
	}
	errno = saved;
}

void vr_log_child(void)
{
	/* The descriptor is shared with the parent and opened for appending: nothing to do. */
}
