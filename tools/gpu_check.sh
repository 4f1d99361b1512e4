#!/usr/bin/env bash
# Builds the kernels on a machine with a GPU, and tests, sanitizes and measures them there.
#
#   tools/gpu_check.sh            every step; results go to ${OUT:-bench/results/CARD}
#   tools/gpu_check.sh STEP...    the named steps only, in this order:
#     build      the kernels' wheel, into build/gpu-check, where the other steps find it
#     tests      every test that needs a GPU, and the kernels' other tests
#     sanitize   memcheck, racecheck and synccheck of compute-sanitizer, at the same time
#     bench      card.json and kernels.json
#     engine     decode.json, prefill.json and step-parts.json: the engine at the 27B shape, with random
#                weights
#
# CARD is the first GPU's name, shortened: h200, rtx5090.
#
# Needs nvcc, python3 with pip, pytest, PyTorch, scikit-build-core and pybind11, cmake and ninja, and
# uses pytest-xdist where it is; it downloads nothing and installs into build/gpu-check. Variables:
#   ARCHS         architectures to compile; default: that of the first GPU, such as 90-real
#   PYTHON        default: python3
#   TESTS         folders of tests; default: those of all packages
#   SANITIZE_OPS  names for `--only` of packages/kernels/tests/sanitize.py; default: all
#   BENCH_GROUPS  names for `--only` of the benchmark; default: all
#   LIMIT         seconds for everything, default 540: what does not fit is ended or skipped
# A step runs whatever the others gave, but for the build. Exit code 0: nothing failed; what was
# skipped is named at the end.
# shellcheck disable=SC2317 # functions are called by name
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 2
python=${PYTHON:-python3}
work=$root/build/gpu-check
site=$work/site
limit=${LIMIT:-540}
all_steps=(build tests sanitize bench engine)
steps=("${@:-${all_steps[@]}}")
summary=()
failed=0

for name in "${steps[@]}"; do
  case " ${all_steps[*]} " in
    *" $name "*) ;;
    *) printf 'no step %s; there are: %s\n' "$name" "${all_steps[*]}" >&2; exit 2 ;;
  esac
done

chosen() {
  case " ${steps[*]} " in
    *" $1 "*) return 0 ;;
    *) return 1 ;;
  esac
}

# card_of NAME: a folder's name for a GPU. "NVIDIA GeForce RTX 5090" is rtx5090, and the memory's
# size says nothing: "NVIDIA H100 80GB HBM3" is h100.
card_of() {
  local name
  name=$(printf '%s' "$1" | tr '[:upper:]' '[:lower:]' |
    sed -E 's/\b(nvidia|geforce|tesla|quadro|generation|edition|gpu)\b//g; s/[ -][0-9]+gb\b.*//' |
    tr -cd 'a-z0-9')
  printf '%s' "${name:-gpu}"
}

# note NAME STATUS SECONDS: a line of the summary.
note() {
  case $2 in
    0) summary+=("ok      $1 ($3 s)") ;;
    124 | 137) summary+=("FAILED  $1 (ended after $3 s)"); failed=1 ;;
    *) summary+=("FAILED  $1 (exit code $2, $3 s)"); failed=1 ;;
  esac
}

# step NAME COMMAND...: runs a command and notes how it went.
step() {
  local name=$1 began=$SECONDS status
  shift
  printf '\n=== %s\n' "$name"
  "$@"
  status=$?
  note "$name" "$status" $((SECONDS - began))
  return "$status"
}

# within SECONDS COMMAND...: ends a command after so long, or when the whole run's time is up.
within() {
  local seconds=$1 left=$((limit - SECONDS))
  shift
  if [ "$left" -lt 1 ]; then
    echo 'no time is left'
    return 124
  fi
  timeout -k 5 "$((seconds < left ? seconds : left))" "$@"
}

skip() {
  printf '\n=== %s: skipped, %s\n' "$1" "$2"
  summary+=("skipped $1: $2")
}

finish() {
  printf '\n=== summary\n'
  printf '%s\n' "${summary[@]}"
  exit "$failed"
}

# What did not change is not compiled again. In a tree that was copied here a file's time says nothing
# about that, so a file with other content than at the last build gets a new one.
touch_changed() {
  find packages/kernels/{CMakeLists.txt,cmake,csrc} -type f -exec sha256sum {} + |
    sort >"$work/sources.new"
  if [ -f "$work/sources" ]; then
    comm -13 "$work/sources" "$work/sources.new" | cut -c 67- | xargs -r touch
  else
    rm -rf "$work/objects" "$work/ptxas"
  fi
  mv "$work/sources.new" "$work/sources"
}

