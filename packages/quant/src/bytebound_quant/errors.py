"""The errors of this package: one base, one leaf per thing that a caller can act on."""


class QuantError(Exception):
    """Base of every error that this package raises on purpose."""


class SourceError(QuantError):
    """The source folder is no checkpoint that can be quantized: already quantized, incomplete."""


class DestinationError(QuantError):
    """The output folder cannot be used or written: not empty, no space, another run's."""


class ResumeError(DestinationError):
    """An unfinished output was begun with another source, other options or other calibration."""


class SettingError(QuantError):
    """A quantization option is unknown, out of range or impossible for this model."""
