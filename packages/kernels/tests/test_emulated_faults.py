"""The emulation notices what is wrong with a kernel, and has nothing against the sound one."""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from .emulated import leave_out  # noqa: E402
from .emulated_build import CannotBuild, build_kernel  # noqa: E402

SEEDS = range(20)
IN = list(range(100, 100 + 256))
REVERSED = list(range(64, 0, -1))

Run = Callable[..., tuple[str, list[int]]]


@pytest.fixture(scope="module")
def run() -> Run:
    try:
        library = ctypes.CDLL(str(build_kernel(Path(__file__).with_name("emulated_faults.cu"))))
    except CannotBuild as problem:
        leave_out(problem)
    library.run_fault.restype = ctypes.c_char_p

    def run_fault(name: str, *, sound: bool) -> tuple[str, list[int]]:
        out, given = (ctypes.c_int * 256)(*[-1] * 256), (ctypes.c_int * 256)(*IN)
        problem = library.run_fault(name.encode(), out, given, ctypes.c_bool(sound))
        return problem.decode(), list(out)

    return run_fault


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEBOUND_EMULATION_PATIENCE", "0.5")


@pytest.mark.parametrize(("name", "expected"), [("turn_round", REVERSED), ("copy", IN)])
def test_a_missing_wait_shows_in_some_order(run, name, expected, monkeypatch) -> None:
    wrong = 0
    for seed in SEEDS:
        monkeypatch.setenv("BYTEBOUND_EMULATION_SEED", str(seed))
        problem, out = run(name, sound=True)
        assert problem == "" and out[: len(expected)] == expected
        problem, out = run(name, sound=False)
        assert problem == ""
        wrong += out[: len(expected)] != expected
    assert wrong > len(SEEDS) // 2


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("half_a_block_meets", "deadlock.*32 threads have ended, 32 threads wait in __syncthreads"),
        ("wait_for_another_block", "deadlock: nothing happens any more.*another block writes"),
        ("start_early", r"without wait_for_previous_kernel\(\) \(block 0,0, thread 0\)"),
        ("write_shared", "byte 0 behind the dynamic shared memory was written"),
        ("meet_in_two_places", "meet in .*__s"),
    ],
)
def test_a_broken_rule_is_reported(run, name, problem, monkeypatch) -> None:
    for seed in SEEDS[:3]:
        monkeypatch.setenv("BYTEBOUND_EMULATION_SEED", str(seed))
        assert run(name, sound=True)[0] == ""
        assert re.search(problem, run(name, sound=False)[0], re.DOTALL)
