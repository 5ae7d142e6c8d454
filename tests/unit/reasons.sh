#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# docs/reasons.md holds what vortexctl prints.
set -eu
diff <(sed -n '/^```$/,/^```$/p' "$2" | grep -v '^```$') <("$1" reasons)
