"""Which model is measured and how it runs: what a command was told, opened, described, hashed."""

import gc
from dataclasses import dataclass
from typing import Any

import bytebound
from bytebound import Engine, TokenizerMissingError
from bytebound.backends import check_engine, choose_backend
from bytebound.loading import find_model
from bytebound.names import random_shape, resolve_model
from bytebound.reading import Progress
from bytebound.text.tokenizer import Tokenizer, load_tokenizer

from bytebound_evals.errors import SettingError
from bytebound_evals.identity import model_digest


@dataclass(frozen=True, slots=True)
class ModelRun:
    """Arguments of ``Engine.from_pretrained``; None is the engine's own default."""

    model: str
    backend: str = "auto"
    device: str | None = None
    dtype: str | None = None
    kv_dtype: str = "auto"
    max_len: int | None = None
    draft: str = "none"
    num_draft_tokens: int = 4
    engine: str = "graph"

    @property
    def engine_name(self) -> str | None:
        """Which engine of the CUDA backend runs; None where another backend does."""
        return engine_name(self.model, self.backend, self.device, self.dtype, self.engine)

    @property
    def on_gpu(self) -> bool:
        """Whether it runs on a GPU here."""
        import torch

        if self.device is not None:
            return self.device.startswith("cuda")
        return self.backend == "cuda" or torch.cuda.is_available()

    @property
    def limit(self) -> int:
        """The longest context that the model has, in tokens."""
        _, config = find_model(self.model)
        return config.max_position_embeddings

    def open(self, on_progress: Progress | None = None) -> Engine:
        """Load it.

        Raises:
            ByteboundError: it cannot be loaded so.
        """
        return Engine.from_pretrained(
            self.model,
            backend=self.backend,
            device=self.device,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            max_len=self.max_len,
            draft=self.draft,
            num_draft_tokens=self.num_draft_tokens,
            engine=self.engine,
            on_progress=on_progress,
        )

    def check_length(self, what: str, length: int) -> None:
        """Refuse a length beyond the model's context before anything is read.

        Raises:
            SettingError: it is.
        """
        if length > self.limit:
            raise SettingError(
                f"{what} {length} is beyond the model's context of {self.limit} tokens"
            )

    def record(self) -> dict[str, Any]:
        """How it runs, as far as that decides its logits; drafts do not."""
        return {
            "bytebound": bytebound.__version__,
            "backend": self.backend,
            "engine": self.engine_name,
            "device": "cuda" if self.on_gpu else "cpu",
            "dtype": self.dtype,
            "kv_dtype": self.kv_dtype,
        }

    def identity(self) -> dict[str, Any]:
        """Weights and how they run, for logs that are continued; reads every byte of the folder."""
        return {"weights": model_digest(self.model), **self.record()}


def engine_name(
    model: str, backend: str, device: str | None, dtype: str | None, engine: str
) -> str | None:
    """The engine by which the CUDA backend would run ``model``; None where another backend runs it.

    Raises:
        ByteboundError: there is no such model, backend, device or engine, or the backend has not
            this engine.
    """
    chosen = choose_backend(backend, find_model(model)[1], device, dtype)
    check_engine(engine, chosen)
    return engine if chosen.name == "cuda" else None


def tokenizer_of(model: str) -> Tokenizer:
    """The model's tokenizer alone: text is read and cut before any weight is.

    Raises:
        TokenizerMissingError: it has none.
    """
    found = None if random_shape(model) is not None else load_tokenizer(resolve_model(model))
    if found is None:
        raise TokenizerMissingError(f"{model} holds no tokenizer; add tokenizer.json")
    return found


def free_memory() -> None:
    """Give back what engines held that nobody refers to any more, before the next is loaded."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
