#!/bin/sh
# Runs a compiler command and keeps what it writes to stderr, one file per command, in a folder.
# Usage: ptxas_log.sh FOLDER COMPILER [ARGUMENT...]
log=$(mktemp "$1/ptxas.XXXXXX") || exit 1
shift
"$@" 2>"$log"
status=$?
cat "$log" >&2
exit "$status"
