"""The parser of request bodies: what the engine needs, or the refusal that a real engine would give.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.reply_checks import StructuredOutput, compact
from pytest_llmbench.simulator.engine.media import ids_in
from pytest_llmbench.simulator.engine.request import GenerationRequest, RefusalError

VOCABULARY_SIZE = 100277
"""Number of token ids of cl100k_base, special ones included; the ids of a prompt must be below it."""


_PIECES = frozenset({"image_url", "input_audio", "video_url", "audio_url"})


class Endpoint(StrEnum):
    """The paths of endpoints that generate."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


def parse_request(
    body: bytes, endpoint: Endpoint, model: str, adapters: Collection[str] = ()
) -> GenerationRequest:
    """Parse a request for ``endpoint`` of a server that serves ``model``, and ``adapters`` as further models.
    Unknown fields are ignored.

    Raises RefusalError: 400 for what is not JSON or has wrong types or values, all of them named; 404 for
    another model.
    """
    content = content_of(body)
    fields = Fields(content, model, adapters)
    chat = endpoint is Endpoint.CHAT
    texts, token_ids = fields.messages() if chat else fields.prompt()
    tools = fields.tools() if chat else ()
    form = schema_form(content, "response_format")
    return fields.request(
        with_tools(texts, tools),
        fields.ceiling(),
        token_ids=token_ids,
        media_ids=fields.media_ids() if chat else (),
        structured=fields.structured(tools, form and form.get("json_schema", {})) if chat else None,
        include_usage=fields.stream_option("include_usage"),
        continuous_usage=fields.stream_option("continuous_usage_stats"),
    )


