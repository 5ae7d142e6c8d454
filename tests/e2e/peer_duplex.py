#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Both directions at once: `peer_duplex.py server HOST PORTFILE COUNT` and `peer_duplex.py client HOST PORT COUNT HEADER(hex) BYTES`.
Each side sends pseudo-random bytes and checks the other's; every connection has its own seed. Exit status 0 when all matched."""
import hashlib
import os
import random
import socket
import sys
import threading


def pour(s, seed, size):
    s.sendall(random.Random(seed).randbytes(size))
    s.shutdown(socket.SHUT_WR)


def take(s, seed, size):
    h, n = hashlib.sha256(), 0
    while True:
        b = s.recv(200000)
        if not b:
            break
        h.update(b)
        n += len(b)
    return n == size and h.digest() == hashlib.sha256(random.Random(seed).randbytes(size)).digest()


def exchange(s, mine, theirs, size):
    t = threading.Thread(target=pour, args=(s, mine, size))
    t.start()
    good = take(s, theirs, size)
    t.join()
    s.close()
    return good


def exactly(s, n):
    b = b''
    while len(b) < n:
        k = s.recv(n - len(b))
        if not k:
            sys.exit('early end')
        b += k
    return b


if sys.argv[1] == 'server':
    with socket.create_server((sys.argv[2], 0)) as l:
        with open(sys.argv[3], 'w') as f:
            f.write('%d\n' % l.getsockname()[1])
        for _ in range(int(sys.argv[4])):
            s, peer = l.accept()
            first = exactly(s, 6)  # a Vortex header or whatever
            seed, size = int.from_bytes(exactly(s, 4), 'big'), int.from_bytes(exactly(s, 4), 'big')
            assert s.getpeername() == peer
            if not exchange(s, seed + 1000000, seed, size):
                sys.exit('server: wrong bytes')
else:
    for i in range(int(sys.argv[4])):
        s = socket.create_connection((sys.argv[2], int(sys.argv[3])))
        size = int(sys.argv[6])
        seed = random.randrange(1 << 30)
        first = bytes.fromhex(sys.argv[5]) + seed.to_bytes(4, 'big') + size.to_bytes(4, 'big')
        # TCP ignores an address on a connected socket: in the call that swaps, and in one after it
        for part in (first[:6], first[6:]):
            if i % 3 == 0:
                n = s.sendto(part, ('192.0.2.1', 9))
            elif i % 3 == 1:
                n = s.sendmsg([part], [], 0, ('192.0.2.1', 9))
            else:
                n = s.send(part)
            if n != len(part):
                sys.exit('client: short send')
        if not exchange(s, seed, seed + 1000000, size):
            sys.exit('client: wrong bytes')
    if os.environ.get('FORK'):  # a forked child has no engine, and ends like any process
        pid = os.fork()
        if pid == 0:
            c = socket.create_connection((sys.argv[2], int(sys.argv[3])))
            c.sendall(b'hello!')
            os._exit(0)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
