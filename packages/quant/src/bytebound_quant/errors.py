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


class CalibrationError(QuantError):
    """Calibration text cannot be read, is too short, empty or all the same, or its options clash."""


class HeldoutTextError(CalibrationError):
    """A calibration source holds text on which quality is measured."""


class VocabularyMismatchError(QuantError):
    """Tokenizer and model, or tokenizer and draft vocabulary, do not belong together."""


class DraftVocabError(QuantError):
    """A draft vocabulary cannot be made as asked, or its file is damaged."""
