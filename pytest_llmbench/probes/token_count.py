"""The number of tokens a prompt has for the server itself, with its chat template (AMB-32)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.errors import SUTError
from pytest_llmbench.http_client import http_beside, is_grpc, is_websocket
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.api_detection import send
from pytest_llmbench.probes.control_plane import Answer, Closing, ControlPlane, without_query
from pytest_llmbench.probes.engine_metrics import server_root
from pytest_llmbench.probes.model_list import below
from pytest_llmbench.wire.catalogue import dialect_at
from pytest_llmbench.wire.dialect import Dialect, EncodeOptions, headers_for, path_for
from pytest_llmbench.wire.error_replies import json_object, read_error_body
from pytest_llmbench.wire.reply import read_stream
from pytest_llmbench.wire.stream import chunks_of

MOST_CALLS = 2_000
"""Most requests that one counter sends, by default."""

_SAMPLE = "Hello"
_TEMPLATE_FIELDS = ("chat_template", "chat_template_kwargs", "add_generation_prompt", "tools")
"""Request fields that change what the chat template makes of a prompt."""
_COUNT_FIRST = re.compile(rb'\s*\{\s*"count"\s*:\s*(\d+)\s*,')
"""The beginning of vLLM's answer. It goes on with all the ids, which are not all read for a long prompt."""


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to have a server count the tokens of a text."""

    url: str
    body: Callable[[str], bytes]
    read: Callable[[Answer], int | str]
    """Reads the count in the answer; returns text, the reason, if it contains none."""
    completes: bool = False
    template_url: str = ""
    """URL where the chat template makes a prompt of the text first; empty: ``body`` takes the text as it
    is."""


class UncountedError(SUTError):
    """The server does not report the number of tokens of any prompt."""


class ServerTokenCount(Closing):
    """``count(text)``: tokens of the prompt, as the server will count it in ``usage.prompt_tokens``.

    Asked in this order: ``POST /tokenize`` as vLLM and SGLang have it, or llama.cpp (of a chat behind its
    ``POST /apply-template``), if what it says of a sample agrees with the usage of a completion; else the
    usage of completions of one token each. The first count finds out. Counts are remembered.

    Raises :class:`UncountedError` where the server does not say, :class:`SUTError` where it stops saying, or
    was asked ``most_calls`` times.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api: str,
        access: Access | None = None,
        *,
        extra_body: Mapping[str, Any] | None = None,
        most_calls: int = MOST_CALLS,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._dialect: Dialect = dialect_at(base_url, api)
        self._options = EncodeOptions(model, extra_body=extra_body or {})
        self._control = ControlPlane(self._base_url, access or Access())
        self._most_calls = most_calls
        self._seen: dict[bytes, int] = {}
        self._way: _Way | None = None
        self.calls = 0
        """Number of requests sent so far."""

    def close(self) -> None:
        self._control.close()

    def __call__(self, text: str) -> int:
        # The digest, since prompts may be long and many.
        key = hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).digest()
        if key not in self._seen:
            if self._way is None:
                self._way = self._find_way()
            found = self._ask(self._way, text)
            if isinstance(found, str):
                raise SUTError(
                    f"the tokens of a prompt of {len(text)} characters cannot be counted: {found}",
                    where=without_query(self._way.url),
                    remedy="look at the server's log; the prompt may be longer than its context",
                )
            self._seen[key] = found
        return self._seen[key]

    @property
    def source(self) -> str:
        """The source of the counts, for reports; empty before the first one."""
        if self._way is None:
            return ""
        where = without_query(self._way.url)
        return f"usage of one-token completions, {where}" if self._way.completes else f"POST {where}"

    @property
    def leaves_traces(self) -> bool:
        """Whether counting runs the model, so that counted prompts may be in the server's prefix cache."""
        return self._way is not None and self._way.completes

    def _ask(self, way: _Way, text: str) -> int | str:
        if self.calls >= self._most_calls:
            raise SUTError(
                f"the server was asked {self.calls} times for token counts, which is the limit",
                where=without_query(way.url),
                remedy="use fewer different prompts of exact length, or send prompts as token ids",
            )
        self.calls += 1
        if way.completes:
            return way.read(send(self._control, way.url, self._dialect, way.body(text)))
        headers = headers_for(self._dialect, self._control.headers)
        if way.template_url:
            answer = self._control.post(way.template_url, self._as_messages(text), headers)
            prompt = (json_object(answer.body) or {}).get("prompt") if answer.status == 200 else None
            if not isinstance(prompt, str):
                return _refusal(answer) if answer.status != 200 else "an answer without a prompt"
            text = prompt
        return way.read(self._control.post(way.url, way.body(text), headers))

    def _find_way(self) -> _Way:
        completion = self._completion()
        told = self._ask(completion, _SAMPLE)
        reasons = []
        for way in self._tokenizers():
            try:
                found = self._ask(way, _SAMPLE)
            except SUTError as error:
                if not is_websocket(self._base_url):
                    raise
                found = error.what  # a server of WebSockets alone may close on whoever asks it over HTTP
            if isinstance(found, int) and (isinstance(told, str) or found == told):
                return way
            reason = found if isinstance(found, str) else f"says {found}, the usage says {told}"
            reasons.append(f"POST {without_query(way.url)}: {reason}")
        if isinstance(told, int):
            return completion
        reasons.append(f"POST {without_query(completion.url)}: {told}")
        raise UncountedError(
            "the server does not say how many tokens a prompt is: " + "; ".join(reasons),
            where=without_query(self._base_url),
            remedy="serve /tokenize or usage in streams, or send prompts as token ids"
            ' ([request] prompt = "token_ids")',
        )

    def _completion(self) -> _Way:
        def body(text: str) -> bytes:
            request = PlannedRequest(0, self._dialect.least_tokens, 1, text=text)
            return self._dialect.encode(request, self._options)

        def read(answer: Answer) -> int | str:
            if not 200 <= answer.status < 300:
                return _refusal(answer)
            chunks = list(chunks_of([(answer.body, 0)], self._dialect))
            counted = read_stream(chunks).input_tokens
            said = next((chunk.error for chunk in chunks if chunk.error), "its stream holds no usage")
            return said if counted is None else counted

        return _Way(
            below(self._base_url, path_for(self._dialect, self._options.model)), body, read, completes=True
        )

    def _tokenizers(self) -> list[_Way]:
        if is_grpc(self._base_url):
            return []
        root = below(server_root(self._base_url), "/tokenize")
        urls = list(dict.fromkeys([root, below(http_beside(self._base_url), "/tokenize")]))
        if self._dialect.accepts_token_ids:
            asked = {"model": self._options.model}
            ways = [_Way(url, lambda text: _json({**asked, "prompt": text}), _read_count) for url in urls]
            return [*ways, _Way(root, _as_content, _read_tokens)]
        template = below(server_root(self._base_url), "/apply-template")
        ways = [_Way(url, self._as_messages, _read_count) for url in urls]
        return [*ways, _Way(root, _as_content, _read_tokens, template_url=template)]

    def _as_messages(self, text: str) -> bytes:
        extra = self._options.extra_body
        template = {name: extra[name] for name in _TEMPLATE_FIELDS if name in extra}
        messages = [{"role": "user", "content": text}]
        return _json({"model": self._options.model, "messages": messages, **template})


def _as_content(text: str) -> bytes:
    # A completion begins with the special tokens of the model, so they count; those of a template are in it.
    return _json({"content": text, "add_special": True, "parse_special": True})


def _read_count(answer: Answer) -> int | str:
    if answer.status != 200:
        return _refusal(answer)
    beginning = _COUNT_FIRST.match(answer.body)
    count = int(beginning[1]) if beginning else (json_object(answer.body) or {}).get("count")
    return count if count.__class__ is int else "an answer without a count"


def _read_tokens(answer: Answer) -> int | str:
    if answer.status != 200:
        return _refusal(answer)
    tokens = (json_object(answer.body) or {}).get("tokens")
    return len(tokens) if isinstance(tokens, list) else "an answer without tokens, or too long to be read"


def _refusal(answer: Answer) -> str:
    text = read_error_body(answer.body)[1]
    return f"HTTP {answer.status}: {text}" if text else f"HTTP {answer.status}"


def _json(payload: Mapping[str, Any]) -> bytes:
    return json.dumps(payload).encode()
