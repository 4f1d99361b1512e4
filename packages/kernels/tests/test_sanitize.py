"""What the sanitizer is given to run: without a GPU, with launchers that do nothing.

So a call that an op refuses, and an op that is left out, are found before a GPU is at hand.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bytebound_kernels import CudaUnavailableError, _device, _native, ops

PASSES = ("attention_prefill", "gdn_prefill")


@pytest.mark.skipif(not _native.built_with_cuda, reason="this build has no CUDA code")
def test_every_launcher_is_run_and_every_call_is_accepted(
    monkeypatch: pytest.MonkeyPatch, launches: dict[str, int], fake_backend: Any
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import sanitize

    for name, run in sanitize.RUNS.items():
        if name != "prefill":  # its tensors are PyTorch's, and its kernels are Triton's
            assert run(fake_backend) > 0, name
    assert [name for name, count in launches.items() if count == 0] == []


@pytest.mark.skipif(not _native.built_with_cuda, reason="this build has no CUDA code")
def test_every_op_refuses_a_card_that_the_build_has_no_code_for(
    monkeypatch: pytest.MonkeyPatch, launches: dict[str, int], fake_backend: Any
) -> None:
    """The first call of each op, tried on such a card before it is made."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import sanitize

    usable = _device._availability
    refused: set[str] = set()

    def strict(name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            if name not in refused:
                blocked = replace(usable(), problem_of_device={0: "no code for card 0"})
                before = dict(launches)
                monkeypatch.setattr(_device, "_availability", lambda: blocked)
                with pytest.raises(CudaUnavailableError, match=f"{name}: .*no code for card 0"):
                    op(*args, **keywords)
                monkeypatch.setattr(_device, "_availability", usable)
                assert launches == before, f"{name} was launched"
                refused.add(name)
            return op(*args, **keywords)

        return call

    names = {node.parent.name for node in Path(ops.__file__).parent.glob("*/op.py")} | {"w4_pack"}
    modules = [module for name, module in sys.modules.items() if name.startswith("sanitize")]
    for module in modules:
        for name in names & set(vars(module)):
            monkeypatch.setattr(module, name, strict(name, getattr(module, name)))
    for name, run in sanitize.RUNS.items():
        if name not in ("prefill", "read_bandwidth"):
            run(fake_backend)
    assert refused == names


@pytest.mark.parametrize("name", PASSES)
def test_so_does_every_pass_over_many_tokens(
    monkeypatch: pytest.MonkeyPatch, pretend_cuda: None, name: str
) -> None:
    torch = pytest.importorskip("torch")
    prefill = pytest.importorskip("bytebound_kernels.prefill")
    assert set(PASSES) == {op for op in prefill.__all__ if not op.endswith("_workspace_bytes")}
    from .on_card import launched_on, on_card

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import sanitize_prefill

    def filled(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return on_card(torch.zeros(shape).to(dtype))

    monkeypatch.setattr(sanitize_prefill, "filled", filled)
    launches = launched_on(monkeypatch, sys.modules[getattr(prefill, name).__module__])
    blocked = replace(_device._availability(), problem_of_device={0: "no code for card 0"})
    monkeypatch.setattr(_device, "_availability", lambda: blocked)
    with pytest.raises(CudaUnavailableError, match=f"{name}: .*no code for card 0"):
        getattr(sanitize_prefill, f"run_{name}")()
    assert launches == {}
