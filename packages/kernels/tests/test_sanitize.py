"""What the sanitizer is given to run: without a GPU, with launchers that do nothing.

So a call that an op refuses, and an op that is left out, are found before a GPU is at hand.
"""

from pathlib import Path
from typing import Any

import pytest
from bytebound_kernels import _native


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
