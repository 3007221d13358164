"""Ollama's own API: a request's body read, and the lines of one reply as JSON texts. Pure."""

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
    with_tools,
)

_CREATED = "1970-01-01T00:00:00Z"


def parse_chat(content: dict[str, Any], model: str) -> GenerationRequest:
    """Raises RefusalError: 400 for wrong types, all of them named; 404 for another model."""
    fields = Fields(content)
    texts = with_tools(fields.messages()[0], fields.tools())
    return _parsed(content, fields, texts, model)


def parse_generate(content: dict[str, Any], model: str) -> GenerationRequest:
    """The same for a prompt instead of messages."""
    fields = Fields(content)
    return _parsed(content, fields, (fields.text("prompt") or "",), model)


def _parsed(content: dict[str, Any], fields: Fields, texts: tuple[str, ...], model: str) -> GenerationRequest:
    asked = fields.text("model")
    options = content.get("options")
    sampling = Fields(options if isinstance(options, dict) else {})
    request = GenerationRequest(
        texts=texts,
        token_ids=None,
        stream=content.get("stream", True) is not False,
        include_usage=True,
        max_tokens=sampling.count("num_predict", least=1),
        min_tokens=0,
        ignore_eos=False,
        thinks=content.get("think") is not False,
    )
    fields.mistakes |= sampling.mistakes
    fields.require_none_wrong()
    require_model(asked, model)
    return request


class OllamaLines:
    """Makes the lines in order. There is none before the first token."""

    tool = ""
    """Always: no form is asked for here."""

    def __init__(self, model: str, *, chat: bool) -> None:
        self._model = model
        self._chat = chat

    def opening(self) -> list[str]:
        return []

    def delta(self, kind: PartType, text: str) -> list[str]:
        return [self._line("content" if kind == "output_text" else "thinking", text, done=False)]

    def ending(self, finish_reason: str, truth: GroundTruth, _timings: bool = False) -> list[str]:
        """Every reply of Ollama tells its durations."""
        prefill_ns = round(float(truth.timings().get("prompt_ms", 0.0)) * 1e6)
        return [
            self._line(
                "content",
                "",
                done=True,
                done_reason=finish_reason,
                total_duration=max(0, (truth.last_token_ns or truth.received_ns) - truth.received_ns),
                load_duration=0,
                prompt_eval_count=truth.prompt_tokens,
                prompt_eval_duration=prefill_ns,
                eval_count=truth.output_tokens,
            )
        ]

    def error(self, refusal: RefusalError) -> str:
        """The line that ends a reply under way."""
        return json.dumps({"error": refusal.message})

    def _line(self, field: str, text: str, **more: Any) -> str:
        if self._chat:
            output: dict[str, Any] = {"message": {"role": "assistant", "content": "", field: text}}
        else:
            output = {"response": "", ("response" if field == "content" else field): text}
        line = {"model": self._model, "created_at": _CREATED, **output, **more}
        return json.dumps(line, separators=(",", ":"))
