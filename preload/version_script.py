#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""symbols.txt -> linker version script: exactly those symbols are exported."""
import sys

names = [l.strip() for l in open(sys.argv[1]) if l.strip() and not l.startswith('#')]
with open(sys.argv[2], 'w') as out:
    out.write('{ global: %s local: *; };\n' % ' '.join(n + ';' for n in names))
