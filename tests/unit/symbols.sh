#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The library exports exactly the symbols of the list, and loading it into a program that opens no socket changes nothing.
set -eu
diff <(grep -v '^#' "$2" | LC_ALL=C sort) <(nm -D --defined-only "$1" | awk '{print $3}' | LC_ALL=C sort)
[ "$(LD_PRELOAD=$1 bash -c 'ls /proc/self/task | wc -l; echo ok')" = "$(printf '1\nok')" ]
