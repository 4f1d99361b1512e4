"""bytebound: Qwen3.5-family hybrid models for one stream on one GPU."""

from importlib.metadata import version

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
    TokenizerMissingError,
    UnsupportedModelError,
    UnsupportedShapeError,
)
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
    "InvalidRequestError",
    "InvalidSettingError",
    "NonFiniteLogitsError",
    "Proposal",
    "SamplingParams",
    "StreamEvent",
    "TokenLogprob",
    "TokenizerMissingError",
    "UnsupportedModelError",
    "UnsupportedShapeError",
    "__version__",
]
