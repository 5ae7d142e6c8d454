#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Unreadable arguments on a candidate are EFAULT, not a crash; run under the shim by test_main.py."""
import ctypes
import errno
import socket
import sys

libc = ctypes.CDLL(None, use_errno=True)
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
P, I, Z = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
BAD = 8
for name, types, args in (('send', (I, P, Z, I), (s.fileno(), BAD, 74, 0)), ('sendmsg', (I, P, I), (s.fileno(), BAD, 0)),
                          ('writev', (I, P, I), (s.fileno(), BAD, 2)), ('recvmsg', (I, P, I), (s.fileno(), BAD, 0x40)),
                          ('poll', (P, ctypes.c_ulong, I), (BAD, 3, 0)), ('select', (I, P, P, P, P), (9, BAD, None, None, None)),
                          ('connect', (I, P, I), (s.fileno(), BAD, 16))):
    f = getattr(libc, name)
    f.argtypes = types
    f.restype = ctypes.c_long if name in ('send', 'sendmsg', 'writev', 'recvmsg') else I
    r = f(*args)
    if r != -1 or ctypes.get_errno() != errno.EFAULT:
        sys.exit('%s: %d, errno %d' % (name, r, ctypes.get_errno()))
