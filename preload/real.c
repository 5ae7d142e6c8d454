/* SPDX-License-Identifier: Apache-2.0 */
#include "real.h"

#include <dlfcn.h>

struct vr_real vr_real;

void vr_real_resolve(void)
{
	struct vr_real r = {0};

#define X(ret, name, args) *(void **)&r.name = dlsym(RTLD_NEXT, #name);
	VR_REAL_LIST(X)
#undef X
#define X(ret, name, args) __atomic_store_n(&vr_real.name, r.name, __ATOMIC_RELAXED);
	VR_REAL_LIST(X)
#undef X
}
