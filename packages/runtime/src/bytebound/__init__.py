"""bytebound: Qwen3.5-family hybrid models for one stream on one GPU.

The names below are imported when they are first used: torch takes seconds to load, and neither
``bytebound --help`` nor a look at an error class needs it.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bytebound.drafts import Draft, Proposal
    from bytebound.engine import Engine
    from bytebound.errors import (
        ByteboundError,
        CheckpointError,
        ContextOverflowError,
        CudaUnavailableError,
        InvalidRequestError,
        InvalidSettingError,
        NonFiniteLogitsError,
        OutOfMemoryError,
        StepTimeoutError,
        TokenizerMissingError,
        UnsupportedModelError,
        UnsupportedShapeError,
    )
    from bytebound.grammar import Grammar, ToolForm
    from bytebound.results import GenerationResult, GenerationStats, StreamEvent, TokenLogprob
    from bytebound.sampling import SamplingParams

__version__ = version("bytebound")

__all__ = [
    "ByteboundError",
    "CheckpointError",
    "ContextOverflowError",
    "CudaUnavailableError",
    "Draft",
    "Engine",
    "GenerationResult",
    "GenerationStats",
    "Grammar",
    "InvalidRequestError",
    "InvalidSettingError",
    "NonFiniteLogitsError",
    "OutOfMemoryError",
    "Proposal",
    "SamplingParams",
    "StepTimeoutError",
    "StreamEvent",
    "TokenLogprob",
    "TokenizerMissingError",
    "ToolForm",
    "UnsupportedModelError",
    "UnsupportedShapeError",
    "__version__",
]

# Where the names live, cheap imports first.
_HOMES = ("errors", "results", "grammar", "sampling_params", "sampling", "drafts", "engine")

if not TYPE_CHECKING:  # a type checker would take every name for given

    def __getattr__(name: str) -> object:
        """Find a public name, importing no more than it takes, and keep it."""
        if name in __all__:
            for home in _HOMES:
                module = import_module(f"bytebound.{home}")
                if hasattr(module, name):
                    globals()[name] = getattr(module, name)
                    return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """What is public, loaded or not."""
        return sorted({*globals(), *__all__})