def with_tools(texts: tuple[str, ...], tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The texts of a prompt with its tools: a chat template puts these in front, here as plain JSON."""
    return (compact(list(tools)), *texts) if tools else texts


def schema_form(holder: Any, key: str) -> Any:
    """The value of ``key``, if it asks for an answer by a schema; else None."""
    form = holder.get(key) if isinstance(holder, dict) else None
    return form if isinstance(form, dict) and form.get("type") == "json_schema" else None


def content_of(body: bytes) -> dict[str, Any]:
    """The members of a request's body. RefusalError 400 if it is not a JSON object."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError, too
        raise RefusalError(400, f"the request body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise RefusalError(400, "the request body must be a JSON object")
    return content


def require_model(asked: str | None, model: str) -> None:
    """Raise RefusalError 404 if ``asked`` names another model."""
    if asked is not None and asked != model:
        raise RefusalError(404, f"the model {asked!r} does not exist; served here: {model}", "model")


def parse_tokenize(body: bytes, model: str) -> GenerationRequest:
    """Parse a request for ``/tokenize``: ``prompt`` or ``messages``. Raises RefusalError as above."""
    try:
        chat = isinstance(found := json.loads(body), dict) and "messages" in found
    except (ValueError, RecursionError):
        chat = False
    return parse_request(body, Endpoint.CHAT if chat else Endpoint.COMPLETIONS, model)


class Fields:
    """The members of a request; reading a wrong one notes the mistake and gives a harmless value."""

    def __init__(self, content: dict[str, Any], model: str = "", adapters: Collection[str] = ()) -> None:
        """``model``: the one that is served; empty where the members do not name one. ``adapters``: further
        names that may be asked for."""
        self._content = content
        self._adapters = adapters
        self._model = model
        self.mistakes: dict[str, str] = {}
        self._asked = self.text("model") if model else None

    def _wrong(self, name: str, wanted: str) -> None:
        shown = json.dumps(self._content.get(name))
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        self.mistakes[name] = f"{name} must be {wanted}, not {shown}"

    def require_none_wrong(self) -> None:
        """Raise RefusalError 400 with all mistakes so far, if there are any."""
        if self.mistakes:
            raise RefusalError(400, "; ".join(self.mistakes.values()), next(iter(self.mistakes)))

    def _read(self, name: str, wanted: str, right: Callable[[Any], bool]) -> Any:
        value = self._content.get(name)
        if value is None or right(value):
            return value
        self._wrong(name, wanted)
        return None

    def text(self, name: str) -> str | None:
        found: str | None = self._read(name, "a string", lambda value: isinstance(value, str))
        return found

    def flag(self, name: str) -> bool:
        return self._read(name, "true or false", lambda value: isinstance(value, bool)) is True

    def count(self, name: str, least: int | None = None) -> int | None:
        found: int | None = self._read(
            name,
            "a whole number" if least is None else f"a whole number of {least} or more",
            lambda value: type(value) is int and (least is None or value >= least),
        )
        return found

    def ceiling(self) -> int | None:
        plain = self.count("max_tokens", least=1)
        newer = self.count("max_completion_tokens", least=1)
        return plain if newer is None else newer

    def thinks(self) -> bool:
        template = self._content.get("chat_template_kwargs")
        if template is not None and not isinstance(template, dict):
            self._wrong("chat_template_kwargs", "an object")
            return True
        enabled = (template or {}).get("enable_thinking", True)
        return enabled is not False and self._content.get("reasoning_effort") != "none"

    def stream_option(self, name: str) -> bool:
        options = self._content.get("stream_options")
        if options is None:
            return False
        if not isinstance(options, dict) or not isinstance(options.get(name, False), bool):
            self._wrong("stream_options", f"an object, its {name} true or false")
            return False
        if self._content.get("stream") is not True:
            self.mistakes["stream_options"] = "stream_options is only allowed with stream: true"
        return options.get(name, False) is True

    def messages(self, name: str = "messages") -> tuple[tuple[str, ...], None]:
        messages = self._content.get(name)
        if not isinstance(messages, list) or not messages:
            self._wrong(name, "a list with at least one message")
            return (), None
        texts = [_message_texts(message) for message in messages]
        if any(parts is None for parts in texts):
            self._wrong(name, "a list of objects with a role and a text content")
        return tuple(text for parts in texts if parts is not None for text in parts), None

    def media_ids(self) -> Sequence[int]:
        """Ids that stand for the images and sounds of the messages. Raises RefusalError for others."""
        messages = self._content.get("messages")
        listed = messages if isinstance(messages, list) else []
        return tuple(each for one in listed if isinstance(one, dict) for each in ids_in(one.get("content")))

    def prompt(self) -> tuple[tuple[str, ...], Sequence[int] | None]:
        prompt = self._content.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]  # a batch of one is the same as its only prompt
        if isinstance(prompt, str):
            return (prompt,), None
        if isinstance(prompt, list) and all(type(token) is int for token in prompt):
            if prompt and not 0 <= min(prompt) <= max(prompt) < VOCABULARY_SIZE:
                self._wrong("prompt", f"token ids from 0 to {VOCABULARY_SIZE - 1}")
            return (), prompt
        self._wrong("prompt", "one text or one list of token ids")
        return (), None

    def tools(self, parameters: str = "") -> tuple[Mapping[str, Any], ...]:
        """The tools in the shape of the chat API; none where one of them cannot be kept to, which is noted.

        ``parameters``: the key of the schema where tools are flat; empty: they are in that shape.
        """
        tools = self._content.get("tools")
        if tools is None:
            return ()
        if not isinstance(tools, list) or not tools:
            self._wrong("tools", "a list of functions")
            return ()
        shaped = list(tools)
        for number, tool in enumerate(tools if parameters else ()):
            if isinstance(tool, dict):
                kept = {"parameters" if key == parameters else key: value for key, value in tool.items()}
                function = {key: value for key, value in kept.items() if key not in ("type", "strict")}
                shaped[number] = {"type": "function", "function": function}
        try:
            StructuredOutput.of(shaped)
        except (SuiteError, RecursionError) as error:
            self.mistakes["tools"] = str(error)
            return ()
        return tuple(shaped)

    def structured(self, tools: Sequence[Mapping[str, Any]], form: Any) -> StructuredOutput | None:
        """The form that the reply has to have, if the request settles it. ``form``: what holds the schema of
        an answer."""
        choice, wanted = self._content.get("tool_choice"), None
        if isinstance(choice, dict):  # chat has the name of the tool in an object of its own
            function = choice.get("function")
            wanted = (function if isinstance(function, dict) else choice).get("name")
            wanted = wanted if isinstance(wanted, str) else None
        if tools and wanted:
            tools = [tool for tool in tools if tool["function"]["name"] == wanted]
            if not tools:
                self._wrong("tool_choice", "the name of one of the tools")
                return None
        if tools and (wanted or choice in ("required", {"type": "any"})):
            return StructuredOutput(compact(list(tools)))
        if form is None:
            return None
        try:
            return StructuredOutput.of(schema=form.get("schema") if isinstance(form, dict) else None)
        except (SuiteError, RecursionError) as error:
            self.mistakes["schema"] = f"the form of the answer: {error}"
            return None

    def request(
        self,
        texts: tuple[str, ...],
        max_tokens: int | None,
        *,
        token_ids: Sequence[int] | None = None,
        media_ids: Sequence[int] = (),
        structured: StructuredOutput | None = None,
        thinks: bool = True,
        include_usage: bool = True,
        continuous_usage: bool = False,
    ) -> GenerationRequest:
        """The request, with the fields that all APIs have. RefusalError 400 with all mistakes so far, 404 for
        another model."""
        request = GenerationRequest(
            texts=texts,
            token_ids=token_ids,
            media_ids=media_ids,
            stream=self.flag("stream"),
            include_usage=include_usage,
            max_tokens=max_tokens,
            min_tokens=self.count("min_tokens", least=0) or 0,
            ignore_eos=self.flag("ignore_eos"),
            continuous_usage=continuous_usage,
            priority=self.count("priority") or 0,
            thinks=self.thinks() and thinks,
            structured=structured,
            adapter=self._asked if self._asked is not None and self._asked in self._adapters else "",
        )
        temperature = self._content.get("temperature")
        number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
        if temperature is not None and not (number and temperature >= 0):
            self._wrong("temperature", "a number of 0 or more")
        if self._content.get("n") not in (None, 1):
            self._wrong("n", "1: this server gives one choice")
        if max_tokens is not None and request.min_tokens > max_tokens:
            self._wrong("min_tokens", f"at most max_tokens ({max_tokens})")
        return self.right(request)

    def right(self, request: GenerationRequest) -> GenerationRequest:
        """``request``, if nothing in it is wrong; raises as :meth:`request`."""
        self.require_none_wrong()
        if not request.adapter:
            require_model(self._asked, self._model)
        return request


def _message_texts(message: Any) -> list[str] | None:
    """The texts of a message: its content, a string or a list of parts, and of each call its name with its
    arguments. ``None`` if it is not a message. Calls and their results may be items of their own
    (Responses)."""
    if not isinstance(message, dict):
        return None
    if message.get("type") == "function_call":
        return _call_texts([message])
    if message.get("type") == "function_call_output":
        return _content_texts(message.get("output"))
    if not isinstance(message.get("role"), str):
        return None
    content, calls = message.get("content"), message.get("tool_calls") or []
    if content is None:  # an assistant's message may hold tool calls only
        content = []
    texts = _content_texts(content)
    called = _call_texts([call.get("function") if isinstance(call, dict) else None for call in calls])
    return None if texts is None or called is None else texts + called


def _content_texts(content: Any) -> list[str] | None:
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return None
    found: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "tool_use":
            texts = _call_texts([{"name": part.get("name"), "arguments": part.get("input")}])
        elif kind == "tool_result":
            texts = _content_texts(part.get("content", ""))
        elif kind in _PIECES:
            texts = []  # counted apart
        else:
            text = part.get("text") if isinstance(part, dict) else None
            texts = [text] if isinstance(text, str) else None
        if texts is None:
            return None
        found += texts
    return found


def _call_texts(functions: list[Any]) -> list[str] | None:
    """The texts of tool calls. ``arguments`` are text, or an object, whose text is compact JSON."""
    found = []
    for function in functions:
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str):
            return None
        arguments = function.get("arguments") or ""
        found.append(name + (arguments if isinstance(arguments, str) else compact(arguments)))
    return found
