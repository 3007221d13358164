"""OpenAI text completions, streamed: ``POST …/completions``."""

from __future__ import annotations

from typing import Any

from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.dialect import DialectDefaults, EncodeOptions
from pytest_llmbench.wire.openai_request import encode_body, text_prompt, token_prompt
from pytest_llmbench.wire.openai_stream import decode_event
from pytest_llmbench.wire.sse import SSEEvent


class OpenAICompletions(DialectDefaults):
    """The dialect of text completions.

    There is no chat template, and prompts may be token ids, so the exact length arrives (AMB-32).
    """

    name = "openai-completions"
    path = "/completions"
    accepts_token_ids = True
    text_key = "text"

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        as_text = options.prompt_form == "text"
        prompt = text_prompt(request) if as_text else token_prompt(request)
        return encode_body({"prompt": prompt}, request, options)

    def decode(self, event: SSEEvent) -> Chunk:
        return decode_event(event, _read_choice)


def _read_choice(chunk: Chunk, choice: dict[str, Any]) -> None:
    text = choice.get("text")
    if text.__class__ is str:
        chunk.text += text
        chunk.blank = not chunk.text
    elif text is not None:
        chunk.problem = f"text that is neither text nor null but {text.__class__.__name__}"
