"""The errors of this package: one base, one leaf per thing that a caller can act on."""


class EvalError(Exception):
    """Base of every error that this package raises on purpose."""


class DataError(EvalError):
    """An evaluation data file is missing or damaged."""
