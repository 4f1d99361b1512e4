"""Every error that the runtime raises on purpose: a leaf per thing a caller can act on."""


class ByteboundError(Exception):
    """Base of this package's errors. A message says what was got, expected, and the way out."""


class CheckpointError(ByteboundError):
    """The model folder is damaged, incomplete or contradicts its own config."""


class UnsupportedModelError(CheckpointError):
    """The folder is sound but holds a model, config field or format that is not supported."""


class UnsupportedShapeError(ByteboundError):
    """A dimension that the chosen backend cannot run."""


class CudaUnavailableError(ByteboundError):
    """The CUDA backend was asked for and cannot run here."""


class InvalidSettingError(ByteboundError):
    """An engine setting is unknown, out of range or impossible for this model."""


class InvalidRequestError(ByteboundError):
    """A request's prompt or sampling parameters are wrong; the next request works."""


class ContextOverflowError(InvalidRequestError):
    """Prompt and completion do not fit the context length."""


class TokenizerMissingError(ByteboundError):
    """A text feature was used on a model folder that holds no tokenizer."""


class NonFiniteLogitsError(ByteboundError):
    """The model produced NaN or infinite logits; nothing after that point can be trusted."""


class OutOfMemoryError(ByteboundError):
    """A request needed more memory than was free; it is lost, and the next one works."""


class StepTimeoutError(ByteboundError):
    """The GPU did not finish a pass in time; this engine, and its process, are of no more use."""
