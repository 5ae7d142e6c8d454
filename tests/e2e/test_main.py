#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""End to end: unmodified Vortex peers under the shim, every piece checked, counters read as a user reads them.

Over tcp;ofi_rxm on loopback, or where the environment says: VORTEX_TEST_PROVIDER, VORTEX_TEST_HOST and VORTEX_TEST_HOST6 (this machine's
addresses), VORTEX_TEST_SMALL=1 for an emulated machine (fewer and smaller pieces, more patience)."""
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

LIB, CTL = os.environ['VORTEX_LIB'], os.environ['VORTEXCTL']
SERVER, CLIENT = os.environ['VORTEX_SERVER'], os.environ['VORTEX_CLIENT']
FAULTY = os.environ.get('VORTEX_FAULTY_LIB', '')
RUST_CLIENT = CLIENT.endswith('-rs')
PROVIDER = os.environ.get('VORTEX_TEST_PROVIDER', 'tcp;ofi_rxm')
HOST = os.environ.get('VORTEX_TEST_HOST', '127.0.0.1')
HOST6 = os.environ.get('VORTEX_TEST_HOST6', '::1')
SMALL = os.environ.get('VORTEX_TEST_SMALL') == '1'
PATIENCE = 60 if SMALL else 10  # seconds that a state may take to be reached


def read(path):
    with open(path) as f:
        return f.read()


class Base(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.children = []
        self.rules('allow %s/24\nallow %s/64\n' % (HOST, HOST6))

    def tearDown(self):
        for p in self.children:
            if p.poll() is None:
                p.kill()
                p.wait()
        self.dir.cleanup()

    def path(self, name):
        return os.path.join(self.dir.name, name)

    def rules(self, text):
        with open(self.path('new'), 'w') as f:
            f.write(text)
        os.rename(self.path('new'), self.path('allowlist'))

    def env(self, log, **extra):
        e = dict(os.environ, LD_PRELOAD=LIB, VORTEX_RDMA_PROVIDER=PROVIDER, VORTEX_RDMA_ALLOWLIST=self.path('allowlist'),
                 VORTEX_RDMA_LOG_FILE=self.path(log), VORTEX_RDMA_CONNECT_WAIT_MS=str(PATIENCE * 500))
        e.update(extra)
        return {k: v for k, v in e.items() if v is not None}

    def server(self, listen=HOST + ':0', args=(), log='server.log', **extra):
        port_file = self.path('port%d' % len(self.children))
        p = subprocess.Popen([SERVER, '--listen', listen, '--port-file', port_file, *args], env=self.env(log, **extra))
        self.children.append(p)
        end = time.time() + PATIENCE
        while time.time() < end:
            if os.path.exists(port_file) and open(port_file).read().endswith('\n'):
                p.port = int(open(port_file).read())
                if p.port > 65000 and listen.endswith(':0'):  # the control port must fit
                    p.kill()
                    p.wait()
                    os.unlink(port_file)
                    return self.server(listen, args, log, **extra)
                time.sleep(0.3)
                return p
            time.sleep(0.02)
        self.fail('the server did not start')

    def client(self, port, *args, host=HOST, timeout=120, expect=0, wait=True, **extra):
        log = 'client%d.log' % len(self.children)
        p = subprocess.Popen([CLIENT, '--connect', '%s:%d' % (host, port), *map(str, args)], env=self.env(log, **extra),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.children.append(p)
        p.log = log
        if not wait:
            return p
        return self.finish(p, timeout, expect)

    def finish(self, p, timeout=120, expect=0):
        out, err = p.communicate(timeout=timeout)
        if expect is not None:
            self.assertEqual(p.returncode, expect, (out, err))
        return json.loads(out), self.final(p.log)

    def final(self, log):
        try:
            text = open(self.path(log)).read()
        except FileNotFoundError:
            return {}
        m = re.findall(r'info: final (.*)', text)
        return {k: int(v) for k, v in (w.split('=') for w in m[-1].split())} if m else {}

    def stats(self, p):
        r = subprocess.run([CTL, 'stats', '--json', '--pid', str(p.pid)], stdout=subprocess.PIPE, text=True, timeout=10)
        all_ = json.loads(r.stdout)
        return all_[0]['stats'] if all_ else {}

    def settled(self, p, want):
        """Wait until the server's counters are as they must be when all is over."""
        return self.reach(p, want, lambda s, k: s.get(k) == want[k])

    def at_least(self, p, **want):
        return self.reach(p, want, lambda s, k: s.get(k, 0) >= want[k])

    def reach(self, p, want, good):
        end = time.time() + PATIENCE
        while True:
            s = self.stats(p)
            if all(good(s, k) for k in want):
                return s
            if time.time() > end:
                self.fail('%s, wanted %s' % (s, want))
            time.sleep(0.1)

    def quiet(self, p):
        """Registrations once the quarantine of dead sessions' rings (10 s) is over."""
        time.sleep(11.5)
        return self.stats(p)['registrations']

    IDLE = {'connections_open': 0, 'rings_rx': 0, 'rings_tx': 0}

    def clean(self, p, c):
        s = self.settled(p, self.IDLE)
        self.assertEqual(s['protocol_errors'], 0)
        self.assertEqual(s['connections_swapped'], s['connections_closed'])
        # a client that exits does not wait for the last goodbyes, and prints its counters while they come in
        self.assertLessEqual(c['connections_closed'], c['connections_swapped'])
        for x in (s, c):
            # the client may exit between its last close and the acknowledgement of the server's end
            self.assertLessEqual(x['connections_reset'], 1)
            self.assertEqual(x['protocol_errors'], 0)
        return s

    def both(self, *args, pieces, server_env=None, **kw):
        p = self.server(**(server_env or {}))
        r, c = self.client(p.port, '--pieces', pieces, *args, **kw)
        self.assertEqual(r['ok'], pieces)
        s = self.clean(p, c)
        for x in (c, s):
            self.assertEqual(x['connections_swapped'], pieces, x)
            self.assertEqual(x['connections_seen'], pieces)
            # a short piece may be over before both ends have agreed; most are not
            self.assertGreaterEqual(x['connections_upgraded'], max(1, pieces * 9 // 10 - 2), x)
        self.assertEqual(s['fabric_bytes_sent'] + s['tcp_bytes_sent'], c['fabric_bytes_received'] + c['tcp_bytes_received'])
        return r, c, s


    def duplex(self, header, size, count, **extra):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'peer_duplex.py')
        fork = 'FORK' in extra
        server = subprocess.Popen([sys.executable, script, 'server', HOST, self.path('p'), str(count + 1 if fork else count)],
                                  env=self.env('server.log', **extra), stderr=subprocess.DEVNULL if fork else None)
        self.children.append(server)
        end = time.time() + PATIENCE
        while not (os.path.exists(self.path('p')) and read(self.path('p')).endswith('\n')):
            self.assertLess(time.time(), end)
            time.sleep(0.02)
        time.sleep(0.3)
        client = subprocess.run([sys.executable, script, 'client', HOST, read(self.path('p')).strip(), str(count), header, str(size)],
                                env=self.env('client.log', **extra), timeout=120)
        self.assertEqual(client.returncode, 0)
        if not fork:
            self.assertEqual(server.wait(20), 0)
        return self.final('client.log'), self.final('server.log')


class Upgrade(Base):
    def test_pieces_move_over_the_fabric(self):
        n = 20 if SMALL else 100
        r, c, s = self.both('--concurrency', 8, pieces=n)
        self.assertGreaterEqual(c['fabric_bytes_received'], n * (4 << 20) // 2)

    def test_sizes_around_every_boundary(self):
        sizes = '0,1,31,32,33,65535,65536,65537,524287,524288,524289,4194303,4194304,4194305,4194240,8388609'
        self.both('--sizes', sizes, '--concurrency', 4, pieces=64)

    def test_small_ring(self):
        sizes = '0,1,16351,16352,16353,65503,65504,65505,65535,65536,65537,1048577'
        small = {'VORTEX_RDMA_RING_SIZE': '64K'}
        self.both('--sizes', sizes, '--concurrency', 4, pieces=48, server_env=small, **small)

    def test_different_ring_sizes(self):
        self.both('--sizes', '1,65537,4194305', '--concurrency', 3, pieces=12, VORTEX_RDMA_RING_SIZE='64K')
        self.both('--sizes', '1,65537,4194305', '--concurrency', 3, pieces=12, server_env={'VORTEX_RDMA_RING_SIZE': '128K'})

    def test_many_connections(self):
        self.both('--concurrency', 8, pieces=int(os.environ.get('VORTEX_TEST_CONNECTIONS', '60' if SMALL else '2000')), timeout=300)

    def test_200_at_once(self):
        # 200 rings of 4 MiB in use and those of connections that are saying goodbye: more than the default budget of 1 GiB may be asked for
        room = {'VORTEX_RDMA_MEMORY': '4G'}
        self.both('--concurrency', 200, '--size', '16K' if SMALL else '1M', pieces=200 if SMALL else 400, server_env=room, **room)

    def test_one_gib_piece(self):
        self.both('--size', '64M' if SMALL else '1G', pieces=1)

    def test_ipv6(self):
        self.both('--concurrency', 4, pieces=20, server_env={'listen': '[%s]:0' % HOST6}, host='[%s]' % HOST6)

    def test_all_kinds(self):
        for kind in ('piece', 'persistent', 'persistent-cache', 'cache'):
            self.both('--kind', kind, '--size', '100K', pieces=3)

    @unittest.skipIf(RUST_CLIENT, 'tokio sockets do not block, and write a request at once')
    def test_blocking_and_split_requests(self):
        self.both('--size', '100K', '--blocking', pieces=3)
        for n in (1, 5, 6, 7, 73):
            self.both('--split', n, '--size', '100K', pieces=2)

    def test_unknown_piece_and_no_half_close(self):
        self.both('--unknown', pieces=3)
        self.both('--no-half-close', '--size', '3M', pieces=4)

    def test_slow_reader(self):
        self.both('--rate', '8M', '--read-size', '64K', '--size', '12M', '--concurrency', 2, pieces=2)

    def test_slow_writer(self):
        self.both('--size', '3M', '--concurrency', 2, pieces=2, server_env={'args': ('--rate', '4M')})

    def test_content_by_send_and_writev(self):
        for mode in ('send', 'writev'):
            self.both('--sizes', '1,100K,4M,9M', '--concurrency', 4, pieces=12, server_env={'args': ('--write-mode', mode)})

    def test_several_requests_on_one_connection(self):
        p = self.server(args=('--keep',))
        for size, requests in (('300K', 10), ('0,1,4M', 7)):
            r, c = self.client(p.port, '--pieces', 40, '--sizes', size, '--requests-per-connection', requests, '--concurrency', 3)
            self.assertEqual(r['ok'], 40)
            self.assertGreaterEqual(c['connections_upgraded'], 40 // requests, c)
            self.assertGreater(c['fabric_bytes_received'], 40 * 100000)
            self.clean(p, c)

    def test_two_servers(self):
        a, b = self.server(), self.server(log='b.log')
        for p in (a, b):
            r, c = self.client(p.port, '--pieces', 10)
            self.assertGreaterEqual(c['connections_upgraded'], 7, c)
            self.clean(p, c)

    def test_any_protocol_both_directions(self):
        self.rules('allow %s/24 protocol=any\n' % HOST)
        c, s = self.duplex('686921212121', 20 << 20, 2 if SMALL else 6)
        for x in (c, s):
            self.assertEqual(x['connections_upgraded'], 2 if SMALL else 6, x)
            self.assertGreater(x['fabric_bytes_sent'], (2 if SMALL else 6) * (10 << 20), x)
            self.assertEqual(x['protocol_errors'], 0)

    def test_any_protocol_small_ring(self):
        self.rules('allow %s/24 protocol=any\n' % HOST)
        c, s = self.duplex('686921212121', 3000001, 10, VORTEX_RDMA_RING_SIZE='64K')
        self.assertEqual(c['connections_upgraded'], 10, c)
        self.assertGreater(c['fabric_bytes_sent'], 10 * 1000000, c)

    def test_a_long_upload_on_a_vortex_connection_gets_a_ring_too(self):
        c, s = self.duplex('010000000044', 20 << 20, 4)
        self.assertEqual(c['connections_upgraded'], 4, c)
        self.assertGreater(c['fabric_bytes_sent'], 4 * (10 << 20), c)

    def test_a_forked_child_uses_tcp_and_ends(self):
        self.duplex('010000000044', 1 << 20, 2, FORK='1')

    def test_our_descriptors_do_not_survive_exec(self):
        p = self.server()
        self.client(p.port, '--pieces', 5)
        for fd in os.listdir('/proc/%d/fd' % p.pid):
            what = os.readlink('/proc/%d/fd/%s' % (p.pid, fd))
            if what.startswith(('socket:', 'anon_inode:')):
                flags = int(re.search(r'flags:\s*(\d+)', read('/proc/%d/fdinfo/%s' % (p.pid, fd))).group(1), 8)
                self.assertTrue(flags & os.O_CLOEXEC, (fd, what))

    def test_nothing_is_left_behind(self):
        p = self.server()
        self.client(p.port, '--pieces', 20, '--concurrency', 8, '--size', '300K')
        self.settled(p, dict(self.IDLE, sessions_open=0))
        count = lambda what: len(os.listdir('/proc/%d/%s' % (p.pid, what)))
        registrations = self.quiet(p)
        before = self.stats(p)['hidden_fds'], count('task'), count('fd')
        for _ in range(3):
            self.client(p.port, '--pieces', 100, '--concurrency', 8, '--size', '300K')
        self.settled(p, dict(self.IDLE, sessions_open=0))
        self.assertEqual(self.quiet(p), registrations)
        self.assertEqual((self.stats(p)['hidden_fds'], count('task'), count('fd')), before)


class Fallback(Base):
    def plain(self, r, c, pieces, reason=None):
        self.assertEqual(r['ok'], pieces)
        self.assertEqual(c.get('connections_upgraded', 0), 0)
        if reason:
            self.assertEqual(c.get('reason.client.' + reason), pieces, c)

    def test_only_the_client(self):
        p = self.server(LD_PRELOAD=None)
        self.plain(*self.client(p.port, '--pieces', 10, '--concurrency', 4), 10, 'no-shim')

    def test_only_the_server(self):
        p = self.server()
        self.plain(*self.client(p.port, '--pieces', 10, '--concurrency', 4, LD_PRELOAD=None), 10)
        s = self.settled(p, self.IDLE)
        self.assertEqual(s['connections_swapped'], 0)
        self.assertEqual(s['reason.server.no-session'], 10)

    def test_another_version(self):
        # both ends of a session meet a peer that says version 999
        hello = struct.pack('>HBBIHHIQ', 20, 1, 0, 0x56524431, 999, 0, 0, 0)
        p = self.server()
        with socket.create_connection((HOST, p.port + 10)) as s:
            s.sendall(hello)
            s.settimeout(10)
            self.assertEqual(struct.unpack('>HBBIHH', s.recv(100)[:12]), (8, 1, 0, 0x56524431, 1, 6))
        self.assertEqual(self.settled(p, {'sessions_failed': 1})['sessions_opened'], 0)
        plain = self.server(LD_PRELOAD=None)
        with socket.create_server((HOST, plain.port + 10)) as l:
            run = self.client(plain.port, '--pieces', 3, wait=False)
            c, _ = l.accept()
            c.sendall(hello)
            self.plain(*self.finish(run), 3, 'version')
            c.close()

    def test_noise_on_the_control_port(self):
        p = self.server()
        for noise in (b'GET / HTTP/1.0\r\n\r\n', b'\xff' * 5000, bytes(5000), b'\x00\x10\x03\x00' + b'x' * 16):
            with socket.create_connection((HOST, p.port + 10)) as s:
                s.sendall(noise)
                s.settimeout(10)
                try:
                    while s.recv(1000):
                        pass
                except ConnectionError:
                    pass
        r, c = self.client(p.port, '--pieces', 10)
        self.assertGreaterEqual(c['connections_upgraded'], 7)

    def test_allowlist_is_a_fifo(self):
        os.unlink(self.path('allowlist'))
        os.mkfifo(self.path('allowlist'))
        p = self.server()
        self.plain(*self.client(p.port, '--pieces', 3), 3)

    def test_not_on_the_allowlist(self):
        self.rules('deny %s/24\nallow *\n' % HOST)
        p = self.server()
        r, c = self.client(p.port, '--pieces', 5)
        self.plain(r, c, 5, 'not-allowed')
        self.assertEqual(c['control_connects'], 0)

    def test_no_provider(self):
        p = self.server()
        r, c = self.client(p.port, '--pieces', 5, VORTEX_RDMA_PROVIDER='nonsense')
        self.plain(r, c, 5, 'no-device')
        self.assertEqual(c['control_connects'], 0)

    def test_switched_off(self):
        p = self.server()
        self.plain(*self.client(p.port, '--pieces', 5, VORTEX_RDMA='off'), 5)

    def test_unreadable_buffer_is_an_error_not_a_crash(self):
        p = self.server()
        r = subprocess.run([sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'test_badptr.py'), HOST, str(p.port)],
                           env=self.env('bad.log'), timeout=30)
        self.assertEqual(r.returncode, 0)

    def test_memory_budget(self):
        p = self.server()
        r, c = self.client(p.port, '--pieces', 40, '--concurrency', 8, VORTEX_RDMA_MEMORY='8M')
        self.assertEqual(r['ok'], 40)
        self.assertGreater(c['connections_upgraded'], 0)
        self.assertEqual(c['connections_upgraded'] + c.get('reason.client.memory-budget', 0), 40)

    def test_allowlist_edited_while_running(self):
        p = self.server()
        n = 150 if SMALL else 60
        run = self.client(p.port, '--pieces', n, '--size', '64K', '--delay-ms', 100, wait=False)
        self.at_least(p, connections_upgraded=10)
        self.rules('allow %s port=oops\n' % HOST)  # an error keeps the last good rules
        seen = self.stats(p)['connections_upgraded']
        self.at_least(p, connections_upgraded=seen + 15)
        self.rules('deny *\n')
        r, c = self.finish(run)
        self.assertEqual(r['ok'], n)
        self.assertGreater(c['connections_upgraded'], 20)
        self.assertGreater(c['reason.client.not-allowed'], 5)
        self.assertIn('1:%d: ' % (len(HOST) + 13), open(self.path(run.log)).read())


class Endings(Base):
    def test_server_restarted_between_pieces(self):
        p = self.server()
        port = p.port
        run = self.client(port, '--pieces', 150 if SMALL else 40, '--size', '64K', '--delay-ms', 100, wait=False)
        self.at_least(p, connections_upgraded=5)
        p.terminate()
        self.assertEqual(p.wait(10), 0)
        self.server(listen='%s:%d' % (HOST, port), log='second.log')
        r, c = self.finish(run, expect=None)
        self.assertLessEqual(r['errors'], 8)  # those that fell into the gap
        self.assertGreaterEqual(c['sessions_opened'], 2)

    def test_killed_server_is_a_reset(self):
        p = self.server()
        run = self.client(p.port, '--pieces', 1, '--size', '64M' if SMALL else '512M', '--rate', '4M' if SMALL else '16M', wait=False)
        self.at_least(p, fabric_bytes_sent=1 << 20)
        p.send_signal(signal.SIGKILL)
        out, err = run.communicate(timeout=30)
        self.assertEqual(run.returncode, 1)
        self.assertIn('Connection reset by peer', err)

    def test_killed_server_under_load_crashes_nobody(self):
        # libfabric's inject crashes when the peer has just died; credits travel the other way in plenty here
        for _ in range(4):
            p = self.server(VORTEX_RDMA_RING_SIZE='64K')
            run = self.client(p.port, '--pieces', 8, '--concurrency', 8, '--size', '32M' if SMALL else '256M', wait=False)
            end = time.time() + 3 * PATIENCE
            while self.stats(p)['fabric_bytes_sent'] < (4 if SMALL else 30) << 20:
                self.assertLess(time.time(), end)
            p.send_signal(signal.SIGKILL)
            out, err = run.communicate(timeout=30)
            self.assertEqual(run.returncode, 1, err)

    def test_killed_client_leaves_nothing(self):
        p = self.server()
        run = self.client(p.port, '--pieces', 4, '--concurrency', 4, '--size', '64M', '--rate', '4M', wait=False)
        self.settled(p, {'connections_open': 4})
        run.kill()
        self.settled(p, dict(self.IDLE, sessions_open=0))
        r, c = self.client(p.port, '--pieces', 10)
        self.assertGreaterEqual(c['connections_upgraded'], 7, c)


class Faults(Base):
    """The library with a fabric that misbehaves (tests/faults): what must not be noticed, and what must be honest."""

    def faulty(self, what):
        return {'LD_PRELOAD': FAULTY, 'VORTEX_TEST_FABRIC': what}

    def test_writes_that_must_be_tried_again(self):
        for eagain in (50, 97):
            f = self.faulty('eagain=%d' % eagain)
            self.both('--sizes', '0,1,100K,4M,9M', '--concurrency', 4, pieces=20, server_env=f, **f)

    def test_duplex_with_writes_that_must_be_tried_again(self):
        self.rules('allow %s/24 protocol=any\n' % HOST)
        c, s = self.duplex('686921212121', 6 << 20, 3, **self.faulty('eagain=90'))
        self.assertEqual(c['connections_upgraded'], 3, c)


if __name__ == '__main__':
    unittest.main(verbosity=2, defaultTest=sys.argv[1:] or None, argv=sys.argv[:1])
