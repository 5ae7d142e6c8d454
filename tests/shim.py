# SPDX-License-Identifier: Apache-2.0
"""What tests of programs we did not write share: starting them with and without the shim, ending them, and reading the counters."""
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

LIB, CTL = os.environ['VORTEX_LIB'], os.environ['VORTEXCTL']
ALLOW_ALL = 'allow 127.0.0.0/8 protocol=any\nallow ::1 protocol=any\n'
# Debian's own Python has Debian's modules (zmq, the test suite); another one may come first in PATH
PYTHON = '/usr/bin/python3'


def find(*programs):
    """Paths of programs; the test is skipped where one is missing."""
    path = os.environ.get('PATH', '') + ':/usr/sbin:/sbin'
    found = [shutil.which(p, path=path) for p in programs]
    for p, f in zip(programs, found):
        if not f:
            raise unittest.SkipTest('%s is not installed: scripts/install-deps --programs' % p)
    return found[0] if len(found) == 1 else found


def free_port():
    """A port that is free now, and so is its control port."""
    while True:
        with socket.socket() as s, socket.socket() as c:
            s.bind(('127.0.0.1', 0))
            port = s.getsockname()[1]
            if port > 65000:
                continue
            try:
                c.bind(('127.0.0.1', port + 10))
            except OSError:
                continue
            return port


def wait_for(what, condition, seconds=15, step=0.02):
    end = time.monotonic() + seconds
    while True:
        r = condition()
        if r:
            return r
        if time.monotonic() > end:
            raise AssertionError('waited %d s in vain for %s' % (seconds, what))
        time.sleep(step)


def listens(port):
    """Does somebody listen there? Read from the kernel: a connection would be one that the program sees."""
    want = ':%04X' % port
    for f in ('/proc/net/tcp', '/proc/net/tcp6'):
        try:
            with open(f) as lines:
                if any(l.split()[1].endswith(want) and l.split()[3] == '0A' for l in list(lines)[1:]):
                    return True
        except FileNotFoundError:
            pass
    return False


def sha(data):
    return hashlib.sha256(data).hexdigest()


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(prefix='vr-')
        self.children = []
        with open(self.path('allowlist'), 'w') as f:
            f.write(ALLOW_ALL)

    def tearDown(self):
        for p in self.children:
            try:
                os.killpg(p.pid, signal.SIGKILL)  # its own session: see start()
            except ProcessLookupError:
                pass
            p.wait()
            for f in (p.stdin, p.stdout, p.stderr):
                if f:
                    f.close()
        self.dir.cleanup()

    def path(self, name):
        return os.path.join(self.dir.name, name)

    def env(self, shim, log, **extra):
        e = dict(os.environ, LC_ALL='C')
        if shim:
            e.update(LD_PRELOAD=LIB, VORTEX_RDMA_PROVIDER='tcp;ofi_rxm', VORTEX_RDMA_ALLOWLIST=self.path('allowlist'),
                     VORTEX_RDMA_LOG_FILE=self.path(log), VORTEX_RDMA_CONNECT_WAIT_MS='5000')
        e.update(extra)
        return {k: v for k, v in e.items() if v is not None}

    def start(self, argv, shim=True, log='server.log', env=None, **kw):
        """A program in a session of its own, ended with everything it started when the test is over."""
        p = subprocess.Popen(argv, env=self.env(shim, log, **(env or {})), start_new_session=True, **kw)
        self.children.append(p)
        return p

    def server(self, argv, port, shim=True, log='server.log', env=None, **kw):
        """A server that is ready when it listens on port and, under the shim, on its control port."""
        kw.setdefault('stdin', subprocess.DEVNULL)
        out = open(self.path('server.out'), 'ab')
        p = self.start(argv, shim, log, env, stdout=kw.pop('stdout', out), stderr=subprocess.STDOUT, **kw)
        out.close()

        def ready():
            if p.poll() is not None:
                with open(self.path('server.out')) as f:
                    raise AssertionError('%s ended: %s\n%s' % (argv[0], p.returncode, f.read()))
            return listens(port) and (not shim or listens(port + 10))
        wait_for('%s to listen on %d' % (argv[0], port), ready)
        return p

    def run_(self, argv, shim=True, log='client.log', timeout=40, env=None, stdin=b'', **kw):
        """Runs to the end: exit code, output and error output."""
        p = self.start(argv, shim, log, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)
        try:
            out, err = p.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            out, err = p.communicate()
            self.fail('%s did not end within %d s: %s %s' % (argv, timeout, out[-2000:], err[-2000:]))
        return p.returncode, out, err

    def stop(self, p, sig=signal.SIGTERM, timeout=15):
        p.send_signal(sig)
        return p.wait(timeout)

    def finals(self, log):
        """The counters that processes print when they end, added up."""
        total = {}
        try:
            with open(self.path(log)) as f:
                text = f.read()
        except FileNotFoundError:
            return total
        for m in re.findall(r'info: final (.*)', text):
            for w in m.split():
                k, v = w.split('=')
                total[k] = total.get(k, 0) + int(v)
        return total

    def stats(self, p):
        r = subprocess.run([CTL, 'stats', '--json', '--pid', str(p if isinstance(p, int) else p.pid)], stdout=subprocess.PIPE, text=True, timeout=10)
        all_ = json.loads(r.stdout)
        return all_[0]['stats'] if all_ else {}

    def upgraded(self, counters, at_least=1, fabric=1):
        """A run that stayed on TCP proves nothing."""
        self.assertGreaterEqual(counters.get('connections_upgraded', 0), at_least, counters)
        self.assertGreaterEqual(counters.get('fabric_bytes_sent', 0) + counters.get('fabric_bytes_received', 0), fabric, counters)
        self.assertEqual(counters.get('protocol_errors', 0), 0, counters)


def main():
    """The class named on the command line, or all. Exit code 77 when nothing ran."""
    cls = sys.argv[1] if len(sys.argv) > 1 else None
    r = unittest.main(module='__main__', verbosity=2, defaultTest=cls, argv=sys.argv[:1], exit=False).result
    sys.exit(1 if not r.wasSuccessful() else 77 if r.testsRun == len(r.skipped) else 0)
