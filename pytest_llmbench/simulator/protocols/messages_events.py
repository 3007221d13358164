"""Anthropic's Messages API: a request's body read, and the events of one message as JSON texts. Pure."""

from __future__ import annotations

import json
from typing import Any

from pytest_llmbench.simulator.protocols.event_reply import PartType
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.request_body import (
    Fields,
    GenerationRequest,
    RefusalError,
    require_model,
    schema_form,
    with_tools,
)

_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "content_filter": "refusal",
    "tool_calls": "tool_use",
}
_BLOCKS = {
    "output_text": ("text", "text_delta", "text"),
    "reasoning_text": ("thinking", "thinking_delta", "thinking"),
    "function_call": ("tool_use", "input_json_delta", "partial_json"),
}
"""Type of the block, type of its deltas, and the field of the text in both."""


def parse_message(content: dict[str, Any], model: str) -> GenerationRequest:
    """Raises RefusalError: 400 for wrong types, all of them named; 404 for another model."""
    fields = Fields(content)
    asked, system = fields.text("model"), fields.text("system")
    tools = fields.tools("input_schema")
    structured = fields.structured(tools, schema_form(content.get("output_config"), "format"))
    texts = with_tools(fields.messages()[0], tools)
    thinking = content.get("thinking")
    enabled = not isinstance(thinking, dict) or thinking.get("type") != "disabled"
    request = GenerationRequest(
        texts=texts if system is None else (system, *texts),
        token_ids=None,
        stream=fields.flag("stream"),
        include_usage=True,
        max_tokens=fields.count("max_tokens", least=1),
        min_tokens=fields.count("min_tokens", least=0) or 0,
        ignore_eos=fields.flag("ignore_eos"),
        priority=fields.whole("priority"),
        thinks=fields.thinks() and enabled,
        structured=structured,
    )
    if request.max_tokens is None:
        fields.mistakes.setdefault("max_tokens", "max_tokens is missing")
    fields.check_rest(request)
    fields.require_none_wrong()
    require_model(asked, model)
    return request


class MessageEvents:
    """Makes the events in order. A message is a block of thinking, if any, and one of text or a tool call."""

    tool = ""

    def __init__(self, message_id: str, model: str, prompt_tokens: int) -> None:
        self._identity = {"id": f"msg_{message_id}", "type": "message", "role": "assistant", "model": model}
        self._prompt_tokens = prompt_tokens
        self._open: PartType | None = None
        self._index = -1

    def opening(self) -> list[str]:
        usage = {"input_tokens": self._prompt_tokens, "output_tokens": 0}
        message: dict[str, Any] = {
            **self._identity,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return [_event("message_start", message=message), _event("ping")]

    def delta(self, kind: PartType, text: str) -> list[str]:
        block, delta, field = _BLOCKS[kind]
        events = []
        if self._open != kind:
            events += self._close()
            self._open, self._index = kind, self._index + 1
            start: dict[str, Any] = {"type": block, field: ""}
            if kind == "function_call":
                start = {"type": block, "id": "toolu_0", "name": self.tool, "input": {}}
            events.append(_event("content_block_start", index=self._index, content_block=start))
        more = {"type": delta, field: text}
        return [*events, _event("content_block_delta", index=self._index, delta=more)]

    def ending(self, finish_reason: str, truth: GroundTruth, timings: bool = False) -> list[str]:
        """The counts of the input stand here once more, now that it is known what a cache held of it."""
        cached = truth.cached_tokens or 0
        usage = {
            "input_tokens": truth.prompt_tokens - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": truth.output_tokens,
        }
        delta = {"stop_reason": _STOP_REASONS.get(finish_reason, finish_reason), "stop_sequence": None}
        more = {"timings": truth.timings()} if timings else {}
        return [
            *self._close(),
            _event("message_delta", delta=delta, usage=usage, **more),
            _event("message_stop"),
        ]

    def error(self, refusal: RefusalError) -> str:
        """The error event of a message under way."""
        return _event("error", error={"type": "api_error", "message": refusal.message})

    def _close(self) -> list[str]:
        return [] if self._open is None else [_event("content_block_stop", index=self._index)]


def _event(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields}, separators=(",", ":"))
