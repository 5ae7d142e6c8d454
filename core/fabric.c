/* SPDX-License-Identifier: Apache-2.0 */
/* libfabric RDM endpoints. libfabric.so.1 is opened at run time: linking it would cost every exec 0.2 s (its PSM dependencies). */
#include "fabric.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "log.h"

struct vr_fabric {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	int fd;
	uint64_t next_key;
};

static struct {
	bool tried;
	int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
	void (*freeinfo)(struct fi_info *);
	struct fi_info *(*dupinfo)(const struct fi_info *);
	int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
	const char *(*strerror)(int);
} lib;

/* What an embedded libfabric needs (sources: libfabric 1.17 prov/rxm/src/rxm_init.c, src/mr cache; libpsm's constructors; facts
 * measured in docs/architecture.md). The user's own values always win. */
static const struct { const char *name, *value; } defaults[] = {
	{"FI_MR_CACHE_MONITOR", "disabled"}, /* else libfabric patches the host's mmap and friends */
	{"FI_MR_CACHE_MAX_COUNT", "0"},      /* ring slabs live long: nothing to cache */
	{"FI_OFI_RXM_MSG_TX_SIZE", "64"},    /* 74 MB an endpoint become some 20 */
	{"FI_OFI_RXM_MSG_RX_SIZE", "64"},
	{"FI_OFI_RXM_CM_PROGRESS_INTERVAL", "100"}, /* us; first connection in 2 ms rather than 15 */
	{"FI_UNIVERSE_SIZE", "64"},          /* small devices (rxe) refuse the CQ that the default of 256 asks for */
	{"FI_HMEM_DISABLE_P2P", "1"},
	{"IPATH_NO_BACKTRACE", "1"},         /* libpsm would install handlers for SIGSEGV and others */
	{"HFI_NO_BACKTRACE", "1"},
	{"RDMAV_FORK_SAFE", "1"},            /* the host may fork */
};

const char *vr_fabric_getenv(const char *name)
{
	for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]); i++)
		if (!strcmp(name, defaults[i].name))
			return defaults[i].value;
	return NULL;
}

static bool load(void)
{
	static const int watched[] = {SIGSEGV, SIGBUS, SIGILL, SIGABRT, SIGFPE, SIGINT, SIGTERM, SIGQUIT};
	struct sigaction before[sizeof(watched) / sizeof(watched[0])];
	void *h;

	if (lib.tried)
		return lib.getinfo != NULL;
	lib.tried = true;
	/* Libraries that libfabric pulls in may install handlers in their constructors: the host's dispositions are put back. */
	for (size_t i = 0; i < sizeof(watched) / sizeof(watched[0]); i++)
		sigaction(watched[i], NULL, &before[i]);
	h = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
	for (size_t i = 0; i < sizeof(watched) / sizeof(watched[0]); i++) {
		struct sigaction now;

		if (!sigaction(watched[i], NULL, &now) && now.sa_handler != before[i].sa_handler)
			sigaction(watched[i], &before[i], NULL);
	}
	if (!h) {
		vr_info("libfabric.so.1 cannot be loaded: %s", dlerror());
		return false;
	}
	*(void **)&lib.freeinfo = dlsym(h, "fi_freeinfo");
	*(void **)&lib.dupinfo = dlsym(h, "fi_dupinfo");
	*(void **)&lib.fabric = dlsym(h, "fi_fabric");
	*(void **)&lib.strerror = dlsym(h, "fi_strerror");
	*(void **)&lib.getinfo = dlsym(h, "fi_getinfo");
	if (!lib.freeinfo || !lib.dupinfo || !lib.fabric || !lib.strerror)
		lib.getinfo = NULL;
	return lib.getinfo != NULL;
}

static void ofi_close(struct vr_fabric *f)
{
	if (!f)
		return;
	if (f->ep)
		fi_close(&f->ep->fid);
	if (f->av)
		fi_close(&f->av->fid);
	if (f->cq)
		fi_close(&f->cq->fid);
	if (f->domain)
		fi_close(&f->domain->fid);
	if (f->fabric)
		fi_close(&f->fabric->fid);
	if (f->info)
		lib.freeinfo(f->info);
	free(f);
}

/* The info whose source address is `local`, else the first that is not on a loopback device, else the first. */
static struct fi_info *choose(struct fi_info *list, const struct vr_addr *local)
{
	struct fi_info *other = NULL;

	for (struct fi_info *i = list; i; i = i->next) {
		struct vr_addr a;

		if (!i->src_addr || !vr_addr_from_sockaddr(&a, i->src_addr, (socklen_t)i->src_addrlen))
			continue;
		if (vr_addr_same_ip(&a, local))
			return i;
		if (!other && !vr_addr_is_loopback(&a))
			other = i;
	}
	return other ? other : list;
}

static struct vr_fabric *ofi_open(const char *provider, const struct vr_addr *local, enum vr_reason *why)
{
	struct fi_cq_attr cq = {.size = 8192, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD};
	struct fi_av_attr av = {.type = FI_AV_TABLE, .count = 64};
	struct fi_info *hints = NULL, *list = NULL;
	struct vr_fabric *f = calloc(1, sizeof(*f));
	const char *step = "fi_getinfo";
	int rc;

