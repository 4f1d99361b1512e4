"""The tokenizer of a model folder, refused where it has ids that the model has no row for."""

from pathlib import Path

from bytebound.text.tokenizer import Tokenizer, load_tokenizer

from bytebound_quant.errors import VocabularyMismatchError


def matching_tokenizer(folder: Path, vocab_size: int) -> Tokenizer | None:
    """The folder's tokenizer, None where it has none; ``vocab_size`` is the model's.

    Raises:
        VocabularyMismatchError: the tokenizer has an id beyond the model's vocabulary.
        CheckpointError: of the runtime, where the tokenizer cannot be loaded.
    """
    tokenizer = load_tokenizer(folder)
    if tokenizer is not None and tokenizer.vocab_size > vocab_size:
        highest = tokenizer.vocab_size - 1
        token = tokenizer.hf.convert_ids_to_tokens(highest)
        raise VocabularyMismatchError(
            f"{folder}: highest id of the tokenizer: got {highest} ({token!r}), expected at most "
            f"{vocab_size - 1} (config.json: vocab_size {vocab_size}); use the tokenizer of this "
            "very model"
        )
    return tokenizer
