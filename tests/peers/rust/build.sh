#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# build.sh TARGET_DIR: builds the Rust peers there. Status 77 (skip) when no cargo is recent enough for the crates that dfdaemon is built of,
# unless VORTEX_TEST_REQUIRE_RUST=1.
set -eu
need=1.85 # edition 2024 is what some of the crates are written in; Debian 12's own is 1.63
PATH=$PATH:$HOME/.cargo/bin
have=$(cargo --version 2>/dev/null | awk '{print $2}' || true)
if [ -z "$have" ] || [ "$(printf '%s\n' $need "${have%%-*}" | sort -V | head -n 1)" != $need ]; then
	echo "the Rust peers need cargo $need or newer; found: ${have:-none}" >&2
	[ "${VORTEX_TEST_REQUIRE_RUST:-0}" = 1 ] && exit 1
	exit 77
fi
cd "$(dirname "$0")"
CARGO_TARGET_DIR=$1 exec cargo build --release --locked --quiet
