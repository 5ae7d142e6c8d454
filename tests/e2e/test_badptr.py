#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""send() of an unreadable buffer on a candidate is EFAULT, not a crash; run under the shim by test_main.py."""
import ctypes
import errno
import socket
import sys

libc = ctypes.CDLL(None, use_errno=True)
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
libc.send.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
r = libc.send(s.fileno(), 8, 74, 0)
sys.exit(0 if r == -1 and ctypes.get_errno() == errno.EFAULT else 1)
