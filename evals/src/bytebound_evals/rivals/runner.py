"""Measures one rival through its server: start it, send our prompts, write our result file.

A rival that is not installed is not an error: its file says that it was not measured and why, and
the exit code is 0. A rival that is there and fails ends with 1, wrong use with 2.
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bytebound.cli.errors import UsageError, one_line
from bytebound.errors import ByteboundError

from bytebound_evals.cli.outputs import check_file
from bytebound_evals.conditions import (
    command_record,
    commit_record,
    machine_record,
    wheel_record,
)
from bytebound_evals.errors import EvalError, RivalError
from bytebound_evals.results import Metric, Result, write_result
from bytebound_evals.rivals.completions import (
    CHAT,
    COMPLETIONS,
    TimedReply,
    chat_body,
    completion_body,
    timed_reply,
)
from bytebound_evals.rivals.http import Server
from bytebound_evals.rivals.process import found_program, running_server
from bytebound_evals.speed.prompts import NAMES, prompt_ids, speed_prompts, text_ids
from bytebound_evals.speed.samples import (
    Sample,
    decode_metrics,
    depth_label,
    prefill_metrics,
)

if TYPE_CHECKING:
    from bytebound.text.tokenizer import Tokenizer

LOCALHOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line of a runner says."""

    model: str
    program: tuple[str, ...]
    port: int
    max_len: int
    draft_tokens: int
    extra: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rival:
    """How one engine is started and spoken to."""

    name: str
    program: tuple[str, ...]
    """Its usual command, e.g. ``("vllm", "serve")``."""
    command: Callable[[Asked], list[str]]
    """The whole command: one sequence, no prefix cache, on ``port``.

    Raises UsageError where it cannot draft as asked.
    """
    ready_path: str = "/health"
    takes_ids: bool = True
    """Whether a prompt may be a list of ids; else it is sent as text."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Fields that its requests have besides, e.g. to switch its prompt cache off."""
    version: Callable[[Server], str | None] = lambda server: None
    drafts: "Callable[[Server], Drafts | None]" = lambda server: None
    """Its counts of drafts so far, where it keeps some."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """Counts of a server since it started: steps that drafted, ids guessed, ids that stood."""

    steps: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class _Request:
    stem: str
    path: str
    body: dict[str, Any]
    case: dict[str, Any]
    depth: int | None


def main(rival: Rival, argv: Sequence[str] | None = None) -> int:
    """The command line of a runner; the exit code."""
    try:
        options = _parser(rival).parse_args(argv)
        return _run(rival, options, list(sys.argv[1:] if argv is None else argv))
    except RivalError as error:
        return _complain(rival, error, 1)
    except (EvalError, ByteboundError, UsageError) as error:
        return _complain(rival, error, 2)


def not_measured(
    rival: str, reason: str, command: str, out: Path, commit: str | None = None
) -> int:
    """Write a file that says why there are no numbers, and say it."""
    result = Result(
        machine=machine_record(_device()),
        commit=commit_record(commit),
        command=command,
        metrics={},
        not_measured=reason,
    )
    write_result(out, result)
    print(f"{rival}: not measured: {one_line(reason)}")
    return 0


def _run(rival: Rival, options: argparse.Namespace, argv: list[str]) -> int:
    asked = Asked(
        model=options.model,
        program=split_words("--command", options.command or "") or rival.program,
        port=options.port,
        max_len=options.max_len,
        draft_tokens=options.draft_tokens,
        extra=split_words("--extra", options.extra),
    )
    check_file("--out", options.out)
    check_file("--log", options.log)
    recorded = command_record(f"bench/baselines/{rival.name}.py", argv)
    command = rival.command(asked)
    if options.dry_run:
        print(shlex.join(command))
        return 0
    server = Server(options.url or f"http://{LOCALHOST}:{options.port}", options.timeout)
    if options.url is None and not found_program(asked.program):
        reason = f"{asked.program[0]} is not installed here; give --command or --url"
        return not_measured(rival.name, reason, recorded, options.out, options.commit)
    requests = _requests(rival, options)
    if options.url is not None:
        result = _measure(rival, server, requests, options, recorded)
    else:
        with tempfile.TemporaryDirectory() as folder:
            log = options.log or Path(folder) / "server.log"
            with running_server(command, server, rival.ready_path, log=log, ready_s=options.ready):
                result = _measure(rival, server, requests, options, recorded)
    write_result(options.out, result)
    for name, metric in result.metrics.items():
        print(f"{name:32} {metric.median:10.2f} {metric.unit}")
    return 0


def _requests(rival: Rival, options: argparse.Namespace) -> list[_Request]:
    """Depths and prompts: ids or text by the model's own tokenizer and template, else as chat."""
    tokenizer = None if options.tokenizer is None else open_tokenizer(options.tokenizer)
    label = f"mtp{options.draft_tokens}" if options.draft_tokens else "plain"
    for name, value, least in (("--tokens", options.tokens, 2), ("--samples", options.samples, 1)):
        if value < least:
            raise UsageError(f"{name} {value}: expected at least {least}")
    prompts = [] if options.prompt == ["none"] else speed_prompts(options.prompt)
    depths = [depth for depth in options.depth if depth]
    if not prompts and not depths:
        raise UsageError("nothing to measure: give a --prompt or a --depth")
    common = {
        "engine": rival.name,
        "model": Path(options.model).name,
        "new_tokens": options.tokens,
        "temperature": 0,
        "draft": "mtp" if options.draft_tokens else "none",
        **({"draft_tokens": options.draft_tokens} if options.draft_tokens else {}),
    }
    requests = []
    for depth in depths:
        ids = text_ids(depth, tokenizer)
        path, body, kind = _as_sent(rival, ids, tokenizer, options)
        case = {**common, "prompt_tokens": depth, "ids": kind}
        requests.append(_Request(f"{label}_{depth_label(depth)}", path, body, case, depth))
    for prompt in prompts:
        if tokenizer is None and not options.bytes:
            path, kind = CHAT, "chat"
            body = chat_body(prompt.text, options.model_name, options.tokens, rival.body)
        else:
            path, body, kind = _as_sent(rival, prompt_ids(prompt, tokenizer), tokenizer, options)
        case = {**common, "prompt": prompt.name, "ids": kind}
        requests.append(_Request(f"{prompt.name}.{label}", path, body, case, None))
    return requests


