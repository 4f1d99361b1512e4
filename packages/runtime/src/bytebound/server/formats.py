"""The form that a request asks of its answer, and the grammar that holds the answer to it."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field
from starlette.concurrency import run_in_threadpool

from bytebound.engine import Engine
from bytebound.errors import InvalidRequestError
from bytebound.grammar import Grammar
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


def compiled_grammar(
    engine: Engine, asked: Format | None, field: str, calls: Iterable[str] = ()
) -> Grammar | None:
    """The grammar that ``field`` asks for, compiled: may take a second, so not on the event loop.

    ``calls`` are the functions that the reply may call instead.

    Raises:
        RequestFailure: 400, for a schema that cannot be enforced.
    """
    try:
        grammar = None if asked is None else asked.grammar()
        if grammar is not None:
            grammar = grammar.or_calls(calls)
            engine.grammars.check(grammar)
    except InvalidRequestError as error:
        raise bad_request(f"{field}: {error}", field) from error
    return grammar


async def requested_grammar(
    engine: Engine, asked: Format | None, field: str, calls: Iterable[str]
) -> Grammar | None:
    """``compiled_grammar`` for the event loop."""
    if asked is None:
        return None
    return await run_in_threadpool(compiled_grammar, engine, asked, field, calls)
