#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# rust.sh TARGET_DIR both|server|client CASE...: the end-to-end tests with the Rust peers on these sides.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=$1 sides=$2
shift 2
"$here/../peers/rust/build.sh" "$target"
[ "$sides" = client ] || export VORTEX_SERVER=$target/release/vortex-server-rs
[ "$sides" = server ] || export VORTEX_CLIENT=$target/release/vortex-client-rs
export VORTEX_TEST_CONNECTIONS=${VORTEX_TEST_CONNECTIONS:-500}
exec python3 -W ignore "$here/test_main.py" "$@"