build_wheel() {
  rm -rf "$work/dist" "$site"
  touch_changed
  BYTEBOUND_CUDA=ON BYTEBOUND_CUDA_ARCHS=$archs BYTEBOUND_PTXAS_LOG=$work/ptxas \
    "$python" -m pip wheel -q --no-build-isolation --no-deps --no-index --no-cache-dir \
    -C build-dir="$work/objects" -w "$work/dist" packages/kernels &&
    "$python" -m pip install -q --no-deps --no-index --no-cache-dir --target "$site" \
      "$work"/dist/*.whl
}

# The pure packages: installed where their build backend is, else used where they lie, with just the
# metadata that importlib.metadata asks for.
add_pure_packages() {
  if "$python" -c 'import hatchling' 2>/dev/null; then
    "$python" -m pip install -q --no-build-isolation --no-deps --no-index --no-cache-dir \
      --target "$site" packages/runtime packages/quant evals
    return
  fi
  "$python" - "$site" packages/runtime packages/quant evals <<'PY'
import sys
import tomllib
from pathlib import Path
site, *folders = map(Path, sys.argv[1:])
for folder in folders:
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")
PY
}

assert_usable() {
  "$python" - <<'PY'
import sys
import bytebound_kernels as bk
print(bk.__file__, bk.__version__, bk.cuda_status(), sep="\n")
sys.exit(0 if bk.built_with_cuda and bk.cuda_problem() is None else 1)
PY
}

gpu_tests() {
  local began=$SECONDS status
  printf '\n=== pytest -m gpu %s\n' "$1"
  within 240 "$python" -m pytest -q -m gpu -p no:cacheprovider "${xdist[@]}" "$1"
  status=$?
  if [ "$status" -eq 5 ] && [ "$1" != packages/kernels/tests ]; then
    skip "pytest -m gpu $1" 'no such test there'
  else
    note "pytest -m gpu $1" "$status" $((SECONDS - began))
  fi
}

# The tools wait for single launches most of the time, so they can share the GPU.
sanitize() {
  local tool status options=() pids=() began=$SECONDS
  local tools=(memcheck racecheck synccheck)
  for name in ${SANITIZE_OPS:-}; do
    options+=(--only "$name")
  done
  for tool in "${tools[@]}"; do
    within 150 compute-sanitizer --tool "$tool" --error-exitcode 9 "$python" \
      packages/kernels/tests/sanitize.py "${options[@]}" >"$work/$tool.log" 2>&1 &
    pids+=($!)
  done
  for tool in "${tools[@]}"; do
    wait "${pids[0]}"
    status=$?
    pids=("${pids[@]:1}")
    printf '\n=== compute-sanitizer %s\n' "$tool"
    tail -n 25 "$work/$tool.log"
    # Some virtual machines do not let it at the device; that is no finding about our code.
    if [ "$status" -ne 0 ] && grep -q 'Device not supported' "$work/$tool.log"; then
      skip "compute-sanitizer $tool" 'it does not support this device'
    else
      note "compute-sanitizer $tool" "$status" $((SECONDS - began))
    fi
  done
}

bench() {
  local options=()
  for name in ${BENCH_GROUPS:-}; do
    options+=(--only "$name")
  done
  BYTEBOUND_COMMIT=${BYTEBOUND_COMMIT:-$(git rev-parse HEAD 2>/dev/null)} within 200 \
    "$python" -m bytebound_kernels.bench "${options[@]}" \
    --card-json "$out/card.json" --json "$out/kernels.json"
}

# engine_bench NAME SCRIPT OPTION...: a script of bench/, whose result goes to NAME.json.
engine_bench() {
  local name=$1 script=$2
  shift 2
  step "bench/$script" within 120 "$python" "bench/$script" --json "$out/$name.json" \
    --commit "${BYTEBOUND_COMMIT:-$(git rev-parse HEAD 2>/dev/null)}" "$@"
}

printf '=== machine\n'
nvidia-smi --query-gpu=name,driver_version,compute_cap,clocks.sm,power.limit --format=csv,noheader ||
  { echo 'error: no GPU here (nvidia-smi failed)'; exit 2; }
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
out=${OUT:-bench/results/$(card_of "$gpu")}
printf 'results go to %s\n' "$out"
mkdir -p "$out"
out=$(cd "$out" && pwd)
nvcc --version | tail -n 2
cmake --version | head -n 1
"$python" - <<'PY'
import platform
from importlib.metadata import PackageNotFoundError, version
found = [f"python {platform.python_version()}"]
for name in (
    "scikit-build-core", "pybind11", "pytest", "pytest-xdist", "torch", "triton", "cupy-cuda13x",
    "numpy",
):
    try:
        found.append(f"{name} {version(name)}")
    except PackageNotFoundError:
        found.append(f"no {name}")
print(", ".join(found))
PY
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)
archs=${ARCHS:-${capability/./}-real}

mkdir -p "$work"

# What is installed comes first; the pure packages' sources stand in where they are not.
PYTHONPATH=$site:$root/packages/runtime/src:$root/packages/quant/src:$root/evals/src${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH

if chosen build; then
  step "build for $archs" build_wheel || finish
  step 'pure packages' add_pure_packages
  step 'wheel content' "$python" tools/check_fatbin.py "$work"/dist/*.whl --archs "$archs" \
    --ptxas-log "$work/ptxas" --need-resources
elif [ ! -d "$site" ]; then
  echo "error: nothing is installed in $site; run the step build first" >&2
  exit 2
fi
step 'CUDA is usable' assert_usable || finish

if chosen tests; then
  xdist=()
  if "$python" -c 'import xdist' 2>/dev/null; then
    xdist=(-n 8)
    export OMP_NUM_THREADS=2 # of each of the eight
  fi
  for folder in ${TESTS:-packages/*/tests}; do
    gpu_tests "$folder"
  done
  step 'pytest of the kernels, not gpu' within 60 "$python" -m pytest -q -m 'not gpu' \
    -p no:cacheprovider "${xdist[@]}" packages/kernels/tests \
    --ignore packages/kernels/tests/test_prefill_interpreted.py # slow, and as on any CPU
fi

if chosen sanitize; then
  if command -v compute-sanitizer >/dev/null; then
    sanitize
  else
    skip compute-sanitizer 'it is not installed'
  fi
fi

if chosen bench; then
  step bench bench
fi

if chosen engine; then
  engine_bench decode decode.py --depths --draft-ids 49152
  engine_bench prefill prefill.py
  engine_bench step-parts step_parts.py
fi
finish
