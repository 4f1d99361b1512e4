"""A draft head kept in the L2 cache or not, by turns, in a whole cycle of four guesses.

    python bench/draft_in_l2.py --json FILE [--ids 8192 16384 49152] [--samples 7]

Each guess reads the draft head once. A window of the recording's stream asks that it stay in the L2
(``bytebound_kernels.l2_persist``), in a part that the device sets aside and that other accesses
then lack. That part belongs to the process, so it is given back before the turns of the other two:

    none       nothing set aside, no window
    aside      as much set aside as ``kept`` has, and no window: what the loss of that part costs
    kept       the head has it

A head that is larger than what can be set aside keeps a share of itself. Random weights of the 27B
shape; how many guesses stand does not change what a cycle costs.
"""

import argparse
import ctypes
import gc
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import bytebound_kernels as bk
import torch
from bytebound import Engine, SamplingParams
from bytebound.cuda.cycle import Form
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.matrices import PackedMatrix
from bytebound.cuda.mtp import CudaMtpDraft
from bytebound.cuda.sampling import Choice
from bytebound.draft_vocab import FORMAT, FORMAT_VERSION
from bytebound.loading import find_model
from decode import metric, some_prompt, write
from safetensors.torch import save_file

PROMPT, GUESSES, TURNS = 1024, 4, 30
FORM = Form.of(Choice(GUESSES), GUESSES, by_head=True)
VARIANTS = ("none", "aside", "kept")
_PERSISTING_L2_CACHE_SIZE = 0x06  # of the driver's CUlimit
_Size = ctypes.c_size_t


def set_aside(num_bytes: int) -> None:
    """Let go of what is kept in the L2, and set ``num_bytes`` of it aside from now on."""
    torch.cuda.synchronize()
    driver = ctypes.CDLL("libcuda.so.1")
    limit = ctypes.c_int(_PERSISTING_L2_CACHE_SIZE)
    codes = driver.cuCtxResetPersistingL2Cache(), driver.cuCtxSetLimit(limit, _Size(num_bytes))
    if any(codes):
        raise RuntimeError(f"setting {num_bytes} bytes of the L2 aside: CUresult {codes}")


def keep(head: torch.Tensor, stream: Any) -> tuple[int, float]:
    """Give the stream a window over the head; bytes set aside, and the share that is to stay."""
    have = bk.l2_persist(head, head.nbytes, stream=stream)
    share = min(1.0, have / head.nbytes)
    if 0 < share < 1:
        bk.l2_persist(head, head.nbytes, stream=stream, hit_ratio=share)
    return have, share


def load(model: str, num_ids: int) -> Engine:
    """An engine whose guesses come from the first ``num_ids`` ids."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        path = Path(folder, "vocab.safetensors")
        about = {"format": FORMAT, "format_version": FORMAT_VERSION}
        about["vocab_size"] = str(find_model(model)[1].vocab_size)
        save_file({"ids": torch.arange(num_ids, dtype=torch.int32)}, path, metadata=about)
        return Engine.from_pretrained(
            model, backend="cuda", num_draft_tokens=GUESSES, max_len=4096, draft_vocab=path
        )


def head_of(engine: Engine) -> torch.Tensor:
    """The bytes of the draft head."""
    draft = engine.draft
    matrix = draft.head.mtp.draft_head if isinstance(draft, CudaMtpDraft) else None
    if not isinstance(matrix, PackedMatrix):
        raise TypeError("expected a draft head in 4 bits")
    return matrix.weight.data


def cycle_times(
    engine: Engine, samples: int
) -> tuple[dict[str, list[float]], dict[str, Any]] | None:
    """Milliseconds of a cycle of each variant, by turns; None where the head has no window."""
    executor: Any = engine.executor
    head = head_of(engine)
    decoders = {}
    case: dict[str, Any] = {"head_bytes": head.nbytes}
    set_aside(0)
    for name in VARIANTS:
        decoders[name] = CudaDecoder(executor, engine.draft, GUESSES)
        if name == "kept":
            try:
                have, share = keep(head, decoders[name]._recordings._stream)
            except bk.InvalidArgumentError as error:
                print(error, file=sys.stderr)
                return None
            case |= {"set_aside_bytes": have, "share_that_stays": share}
            if not have:
                print("this card sets no L2 aside", file=sys.stderr)
                return None
        decoders[name].warm_up()
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for turn in range(samples + 1):
        for name, decoder in decoders.items():
            set_aside(0 if name == "none" else case["set_aside_bytes"])
            engine.decoder = decoder
            engine.generate(some_prompt(PROMPT), SamplingParams(max_tokens=2, ignore_eos=True))
            for _ in range(3):
                decoder._run("turn", FORM)  # the window fills
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(TURNS):
                decoder._run("turn", FORM)
            torch.cuda.synchronize()
            if turn > 0:
                times[name].append(1e3 * (time.perf_counter() - begun) / TURNS)
    set_aside(0)
    return times, case


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All metrics by name."""
    metrics: dict[str, Any] = {}
    for num_ids in arguments.ids:
        engine = load(arguments.model, num_ids)
        found = cycle_times(engine, arguments.samples)
        del engine
        gc.collect()
        torch.cuda.empty_cache()
        if found is None:
            continue
        times, more = found
        case = {
            "model": arguments.model,
            "device": bk.devices()[0].name,
            "l2_bytes": bk.devices()[0].l2_bytes,
            "prompt_tokens": PROMPT,
            "num_draft_tokens": GUESSES,
            "draft_ids": num_ids,
            **more,
        }
        for name, values in times.items():
            about = {**case, "l2": name}
            metrics[f"cycle{GUESSES}_{num_ids}_ids.{name}.ms"] = metric(
                "ms", "lower", values, about
            )
        for name in ("aside", "kept"):
            ratio = [a / b for a, b in zip(times[name], times["none"], strict=True)]
            metrics[f"cycle{GUESSES}_{num_ids}_ids.{name}_over_none"] = metric(
                "ratio", "lower", ratio, case
            )
    return metrics


def main(argv: list[str] | None = None) -> int:
    """Measure, write the file, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--model", default="random:qwen3.5-27b")
    parser.add_argument("--ids", type=int, nargs="+", default=[8192, 16384, 49152], metavar="N")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    arguments = parser.parse_args(argv)
    metrics = measure(arguments)
    if not metrics:
        print("nothing could be measured: no head could be kept in the L2", file=sys.stderr)
        return 1
    write(arguments.json, "draft_in_l2", metrics, arguments.commit, argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
