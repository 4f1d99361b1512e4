"""The errors of this package: one base, one leaf per thing that a caller can act on."""


class QuantError(Exception):
    """Base of every error that this package raises on purpose."""
