"""``bytebound serve``: one model behind OpenAI's and Anthropic's protocols.

One line on stderr says where; nothing of a request is ever written anywhere.
"""

import math
import os
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer

from bytebound.cli import options as opt
from bytebound.cli.errors import INTERRUPTED, UsageError

_SERVER = "Server"


def serve(
    model: opt.Model,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on. One that others can reach needs --api-key.",
            rich_help_panel=_SERVER,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", help="0 takes a free one.", rich_help_panel=_SERVER)
    ] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            envvar="BYTEBOUND_API_KEY",
            show_envvar=True,
            help="What clients must send. The variable keeps it out of the list of processes.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    model_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What clients call the model. Default: the last part of --model.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    max_queue: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Requests that may wait; one more is told to come back (429).",
            rich_help_panel=_SERVER,
        ),
    ] = 16,
    request_timeout: Annotated[
        float,
        typer.Option(
            metavar="S",
            help="Seconds for one request, waiting included.",
            rich_help_panel=_SERVER,
        ),
    ] = 600.0,
    shutdown_timeout: Annotated[
        int,
        typer.Option(
            metavar="S",
            help="Seconds that requests have left after Ctrl-C or SIGTERM.",
            rich_help_panel=_SERVER,
        ),
    ] = 30,
    max_body: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Largest request body.", rich_help_panel=_SERVER),
    ] = "16MiB",
    max_prompt_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Longest prompt. Default: the context.", rich_help_panel=_SERVER
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Longest answer where a request names none. Default: what the context has left.",
            rich_help_panel="Sampling",
        ),
    ] = None,
    temperature: opt.Temperature = None,
    top_p: opt.TopP = None,
    top_k: opt.TopK = None,
    min_p: opt.MinP = None,
    repetition_penalty: opt.RepetitionPenalty = None,
    presence_penalty: opt.PresencePenalty = None,
    frequency_penalty: opt.FrequencyPenalty = None,
    seed: opt.Seed = None,
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
    conversation_bytes: opt.ConversationBytes = None,
) -> None:
    """Serve a model to OpenAI's and Anthropic's clients on one port.

    Sampling options are for requests that do not bring their own.
    Ctrl-C lets the requests that are there end, and then stops; a second one cuts them.
    """
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
        conversation_bytes,
        engine=engine_name,
    )

    from bytebound.server.settings import ServerSettings, check_access
    from bytebound.vram import parse_size

    if not 0 <= port <= 65_535:
        raise UsageError(f"--port {port}: expected 0 to 65535")
    if not 0 <= shutdown_timeout <= 86_400:
        raise UsageError(f"--shutdown-timeout {shutdown_timeout}: expected seconds, 0 to 86400")
    if not math.isfinite(request_timeout):
        raise UsageError(f"--request-timeout {request_timeout}: expected seconds")
    check_access(host, api_key)
    settings = ServerSettings(
        model_name=Path(model).name if model_name is None else model_name,
        api_key=api_key,
        max_queue=max_queue,
        request_timeout_s=request_timeout,
        max_body_bytes=parse_size("max_body", max_body),
        max_prompt_tokens=max_prompt_tokens,
        sampling=sampling.given(),
    )

    from bytebound.cli.opening import open_engine
    from bytebound.cli.output import remark
    from bytebound.cli.tables import plan_line

    # An address that is taken is said before a model is loaded.
    with _bound(host, port) as listener:
        engine = open_engine(loading, sampling)

        from bytebound.server.process import ServerProcess

        server = ServerProcess(engine, settings, shutdown_timeout_s=shutdown_timeout)
        signal.signal(signal.SIGINT, server.handle_exit)  # no Ctrl-C is an exception any more
        where = listener.getsockname()
        shown = f"[{where[0]}]" if ":" in where[0] else where[0]
        if engine.memory_plan is not None:
            remark(plan_line(engine.memory_plan))
        remark(f"serving {settings.model_name} on http://{shown}:{where[1]}")
        server.run(sockets=[listener])
    # Python's own end takes seconds, in which another Ctrl-C would show a traceback, and it crashes
    # over a thread inside a pass.
    os._exit(INTERRUPTED)


def _bound(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise UsageError(
            f"--host {host} --port {port}: {error.strerror or error}; choose another address, or "
            "--port 0 for a free one"
        ) from error