def _as_sent(
    rival: Rival, ids: list[int], tokenizer: "Tokenizer | None", options: argparse.Namespace
) -> tuple[str, dict[str, Any], str]:
    """Path, body and kind of a prompt of ids."""
    if rival.takes_ids:
        given: Sequence[int] | str = ids
        kind = "bytes" if tokenizer is None else "tokens"
    elif tokenizer is not None:
        given, kind = tokenizer.decode(ids, skip_special_tokens=False), "text"
    else:
        given, kind = bytes(ids).decode("utf-8", errors="replace"), "text"
    body = completion_body(given, options.model_name, options.tokens, rival.body)
    return COMPLETIONS, body, kind


def _measure(
    rival: Rival,
    server: Server,
    requests: Sequence[_Request],
    options: argparse.Namespace,
    recorded: str,
) -> Result:
    samples: dict[str, list[Sample]] = {one.stem: [] for one in requests}
    guessed = False
    for turn in range(options.samples + 1):  # the first warms up
        for one in requests:
            before = rival.drafts(server)
            reply = timed_reply(server, one.path, one.body)
            sample = _with_drafts(reply, before, rival.drafts(server))
            if one.depth is not None and one.case["ids"] != "text":
                _check_length(one, sample)
            guessed = guessed or not reply.first_tokens_known
            if turn > 0:
                samples[one.stem].append(sample)
                print(f"{one.stem}: {sample.line()}", file=sys.stderr, flush=True)
    metrics: dict[str, Metric] = {}
    for one in requests:
        timed = samples[one.stem]
        case = {**one.case, "prompt_tokens": timed[0].prompt_tokens}
        metrics |= decode_metrics(one.stem, timed, case)
        if one.depth is not None and not options.draft_tokens:
            metrics |= prefill_metrics(f"prompt_{depth_label(one.depth)}", timed, case)
    version = _version(rival, server)
    return Result(
        machine=machine_record(_device()),
        commit=commit_record(options.commit),
        command=recorded,
        wheel={**wheel_record(("bytebound-evals",)), **({rival.name: version} if version else {})},
        note=_note(options, samples, first_piece_assumed=guessed),
        metrics=metrics,
    )


