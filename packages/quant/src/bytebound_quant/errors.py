"""The errors of this package: one base, one leaf per thing that a caller can act on."""


class QuantError(Exception):
    """Base of every error that this package raises on purpose."""


class SchemeError(QuantError):
    """A field of a scheme or an option of a method has a value that is not supported."""


class UnsupportedShapeError(QuantError):
    """A matrix has a shape or a dtype that the scheme cannot store; keep that matrix in 16 bit."""


class NonFiniteWeightError(QuantError):
    """A weight is NaN or infinite."""


class ScaleRangeError(QuantError):
    """A group's weights are too large for a float16 scale."""


class CalibrationError(QuantError):
    """The calibration inputs are empty, not finite, or of another width than the matrix."""


class PackedTensorError(QuantError):
    """Stored 4-bit tensors are missing, unexpected, or contradict each other or the scheme."""


class SourceError(QuantError):
    """The source folder is no checkpoint that can be quantized: already quantized, incomplete."""


class DestinationError(QuantError):
    """The output folder cannot be used or written: not empty, no space, another run's."""


class ResumeError(DestinationError):
    """An unfinished output was begun with another source, other options or other calibration."""


class SettingError(QuantError):
    """A quantization option is unknown, out of range or impossible for this model."""


class HeldoutTextError(CalibrationError):
    """A calibration source holds text on which quality is measured."""


class VocabularyMismatchError(QuantError):
    """Tokenizer and model, or tokenizer and draft vocabulary, do not belong together."""


class DraftVocabError(QuantError):
    """A draft vocabulary cannot be made as asked, or its file is damaged."""
