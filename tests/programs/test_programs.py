#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that users run, over upgraded connections: the same output and exit code as without the shim."""
import hashlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
import shim

BOTH = (False, True)


def python_with(module):
    if subprocess.run([shim.PYTHON, '-c', 'import ' + module], stderr=subprocess.DEVNULL).returncode:
        raise unittest.SkipTest('%s has no module %s: scripts/install-deps --programs' % (shim.PYTHON, module))
    return shim.PYTHON


class Iperf3(shim.Case):
    def go(self, *args, use):
        iperf = shim.find('iperf3')
        port = shim.free_port()
        server = self.server([iperf, '-s', '-1', '-B', '127.0.0.1', '-p', str(port)], port, use)
        rc, out, err = self.run_([iperf, '-c', '127.0.0.1', '-p', str(port), '-t', '2' if use else '1', '-J', *args], use)
        self.assertEqual((rc, err), (0, b''), out)
        self.assertEqual(server.wait(15), 0)
        end = json.loads(out)['end']
        self.assertGreater(end['sum_received']['bytes'], 1 << 20)
        return end

    def both(self, *args, connections):
        plain, ours = (self.go(*args, use=use) for use in BOTH)
        self.assertEqual(sorted(plain), sorted(ours))  # the same report, the figures differ
        for log in ('client.log', 'server.log'):
            c = self.finals(log)
            self.upgraded(c, connections, 1 << 20)

    def test_forward(self):
        self.both(connections=2)

    def test_reverse(self):
        self.both('-R', connections=2)

    def test_parallel(self):
        self.both('-P', '4', connections=5)

    def test_bidirectional_and_parallel(self):
        self.both('--bidir', '-P', '2', connections=5)


class Redis(shim.Case):
    SCRIPT = '\n'.join(['PING', 'SET a hello', 'APPEND a " world"', 'GET a', 'INCR n', 'INCR n', 'RPUSH l 1 2 3', 'LRANGE l 0 -1', 'HSET h x 1 y 2',
                        'HGETALL h', 'NOSUCH', 'SETRANGE big 3000000 end', 'STRLEN big', 'DBSIZE', 'GETRANGE big 2999990 -1', 'GET missing', 'QUIT'])

    def go(self, use):
        server, cli, bench = shim.find('redis-server', 'redis-cli', 'redis-benchmark')
        port = shim.free_port()
        p = self.server([server, '--port', str(port), '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', '--dir', self.dir.name], port, use)
        at = ['-h', '127.0.0.1', '-p', str(port)]
        answers = self.run_([cli, *at], use, stdin=self.SCRIPT.encode())
        one = self.run_([cli, *at, 'GETRANGE', 'big', '0', '2999999'], use)
        piped = b''.join(b'*3\r\n$3\r\nSET\r\n$%d\r\nk%d\r\n$1000\r\n%s\r\n' % (len(str(i)) + 1, i, bytes([65 + i % 26]) * 1000) for i in range(5000))
        pipe = self.run_([cli, *at, '--pipe'], use, stdin=piped)
        rc, out, err = self.run_([bench, *at, '-n', '5000', '-c', '20', '-P', '4', '-d', '2000', '-t', 'set,get,lpush,mset', '--csv'], use)
        names = [l.split(b',')[0] for l in out.splitlines()]
        rc2, digest, _ = self.run_([cli, *at, 'DEBUG', 'JMAP'], use)  # an error in either case, but the same one
        counters = self.stats(p) if use else {}
        rc3 = self.stop(p)
        return (answers, (one[0], shim.sha(one[1]), one[2]), pipe[0], pipe[1].splitlines()[-1:], rc, names, err, rc2, digest, rc3), counters

    def test_redis(self):
        plain, _ = self.go(False)
        ours, server = self.go(True)
        self.assertEqual(plain, ours)
        self.assertEqual(ours[-1], 0)
        self.upgraded(server, 80, 20000000)
        self.upgraded(self.finals('client.log'), 80, 20000000)


