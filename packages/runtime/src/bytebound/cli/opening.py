"""From options to an engine that is ready: settings first, then headers, then the weights."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from bytebound.cli.options import EngineOptions, SamplingOptions
from bytebound.cli.progress import Waiting
from bytebound.errors import InvalidSettingError

if TYPE_CHECKING:
    from bytebound.config import ModelConfig
    from bytebound.engine import Engine
    from bytebound.sampling import SamplingParams

SEED_BITS = 32  # JSON readers that keep numbers as doubles read such a seed exactly


def open_engine(options: EngineOptions, sampling: SamplingOptions) -> "Engine":
    """Load the model; whatever is wrong with the options is said before its weights are read."""
    with Waiting("loading") as waiting:
        from bytebound.engine import Engine
        from bytebound.failures import is_out_of_memory
        from bytebound.loading import find_model, limit_vram
        from bytebound.sampling import SamplingParams

        waiting.check()
        SamplingParams(**sampling.given())  # each value by itself; the model's own come later
        folder, config = find_model(options.model)
        check_max_len(options.max_len, config)
        if options.vram_limit is not None:
            limit_vram(options.vram_limit, options.device)
        try:
            return Engine.from_pretrained(
                options.model,
                backend=options.backend,
                device=options.device,
                dtype=options.dtype,
                max_len=options.max_len,
                kv_dtype=options.kv_dtype,
                draft_vocab=options.draft_vocab,
                adaptive_depth=options.adaptive_depth,
                engine=options.engine,
                conversation_bytes=options.conversation_bytes,
                draft=_draft(options.draft, folder, config),
                num_draft_tokens=options.num_draft_tokens,
                on_progress=waiting.advance,
            )
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise InvalidSettingError(
                f"not enough memory for {options.model}; 'bytebound info' shows what it needs, and "
                "a lower --max-len or --dtype bfloat16 needs less"
            ) from error


def request_params(engine: "Engine", sampling: SamplingOptions) -> "SamplingParams":
    """What was asked for over the model's defaults, with a seed that can be reported."""
    params = engine.default_params(**sampling.given())
    if params.seed is None and not params.greedy:
        params = engine.default_params(**sampling.given(), seed=secrets.randbits(SEED_BITS))
    return params


def draft_name(engine: "Engine") -> str:
    """The draft that runs."""
    return "none" if engine.draft is None else engine.draft.name


def has_random_weights(engine: "Engine") -> bool:
    """Whether what it generates is noise, made to measure speed."""
    return engine.memory_plan is not None and engine.memory_plan.random_weights


def backend_name(engine: "Engine") -> str | None:
    """The backend that runs; None where there is no model."""
    return None if engine.memory_plan is None else engine.memory_plan.backend


def _draft(asked: str | None, folder: Path | None, config: "ModelConfig") -> str:
    """The draft to load; an explicit mtp needs the head, the default takes it where it is."""
    from bytebound.checkpoint import read_headers

    if asked is not None and asked != "mtp":
        return asked  # the engine knows the names
    if config.mtp_num_hidden_layers if folder is None else read_headers(folder, config).with_mtp:
        return "mtp"
    if asked is None:
        return "none"
    raise InvalidSettingError(
        "--draft mtp: this checkpoint has no MTP head; use --draft ngram or --draft none"
    )


def check_max_len(max_len: int | None, config: "ModelConfig") -> None:
    """Refuse a context beyond the model's; the engine would cap 8192, its default, in silence."""
    limit = config.max_position_embeddings
    if max_len is not None and not 1 <= max_len <= limit:
        raise InvalidSettingError(
            f"--max-len {max_len}: expected 1 to {limit}, this model's max_position_embeddings"
        )
