#!/bin/sh
# Runs a compiler command and keeps what it writes to stderr, one file per output, in a folder.
# Usage: ptxas_log.sh FOLDER COMPILER [ARGUMENT...]
folder=$1
shift
# Named by the output, so that compiling a file again replaces its report.
name='' previous=''
for argument in "$@"; do
  [ "$previous" = -o ] && name=$(printf '%s' "$argument" | tr / _)
  previous=$argument
done
log=${name:+$folder/$name.txt}
log=${log:-$(mktemp "$folder/ptxas.XXXXXX")} || exit 1
"$@" 2>"$log"
status=$?
cat "$log" >&2
exit "$status"
