"""Bodies of OpenAI's requests. What has no effect here is either neutral or refused by name."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bytebound.grammar import ToolForm
from bytebound.server.fields import MOST_LOGPROBS, Body, Never, One, SamplingFields, one_of
from bytebound.server.formats import ResponseFormat, ToolUse

LARGEST = 2**31 - 1


class Function(BaseModel):
    """What a tool is called, does and takes."""

    model_config = ConfigDict(extra="allow")
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(None, strict=True)

    def form(self) -> ToolForm:
        """What calls of it look like; without ``parameters`` it takes none."""
        return ToolForm(self.name, self.parameters or {"properties": {}}, bool(self.strict))


class Tool(BaseModel):
    """A tool on offer."""

    type: Literal["function"]
    function: Function


class FunctionName(Body):
    """Which function."""

    name: str


class NamedTool(Body):
    """The tool that must be called."""

    type: Literal["function"]
    function: FunctionName


ToolChoice = Annotated[
    Literal["auto", "none", "required"] | NamedTool,
    one_of('"auto", "none", "required" or {"type": "function", "function": {"name": ...}}'),
]


class StreamOptions(Body):
    """What a stream holds besides the reply."""

    include_usage: bool = False
    include_obfuscation: Never | None = None


class OpenAIFields(SamplingFields):
    """What both kinds of completion take."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: One | None = None
    response_format: ResponseFormat | None = None
    user: str | None = None  # these three name the client, and nobody asks
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _check_stream_options(self) -> "OpenAIFields":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: got it without stream = true; leave it out")
        return self

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a chunk of counts."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatBody(OpenAIFields):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_tokens: int | None = Field(None, ge=1, le=LARGEST)
    max_completion_tokens: int | None = Field(None, ge=1, le=LARGEST)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking_budget: int | None = Field(None, ge=0, le=LARGEST)
    reasoning_effort: Literal["none"] | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Never | None = None

    @model_validator(mode="after")
    def _check_pairs(self) -> "ChatBody":
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: got it without logprobs = true; set both")
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise ValueError("max_tokens: differs from max_completion_tokens; give one of them")
        if self.tool_use().demanded and not self.tool_use().tools:
            raise ValueError("tool_choice: demands a call of a tool that is not in tools; add it")
        return self

    def offered(self) -> list[Tool]:
        """The tools that the model is told of."""
        return [] if self.tool_choice == "none" else self.tools or []

    def tool_use(self) -> ToolUse:
        """Which calls there may be."""
        forms = tuple(tool.function.form() for tool in self.offered())
        named = self.tool_choice
        if isinstance(named, NamedTool):
            forms = tuple(form for form in forms if form.name == named.function.name)
        demanded = named == "required" or isinstance(named, NamedTool)
        return ToolUse(forms, demanded, several=self.parallel_tool_calls is not False)

    def sampling(self) -> dict[str, Any]:
        """The fields of SamplingParams that were given."""
        given = super().sampling()
        limit = self.max_completion_tokens or self.max_tokens
        if limit is not None:
            given["max_tokens"] = limit
        if self.logprobs:
            given["logprobs"] = self.top_logprobs or 0
        return given


Ids = Annotated[list[Annotated[int, Field(ge=0, le=LARGEST)]], Field(min_length=1)]
MOST_PROMPTS = 128


class CompletionBody(OpenAIFields):
    """``POST /v1/completions``."""

    prompt: Annotated[
        str
        | Ids
        | Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS)]
        | Annotated[list[Ids], Field(min_length=1, max_length=MOST_PROMPTS)],
        one_of(f"text or token ids, at least one, or a list of up to {MOST_PROMPTS} of either"),
    ]
    max_tokens: int | None = Field(None, ge=0, le=LARGEST)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    best_of: One | None = None

    def sampling(self) -> dict[str, Any]:
        """The fields of SamplingParams that were given; 16 tokens where no number is."""
        given = super().sampling()
        given["max_tokens"] = 16 if self.max_tokens is None else self.max_tokens
        if self.logprobs is not None:
            given["logprobs"] = self.logprobs
        return given

    def prompts(self) -> list[str | list[int]]:
        """Every prompt by itself."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[item for item in self.prompt if isinstance(item, int)]]
        return [item for item in self.prompt if isinstance(item, (str, list))]