	*why = VR_REASON_INTERNAL;
	if (!f)
		return NULL;
	if (!load()) {
		*why = VR_REASON_NO_LIBFABRIC;
		goto fail_quiet;
	}
	*why = VR_REASON_NO_DEVICE;
	hints = lib.dupinfo(NULL);
	if (!hints)
		goto fail_quiet;
	hints->caps = FI_MSG | FI_RMA;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->av_type = FI_AV_TABLE;
	hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_WAW;
	hints->fabric_attr->prov_name = strdup(provider);
	rc = lib.getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &list);
	lib.freeinfo(hints);
	if (rc)
		goto fail;
	f->info = lib.dupinfo(choose(list, local));
	lib.freeinfo(list);
	step = "fi_fabric";
	if (!f->info || (rc = lib.fabric(f->info->fabric_attr, &f->fabric, NULL)))
		goto fail;
	step = "fi_domain";
	if ((rc = fi_domain(f->fabric, f->info, &f->domain, NULL)))
		goto fail;
	step = "fi_av_open";
	if ((rc = fi_av_open(f->domain, &av, &f->av, NULL)))
		goto fail;
	step = "fi_cq_open";
	if ((rc = fi_cq_open(f->domain, &cq, &f->cq, NULL)))
		goto fail;
	step = "fi_endpoint";
	if ((rc = fi_endpoint(f->domain, f->info, &f->ep, NULL)) || (rc = fi_ep_bind(f->ep, &f->av->fid, 0)) ||
	    (rc = fi_ep_bind(f->ep, &f->cq->fid, FI_TRANSMIT | FI_RECV)))
		goto fail;
	step = "fi_enable";
	if ((rc = fi_enable(f->ep)))
		goto fail;
	step = "FI_GETWAIT";
	if ((rc = fi_control(&f->cq->fid, FI_GETWAIT, &f->fd)))
		goto fail;
	*why = VR_REASON_NONE;
	vr_info("fabric: provider %s, domain %s", f->info->fabric_attr->prov_name, f->info->domain_attr->name);
	return f;
fail:
	if (rc == -FI_ENOMEM)
		*why = VR_REASON_MEMLOCK;
	vr_info("no fabric: provider %s: %s: %s", provider, step, rc ? lib.strerror(-rc) : "out of memory");
fail_quiet:
	ofi_close(f);
	return NULL;
}

static size_t ofi_name(struct vr_fabric *f, void *buf, size_t size, uint32_t *format)
{
	size_t n = size;

	*format = f->info->addr_format;
	return fi_getname(&f->ep->fid, buf, &n) ? 0 : n;
}

static int ofi_peer_add(struct vr_fabric *f, const void *name, size_t len, uint64_t *peer)
{
	struct vr_addr a;
	fi_addr_t addr;

	/* The length is the peer's word: what libfabric reads by format must be there. */
	if ((f->info->addr_format == FI_SOCKADDR_IN || f->info->addr_format == FI_SOCKADDR_IN6) &&
	    !vr_addr_from_sockaddr(&a, name, (socklen_t)len))
		return -EINVAL;
	if (fi_av_insert(f->av, name, 1, &addr, 0, NULL) != 1)
		return -EINVAL;
	*peer = addr;
	return 0;
}

static int ofi_mem_register(struct vr_fabric *f, struct vr_mem *m, bool remote)
{
	struct fid_mr *mr;
	int rc = fi_mr_reg(f->domain, m->base, m->len, remote ? FI_REMOTE_WRITE : FI_WRITE, 0, ++f->next_key, 0, &mr, NULL);

	if (rc)
		return rc;
	m->mr = mr;
	m->desc = fi_mr_desc(mr);
	m->key = fi_mr_key(mr);
	m->remote = (f->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) ? (uintptr_t)m->base : 0;
	return 0;
}

static void ofi_mem_unregister(struct vr_fabric *f, struct vr_mem *m)
{
	if (m->mr)
		fi_close(&((struct fid_mr *)m->mr)->fid);
	m->mr = NULL;
}

/* Never fi_inject_writedata: libfabric 1.17's tcp;ofi_rxm crashes in the next progress when the peer has just died (8 of 8 tries; a write
 * with a context 0 of 8). */
static int ofi_write(struct vr_fabric *f, uint64_t peer, const struct vr_mem *m, size_t off, size_t len, uint64_t raddr, uint64_t rkey,
		     uint32_t imm, void *ctx)
{
	return (int)fi_writedata(f->ep, (char *)m->base + off, len, m->desc, imm, peer, raddr, rkey, ctx);
}

static int ofi_poll(struct vr_fabric *f, struct vr_event *ev, int max)
{
	struct fi_cq_data_entry e[32];
	ssize_t n;

	if (max > 32)
		max = 32;
	n = fi_cq_read(f->cq, e, (size_t)max);
	if (n == -FI_EAVAIL) {
		struct fi_cq_err_entry err = {0};

		if (fi_cq_readerr(f->cq, &err, 0) != 1)
			return 0;
		ev[0] = (struct vr_event){.type = VR_EVENT_ERROR, .ctx = err.op_context, .err = err.err};
		return 1;
	}
	for (ssize_t i = 0; i < n; i++) {
		if (e[i].flags & FI_REMOTE_CQ_DATA)
			ev[i] = (struct vr_event){.type = VR_EVENT_REMOTE, .imm = (uint32_t)e[i].data};
		else
			ev[i] = (struct vr_event){.type = VR_EVENT_DONE, .ctx = e[i].op_context};
	}
	return n > 0 ? (int)n : 0;
}

static int ofi_wait_fd(struct vr_fabric *f)
{
	return f->fd;
}

static bool ofi_may_wait(struct vr_fabric *f)
{
	struct fid *fid = &f->cq->fid;

	return fi_trywait(f->fabric, &fid, 1) == 0;
}

static const struct vr_fabric_ops ofi_ops = {
	.open = ofi_open, .close = ofi_close, .name = ofi_name, .peer_add = ofi_peer_add, .mem_register = ofi_mem_register,
	.mem_unregister = ofi_mem_unregister, .write = ofi_write, .poll = ofi_poll, .wait_fd = ofi_wait_fd,
	.may_wait = ofi_may_wait,
};
const struct vr_fabric_ops *vr_fabric_ops = &ofi_ops;
