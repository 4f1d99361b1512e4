"""Bodies of Anthropic's requests.

Agents send more fields every month, and stop working where one is refused. So unknown fields are
accepted, left out, and named in ``x_bytebound.ignored``; those that would change what a reply may
hold are refused.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from bytebound.grammar import ToolForm
from bytebound.server.fields import MOST_STOPS, Body, StopString, one_of
from bytebound.server.formats import OutputFormat, ToolUse
from bytebound.server.openai_bodies import LARGEST


class Thinking(BaseModel):
    """Whether to think, and for how many tokens at most."""

    model_config = ConfigDict(strict=True)

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1, le=LARGEST)

    @property
    def limit(self) -> int | None:
        """Tokens that a thought may have; None is no bound but ``max_tokens``."""
        return self.budget_tokens if self.type == "enabled" else None


class AnthropicTool(BaseModel):
    """A tool on offer. Tools that run at the provider have another type and are refused."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")]
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = Field(None, strict=True)

    def for_template(self) -> dict[str, Any]:
        """The tool in the form that chat templates know, which is OpenAI's."""
        function = {
            "name": self.name,
            "description": self.description or "",
            "parameters": self.input_schema,
        }
        return {"type": "function", "function": function}

    def form(self) -> ToolForm:
        """What calls of it look like."""
        return ToolForm(self.name, self.input_schema, bool(self.strict))


class ToolChoice(BaseModel):
    """Whether a call may or must be made, of any tool or of one, and whether there may be more."""

    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = Field(None, strict=True)


class OutputConfig(BaseModel):
    """How to answer; all but the format has no effect here."""

    model_config = ConfigDict(extra="allow")
    format: OutputFormat | None = None


class CountBody(Body):
    """``POST /v1/messages/count_tokens``: what the prompt is made of."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    model: str
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    system: Annotated[
        str | list[dict[str, Any]] | None, one_of("a string or a list of text blocks")
    ] = None
    thinking: Thinking | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # as it was called at first

    @model_validator(mode="after")
    def _check_unknown(self) -> "CountBody":
        unknown = self.model_extra or {}
        if self.output_format is not None and self.output_config and self.output_config.format:
            raise ValueError("output_format: got output_config.format too; give one of them")
        if unknown.get("mcp_servers"):
            raise ValueError("mcp_servers: this server calls no other; leave it out")
        if self.tool_use().demanded and not self.tool_use().tools:
            raise ValueError("tool_choice: demands a call of a tool that is not in tools; add it")
        return self

    @field_validator("messages")
    @classmethod
    def _check_last(cls, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if messages[-1].get("role") == "assistant":
            raise ValueError("the last message is the assistant's; going on from it is unsupported")
        return messages

    def offered(self) -> list[AnthropicTool]:
        """The tools that the model is told of."""
        unwanted = self.tool_choice is not None and self.tool_choice.type == "none"
        return [] if unwanted else self.tools or []

    def tool_use(self) -> ToolUse:
        """Which calls there may be."""
        forms = tuple(tool.form() for tool in self.offered())
        choice = self.tool_choice
        if choice is None:
            return ToolUse(forms)
        if choice.type == "tool":
            forms = tuple(form for form in forms if form.name == choice.name)
        demanded = choice.type in ("any", "tool")
        return ToolUse(forms, demanded, several=not choice.disable_parallel_tool_use)

    def ignored(self) -> list[str]:
        """Fields that were given and have no effect."""
        config = self.output_config.model_extra if self.output_config else None
        names = [*(self.model_extra or {}), *(f"output_config.{name}" for name in config or {})]
        return sorted(name[:80] for name in names)

    def form(self) -> OutputFormat | None:
        """What the answer must look like, if the request says so."""
        config = self.output_config
        return self.output_format if config is None else config.format or self.output_format


class MessagesBody(CountBody):
    """``POST /v1/messages``."""

    max_tokens: int = Field(ge=1, le=LARGEST)
    stream: bool | None = None
    stop_sequences: Annotated[list[StopString], Field(max_length=MOST_STOPS)] | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=LARGEST)
    metadata: dict[str, Any] | None = None  # names the client's user, and nobody asks

    def sampling(self) -> dict[str, Any]:
        """The fields of SamplingParams that were given."""
        names = ("max_tokens", "temperature", "top_p", "top_k")
        given = {name: getattr(self, name) for name in names}
        given["stop"] = self.stop_sequences
        return {name: value for name, value in given.items() if value is not None}
