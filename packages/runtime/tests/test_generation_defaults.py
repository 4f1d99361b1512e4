"""generation_config.json: what is applied is checked, and what is not is said."""

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
from bytebound import Engine
from bytebound.config import ModelConfig
from bytebound.errors import CheckpointError
from bytebound.generation_defaults import NOT_APPLIED, GenerationDefaults
from bytebound.sampling import SamplingParams

from .checkpoints import random_checkpoint, write_json

FILE = "generation_config.json"


def load(folder: Path) -> Engine:
    return Engine.from_pretrained(folder, device="cpu", dtype="float32", max_len=64, draft="none")


def test_values_are_kept_as_given(tmp_path: Path) -> None:
    """E64: 0 is a value."""
    random_checkpoint(tmp_path)
    given = {"temperature": 0, "top_k": 0, "top_p": 0.95, "min_p": 0.0, "do_sample": False}
    write_json(tmp_path / FILE, {**given, "max_new_tokens": 99})
    assert ModelConfig.from_folder(tmp_path).generation == GenerationDefaults(
        temperature=0.0, top_k=0, top_p=0.95, min_p=0.0, repetition_penalty=None, do_sample=False
    )


WRONG: list[tuple[str, Any, str]] = [
    *(("temperature", value, "a number from 0 to 1e+30") for value in ("hot", -0.1, True, [0.7])),
    *(("top_k", value, "an integer from 0 to 2147483647") for value in (2.5, True, -1, "20")),
    *(("top_p", value, "a number above 0 and at most 1") for value in (0, 0.0, 1.5, -1, "1")),
    *(("min_p", value, "a number from 0 to 1") for value in (-0.1, 1.1, {})),
    *(
        ("repetition_penalty", value, "a number above 0 and at most 1e+30")
        for value in (0, -1.0, math.inf, 10**400, "1")
    ),
    *(
        (name, math.nan, "a number")
        for name in ("temperature", "top_p", "min_p", "repetition_penalty")
    ),
    *(("do_sample", value, "true or false") for value in (1, "yes")),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG)
def test_a_wrong_value_names_file_field_value_and_range(
    name: str, value: Any, expected: str
) -> None:
    """E62: refused when the model is read, not at the first request."""
    with pytest.raises(CheckpointError) as caught:
        GenerationDefaults.from_dict({name: value})
    message = str(caught.value)
    assert message.startswith(f"{FILE}: {name} is ")
    assert f"expected {expected}" in message
    assert len(message) < 200
    if not isinstance(value, int) or value < 10**9:
        assert repr(value) in message


@pytest.mark.parametrize(("name", "value"), [("top_p", 0), ("repetition_penalty", 0)])
def test_a_wrong_value_stops_the_loading(tmp_path: Path, name: str, value: Any) -> None:
    random_checkpoint(tmp_path)
    write_json(tmp_path / FILE, {name: value})
    with pytest.raises(CheckpointError, match=f"{FILE}: {name} is 0"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty", "top_k"])
@pytest.mark.parametrize("value", [0, 1e-12, 1, 1.0, 2, 1e30, 1e31, -1, math.nan])
def test_what_is_taken_a_request_takes_too(name: str, value: Any) -> None:
    try:
        taken = GenerationDefaults.from_dict({name: value})
    except CheckpointError:
        return
    SamplingParams(**{name: getattr(taken, name)})


SET: dict[str, Any] = {
    "bad_words_ids": [[5]],
    "begin_suppress_tokens": [220],
    "constraints": [{"word": [1]}],
    "diversity_penalty": 0.5,
    "dola_layers": "low",
    "encoder_no_repeat_ngram_size": 2,
    "encoder_repetition_penalty": 1.2,
    "epsilon_cutoff": 3e-4,
    "eta_cutoff": 3e-4,
    "exponential_decay_length_penalty": [10, 1.5],
    "force_words_ids": [[7]],
    "forced_bos_token_id": 0,
    "forced_decoder_ids": [[1, 5]],
    "forced_eos_token_id": 0,
    "frequency_penalty": 0.5,
    "guidance_scale": 1.5,
    "min_length": 10,
    "min_new_tokens": 10,
    "no_repeat_ngram_size": 3,
    "num_beam_groups": 2,
    "num_beams": 4,
    "penalty_alpha": 0.6,
    "presence_penalty": 1.5,
    "sequence_bias": [[[5], -10.0]],
    "stop_strings": ["END"],
    "suppress_tokens": [0],
    "token_healing": True,
    "top_h": 0.4,
    "typical_p": 0.9,
    "watermarking_config": {"bias": 2.0},
}


def test_every_field_that_is_not_applied_is_tried() -> None:
    assert SET.keys() == NOT_APPLIED.keys()


@pytest.mark.parametrize("name", SET)
def test_a_field_that_is_not_applied_is_named(name: str) -> None:
    """E63: no parameter goes without effect in silence."""
    with pytest.warns(UserWarning, match=f"{FILE}: not applied: {name} = ") as caught:
        GenerationDefaults.from_dict({name: SET[name], "top_k": 20})
    assert len(caught) == 1


def test_one_warning_names_them_all(tmp_path: Path) -> None:
    random_checkpoint(tmp_path)
    write_json(tmp_path / FILE, {"typical_p": 0.9, "top_k": 20, "num_beams": 4})
    with pytest.warns(UserWarning, match="not applied") as caught:
        load(tmp_path)
    (warning,) = [one for one in caught if FILE in str(one.message)]
    assert str(warning.message) == f"{FILE}: not applied: num_beams = 4, typical_p = 0.9"


def test_neutral_values_are_no_matter(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, neutral in NOT_APPLIED.items():
            for value in (None, *neutral):
                GenerationDefaults.from_dict({name: value})


def test_what_transformers_writes_unasked_warns_of_nothing(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    defaults = transformers.GenerationConfig._get_default_generation_params()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GenerationDefaults.from_dict(defaults)
        transformers.GenerationConfig(top_k=20, do_sample=True).save_pretrained(tmp_path)
        random_checkpoint(tmp_path)
        assert ModelConfig.from_folder(tmp_path).generation.top_k == 20
