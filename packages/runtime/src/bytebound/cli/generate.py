"""``bytebound generate``: one prompt, one answer, streamed to stdout.

stdout holds the answer and a final line end; with a folder that has no tokenizer the answer is its
token ids, separated by blanks. The line of numbers goes to stderr.
"""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bytebound.cli import options as opt
from bytebound.cli.errors import INTERRUPTED, OK, UsageError
from bytebound.cli.prompt import parse_ids, read_file, read_prompt
from bytebound.errors import InvalidRequestError
from bytebound.results import StreamEvent, TokenLogprob

if TYPE_CHECKING:
    from bytebound.cli.answer import Answer
    from bytebound.engine import Engine
    from bytebound.grammar import Grammar
    from bytebound.sampling import SamplingParams
    from bytebound.text.tokenizer import Tokenizer


def generate(
    model: opt.Model,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="'-' reads stdin.")
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read the prompt from a UTF-8 file, unchanged."),
    ] = None,
    ids: Annotated[
        str | None, typer.Option(metavar="'1 2 3'", help="The prompt as token ids.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Ask through the model's chat template.")
    ] = False,
    system: opt.System = None,
    thinking: opt.Thinking = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Hold the answer to the JSON schema in this file; thinking before it is free.",
        ),
    ] = None,
    json_: opt.Json = False,
    max_tokens: opt.MaxTokens = None,
    temperature: opt.Temperature = None,
    top_p: opt.TopP = None,
    top_k: opt.TopK = None,
    min_p: opt.MinP = None,
    repetition_penalty: opt.RepetitionPenalty = None,
    presence_penalty: opt.PresencePenalty = None,
    frequency_penalty: opt.FrequencyPenalty = None,
    stop: opt.Stop = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after an end token.")
    ] = False,
    seed: opt.Seed = None,
    logprobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Report each token's log probability and the N likeliest tokens."
        ),
    ] = None,
    draft: opt.Draft = None,
    num_draft_tokens: opt.NumDraftTokens = 4,
    backend: opt.Backend = "auto",
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    max_len: opt.MaxLen = None,
    vram_limit: opt.VramLimit = None,
    kv_dtype: opt.KvDtype = "auto",
    draft_vocab: opt.DraftVocab = None,
    adaptive_depth: opt.AdaptiveDepth = False,
    engine_name: opt.EngineName = "graph",
) -> int:
    """Generate one answer and stream it to stdout.

    The last line, with speed and counts, goes to stderr.
    Control tokens spelt in the prompt stay text.
    Sampling options that are not given are the model's own (generation config).
    Ctrl-C keeps what was written and exits with 130.
    """
    _check_sources(prompt, prompt_file, ids)
    if ids is not None and chat:
        raise UsageError("--chat needs text: give --prompt or --prompt-file instead of --ids")
    if not chat and (system is not None or thinking is not None):
        name = "--system" if system is not None else "--thinking/--no-thinking"
        raise UsageError(f"{name} needs --chat: without it no chat template is used")
    sampling = opt.SamplingOptions(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        stop=stop or None,
        logprobs=logprobs,
        ignore_eos=ignore_eos or None,
    )
    loading = opt.EngineOptions(
        model,
        draft,
        num_draft_tokens,
        backend,
        device,
        dtype,
        max_len,
        vram_limit,
        kv_dtype,
        draft_vocab,
        adaptive_depth,
        engine=engine_name,
    )
    given_ids = None if ids is None else parse_ids(ids)
    text = "" if given_ids is not None else read_prompt(prompt, prompt_file)
    grammar = None if json_schema is None else _read_schema(json_schema)

    from bytebound.cli.opening import open_engine, request_params

    engine = open_engine(loading, sampling)
    params = replace(request_params(engine, sampling), grammar=grammar)
    if given_ids is not None:
        prompt_ids = given_ids
    elif chat:
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages.append({"role": "user", "content": text})
        prompt_ids = engine.tokenizer.apply_chat_template(messages, enable_thinking=thinking)
    else:
        prompt_ids = engine.tokenizer.encode(text)
    return _answer(engine, prompt_ids, params, model=model, engine_name=engine_name, as_json=json_)


