"""What a model folder's ``generation_config.json`` says about sampling.

A value that this package applies is checked as strictly as a request's own. One that would change
the samples and is not applied is named in a warning; every other field is none of our business.
"""

import reprlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bytebound.field_reader import LARGEST_FLOAT, FieldReader

GENERATION_FILE = "generation_config.json"

NOT_APPLIED: dict[str, tuple[object, ...]] = {
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "constraints": ([],),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_decoder_ids": ([],),
    "forced_eos_token_id": ([],),
    "frequency_penalty": (0,),
    "guidance_scale": (1,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "presence_penalty": (0,),
    "sequence_bias": ([], {}),
    "stop_strings": ([],),
    "suppress_tokens": ([],),
    "token_healing": (False,),
    "top_h": (1,),
    "typical_p": (1,),
    "watermarking_config": (),
}
"""Fields that would change which tokens come out, with the values that change nothing. None, or
no field at all, changes nothing either."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling values as ``generation_config.json`` gives them; None where it is silent."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    do_sample: bool | None = None

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "GenerationDefaults":
        """Check and take what is applied; warn once about all that is not.

        Raises:
            CheckpointError: a value of another type, or out of range.
        """
        read = FieldReader(raw, GENERATION_FILE)
        found = cls(
            temperature=read.optional_float("temperature", 0.0, LARGEST_FLOAT),
            top_k=read.optional_int("top_k"),
            top_p=read.optional_float("top_p", 0.0, 1.0, above_low=True),
            min_p=read.optional_float("min_p", 0.0, 1.0),
            repetition_penalty=read.optional_float(
                "repetition_penalty", 0.0, LARGEST_FLOAT, above_low=True
            ),
            do_sample=read.optional_bool("do_sample"),
        )
        ignored = not_applied(raw)
        if ignored:
            shown = ", ".join(f"{name} = {reprlib.repr(raw[name])}" for name in ignored)
            warnings.warn(f"{GENERATION_FILE}: not applied: {shown}", stacklevel=3)
        return found


def not_applied(raw: Mapping[str, Any]) -> list[str]:
    """Return the fields that would change the samples and have no effect here, by name."""
    return [
        name
        for name, neutral in NOT_APPLIED.items()
        if raw.get(name) is not None and raw[name] not in neutral
    ]