def _version(rival: Rival, server: Server) -> str | None:
    """What answers, where it says so; an older server may not."""
    try:
        return rival.version(server)
    except RivalError:
        return None


def _with_drafts(reply: TimedReply, before: Drafts | None, after: Drafts | None) -> Sample:
    """The sample with what the server counted meanwhile."""
    sample = reply.sample
    if before is None or after is None or sample.drafted is not None:
        return sample
    return Sample(
        prompt_tokens=sample.prompt_tokens,
        completion_tokens=sample.completion_tokens,
        first_token_s=sample.first_token_s,
        decode_s=sample.decode_s,
        cached_tokens=sample.cached_tokens,
        first_tokens=sample.first_tokens,
        steps=after.steps - before.steps or None,
        drafted=after.drafted - before.drafted,
        accepted=after.accepted - before.accepted,
    )


def _check_length(one: _Request, sample: Sample) -> None:
    if sample.prompt_tokens != one.depth:
        raise RivalError(
            f"{one.stem}: sent {one.depth} ids, the server counts {sample.prompt_tokens} prompt "
            "tokens: it does not take ids as they are"
        )


def _note(
    options: argparse.Namespace, samples: Mapping[str, list[Sample]], *, first_piece_assumed: bool
) -> str:
    parts = [
        f"Through its server, one stream, greedy, {options.tokens} new tokens, one run to warm up "
        f"and {options.samples} that count, in turns; timed by the client."
    ]
    if first_piece_assumed:
        parts.append("The first piece of a stream counts as one token.")
    if any(sample.cached_tokens for runs in samples.values() for sample in runs):
        parts.append("Some prompts were answered from a cache; their prefill stands apart.")
    return " ".join(parts)


def split_words(option: str, text: str) -> tuple[str, ...]:
    """A command line in one option, as a shell would cut it.

    Raises:
        UsageError: a quote is not closed.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: {error}") from error


def open_tokenizer(model: str) -> "Tokenizer":
    """The tokenizer of a model folder or name, which --tokenizer gave.

    Raises:
        UsageError: the folder holds none.
        CheckpointError: there is no such folder.
    """
    from bytebound.names import resolve_model
    from bytebound.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(resolve_model(model))
    if tokenizer is None:
        raise UsageError(f"--tokenizer {model}: the folder holds no tokenizer.json")
    return tokenizer


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _complain(rival: Rival, error: Exception, code: int) -> int:
    print(f"{rival.name}: error: {one_line(str(error))}", file=sys.stderr)
    return code


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _parser(rival: Rival) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{rival.name}.py",
        description=f"Measure {rival.name} on the prompts of bytebound-evals.",
    )
    add = parser.add_argument
    add("--model", required=True, metavar="PATH", help="what the rival loads")
    add("--out", type=Path, required=True, metavar="FILE", help="the result file")
    add("--command", help=f"how it is started; default: {shlex.join(rival.program)}")
    add("--url", help="a server that runs already; nothing is started")
    add("--model-name", default="model", help="what the server calls the model")
    add("--port", type=_count, default=8011)
    add("--max-len", type=_count, default=40960, metavar="N", help="context to start it with")
    add(
        "--tokenizer",
        metavar="FOLDER|NAME",
        help="send ids by this model's tokenizer and template; without it prompts go as chat",
    )
    add("--bytes", action="store_true", help="send bytes as ids, for random weights")
    add(
        "--depth",
        type=_count,
        nargs="*",
        default=[512, 8192, 32768],
        metavar="N",
        help="lengths of prompts to prefill and decode behind; 0 for none",
    )
    add("--prompt", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}, or none")
    add("--tokens", type=_count, default=128, metavar="N", help="new tokens of a run")
    add("--samples", type=_count, default=5, metavar="N", help="runs that count")
    add("--draft-tokens", type=_count, default=0, metavar="K", help="guesses of its MTP draft")
    add("--extra", default="", metavar="WORDS", help="more options for its command: --extra='...'")
    add("--timeout", type=float, default=600.0, metavar="S", help="for one request")
    add("--ready", type=float, default=1200.0, metavar="S", help="for it to load")
    add("--log", type=Path, metavar="FILE", help="keep its output")
    add("--commit", help="default: that of the work tree")
    add("--dry-run", action="store_true", help="print the command that would start it")
    return parser
