"""``ByteboundLM``: the engine as a model of lm-eval, under the name ``bytebound``.

Tokenizes like lm-eval's own Hugging Face model: no id is added to a text, and what a chat template
spells as control tokens is read as such. One request runs at a time.
"""

import inspect
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

# lm-eval registers its own models only where none is registered yet: they come first.
import lm_eval.models  # type: ignore[import-untyped]  # noqa: F401
import torch
from bytebound import Engine, SamplingParams
from lm_eval.api.instance import Instance  # type: ignore[import-untyped]
from lm_eval.api.model import TemplateLM  # type: ignore[import-untyped]
from lm_eval.api.registry import register_model  # type: ignore[import-untyped]
from lm_eval.utils import (  # type: ignore[import-untyped]
    get_rolling_token_windows,
    make_disjoint_window,
    simple_parse_args_string,
)
from tqdm import tqdm  # type: ignore[import-untyped]

from bytebound_evals.answers import THINK_END, THINK_START
from bytebound_evals.errors import SettingError
from bytebound_evals.identity import digest, tokenizer_digest
from bytebound_evals.lm_eval.generation import generate_reply, parse_generation
from bytebound_evals.logprobs import blocks, log_probabilities

NAME = "bytebound"
DEFAULT_GEN_TOKENS = 256
ANY_DEVICE = "cuda:0"
"""What lm-eval's command line hands on where no ``--device`` was given."""
_log = logging.getLogger(__name__)

Pair = tuple[tuple[str, str] | None, list[int], list[int]]
"""Texts for the cache, ids of the context, ids of the continuation."""


