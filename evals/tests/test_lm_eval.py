"""``ByteboundLM`` against lm-eval's own Hugging Face model, on local task files, no network."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pytest
from bytebound.errors import (
    CheckpointError,
    CudaUnavailableError,
    InvalidRequestError,
    NonFiniteLogitsError,
)
from bytebound.names import resolve_model
from bytebound_evals.data import arithmetic_problems, heldout_text
from bytebound_evals.errors import SettingError
from bytebound_evals.lm_eval.generation import generate_reply, parse_generation
from bytebound_evals.lm_eval.model import ByteboundLM
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from .quality_engines import ReplyEngine, tiny

MAX_LENGTH = 256  # shorter than the rolling texts, so that their windows roll
CHOICE, ROLLING, GENERATION = "local_choice", "local_rolling", "local_generation"
TEXT = heldout_text()


def choices() -> list[dict[str, Any]]:
    """A sentence's beginning, and four ends of which one is its own."""
    sentences = [" ".join(one.split()) for one in TEXT[:60_000].split(". ")]
    sentences = [one for one in sentences if 60 < len(one) < 160]
    halves = [one.rsplit(" ", 3) for one in sentences[:32]]
    return [
        {
            "begin": halves[i][0],
            "ends": [" ".join(halves[(i + 8 * shift) % 32][1:]) for shift in range(4)],
            "right": 0,
        }
        for i in range(8)
    ]


def rolling() -> list[dict[str, Any]]:
    return [{"text": TEXT[start : start + size]} for start, size in ((0, 1500), (9000, 40))]


def generation() -> list[dict[str, Any]]:
    return [
        {"question": one.question, "answer": one.answer.rpartition(" ")[2]}
        for one in arithmetic_problems()[:3]
    ]


TASKS: dict[str, tuple[Any, str]] = {
    CHOICE: (
        choices,
        "output_type: multiple_choice\ndoc_to_text: '{{begin}}'\ndoc_to_choice: ends\n"
        "doc_to_target: right\nmetric_list: [{metric: acc}, {metric: acc_norm}]",
    ),
    ROLLING: (
        rolling,
        "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: text\n"
        "metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]",
    ),
    GENERATION: (
        generation,
        "output_type: generate_until\ndoc_to_text: '{{question}}'\ndoc_to_target: answer\n"
        'generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 60}\n'
        "filter_list: [{name: marked, filter: [{function: regex, "
        "regex_pattern: '#### (-?[0-9]+)'}, {function: take_first}]}]\n"
        "metric_list: [{metric: exact_match}]",
    ),
}


