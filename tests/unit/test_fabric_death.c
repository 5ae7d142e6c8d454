/* SPDX-License-Identifier: Apache-2.0 */
/* A peer killed in the middle of our small writes: they fail or must be tried again, and this process lives. With fi_inject_writedata in the
 * place of fi_writedata libfabric 1.17 crashes here every time. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <string.h>

#include "check_main.h"
#include "fabric.h"
#include "util.h"

struct card { uint8_t name[128]; size_t len; uint64_t key, remote; };

static void swap_cards(int out, int in, const struct card *mine, struct card *theirs)
{
	ck_assert_int_eq(write(out, mine, sizeof(*mine)), sizeof(*mine));
	ck_assert_int_eq(read(in, theirs, sizeof(*theirs)), sizeof(*theirs));
}

START_TEST(small_writes_to_a_killed_peer)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int up[2], down[2], done = 0, killed = 0;
	const struct vr_fabric_ops *ops = vr_fabric_ops;
	struct vr_mem m = {.len = 1 << 20};
	struct vr_event ev[16];
	struct card mine, theirs;
	struct vr_addr local;
	enum vr_reason why;
	struct vr_fabric *f;
	uint32_t format;
	uint64_t peer;
	int64_t start;
	pid_t pid;

	ck_assert(!pipe(up) && !pipe(down));
	pid = fork();
	vr_addr_from_sockaddr(&local, (struct sockaddr *)&in, sizeof(in));
	f = ops->open("tcp;ofi_rxm", &local, &why);
	ck_assert_msg(f != NULL, "%s", vr_reason_text(why));
	m.base = mmap(NULL, m.len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ck_assert_int_eq(ops->mem_register(f, &m, true), 0);
	memset(&mine, 0, sizeof(mine));
	mine.len = ops->name(f, mine.name, sizeof(mine.name), &format);
	mine.key = m.key;
	mine.remote = m.remote;
	if (pid)
		swap_cards(up[1], down[0], &mine, &theirs);
	else
		swap_cards(down[1], up[0], &mine, &theirs);
	ck_assert_int_eq(ops->peer_add(f, theirs.name, theirs.len, &peer), 0);
	start = vr_now_ms();
	while (vr_now_ms() - start < (pid ? 1000 : 10000)) {
		/* the peer sends long writes, we answer with short ones, as records and credits do */
		int rc = ops->write(f, peer, &m, 0, pid ? 8 : 65536, theirs.remote, theirs.key, 7, (void *)1), n;

		ck_assert(rc == 0 || rc < 0);
		while ((n = ops->poll(f, ev, 16)) > 0)
			for (int i = 0; i < n; i++)
				done += ev[i].type == VR_EVENT_DONE;
		if (pid && !killed && done > 1000) {
			killed = 1;
			kill(pid, SIGKILL);
		}
	}
	if (!pid)
		_exit(0);
	waitpid(pid, NULL, 0);
	ck_assert_int_eq(killed, 1);
}
END_TEST

CHECK_MAIN("fabric-death", small_writes_to_a_killed_peer)