def _read_schema(path: Path) -> "Grammar":
    from bytebound.grammar import Grammar

    try:
        return Grammar.json_schema(read_file(path, "--json-schema"))
    except InvalidRequestError as error:
        raise UsageError(f"--json-schema {path}: {error}") from error


def _check_sources(prompt: str | None, prompt_file: Path | None, ids: str | None) -> None:
    sources = {"--prompt": prompt, "--prompt-file": prompt_file, "--ids": ids}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        got = " and ".join(given) if given else "none"
        raise UsageError(f"got {got} of --prompt, --prompt-file and --ids; give exactly one")


def _answer(
    engine: "Engine",
    prompt_ids: list[int],
    params: "SamplingParams",
    *,
    model: str,
    engine_name: str,
    as_json: bool,
) -> int:
    from bytebound.cli.answer import run_request
    from bytebound.cli.opening import backend_name, draft_name, has_random_weights
    from bytebound.cli.output import emit, emit_json, remark, stats_line

    tokenizer = tokenizer_of(engine)
    separator = ""

    def show(event: StreamEvent) -> None:
        nonlocal separator
        if tokenizer is not None:
            emit(event.text_delta)
        elif event.token_ids:
            emit(separator + " ".join(map(str, event.token_ids)))
            separator = " "

    answer = run_request(engine, prompt_ids, params, (lambda event: None) if as_json else show)
    if as_json:
        emit_json(
            {
                "model": model,
                **_record(answer, tokenizer, with_logprobs=params.logprobs is not None),
                "prompt_ids": prompt_ids,
                "params": asdict(params),
                "draft": draft_name(engine),
                "num_draft_tokens": engine.num_draft_tokens,
                "max_len": engine.max_len,
                "backend": backend_name(engine),
                "engine": engine_name if backend_name(engine) == "cuda" else None,
                "weights": "random" if has_random_weights(engine) else "stored",
            }
        )
    else:
        if not answer.text.endswith("\n"):
            emit("\n")
        for line in _logprob_lines(answer.logprobs, tokenizer):
            print(line, file=sys.stderr)
        line = stats_line(
            answer.stats,
            answer.finish_reason,
            draft_name(engine),
            random_weights=has_random_weights(engine),
        )
        remark(line)
    return INTERRUPTED if answer.interrupted else OK


def tokenizer_of(engine: "Engine") -> "Tokenizer | None":
    """The engine's tokenizer, None where the folder has none."""
    from bytebound.errors import TokenizerMissingError

    try:
        return engine.tokenizer
    except TokenizerMissingError:
        return None


def _record(
    answer: "Answer", tokenizer: "Tokenizer | None", *, with_logprobs: bool
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "text": None if tokenizer is None else answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "stats": answer.stats.as_dict(),
    }
    if with_logprobs:
        record["logprobs"] = [
            {
                **_token_record(one.token_id, one.logprob, tokenizer),
                "top": [_token_record(*entry, tokenizer) for entry in one.top],
            }
            for one in answer.logprobs
        ]
    return record


def _token_record(token_id: int, logprob: float, tokenizer: "Tokenizer | None") -> dict[str, Any]:
    return {"token_id": token_id, "token": _piece(token_id, tokenizer), "logprob": logprob}


def _piece(token_id: int, tokenizer: "Tokenizer | None") -> str | None:
    if tokenizer is None:
        return None
    return tokenizer.decode([token_id], skip_special_tokens=False)


def _logprob_lines(logprobs: list[TokenLogprob], tokenizer: "Tokenizer | None") -> list[str]:
    """One line per token: its own log probability, then the likeliest."""

    def name(token_id: int) -> str:
        piece = _piece(token_id, tokenizer)
        return str(token_id) if piece is None else repr(piece)

    return [
        f"{one.logprob:9.4f} {name(one.token_id)}"
        + "".join(f"  | {value:.4f} {name(token_id)}" for token_id, value in one.top)
        for one in logprobs
    ]
