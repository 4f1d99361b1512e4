"""``bytebound diff``: the CUDA backend held against the reference, op by op.

stdout has a line per kind of op with the pass where it differs most, and a last line that names the
first op beyond its bound, in the order in which they run. The exit code is then 1.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bytebound.cli import options as opt
from bytebound.cli.errors import FAILED, OK, UsageError
from bytebound.cli.prompt import parse_ids, read_prompt

if TYPE_CHECKING:
    import torch

    from bytebound.config import ModelConfig
    from bytebound.cuda.diff import Difference, DiffReport

DEFAULT_IDS = 150  # long enough for a prompt that unpacks its weights, and for one that does not
_STRIDE = 7919  # a prime: the default ids lie all over the vocabulary


def diff(
    model: opt.Model,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="'-' reads stdin.")
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read the prompt from a UTF-8 file.")
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option(metavar="'1 2 3'", help=f"The prompt as token ids. Default: {DEFAULT_IDS}."),
    ] = None,
    rows: Annotated[
        int, typer.Option(metavar="R", help="Rows of a decode pass, 1 to 8; as many passes.")
    ] = 4,
    together: Annotated[
        bool,
        typer.Option(
            "--together",
            help="Let errors add up from op to op. Default: each op of the reference runs on the "
            "CUDA backend's own input.",
        ),
    ] = False,
    bound: Annotated[
        float | None,
        typer.Option(metavar="X", help="Largest relative error that passes. Default: rounding."),
    ] = None,
    kv_dtype: Annotated[
        str, typer.Option(metavar="auto|fp8|bfloat16|float16", help="KV cache.")
    ] = "auto",
    backend: Annotated[
        str, typer.Option(metavar="cuda", help="What is held against the reference.")
    ] = "cuda",
    device: Annotated[
        str | None,
        typer.Option(metavar="cpu|cuda[:N]", help="Of the reference. Default: the GPU."),
    ] = None,
    json_: opt.Json = False,
) -> int:
    """Compare the CUDA backend with the reference in float32, op by op.

    The first op that differs by more than rounding is named, and the exit code is then 1.
    Compared are a prompt, decode passes of which more and more rows are kept, and a prompt that
    goes on behind them.
    """
    given = [one for one in (prompt, prompt_file, ids) if one is not None]
    if len(given) > 1:
        raise UsageError("got more than one of --prompt, --prompt-file and --ids; give one or none")
    if backend != "cuda":
        raise UsageError(
            f"--backend {backend}: the reference is what is compared with; expected cuda"
        )
    if bound is not None and not 0 < bound < math.inf:
        raise UsageError(f"--bound {bound:g}: expected a number above 0")
    given_ids = None if ids is None else parse_ids(ids)
    text = None if prompt is None and prompt_file is None else read_prompt(prompt, prompt_file)

    from bytebound.cli.progress import Waiting
    from bytebound.loading import find_model

    with Waiting("comparing") as waiting:
        from bytebound.backends import choose_backend
        from bytebound.checkpoint import read_headers
        from bytebound.comparison import check_rows, positions_needed
        from bytebound.settings import activations_dtype, check_cuda_kv_dtype, check_device

        waiting.check()
        check_rows(rows)
        reference_device = check_device(device)
        folder, config = find_model(model)
        prompt_ids = _prompt_ids(folder, config, text, given_ids)
        max_len = positions_needed(len(prompt_ids), rows)
        if max_len > config.max_position_embeddings:
            raise UsageError(
                f"a prompt of {len(prompt_ids)} ids and what is compared behind it take {max_len} "
                f"positions; this model has {config.max_position_embeddings}: give fewer ids"
            )
        packed = folder is None or bool(read_headers(folder, config).packed)
        dtype = activations_dtype(None, kv_dtype, packed=packed)
        check_cuda_kv_dtype(kv_dtype, max_len, dtype)
        choose_backend(backend, config, None, None)

        from bytebound.cuda.diff import run_diff
        from bytebound.cuda.pairing import load_pair

        reference, executor = load_pair(
            folder,
            config,
            max_len=max_len,
            kv_dtype=kv_dtype,
            device=_gpu(),
            reference_device=reference_device,
        )
        report = run_diff(
            reference, executor, prompt_ids, rows=rows, apart=not together, bound=bound
        )
    _show(report, model=model, prompt_ids=prompt_ids, rows=rows, as_json=json_)
    return OK if report.first is None else FAILED


def _prompt_ids(
    folder: Path | None, config: "ModelConfig", text: str | None, given: list[int] | None
) -> list[int]:
    from bytebound.errors import TokenizerMissingError
    from bytebound.text.tokenizer import load_tokenizer

    if text is not None:
        tokenizer = None if folder is None else load_tokenizer(folder)
        if tokenizer is None:
            raise TokenizerMissingError("the model has no tokenizer; give --ids instead of text")
        given = tokenizer.encode(text)
    if given is None:
        given = [_STRIDE * i % config.vocab_size for i in range(DEFAULT_IDS)]
    wrong = [token for token in given if not 0 <= token < config.vocab_size]
    if wrong or not given:
        got = f"id {wrong[0]}" if wrong else "no id"
        raise UsageError(f"got {got}; expected token ids from 0 to {config.vocab_size - 1}")
    return given


def _gpu() -> "torch.device":
    import torch

    return torch.device("cuda", torch.cuda.current_device())


def _show(
    report: "DiffReport", *, model: str, prompt_ids: list[int], rows: int, as_json: bool
) -> None:
    from bytebound.cli.output import emit, emit_json

    if as_json:
        emit_json(
            {
                "model": model,
                "prompt_ids": prompt_ids,
                "rows": rows,
                "apart": report.apart,
                "first": None if report.first is None else _record(report.first),
                "unseen": [str(place) for place in report.unseen],
                "differences": [_record(one) for one in report.differences],
            }
        )
        return
    worst: dict[str, Difference] = {}
    for one in report.differences:
        known = worst.get(one.place.op)
        if known is None or one.measure > known.measure:
            worst[one.place.op] = one
    emit(f"{'op':<26}{'all rows':>10}{'worst row':>11}{'bound':>8}  where it differs most\n")
    for op, one in worst.items():
        emit(
            f"{op:<26}{one.error:>10.2g}{one.worst_error:>11.2g}{one.bound:>8.2g}  {_where(one)}\n"
        )
    if report.unseen:
        emit(f"not seen by themselves: {', '.join(str(place) for place in report.unseen)}\n")
    if report.first is None:
        emit(f"no op differs by more than rounding, of {len(report.differences)} compared\n")
        return
    first = report.first
    emit(
        f"first: {first.place} differs by {first.measure:.3g}, more than {first.bound:g}: "
        f"{first.run}, position {first.worst_position}\n"
    )


def _where(one: "Difference") -> str:
    layer = "" if one.place.layer is None else f"layer {one.place.layer}, "
    return f"{layer}{one.run}, position {one.worst_position}"


def _record(one: "Difference") -> dict[str, Any]:
    return {
        "pass": one.run,
        "layer": one.place.layer,
        "op": one.place.op,
        "error": one.error,
        "worst_error": one.worst_error,
        "worst_position": one.worst_position,
        "bound": one.bound,
        "within": one.within,
    }