def write_tasks(folder: Path) -> Path:
    for name, (rows, body) in TASKS.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows()))
        (folder / f"{name}.yaml").write_text(
            f"task: {name}\ndataset_path: json\n"
            f"dataset_kwargs: {{data_files: {{test: {json.dumps(str(data))}}}}}\n"
            f"test_split: test\n{body}\n"
        )
    return folder


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskManager]:
    folder = write_tasks(tmp_path_factory.mktemp("tasks"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        yield TaskManager(include_path=str(folder), include_defaults=False)


@pytest.fixture(scope="module")
def ours() -> ByteboundLM:
    return ByteboundLM("tiny", device="cpu", dtype="float32", max_length=MAX_LENGTH)


@pytest.fixture(scope="module")
def theirs() -> HFLM:
    folder = str(resolve_model("tiny"))
    return HFLM(folder, device="cpu", dtype="float32", batch_size=1, max_length=MAX_LENGTH)


def evaluate(model: Any, manager: TaskManager, *names: str, **arguments: Any) -> Any:
    return simple_evaluate(
        model=model,
        tasks=list(names),
        task_manager=manager,
        log_samples=True,
        bootstrap_iters=0,
        **arguments,
    )


def test_both_give_the_same_numbers(ours: ByteboundLM, theirs: HFLM, tasks: TaskManager) -> None:
    names = (CHOICE, ROLLING, GENERATION)
    own, other = (evaluate(model, tasks, *names) for model in (ours, theirs))
    for name in names:
        for a, b in zip(own["samples"][name], other["samples"][name], strict=True):
            for x, y in zip(_flat(a["resps"]), _flat(b["resps"]), strict=True):
                assert x == (pytest.approx(y, rel=1e-5) if isinstance(y, float) else y), name
        for metric, value in other["results"][name].items():
            if isinstance(value, (int, float)):
                assert own["results"][name][metric] == pytest.approx(value, rel=1e-5), metric
    # The tasks tell models apart: not everything is right, or wrong.
    assert 0 < own["results"][CHOICE]["acc,none"] < 1
    assert 2 < own["results"][ROLLING]["word_perplexity,none"] < 10_000


def test_both_give_the_same_numbers_through_the_chat_template(
    ours: ByteboundLM, theirs: HFLM, tasks: TaskManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model in (ours, theirs):
        monkeypatch.setattr(model, "chat_template_args", {"enable_thinking": False})
    own, other = (
        evaluate(model, tasks, GENERATION, apply_chat_template=True) for model in (ours, theirs)
    )
    assert own["results"][GENERATION]["exact_match,marked"] == 1
    assert other["results"][GENERATION]["exact_match,marked"] == 1
    for a, b in zip(own["samples"][GENERATION], other["samples"][GENERATION], strict=True):
        assert a["arguments"] == b["arguments"]
        assert a["resps"] == b["resps"]


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [one for item in value for one in _flat(item)]
    return [value]


def instance(kind: str, *arguments: Any) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def test_a_log_likelihood_is_that_of_a_direct_forward(ours: ByteboundLM) -> None:
    context, continuation = "The answer of the question is", " forty two"
    ids = ours.tok_encode(context + continuation)
    start = len(ours.tok_encode(context))
    rows = ours.engine.score(ids[:-1]).double().log_softmax(-1)
    expected = sum(float(rows[place - 1, ids[place]]) for place in range(start, len(ids)))
    ((score, greedy),) = ours.loglikelihood([instance("loglikelihood", context, continuation)])
    assert score == pytest.approx(expected, rel=1e-12)
    assert not greedy
    best = ours.tok_decode([int(ours.engine.score(ids[:start])[-1].argmax())])
    ((_, greedy),) = ours.loglikelihood([instance("loglikelihood", context, best)])
    assert greedy


def test_requests_that_read_the_same_ids_share_a_pass(
    ours: ByteboundLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = []
    score = ours.engine.score
    monkeypatch.setattr(ours.engine, "score", lambda ids: lengths.append(len(ids)) or score(ids))
    context = [5, 6, 7]
    pairs = [(None, context, [token]) for token in (10, 11, 12)] + [(None, context, [10, 11])]
    scores = ours._loglikelihood_tokens(pairs, disable_tqdm=True)
    assert lengths == [3, 4]
    assert scores[0][0] != scores[1][0]
    # Rounding differs with the number of rows, the value does not.
    alone = ours._loglikelihood_tokens([pairs[1]], disable_tqdm=True)
    assert alone == [scores[1]]


def test_a_rolling_text_counts_every_token_once(ours: ByteboundLM) -> None:
    text = TEXT[:1500]
    ids = ours.tok_encode(text)
    assert len(ids) > MAX_LENGTH
    total, done = 0.0, 0
    while done < len(ids):
        count = min(MAX_LENGTH, len(ids) - done)
        begin = done + count - MAX_LENGTH  # as much context as fits
        given = [ours.prefix_token_id, *ids] if begin <= 0 else ids
        start = 0 if begin <= 0 else begin - 1
        read = given[start : start + MAX_LENGTH]
        rows = ours.engine.score(read).double().log_softmax(-1)[-count:]
        total += sum(float(rows[i, ids[done + i]]) for i in range(count))
        done += count
    (found,) = ours.loglikelihood_rolling([instance("loglikelihood_rolling", text)], True)
    assert found == pytest.approx(total, rel=1e-9)


def test_the_prefix_is_the_tokenizers_end_unless_another_is_named(ours: ByteboundLM) -> None:
    assert ours.prefix_token_id == ours.eot_token_id == tiny().tokenizer.hf.eos_token_id
    other = ByteboundLM(tiny(), prefix_token_id=7)
    request = [instance("loglikelihood_rolling", TEXT[:200])]
    assert other.loglikelihood_rolling(request, True) != ours.loglikelihood_rolling(request, True)


def test_it_is_registered_and_built_from_model_arguments() -> None:
    assert get_model("bytebound") is ByteboundLM
    model = ByteboundLM.create_from_arg_string(
        "pretrained=tiny,device=cpu,max_length=64", {"batch_size": 1, "device": None}
    )
    assert (model.max_length, model.world_size) == (64, 1)


@pytest.mark.parametrize("in_one_string", [True, False])
def test_model_arguments_win_over_options(in_one_string: bool) -> None:
    options = {"batch_size": 4, "device": "cuda:0", "max_batch_size": None}
    if in_one_string:
        given = "pretrained=tiny,device=cpu,batch_size=1,max_length=64"
        model = ByteboundLM.create_from_arg_string(given, options)
    else:
        arguments = {"pretrained": tiny(), "device": "cpu", "batch_size": 1}
        model = ByteboundLM.create_from_arg_obj(arguments, options)
    assert model.batch_size == 1


def test_the_device_that_nobody_asked_for_is_no_mistake(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    arguments = {"pretrained": "tiny", "max_length": 64}
    with caplog.at_level(logging.WARNING):
        model = ByteboundLM.create_from_arg_obj(arguments, {"device": "cuda:0"})
    assert model.max_length == 64
    assert "there is no cuda:0 here: the model runs on the CPU" in caplog.text
    with pytest.raises(CudaUnavailableError, match="device='cuda:1'"):
        ByteboundLM.create_from_arg_obj(arguments, {"device": "cuda:1"})


def test_lm_evals_own_models_stay_registered() -> None:
    # In a process of its own: here, the tests have loaded them.
    program = "import bytebound_evals.lm_eval.model; from lm_eval.api.registry import get_model; "
    program += "print(get_model('hf').__name__, get_model('bytebound').__name__)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("HFLM ByteboundLM\n", 0), done.stderr


def test_the_request_cache_is_kept_apart_by_tokenizer_and_template(
    ours: ByteboundLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ours.tokenizer_name
    assert "/" not in before
    monkeypatch.setattr(ours.tokenizer, "chat_template", "{{ messages }}")
    assert ours.tokenizer_name != before


def test_arguments_that_are_missing_or_unknown_are_an_error() -> None:
    with pytest.raises(SettingError, match="expected pretrained=FOLDER"):
        ByteboundLM()
    with pytest.raises(SettingError, match=r"model argument max_len: unknown; .*max_length"):
        ByteboundLM.create_from_arg_string("pretrained=tiny,max_len=64")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 4}, "batch_size is 4: bytebound runs one request at a time"),
        ({"batch_size": "auto"}, "batch_size is 'auto'"),
        ({"prefix_token_id": 10**6}, "prefix_token_id is 1000000, expected an id"),
    ],
)
def test_arguments_that_cannot_be_are_an_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        ByteboundLM(tiny(), **arguments)


def test_choices_are_not_scored_as_thoughts() -> None:
    with pytest.raises(SettingError, match="enable_thinking: the continuations"):
        ByteboundLM(tiny(), enable_thinking=True).loglikelihood(
            [instance("loglikelihood", "a", " b")], True
        )


def test_what_gives_no_token_cannot_be_scored(ours: ByteboundLM) -> None:
    with pytest.raises(SettingError, match="request 1 has no continuation"):
        ours.loglikelihood([instance("loglikelihood", "a", "")], True)


def test_generation_arguments_become_sampling_parameters() -> None:
    plain = parse_generation({"until": "\n", "do_sample": False, "temperature": 0.7}, 99)
    assert (plain.stop, plain.max_tokens, plain.temperature) == (("\n",), 99, 0.0)
    hot = parse_generation({"until": ["a", ""], "temperature": 0.5, "top_k": 3, "seed": 1}, 99)
    assert (hot.stop, hot.temperature, hot.top_k, hot.seed) == (("a",), 0.5, 3, 1)
    for name in ("max_gen_toks", "max_new_tokens", "max_tokens"):
        assert parse_generation({name: 5}, 99).max_tokens == 5


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"num_beams": 4}, SettingError, "num_beams: not supported; known are until"),
        ({"do_sample": True}, SettingError, "do_sample without a temperature above 0"),
        ({"max_gen_toks": 5, "max_tokens": 6}, SettingError, "are several lengths"),
        ({"temperature": 1.0, "top_p": 3}, InvalidRequestError, "top_p"),
    ],
)
def test_generation_arguments_without_effect_are_an_error(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        parse_generation(given, 99)


@pytest.mark.parametrize(
    ("reply", "opened", "expected"),
    [
        ("thought\n\nmore</think>\n\nanswer\n\nrest", True, "answer"),
        ("thought\n\nwithout end", True, ""),
        ("a</think>b</think>c", True, "c"),
        ("plain\n\nrest", False, "plain\n\nrest"),
    ],
)
def test_stop_strings_end_the_answer_and_not_the_thought(
    reply: str, opened: bool, expected: str
) -> None:
    params = parse_generation({"until": ["\n\n"]}, 99)
    engine: Any = ReplyEngine(lambda prompt: reply)
    found = generate_reply(engine, [1], params, think_end="</think>", opened=opened)
    assert found.text == expected
    assert engine.params[0].stop == ()  # the engine itself would stop within the thought


def test_a_prompt_that_opens_a_thought_is_answered_behind_it(ours: ByteboundLM) -> None:
    question = arithmetic_problems()[0].question
    prompt = ours.apply_chat_template([{"role": "user", "content": question}])
    assert prompt.endswith("<think>\n")
    (reply,) = ours.generate_until(
        [instance("generate_until", prompt, {"max_gen_toks": 120})], True
    )
    assert "think" not in reply and "####" in reply


def test_a_control_token_ends_a_reply(ours: ByteboundLM) -> None:
    given = {"max_gen_toks": 40}
    prompt = ours.apply_chat_template([{"role": "user", "content": "Hello"}])
    request = instance("generate_until", prompt.removesuffix("<think>\n"), given)
    assert ours._with_stop_ids(
        parse_generation({"until": ["</think>", "x"]}, 9)
    ).stop_token_ids == (tuple(ours.tok_encode("</think>")))
    (whole,) = ours.generate_until([request], True)
    request.arguments[1]["until"] = ["</think>"]
    (stopped,) = ours.generate_until([request], True)
    assert "</think>" in whole and "</think>" not in stopped
    assert whole.startswith(stopped)


def test_replies_that_were_cut_off_are_reported(
    ours: ByteboundLM, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ours.generate_until([instance("generate_until", "Once", {"max_gen_toks": 3})], True)
    assert "1 of 1 replies were cut off by the token limit (100.0 %)" in caplog.text


def test_a_prompt_that_is_too_long_loses_its_beginning(ours: ByteboundLM) -> None:
    ids = ours.tok_encode(TEXT[:2000])
    room = MAX_LENGTH - 8
    short = ours.tok_decode(ids[-room:])
    given = {"max_gen_toks": 8}
    long_one, short_one = (
        ours.generate_until([instance("generate_until", text, given)], True)
        for text in (TEXT[:2000], short)
    )
    assert long_one == short_one


def test_a_reply_as_long_as_the_context_is_refused(ours: ByteboundLM) -> None:
    request = instance("generate_until", "a", {"max_gen_toks": MAX_LENGTH})
    with pytest.raises(SettingError, match="leaves no room for a prompt"):
        ours.generate_until([request], True)


def test_the_command_is_lm_evals_own_with_the_model_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bytebound_evals.lm_eval.cli import main

    write_tasks(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    words = ["bytebound-lm-eval", "run", "--model", "bytebound"]
    words += ["--tasks", CHOICE, "--include_path", str(tmp_path), "--limit", "2"]
    words += ["--model_args", "pretrained=tiny,dtype=float32,max_length=128"]
    monkeypatch.setattr("sys.argv", words)
    assert main() == 0
    assert f"|{CHOICE}|" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"),
    [(CheckpointError("no model\nfolder"), 2), (NonFiniteLogitsError("no model\nfolder"), 1)],
)
def test_an_error_of_the_engine_is_one_line(
    error: Exception,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from bytebound_evals.lm_eval.cli import main

    def fail() -> None:
        raise error

    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", fail)
    assert main() == code
    assert capsys.readouterr().err == "bytebound-lm-eval: error: no model\\nfolder\n"


def test_without_lm_eval_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bytebound_evals.lm_eval import cli

    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda name: None)
    assert cli.main() == 2
    assert "pip install 'bytebound-evals[lm-eval]'" in capsys.readouterr().err
