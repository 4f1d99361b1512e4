"""The errors of this package: one base, one leaf per thing that a caller can act on."""


class EvalError(Exception):
    """Base of every error that this package raises on purpose."""


class DataError(EvalError):
    """An evaluation data file is missing or damaged."""


class ResultError(EvalError):
    """A result file is missing, damaged or of another form."""


class IncomparableError(EvalError):
    """Two results were not taken under the same conditions, so comparing them says nothing."""


class RivalError(EvalError):
    """Another engine did not start, or its server answered with something else than expected."""


class SettingError(EvalError):
    """An option of a measurement is unknown, out of range or does not fit the others."""


class SourceError(EvalError):
    """A text or a set of problems cannot be read, lacks a column, or is too short to measure on."""


class ReferenceMismatchError(EvalError):
    """The reference logits belong to another tokenizer, text, window rule or vocabulary."""


class LossOverflowError(EvalError):
    """A model is so wrong that its perplexity is no number."""


class CacheError(EvalError):
    """Reference logits are damaged, or do not fit the space that they may take."""


class RunLogError(EvalError):
    """The log of a run is damaged, or belongs to a run with other settings."""
