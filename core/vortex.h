/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recognising a Vortex request by its first bytes (vortex-protocol 0.1.5, src/lib.rs: packet id u8, tag u8, length u32 big endian).
 * Requests are the tags 0, 2, 4 and 6 with a length of 64 (task id) + 4 (piece number) = 68.
 */
#ifndef VR_VORTEX_H
#define VR_VORTEX_H

#include <stddef.h>
#include <stdint.h>

#define VR_VORTEX_HEADER 6

enum vr_sniff { VR_SNIFF_MORE, VR_SNIFF_REQUEST, VR_SNIFF_OTHER };

/* vr_vortex_sniff - judge the first n bytes of a stream: MORE while every continuation is still open (n < 6 and all consistent),
 * REQUEST for a request header, OTHER as soon as it can be none. Pure. */
enum vr_sniff vr_vortex_sniff(const uint8_t *p, size_t n);

#endif
