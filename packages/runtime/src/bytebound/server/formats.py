"""The form that a request asks of its answer, and the grammar that holds the answer to it."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field
from starlette.concurrency import run_in_threadpool

from bytebound.engine import Engine
from bytebound.errors import InvalidRequestError
from bytebound.grammar import Grammar, ToolForm
from bytebound.server.errors import bad_request
from bytebound.server.fields import Body


class TextFormat(Body):
    """Any text."""

    type: Literal["text"]

    def grammar(self) -> Grammar | None:
        """None: there is nothing to hold to."""
        return None


class JsonObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]

    def grammar(self) -> Grammar | None:
        """The grammar of JSON objects."""
        return Grammar.json_object()


class NamedSchema(Body):
    """A JSON schema; it is enforced whatever ``strict`` says, and the model is not shown it."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    definition: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(Body):
    """JSON that is valid under a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema

    def grammar(self) -> Grammar | None:
        """The grammar of the schema. Raises InvalidRequestError for a word that is unsupported."""
        return Grammar.json_schema(self.json_schema.definition)


class OutputFormat(Body):
    """The same as Anthropic's protocol has it."""

    type: Literal["json_schema"]
    definition: dict[str, Any] = Field(alias="schema")

    def grammar(self) -> Grammar | None:
        """See JsonSchemaFormat."""
        return Grammar.json_schema(self.definition)


class Format(Protocol):
    """What may be asked of an answer."""

    def grammar(self) -> Grammar | None:
        """The grammar; None where there is nothing to hold to."""


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request says of calls."""

    tools: tuple[ToolForm, ...] = ()
    """Those that may be called."""
    demanded: bool = False
    """Whether one must be."""
    several: bool = True
    """Whether there may be more calls than one."""

    @property
    def is_free(self) -> bool:
        """Whether calls need no grammar of their own."""
        return not self.demanded and self.several and not any(tool.strict for tool in self.tools)

    def grammar(self, answer: Grammar | None) -> Grammar | None:
        """The grammar of a reply, whose answer beside calls has the form ``answer``.

        Raises:
            InvalidRequestError: a strict tool whose schema cannot be enforced.
        """
        if self.demanded:
            return Grammar.tool_calls(self.tools, several=self.several)
        if answer is not None and self.is_free:
            return answer.or_calls(tool.name for tool in self.tools)
        if not self.tools or self.is_free:
            return answer
        if answer is None:
            return Grammar.text_or_calls(self.tools, several=self.several)
        return answer.or_calls_of(self.tools, several=self.several)


_NO_TOOLS = ToolUse()


def compiled_grammar(
    engine: Engine, asked: Format | None, field: str, use: ToolUse = _NO_TOOLS
) -> Grammar | None:
    """The grammar of a reply, compiled: may take a second, so not on the event loop.

    ``field`` asks for the form of an answer, ``use`` says which calls there may be.

    Raises:
        RequestFailure: 400, for a schema that cannot be enforced.
    """
    try:
        grammar = use.grammar(None if asked is None else asked.grammar())
        if grammar is not None:
            engine.grammars.check(grammar)
    except InvalidRequestError as error:
        if str(error).startswith("tools: "):
            raise bad_request(str(error), "tools") from error
        raise bad_request(f"{field}: {error}", field) from error
    return grammar


async def requested_grammar(
    engine: Engine, asked: Format | None, field: str, use: ToolUse
) -> Grammar | None:
    """``compiled_grammar`` for the event loop."""
    if asked is None and use.is_free:
        return None
    return await run_in_threadpool(compiled_grammar, engine, asked, field, use)
