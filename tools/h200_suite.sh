#!/usr/bin/env bash
# Measures the throughput suite twice on this machine's GPU, at the 27B shape with random weights, and
# holds the second run against the first: of the same build nothing may be slower.
#
#   tools/h200_suite.sh           after a build in LIMIT seconds, or not at all
#
# Writes into ${OUT:-bench/results/CARD} throughput.json, the first run, and throughput-gate.md, the
# gate's table; into ${OUT:-build/suite} throughput-again.json and gate.json.
# CARD is the first GPU's name, shortened: h200.
#
# Needs what the packages need, and downloads nothing. The kernels are those of build/gpu-check, built by
# `tools/gpu_check.sh build` where they are not there. Variables:
#   PYTHON        default: python3
#   WHEELS        folder of wheels of packages that this machine lacks, installed into build/suite
#   LIMIT         seconds for both runs, default 290: a run that takes longer is ended
#   MODEL         default: random:qwen3.5-27b
#   BACKEND       default: cuda; another one needs no GPU and no build, and takes no lock
#   DEPTHS        plain decoding and prefill; default: 1024 8192 32768
#   DRAFT_DEPTHS  drafts; default: 1024 8192
#   DRAFTS        default: none mtp:4 forced:4@0.7
#   PROMPTS       default: all eight
#   TOKENS        new tokens of a reply, default 48
#   SAMPLES       default: 5
# Exit code 0: both runs are done and the gate passes; 1: one of that is not so; 2: wrong use.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 2
python=${PYTHON:-python3}
site=$root/build/gpu-check/site
backend=${BACKEND:-cuda}
limit=${LIMIT:-290}
commit=${BYTEBOUND_COMMIT:-$(git rev-parse HEAD 2>/dev/null)}
lock=()

# The name of a folder, as tools/gpu_check.sh makes it of a card's.
card_of() {
  printf '%s' "$1" | tr '[:upper:]' '[:lower:]' |
    sed -E 's/\b(nvidia|geforce|tesla|quadro|generation|edition|gpu)\b//g; s/[ -][0-9]+gb\b.*//' |
    tr -cd 'a-z0-9'
}

# within COMMAND...: ends a command when the time for both runs is over.
within() {
  local left=$((limit - SECONDS))
  if [ "$left" -lt 1 ]; then
    echo "error: no time is left of LIMIT=$limit s" >&2
    return 124
  fi
  timeout -k 5 "$left" "$@"
}

# run NAME: one run of the suite, into NAME.
run() {
  local began=$SECONDS status
  printf '\n=== %s\n' "$(basename "$1")"
  within "${lock[@]}" "$python" -m bytebound_evals throughput "${options[@]}" --out "$1"
  status=$?
  printf '%s s\n' $((SECONDS - began))
  if [ "$status" -ne 0 ]; then
    echo "error: the run ended with exit code $status" >&2
    exit $((status == 2 ? 2 : 1))
  fi
}

card=cpu
if [ "$backend" = cuda ]; then
  gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
  if [ -z "$gpu" ]; then
    echo 'error: no GPU here (nvidia-smi failed); BACKEND=reference MODEL=tiny tries the script' >&2
    exit 2
  fi
  card=$(card_of "$gpu")
  [ -d "$site" ] || OUT='' bash tools/gpu_check.sh build || exit 1
fi
out=${OUT:-bench/results/${card:-gpu}}
raw=${OUT:-build/suite}
mkdir -p "$out" "$raw" || exit 2
out=$(cd "$out" && pwd)
raw=$(cd "$raw" && pwd)

extra=$root/build/suite/site
if [ -n "${WHEELS:-}" ]; then
  "$python" -m pip install -q --no-deps --no-index --no-compile --no-cache-dir --upgrade \
    --target "$extra" "$WHEELS"/*.whl || exit 2
fi
PYTHONPATH=$site:$root/packages/runtime/src:$root/packages/quant/src:$root/evals/src:$extra${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
if ! "$python" -c 'import bytebound, bytebound_evals.cli'; then
  echo 'error: a package is missing here, see above; WHEELS=FOLDER brings its wheel' >&2
  exit 2
fi

if [ "$backend" = cuda ]; then
  bench/gpu_lock --timeout 30 true
  case $? in
    0) lock=(bench/gpu_lock) ;;
    1) exit 1 ;;
    *) echo 'warning: nobody can say whether the GPU is free; measured without the lock' >&2 ;;
  esac
fi

options=(--model "${MODEL:-random:qwen3.5-27b}" --backend "$backend")
for depth in ${DEPTHS:-1024 8192 32768}; do options+=(--depth "$depth"); done
for depth in ${DRAFT_DEPTHS:-1024 8192}; do options+=(--draft-depth "$depth"); done
for draft in ${DRAFTS:-none mtp:4 forced:4@0.7}; do options+=(--draft "$draft"); done
for prompt in ${PROMPTS:-}; do options+=(--prompt "$prompt"); done
options+=(--tokens "${TOKENS:-48}" --samples "${SAMPLES:-5}")
if [ -n "$commit" ]; then options+=(--commit "$commit"); fi

SECONDS=0 # the build does not count
run "$out/throughput.json"
run "$raw/throughput-again.json"

printf '\n=== gate\n'
rm -f "$out/throughput-gate.md"
"$python" -m bytebound_evals gate --baseline "$out/throughput.json" \
  --head "$raw/throughput-again.json" --summary "$out/throughput-gate.md" --out "$raw/gate.json"
status=$?
printf '\n%s s for both runs and the gate; results are in %s\n' "$SECONDS" "$out"
exit "$status"
