#!/usr/bin/env bash
# Builds the kernels on a machine with a GPU, and tests, sanitizes and measures them there.
#
#   tools/gpu_check.sh            results go to ${OUT:-bench/results/CARD}
#
# CARD is the first GPU's name, shortened: h200, rtx5090.
#
# Needs nvcc, python3 with pip, pytest, PyTorch, scikit-build-core and pybind11, cmake and ninja; it
# downloads nothing and installs into a folder of its own. Variables:
#   ARCHS   architectures to compile; default: that of the first GPU, such as 90-real
#   PYTHON  default: python3
# Every step runs, whatever fails. Exit code 0: all passed.
# shellcheck disable=SC2317 # `step` calls functions by name
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 2
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
site=$scratch/site
summary=()
failed=0

# card_of NAME: a folder's name for a GPU. "NVIDIA GeForce RTX 5090" is rtx5090, and the memory's
# size says nothing: "NVIDIA H100 80GB HBM3" is h100.
card_of() {
  local name
  name=$(printf '%s' "$1" | tr '[:upper:]' '[:lower:]' |
    sed -E 's/\b(nvidia|geforce|tesla|quadro|generation|edition|gpu)\b//g; s/[ -][0-9]+gb\b.*//' |
    tr -cd 'a-z0-9')
  printf '%s' "${name:-gpu}"
}

# step NAME COMMAND...: runs a command and notes in one line how it went.
step() {
  local name=$1 began=$SECONDS status
  shift
  printf '\n=== %s\n' "$name"
  "$@"
  status=$?
  if [ "$status" -eq 0 ]; then
    summary+=("ok      $name ($((SECONDS - began)) s)")
  else
    summary+=("FAILED  $name (exit code $status, $((SECONDS - began)) s)")
    failed=1
  fi
  return "$status"
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

build_wheel() {
  BYTEBOUND_CUDA=ON BYTEBOUND_CUDA_ARCHS=$archs BYTEBOUND_PTXAS_LOG=$scratch/ptxas \
    "$python" -m pip wheel -q --no-build-isolation --no-deps --no-index --no-cache-dir \
    -C build-dir="$scratch/build" -w "$scratch/dist" packages/kernels &&
    "$python" -m pip install -q --no-deps --no-index --no-cache-dir --target "$site" \
      "$scratch"/dist/*.whl
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

# Some virtual machines do not let the sanitizer at the device; that is no finding about our code.
sanitize() {
  compute-sanitizer --tool "$1" --error-exitcode 9 "$python" packages/kernels/tests/sanitize.py \
    >"$scratch/$1.log" 2>&1
  local status=$?
  tail -n 20 "$scratch/$1.log"
  if [ "$status" -ne 0 ] && grep -q 'Device not supported' "$scratch/$1.log"; then
    return 77
  fi
  return "$status"
}

gpu_tests() {
  local began=$SECONDS status
  printf '\n=== pytest -m gpu %s\n' "$1"
  timeout 90 "$python" -m pytest -q -m gpu -p no:cacheprovider "$1"
  status=$?
  if [ "$status" -eq 5 ] && [ "$1" != packages/kernels/tests ]; then
    skip "pytest -m gpu $1" 'no such test there'
  elif [ "$status" -eq 0 ]; then
    summary+=("ok      pytest -m gpu $1 ($((SECONDS - began)) s)")
  else
    summary+=("FAILED  pytest -m gpu $1 (exit code $status, $((SECONDS - began)) s)")
    failed=1
  fi
}

bench() {
  BYTEBOUND_COMMIT=${BYTEBOUND_COMMIT:-$(git rev-parse HEAD 2>/dev/null)} \
    "$python" -m bytebound_kernels.bench "$@"
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
for name in ("scikit-build-core", "pybind11", "pytest", "torch", "cupy-cuda13x", "numpy"):
    try:
        found.append(f"{name} {version(name)}")
    except PackageNotFoundError:
        found.append(f"no {name}")
print(", ".join(found))
PY
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)
archs=${ARCHS:-${capability/./}-real}

step "build for $archs" build_wheel || finish
step 'pure packages' add_pure_packages
# What is installed comes first; the pure packages' sources stand in where they are not.
PYTHONPATH=$site:$root/packages/runtime/src:$root/packages/quant/src:$root/evals/src${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
step 'wheel content' "$python" tools/check_fatbin.py "$scratch"/dist/*.whl --archs "$archs" \
  --ptxas-log "$scratch/ptxas"
step 'CUDA is usable' assert_usable || finish

for folder in packages/*/tests; do
  gpu_tests "$folder"
done
step 'pytest of the kernels, not gpu' timeout 30 "$python" -m pytest -q -m 'not gpu' \
  -p no:cacheprovider packages/kernels/tests

for tool in memcheck racecheck; do
  if ! command -v compute-sanitizer >/dev/null; then
    skip "compute-sanitizer $tool" 'it is not installed'
    continue
  fi
  began=$SECONDS
  printf '\n=== compute-sanitizer %s\n' "$tool"
  sanitize "$tool"
  case $? in
    0) summary+=("ok      compute-sanitizer $tool ($((SECONDS - began)) s)") ;;
    77) skip "compute-sanitizer $tool" 'it does not support this device' ;;
    *) summary+=("FAILED  compute-sanitizer $tool"); failed=1 ;;
  esac
done

step 'bench: read bandwidth' bench --only read --json "$out/card.json"
step 'bench: kernels' bench --only rms_norm --json "$out/rms_norm.json"
finish
