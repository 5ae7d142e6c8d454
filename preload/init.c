/* SPDX-License-Identifier: Apache-2.0 */
/* Start and end of the process, and fork. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/log.h"
#include "fdtable.h"
#include "real.h"

#define DRAIN_MS 5000 /* what was written is delivered before the process ends, for this long at most */

static const struct vr_host_ops ops = {.hide_fd = vr_fd_hide};

static void child(void)
{
	int saved = errno;

	vr_engine_child();
	atomic_fetch_add(&vr_fork_gen, 1);
	vr_fd_child();
	errno = saved;
}

static void parent(void)
{
	atomic_fetch_add(&vr_fork_gen, 1); /* the child holds copies of the candidates */
	vr_engine_parent();
}

__attribute__((constructor)) static void start(void)
{
	static struct vr_config config;

	vr_real_resolve();
	vr_config_load(&config, NULL);
	vr_log_init(config.log_level, config.log_file);
	vr_engine_init(&config, &ops);
	if (config.on)
		pthread_atfork(vr_engine_prefork, parent, child);
}

__attribute__((destructor)) static void finish(void)
{
	vr_engine_drain(DRAIN_MS);
}

VR_EXPORT __attribute__((noreturn)) void _exit(int status)
{
	vr_engine_drain(DRAIN_MS);
	for (;;)
		syscall(SYS_exit_group, status);
}

VR_EXPORT __attribute__((noreturn)) void _Exit(int status)
{
	_exit(status);
}
