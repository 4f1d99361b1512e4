"""What a run of ``throughput`` measures, and the command line that says the same."""

from dataclasses import dataclass
from pathlib import Path

from bytebound.settings import check_device

from bytebound_evals.model_run import engine_name
from bytebound_evals.speed.drafts import DraftSpec
from bytebound_evals.speed.prompts import Prompt

RANDOM = "random:"
DEFAULT_LEN = 8192


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured, and how often."""

    model: str
    backend: str = "auto"
    device: str | None = None
    dtype: str | None = None
    kv_dtype: str = "auto"
    max_len: int | None = None
    drafts: tuple[DraftSpec, ...] = (DraftSpec("none"),)
    prompts: tuple[Prompt, ...] = ()
    depths: tuple[int, ...] = ()
    draft_depths: tuple[int, ...] | None = None
    """Those of the depths that drafts are measured at; None: all."""
    new_tokens: int = 128
    samples: int = 5
    stop_at_end: bool = False
    engine: str = "graph"

    @property
    def is_random(self) -> bool:
        """Random weights: right for speed, and without meaning for acceptance."""
        return self.model.startswith(RANDOM)

    def arguments(self) -> list[str]:
        """The command line that says the same, the model without its folder."""
        words = ["throughput", "--model", self.name, "--backend", self.backend]
        for option, value in (
            ("--device", self.device),
            ("--dtype", self.dtype),
            ("--max-len", self.max_len),
        ):
            words += [] if value is None else [option, str(value)]
        words += [] if self.kv_dtype == "auto" else ["--kv-dtype", self.kv_dtype]
        words += [] if self.engine == "graph" else ["--engine", self.engine]
        for draft in self.drafts:
            words += ["--draft", draft.word]
        for depth in self.depths or (0,):
            words += ["--depth", str(depth)]
        if self.draft_depths is not None:
            for depth in self.draft_depths or (0,):
                words += ["--draft-depth", str(depth)]
        for name in [prompt.name for prompt in self.prompts] or ["none"]:
            words += ["--prompt", name]
        words += ["--tokens", str(self.new_tokens), "--samples", str(self.samples)]
        return [*words, "--stop-at-end"] if self.stop_at_end else words

    def depths_of(self, draft: DraftSpec) -> tuple[int, ...]:
        """The depths that this draft is measured at."""
        return (
            self.depths if draft.kind == "none" or self.draft_depths is None else self.draft_depths
        )

    @property
    def name(self) -> str:
        """The model without the folders of one machine."""
        kind = RANDOM if self.is_random else ""
        return kind + Path(self.model.removeprefix(kind)).name

    @property
    def engine_name(self) -> str | None:
        """Which engine of the CUDA backend runs; None where another backend does."""
        return engine_name(self.model, self.backend, self.device, self.dtype, self.engine)

    @property
    def on_gpu(self) -> bool:
        """Whether the model will run on a GPU: the one rule that the engine has, too."""
        return self.backend == "cuda" or check_device(self.device).type == "cuda"

    @property
    def length(self) -> int | None:
        """Positions to load for: what the depths need, if that is more than an engine's default."""
        needed = max((0, *self.depths)) + self.new_tokens
        return needed if self.max_len is None and needed > DEFAULT_LEN else self.max_len
