/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration from the environment: every variable, its default and its range (docs/configuration.md). */
#ifndef VR_CONFIG_H
#define VR_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VR_PATH_MAX 4096

struct vr_config {
	bool on;                     /* VORTEX_RDMA=on|off (also 1|0, true|false, yes|no); default on */
	char allowlist[VR_PATH_MAX]; /* VORTEX_RDMA_ALLOWLIST; default /etc/vortex-rdma/allowlist */
	char provider[64];           /* VORTEX_RDMA_PROVIDER; default verbs;ofi_rxm */
	int control_offset;          /* VORTEX_RDMA_CONTROL_OFFSET, -65535..65535 but 0; default 10 */
	unsigned connect_wait_ms;    /* VORTEX_RDMA_CONNECT_WAIT_MS, 0..60000; default 0 */
	size_t ring_size;            /* VORTEX_RDMA_RING_SIZE bytes, 64K..1G, rounded up to a power of two; default 4M */
	size_t memory;               /* VORTEX_RDMA_MEMORY bytes for all rings, 1M..1T; default 1G */
	int log_level;               /* VORTEX_RDMA_LOG=off|error|warn|info|debug, see log.h; default: error, info with a file */
	char log_file[VR_PATH_MAX];  /* VORTEX_RDMA_LOG_FILE; default "" = standard error */
	char errors[2048];           /* one line per bad value, '\n' separated: variable, value, what is accepted */
};

/*
 * vr_config_load - fill *c from an environment (NULL: environ). Never fails: a bad value keeps its default
 * and adds a line to c->errors. Allocates nothing and calls no locale function, so that the library's
 * constructor may use it. The control port of service port p is p + control_offset when that is 1..65535.
 */
void vr_config_load(struct vr_config *c, char *const *env);

/* vr_config_parse_size - "64K", "4M", "1G", "123" (powers of 1024, case ignored) to bytes; false if malformed or too large. */
bool vr_config_parse_size(const char *s, uint64_t *out);

#endif
