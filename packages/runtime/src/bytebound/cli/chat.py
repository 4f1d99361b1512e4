"""``bytebound chat``: a conversation in the terminal, or one message per line from a pipe.

Answers go to stdout. Everything else (prompt signs, remarks, the model's thinking when stdout is no
terminal) stays off it, so a piped conversation gives the answers alone. The history goes through
the model's chat template, thinking left out. What goes wrong with one message costs that message.
"""

import sys
from typing import TYPE_CHECKING, Any

from bytebound.cli import options as opt
from bytebound.cli.errors import OK
from bytebound.cli.reply import Reply
from bytebound.errors import ByteboundError, ContextOverflowError, TokenizerMissingError
from bytebound.results import StreamEvent

if TYPE_CHECKING:
    from bytebound.cli.answer import Answer
    from bytebound.engine import Engine

DEFAULT_ANSWER_TOKENS = 1024

HELP = """\
/help          this list
/reset         forget the conversation; the system message stays
/system TEXT   set the system message; without TEXT, show it
/exit          leave, as Ctrl-D does
Ctrl-C ends the answer that is being written. A line that begins with a blank is never a command."""


def chat(
    model: opt.Model,
    system: opt.System = None,
    thinking: opt.Thinking = None,
    json_: opt.Json = False,
    max_tokens: opt.AnswerTokens = DEFAULT_ANSWER_TOKENS,
    temperature: opt.Temperature = None,
    top_p: opt.TopP = None,
    top_k: opt.TopK = None,
    min_p: opt.MinP = None,
    repetition_penalty: opt.RepetitionPenalty = None,
    presence_penalty: opt.PresencePenalty = None,
    frequency_penalty: opt.FrequencyPenalty = None,
    stop: opt.Stop = None,
    seed: opt.Seed = None,
    draft: opt.Draft = None,
    num_draft_tokens: opt.NumDraftTokens = 4,
    backend: opt.Backend = "auto",
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    max_len: opt.MaxLen = None,
    vram_limit: opt.VramLimit = None,
    kv_dtype: opt.KvDtype = "auto",
    draft_vocab: opt.DraftVocab = None,
    adaptive_depth: opt.AdaptiveDepth = False,
    engine_name: opt.EngineName = "graph",
) -> int:
    """Talk to a model; /help inside lists the commands.

    Messages come from the terminal, or one per line from a pipe.
    With --json each answer is one line of JSON.
    """
    sampling = opt.SamplingOptions(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        stop=stop or None,
    )
    loading = opt.EngineOptions(
        model,
        draft,
        num_draft_tokens,
        backend,
        device,
        dtype,
        max_len,
        vram_limit,
        kv_dtype,
        draft_vocab,
        adaptive_depth,
        engine=engine_name,
    )

    from bytebound.cli.lines import message_lines
    from bytebound.cli.opening import open_engine
    from bytebound.cli.output import remark

    engine = open_engine(loading, sampling)
    if not engine.tokenizer.hf.chat_template:
        raise TokenizerMissingError(
            f"{model}: the model folder holds no chat template, so there is nothing to chat "
            "through; add chat_template.jinja, or use 'bytebound generate'"
        )
    conversation = Conversation(engine, sampling, system=system, thinking=thinking, as_json=json_)
    if sys.stdin.isatty():
        remark(f"{model}, context {engine.max_len} tokens; /help lists the commands")
    for line in message_lines():
        if not conversation.handle(line):
            break
    return OK


class Conversation:
    """The messages so far, and what a line from the user does to them."""

    def __init__(
        self,
        engine: "Engine",
        sampling: opt.SamplingOptions,
        *,
        system: str | None,
        thinking: bool | None,
        as_json: bool,
    ) -> None:
        self._engine = engine
        self._sampling = sampling
        self._system = system
        self._thinking = thinking
        self._as_json = as_json
        self._turns: list[dict[str, str]] = []

    def handle(self, line: str) -> bool:
        """Run a command or answer a message; False ends the conversation."""
        from bytebound.cli.output import remark

        if not line.strip():
            return True
        word, _, rest = line.partition(" ")
        # A path such as /usr/bin is a message.
        if not (word.startswith("/") and word[1:].isalpha()):
            self._reply(line)
        elif word in ("/exit", "/quit"):
            return False
        elif word == "/help":
            for help_line in HELP.splitlines():
                remark(help_line)
        elif word == "/reset":
            self._turns.clear()
            remark("the conversation starts over")
        elif word == "/system":
            if rest.strip():
                self._system = rest.strip()
            remark(f"system message: {self._system if self._system is not None else 'none'}")
        else:
            remark(f"unknown command {word}; /help lists the commands")
        return True

    def _reply(self, text: str) -> None:
        from bytebound.cli.errors import complain

        self._turns.append({"role": "user", "content": text})
        try:
            answer, reply = self._generate()
        except ContextOverflowError as error:
            self._turns.pop()
            complain(f"{error}; /reset starts a new conversation")
        except ByteboundError as error:
            self._turns.pop()
            complain(str(error))
        else:
            self._turns.append({"role": "assistant", "content": reply.answer.strip()})
            self._finish(answer, reply)

    def _generate(self) -> "tuple[Answer, Reply]":
        from bytebound.cli.answer import run_request
        from bytebound.cli.opening import request_params
        from bytebound.text.reply import ReplySplitter

        engine = self._engine
        messages: list[dict[str, str]] = list(self._turns)
        if self._system is not None:
            messages.insert(0, {"role": "system", "content": self._system})
        prompt_ids = engine.tokenizer.apply_chat_template(messages, enable_thinking=self._thinking)
        splitter, reply = ReplySplitter(engine.tokenizer, prompt_ids), Reply()

        def show(event: StreamEvent) -> None:
            self._show(reply, *reply.take(splitter.push(event.token_ids, event.text_delta)))

        params = request_params(engine, self._sampling)
        answer = run_request(engine, prompt_ids, params, show)
        self._show(reply, *reply.take(splitter.finish(answer.finish_reason)))
        return answer, reply

    def _show(self, reply: Reply, thought: str, answer: str) -> None:
        """Write what came in; ``reply`` holds all of it so far."""
        from bytebound.cli.output import dimmed, emit

        if self._as_json:
            return
        if answer and answer == reply.answer and reply.thought:
            thought += "\n\n"
        if sys.stdout.isatty():
            emit(dimmed(thought, sys.stdout) + answer)
        else:
            sys.stderr.write(thought)
            emit(answer)

    def _finish(self, answer: "Answer", reply: Reply) -> None:
        from bytebound.cli.opening import draft_name
        from bytebound.cli.output import emit, emit_json, remark, stats_line

        if self._as_json:
            emit_json(_record(answer, reply))
            return
        if not reply.answer.endswith("\n"):
            emit("\n")
        remark(stats_line(answer.stats, answer.finish_reason, draft_name(self._engine)))
        used = answer.stats.prompt_tokens + answer.stats.completion_tokens
        if answer.finish_reason == "length" and used >= self._engine.max_len:
            remark(f"the context of {self._engine.max_len} tokens is full; /reset starts over")
        elif answer.finish_reason == "length":
            remark("the answer was cut at --max-tokens")


def _record(answer: "Answer", reply: Reply) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": reply.answer,
        "thinking": reply.thought or None,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "stats": answer.stats.as_dict(),
    }