@register_model(NAME)
class ByteboundLM(TemplateLM):  # type: ignore[misc]
    """Model arguments: those of ``Engine.from_pretrained``, and what follows.

    ``pretrained``: folder or known name. ``max_length``: the engine's context (``max_len``).
    ``prefix_token_id``: what stands in front of a text without context, by default the tokenizer's
    start token, else its end token. ``max_gen_toks``: the longest reply where a task names none.
    ``enable_thinking`` and ``chat_template_args``: variables of the chat template.
    ``think_end_token``: what ends a thought, by default ``</think>`` with ``enable_thinking`` or
    where the prompt itself opens a thought; the reply is what stands behind it.
    """

    def __init__(
        self,
        pretrained: str | Engine | None = None,
        *,
        backend: str = "auto",
        device: str | None = None,
        dtype: str | None = None,
        max_length: int | None = None,
        kv_dtype: str = "auto",
        draft: str = "mtp",
        num_draft_tokens: int = 4,
        engine: str = "graph",
        seed: int | None = None,
        prefix_token_id: int | None = None,
        max_gen_toks: int = DEFAULT_GEN_TOKENS,
        enable_thinking: bool | None = None,
        think_end_token: str | None = None,
        chat_template_args: dict[str, Any] | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        **unknown: Any,
    ) -> None:
        """Load the model.

        Raises:
            SettingError: an argument is missing or unknown, a batch size is above 1, or the model
                does not have the prefix id.
            ByteboundError: the model cannot be loaded so.
        """
        super().__init__()
        if unknown:
            known = ", ".join(list(inspect.signature(ByteboundLM).parameters)[:-1])
            raise SettingError(
                f"model argument {', '.join(unknown)}: unknown; expected some of {known}"
            )
        if pretrained is None:
            raise SettingError(
                "the model arguments name no model: expected pretrained=FOLDER, or pretrained=tiny"
            )
        if str(batch_size) != "1":
            raise SettingError(
                f"batch_size is {batch_size!r}: bytebound runs one request at a time"
            )
        self.engine = (
            pretrained
            if isinstance(pretrained, Engine)
            else Engine.from_pretrained(
                pretrained,
                backend=backend,
                device=device,
                dtype=dtype,
                max_len=max_length,
                kv_dtype=kv_dtype,
                draft=draft,
                num_draft_tokens=num_draft_tokens,
                engine=engine,
                seed=seed,
            )
        )
        self.tokenizer = self.engine.tokenizer.hf
        self.max_length = self.engine.max_len
        self.max_gen_toks = max_gen_toks
        self.batch_size = 1
        self.enable_thinking = enable_thinking
        self.think_end_token = think_end_token or (THINK_END if enable_thinking else None)
        self.chat_template_args = dict(chat_template_args or {})
        if enable_thinking is not None:
            self.chat_template_args["enable_thinking"] = enable_thinking
        self._pretrained = pretrained if isinstance(pretrained, str) else "an engine"
        self._prefix = self._find_prefix(prefix_token_id)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> Self:
        """See ``create_from_arg_obj``."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> Self:
        """The model of a command line: its model arguments win over its options.

        Where PyTorch sees no GPU, ``--device cuda:0`` is any device, as for lm-eval's own models.
        """
        options = {k: v for k, v in (additional_config or {}).items() if v is not None}
        if options.get("device") == ANY_DEVICE and not torch.cuda.is_available():
            del options["device"]
            if "device" not in arg_dict:
                _log.warning("there is no %s here: the model runs on the CPU", ANY_DEVICE)
        return cls(**{**options, **arg_dict})

    @property
    def eot_token_id(self) -> int:
        """The tokenizer's end token."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """The id in front of a text that has no context."""
        return self._prefix

    @property
    def tokenizer_name(self) -> str:
        """Changes with the tokenizer and the chat template: lm-eval keeps requests under it."""
        template = digest(self.tokenizer.chat_template)
        return f"bytebound-{tokenizer_digest(self.engine.tokenizer)[:16]}-{template[:16]}"

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Ids of a text; control tokens are parsed, none is added."""
        return self.engine.tokenizer.encode(string, parse_control=True)

    def tok_decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids."""
        return self.engine.tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The conversation in the model's own format, as text.

        Whatever the template refuses is an error; nothing of the conversation is dropped.
        """
        text: str = self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
            **self.chat_template_args,
        )
        return text

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Log-probability of each continuation, and whether it is the greedy one."""
        if self.enable_thinking:
            raise SettingError(
                "enable_thinking: the continuations of this task would be scored as thoughts; "
                "turn it off, or choose a task that generates"
            )
        scored: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm)
        return scored

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-probability of each whole text: every token once, with as much context as fits."""
        totals = []
        for request in tqdm(requests, desc="rolling texts", disable=disable_tqdm):
            (text,) = request.args
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            pairs: list[Pair] = [(None, *make_disjoint_window(window)) for window in windows]
            total = sum(score for score, _ in self._loglikelihood_tokens(pairs, disable_tqdm=True))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
            totals.append(total)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The reply to each prompt; a prompt that is too long loses its beginning."""
        replies = []
        cut = 0
        for request in tqdm(requests, desc="replies", disable=disable_tqdm):
            context, given = request.args
            params = parse_generation(given, self.max_gen_toks)
            room = self.max_length - params.max_tokens
            if room < 1:
                raise SettingError(
                    f"a reply of {params.max_tokens} tokens leaves no room for a prompt in the "
                    f"context of {self.max_length}; load with a larger max_length"
                )
            ids = self.tok_encode(context)
            if len(ids) > room:
                _log.warning("a prompt of %d tokens is cut to its last %d", len(ids), room)
            thinks = context.rstrip().endswith(THINK_START)
            reply = generate_reply(
                self.engine,
                ids[-room:],
                self._with_stop_ids(params),
                think_end=self.think_end_token or (THINK_END if thinks else None),
                opened=thinks,
            )
            cut += reply.cut
            self.cache_hook.add_partial("generate_until", (context, given), reply.text)
            replies.append(reply.text)
        if cut:
            _log.warning(
                "%d of %d replies were cut off by the token limit (%.1f %%); above 2 %% the score "
                "says more about the limit than about the model",
                cut, len(replies), 100 * cut / len(replies),
            )  # fmt: skip
        return replies

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes beside the results."""
        return {
            "model": self._pretrained,
            "tokenizer": tokenizer_digest(self.engine.tokenizer),
            "max_length": self.max_length,
            "prefix_token_id": self.prefix_token_id,
        }

    def _loglikelihood_tokens(
        self, requests: list[Pair], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Score pairs of ids; pairs that make the model read the same ids share one pass."""
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, (_, context, continuation) in enumerate(requests):
            if not continuation:
                raise SettingError(
                    f"request {number + 1} has no continuation to score: its text gives no token"
                )
            if len(continuation) > self.max_length:
                raise SettingError(
                    f"a continuation of {len(continuation)} tokens does not fit the context of "
                    f"{self.max_length}; load with a larger max_length"
                )
            groups[self._input(context, continuation)].append(number)
        scores: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        progress = tqdm(total=len(requests), desc="continuations", disable=disable_tqdm)
        for ids, numbers in groups.items():
            logits = self.engine.score(ids)
            for number in numbers:
                texts, _, continuation = requests[number]
                scores[number] = _score(logits, continuation)
                if texts is not None:
                    self.cache_hook.add_partial("loglikelihood", texts, scores[number])
            progress.update(len(numbers))
        progress.close()
        return scores

    def _input(self, context: list[int], continuation: list[int]) -> tuple[int, ...]:
        """What the model reads: all but the last id, as many of the last as fit."""
        ids = [*context, *continuation]
        if len(ids) > self.max_length + 1:
            _log.warning(
                "a context of %d tokens loses its first %d",
                len(context), len(ids) - self.max_length - 1,
            )  # fmt: skip
        return tuple(ids[-(self.max_length + 1) : -1])

    def _find_prefix(self, given: int | None) -> int:
        if given is not None:
            if not 0 <= given < self.engine.config.vocab_size:
                raise SettingError(
                    f"prefix_token_id is {given}, expected an id of the vocabulary, 0 to "
                    f"{self.engine.config.vocab_size - 1}"
                )
            return given
        start = self.tokenizer.bos_token_id
        return self.eot_token_id if start is None else int(start)

    def _with_stop_ids(self, params: SamplingParams) -> SamplingParams:
        """Stop strings that are control tokens are ids too: they never show in the text."""
        stop_ids = []
        for stop in params.stop:
            ids = self.tok_encode(stop)
            if len(ids) == 1 and ids[0] in self.engine.tokenizer.control_ids:
                stop_ids.append(ids[0])
        return replace(params, stop_token_ids=(*params.stop_token_ids, *stop_ids))


def _score(logits: torch.Tensor, continuation: list[int]) -> tuple[float, bool]:
    """Of logits ``[T, vocab]``, whose last rows predict the continuation: its sum, is it greedy."""
    rows = logits[-len(continuation) :]
    targets = torch.tensor(continuation)
    total, greedy = 0.0, True
    for block in blocks(*rows.shape):
        own = log_probabilities(rows[block])
        expected = targets[block].to(own.device)
        total += float(own.gather(1, expected[:, None]).sum())
        greedy = greedy and bool((own.argmax(-1) == expected).all())
    return total, greedy