NGINX = """
daemon off; master_process %(master)s; worker_processes 1; pid %(dir)s/nginx.pid; error_log %(dir)s/error.log;
events { worker_connections 200; }
http {
	access_log off; sendfile %(sendfile)s; tcp_nopush on; keepalive_timeout 30; default_type application/octet-stream;
	client_body_temp_path %(dir)s/b; proxy_temp_path %(dir)s/p; fastcgi_temp_path %(dir)s/f; uwsgi_temp_path %(dir)s/u; scgi_temp_path %(dir)s/s;
	server { listen 127.0.0.1:%(port)d; root %(dir)s/www; }
}
"""


class Nginx(shim.Case):
    SIZES = [0, 1, 100, 4095, 65536, 1000003, 4 << 20, (4 << 20) + 1, 64 << 20]

    def nginx(self, use, sendfile='on', master='off'):
        nginx = shim.find('nginx')
        www = self.path('www')
        if not os.path.isdir(www):
            os.mkdir(www)
            os.chmod(self.dir.name, 0o755)
            rnd = random.Random(7)
            block = rnd.randbytes(1 << 20)
            for n in self.SIZES:
                with open(os.path.join(www, str(n)), 'wb') as f:
                    for at in range(0, n, len(block)):
                        f.write(block[:n - at])
        port = shim.free_port()
        with open(self.path('nginx.conf'), 'w') as f:
            f.write(NGINX % dict(dir=self.dir.name, port=port, sendfile=sendfile, master=master))
        return self.server([nginx, '-e', self.path('error.log'), '-c', self.path('nginx.conf')], port, use), port

    def fetch(self, use, port, *args, log='client.log'):
        curl = shim.find('curl')
        urls = []
        for n in self.SIZES:
            urls += ['-o', self.path('got.%d' % n), 'http://127.0.0.1:%d/%d' % (port, n)]
        rc, out, err = self.run_([curl, '-sS', '--fail', '-w', '%{http_code} %{size_download} %{num_connects}\n', *args, *urls], use, log)
        got = []
        for n in self.SIZES:
            with open(self.path('got.%d' % n), 'rb') as f:
                got.append(hashlib.file_digest(f, 'sha256').hexdigest())
            with open(self.path('www/%d' % n), 'rb') as f:
                self.assertEqual(got[-1], hashlib.file_digest(f, 'sha256').hexdigest(), n)
            os.unlink(self.path('got.%d' % n))
        return rc, out, err, got

    def both(self, args=(), connections=1, fabric=64 << 20, **kw):
        p, port = self.nginx(False, **kw)
        plain = self.fetch(False, port, *args)
        self.assertEqual(self.stop(p), 0)
        p, port = self.nginx(True, **kw)
        ours = self.fetch(True, port, *args)
        counters = self.stats(p)
        self.assertEqual(self.stop(p), 0)
        self.assertEqual(plain, ours)
        self.upgraded(counters, connections, fabric)
        self.upgraded(self.finals('client.log'), connections, fabric)

    def test_files_keep_alive_sendfile(self):
        self.both()

    def test_files_without_sendfile(self):
        self.both(sendfile='off')

    def test_a_connection_each(self):
        self.both(args=['-H', 'Connection: close'], connections=len(self.SIZES) * 9 // 10)

    def test_limited_rate(self):
        self.both(args=['--limit-rate', '64M'])

    def test_only_the_client_is_preloaded(self):
        p, port = self.nginx(False)
        plain = self.fetch(False, port)
        self.assertEqual(plain, self.fetch(True, port))
        self.assertEqual(self.stop(p), 0)
        c = self.finals('client.log')
        self.assertEqual((c['connections_seen'], c['connections_upgraded']), (1, 0))

    def test_master_and_workers(self):
        """Forked workers stay on TCP (docs/architecture.md); nothing may differ."""
        p, port = self.nginx(False, master='on')
        plain = self.fetch(False, port)
        self.assertEqual(self.stop(p, signal.SIGQUIT), 0)
        p, port = self.nginx(True, master='on')
        self.assertEqual(plain, self.fetch(True, port))
        self.assertEqual(self.stop(p, signal.SIGQUIT), 0)

    def test_wrk(self):
        wrk = shim.find('wrk')
        seen = []
        for use in BOTH:
            p, port = self.nginx(use)
            rc, out, err = self.run_([wrk, '-t2', '-c16', '-d2s' if use else '-d1s', 'http://127.0.0.1:%d/4095' % port], use)
            self.assertEqual((rc, err), (0, b''), out)
            self.assertNotIn(b'Socket errors', out)
            self.assertNotIn(b'Non-2xx', out)
            m = re.search(rb'(\d+) requests in', out)
            self.assertGreater(int(m.group(1)), 50, out)
            seen.append([re.sub(rb'[\d.]+\S*', b'N', l) for l in out.splitlines()][:1])
            if use:
                self.upgraded(self.stats(p), 16, 1 << 18)
            self.assertEqual(self.stop(p), 0)
        self.assertEqual(*seen)


class Memcached(shim.Case):
    CLIENT = r'''
import hashlib, socket, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
f = s.makefile('rb')
h = hashlib.sha256()
def ask(b, lines=1):
    s.sendall(b)
    for _ in range(lines):
        l = f.readline()
        h.update(l)
        print(l.strip()[:60].decode())
    return l
for n in (0, 1, 100, 65536, 1000000):
    v = bytes(i * 7 & 255 for i in range(1000)) * (n // 1000 + 1)
    ask(b'set k%d 5 0 %d\r\n' % (n, n) + v[:n] + b'\r\n')
    ask(b'get k%d\r\n' % n)
    got = f.read(n + 2)
    assert got == v[:n] + b'\r\n'
    ask(b'')
ask(b'incr nothing 1\r\n')
ask(b'set n 0 0 2\r\n41\r\n')
ask(b'incr n 1\r\n')
ask(b'bogus\r\n')
ask(b'set m 0 0 1\r\nx\r\n' * 2000, 2000)
ask(b'verbosity 0\r\n')
s.sendall(b'quit\r\n')
assert f.read() == b''
print(h.hexdigest())
'''

    def go(self, use, threads):
        memcached = shim.find('memcached')
        port = shim.free_port()
        p = self.server([memcached, '-l', '127.0.0.1', '-p', str(port), '-U', '0', '-t', str(threads), '-u', 'root'], port, use)
        got = [self.run_([shim.PYTHON, '-c', self.CLIENT, str(port)], use) for _ in range(3)]
        counters = self.stats(p) if use else {}
        return got, self.stop(p), counters

    def test_memcached(self):
        for threads in (1, 4):
            plain = self.go(False, threads)
            ours = self.go(True, threads)
            self.assertEqual(plain[:2], ours[:2])
            self.assertEqual(ours[0][0][0], 0, ours)
            self.upgraded(ours[2], 3, 1 << 20)


class Ssh(shim.Case):
    # As inetd does it. sshd by itself forks before the first byte, and a forked child of a process with an engine stays on TCP. This one
    # looks at the client's banner twice: the call that waits for it is too early, the second one swaps; the child gets the swapped socket.
    INETD = r"""
import socket, subprocess, sys
l = socket.create_server(('127.0.0.1', int(sys.argv[1])))
while True:
    c, _ = l.accept()
    for _ in range(2):
        c.recv(1, socket.MSG_PEEK)
    subprocess.run(sys.argv[2:], stdin=c, stdout=c, stderr=subprocess.DEVNULL)
    c.close()
"""

    def go(self, use, inetd):
        sshd, ssh, scp, keygen = shim.find('sshd', 'ssh', 'scp', 'ssh-keygen')
        if os.getuid():
            raise unittest.SkipTest('sshd of another user than root cannot give a session')
        for k in ('host', 'user'):
            if not os.path.exists(self.path(k)):
                subprocess.run([keygen, '-q', '-t', 'ed25519', '-N', '', '-f', self.path(k)], check=True, stdin=subprocess.DEVNULL)
        os.makedirs('/run/sshd', mode=0o755, exist_ok=True)
        port = shim.free_port()
        with open(self.path('sshd_config'), 'w') as f:
            f.write('Port %d\nListenAddress 127.0.0.1\nHostKey %s\nAuthorizedKeysFile %s.pub\nStrictModes no\nUsePAM no\nPidFile none\n'
                    'PermitRootLogin yes\nSubsystem sftp internal-sftp\nPasswordAuthentication no\n' % (port, self.path('host'), self.path('user')))
        options = ['-F', '/dev/null', '-i', self.path('user'), '-o', 'StrictHostKeyChecking=no', '-o', 'UserKnownHostsFile=/dev/null',
                   '-o', 'LogLevel=ERROR', '-o', 'BatchMode=yes', '-o', 'ConnectTimeout=15']
        argv = [sshd, '-f', self.path('sshd_config')]
        p = self.server([shim.PYTHON, '-c', self.INETD, str(port), *argv, '-i', '-e'] if inetd else [*argv, '-D', '-e'], port, use)
        got = []

        def client(argv, **kw):
            rc, out, err = self.run_(argv, use, **kw)
            got.append((rc, shim.sha(out), len(out), err))
        dest = 'root@127.0.0.1'
        client([ssh, *options, '-p', str(port), dest, 'echo hello; echo oops >&2; exit 7'])
        client([ssh, *options, '-p', str(port), dest, 'sha256sum'], stdin=bytes(range(256)) * 40000)
        client([ssh, *options, '-p', str(port), dest, 'head -c 20000000 /dev/zero'])
        block = random.Random(3).randbytes(1 << 20)
        with open(self.path('big'), 'wb') as f:
            for _ in range(50):
                f.write(block)
        for a, b in ((self.path('big'), dest + ':' + self.path('up')), (dest + ':' + self.path('up'), self.path('down'))):
            client([scp, *options, '-P', str(port), a, b])
        for n in ('up', 'down'):
            with open(self.path('big'), 'rb') as f, open(self.path(n), 'rb') as g:
                self.assertEqual(hashlib.file_digest(f, 'sha256').digest(), hashlib.file_digest(g, 'sha256').digest())
            os.unlink(self.path(n))
        self.assertEqual(got[0], (7, shim.sha(b'hello\n'), 6, b'oops\n'))
        counters = self.stats(p) if use else {}
        self.stop(p)
        return got, counters

    def test_upgraded_by_an_inetd(self):
        plain, _ = self.go(False, True)
        ours, server = self.go(True, True)
        self.assertEqual(plain, ours)
        self.upgraded(server, 5, 100 << 20)
        self.upgraded(self.finals('client.log'), 5, 100 << 20)

    def test_forking_sshd(self):
        """The client's end is swapped and waits for the server's; all of it goes through the engine, on TCP."""
        plain, _ = self.go(False, False)
        ours, server = self.go(True, False)
        self.assertEqual(plain, ours)
        c = self.finals('client.log')
        self.assertEqual((c['connections_swapped'], c['connections_upgraded'], c['fabric_bytes_sent']), (5, 0, 0))
        self.assertGreater(c['tcp_bytes_sent'], 50 << 20)


class PythonHttp(shim.Case):
    CLIENT = r'''
import hashlib, sys, urllib.request, urllib.error, threading
base = 'http://127.0.0.1:%s/' % sys.argv[1]
out = {}
def get(n):
    with urllib.request.urlopen(base + str(n)) as r:
        out[n] = (r.status, r.headers['Content-Length'], hashlib.sha256(r.read()).hexdigest())
for n in sys.argv[2:]:
    get(n)
ts = [threading.Thread(target=get, args=(n,)) for n in sys.argv[2:]]
[t.start() for t in ts]
[t.join() for t in ts]
try:
    get('missing')
except urllib.error.HTTPError as e:
    print(e.code)
print(sorted(out.items()))
'''

    def test_http_server_and_urllib(self):
        sizes = [0, 1, 5000, 1 << 20, 20 << 20]
        os.mkdir(self.path('www'))
        for n in sizes:
            with open(self.path('www/%d' % n), 'wb') as f:
                f.write(random.Random(n).randbytes(n))
        got = []
        for use in BOTH:
            port = shim.free_port()
            p = self.server([shim.PYTHON, '-m', 'http.server', '--bind', '127.0.0.1', '--directory', self.path('www'), str(port)], port, use)
            got.append(self.run_([shim.PYTHON, '-c', self.CLIENT, str(port), *map(str, sizes)], use))
            if use:
                self.upgraded(self.stats(p), 8, 30 << 20)
            self.stop(p, signal.SIGINT)
        self.assertEqual(got[0][0], 0, got)
        self.assertEqual(*got)
        self.upgraded(self.finals('client.log'), 8, 30 << 20)


class Zmq(shim.Case):
    PUSH = r'''
import sys, zmq, hashlib
c = zmq.Context()
s = c.socket(zmq.PUSH)
s.connect('tcp://127.0.0.1:' + sys.argv[1])
h = hashlib.sha256()
for i in range(3000):
    m = bytes([i & 255]) * (i * 37 % 20000)
    h.update(m)
    s.send(m)
for n in (0, 1, 1000000, 8000001):
    s.send_multipart([b'part', bytes(n)])
s.send(b'end')
print(h.hexdigest())
s.close()
c.term()
'''
    PULL = r'''
import sys, zmq, hashlib
c = zmq.Context()
s = c.socket(zmq.PULL)
s.bind('tcp://127.0.0.1:' + sys.argv[1])
h = hashlib.sha256()
for i in range(3000):
    h.update(s.recv())
parts = [list(map(len, s.recv_multipart())) for _ in range(4)]
print(h.hexdigest(), parts, s.recv())
s.close()
c.term()
'''
    PUB = r'''
import sys, zmq
c = zmq.Context()
s = c.socket(zmq.XPUB)
s.setsockopt(zmq.SNDHWM, 0)
s.bind('tcp://127.0.0.1:' + sys.argv[1])
print(sorted([s.recv(), s.recv()]))  # both have subscribed
for i in range(2000):
    s.send_multipart([b'ab'[i % 2:i % 2 + 1], str(i).encode() * 500])
s.send_multipart([b'a', b'end'])
s.send_multipart([b'b', b'end'])
print(sorted([s.recv(), s.recv()]))  # both have unsubscribed
s.close()
c.term()
'''
    SUB = r'''
import sys, zmq, hashlib
c = zmq.Context()
s = c.socket(zmq.SUB)
s.setsockopt(zmq.RCVHWM, 0)
s.setsockopt(zmq.SUBSCRIBE, sys.argv[2].encode())
s.connect('tcp://127.0.0.1:' + sys.argv[1])
h = hashlib.sha256()
n = 0
while True:
    m = s.recv_multipart()
    if m[1] == b'end':
        break
    n += 1
    h.update(m[1])
print(n, h.hexdigest())
s.close()
c.term()
'''

    def go(self, use, bind, connect):
        python_with('zmq')
        port = shim.free_port()
        p = self.server([shim.PYTHON, '-c', bind, str(port)], port, use, stdout=subprocess.PIPE)
        cs = [self.start([shim.PYTHON, '-c', prog, str(port), *args], use, 'client.log', stdout=subprocess.PIPE, stderr=subprocess.PIPE)
              for prog, args in connect]
        got = [c.communicate(timeout=30) + (c.returncode,) for c in cs]
        got.append((p.communicate(timeout=30)[0], p.returncode))
        return got

    def both(self, bind, connect, connections):
        plain = self.go(False, bind, connect)
        ours = self.go(True, bind, connect)
        self.assertEqual(plain, ours)
        self.assertEqual(ours[-1][-1], 0, ours)
        self.upgraded(self.finals('server.log'), connections, 1 << 20)
        self.upgraded(self.finals('client.log'), connections, 1 << 20)

    def test_push_pull(self):
        self.both(self.PULL, [(self.PUSH, ())], 1)

    def test_pub_sub(self):
        self.both(self.PUB, [(self.SUB, ('a',)), (self.SUB, ('b',))], 2)


if __name__ == '__main__':
    shim.main()
