"""The options that several commands share, with their help, and what they add up to.

An option that is not given is None: the engine's own defaults, the generation config first, stay
what they are. A zero that is given counts.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

_ENGINE = "Engine"
_SAMPLING = "Sampling"

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="FOLDER|NAME",
        help="Model folder in Hugging Face form, the name of the shipped model: tiny, or "
        "random:qwen3.5-27b and random:CONFIG.JSON for a shape with random weights.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON to stdout, and nothing else there.")]
System = Annotated[
    str | None, typer.Option("--system", metavar="TEXT", help="System message of the conversation.")
]
Thinking = Annotated[
    bool | None,
    typer.Option(
        "--thinking/--no-thinking",
        help="Let the chat template ask for thinking, or not. Default: the template's own.",
    ),
]

Draft = Annotated[
    str | None,
    typer.Option(
        metavar="mtp|ngram|none",
        help="Who guesses ahead. Default: mtp if the checkpoint has that head, else none.",
        rich_help_panel=_ENGINE,
    ),
]
NumDraftTokens = Annotated[
    int, typer.Option(metavar="K", help="Tokens guessed per step, 1 to 8.", rich_help_panel=_ENGINE)
]
Backend = Annotated[
    str,
    typer.Option(
        metavar="auto|reference|cuda",
        help="Executor. auto: cuda where a GPU and the model's shape allow it.",
        rich_help_panel=_ENGINE,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="cpu|cuda[:N]", help="Default: the GPU if there is one.", rich_help_panel=_ENGINE
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="float32|bfloat16|float16",
        help="Of the activations. Default: float32 on a CPU, the checkpoint's own on a GPU, "
        "float16 for a model in 4 bits with cuda.",
        rich_help_panel=_ENGINE,
    ),
]
MaxLen = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Context: positions of prompt and answer together. "
        "Default: 8192, or the model's limit if that is lower.",
        rich_help_panel=_ENGINE,
    ),
]
KvDtype = Annotated[
    str,
    typer.Option(
        metavar="auto|fp8|bfloat16|float16",
        help="Of keys and values. auto: 16 bits, with cuda fp8 above 65,536 positions.",
        rich_help_panel=_ENGINE,
    ),
]
DraftVocab = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Keep the MTP head's guesses to these ids: a file of 'bytebound-quant draft-vocab'.",
        rich_help_panel=_ENGINE,
    ),
]
AdaptiveDepth = Annotated[
    bool,
    typer.Option(
        "--adaptive-depth",
        help="With cuda and mtp: guess as many tokens, up to K, as have lately been worth it.",
        rich_help_panel=_ENGINE,
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="graph|stream",
        help="How cuda runs a pass: graph, a kernel for each op, or stream, a few long kernels "
        "(models in 4 bits, compute capability 9.0).",
        rich_help_panel=_ENGINE,
    ),
]
ConversationBytes = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Host memory for conversations that made room for another: 8GiB, or 0 for none. "
        "Default: four times what the context takes, at most 4GiB.",
        rich_help_panel=_ENGINE,
    ),
]
VramLimit = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Most that this process may take of the GPU: 32GiB, 24GB, or bytes.",
        rich_help_panel=_ENGINE,
    ),
]

MaxTokens = Annotated[
    int | None,
    typer.Option(metavar="N", help="Longest answer. Default: 256.", rich_help_panel=_SAMPLING),
]
AnswerTokens = Annotated[
    int,
    typer.Option("--max-tokens", metavar="N", help="Longest answer.", rich_help_panel=_SAMPLING),
]
Temperature = Annotated[
    float | None,
    typer.Option(metavar="X", help="0 is greedy. Default: 0.", rich_help_panel=_SAMPLING),
]
TopP = Annotated[
    float | None,
    typer.Option(metavar="X", help="1 keeps all. Default: 1.", rich_help_panel=_SAMPLING),
]
TopK = Annotated[
    int | None,
    typer.Option(metavar="N", help="0 keeps all. Default: 0.", rich_help_panel=_SAMPLING),
]
MinP = Annotated[
    float | None,
    typer.Option(metavar="X", help="0 keeps all. Default: 0.", rich_help_panel=_SAMPLING),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(metavar="X", help="1 is none. Default: 1.", rich_help_panel=_SAMPLING),
]
PresencePenalty = Annotated[
    float | None,
    typer.Option(metavar="X", help="-2 to 2. Default: 0.", rich_help_panel=_SAMPLING),
]
FrequencyPenalty = Annotated[
    float | None,
    typer.Option(metavar="X", help="-2 to 2. Default: 0.", rich_help_panel=_SAMPLING),
]
Seed = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Makes sampling repeatable. Default: a new one each time.",
        rich_help_panel=_SAMPLING,
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="End before this text; may be repeated.", rich_help_panel=_SAMPLING
    ),
]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Which model to load, and how."""

    model: str
    draft: str | None
    num_draft_tokens: int
    backend: str
    device: str | None
    dtype: str | None
    max_len: int | None
    vram_limit: str | None = None
    kv_dtype: str = "auto"
    draft_vocab: Path | None = None
    adaptive_depth: bool = False
    conversation_bytes: str | None = "0"  # None: the engine's choice
    engine: str = "graph"


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Fields of ``SamplingParams`` as the command line gave them; None: not given."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    logprobs: int | None = None
    ignore_eos: bool | None = None

    def given(self) -> dict[str, Any]:
        """Only what was given, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}
