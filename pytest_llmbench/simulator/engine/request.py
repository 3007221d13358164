"""A generation request as the engine accepts it, or its refusal, whichever protocol it came by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.model.reply_checks import StructuredOutput
from pytest_llmbench.simulator.engine.config import EngineConfig

_ERROR_TYPES = {
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
}


class RefusalError(Exception):
    """The request gets an error response instead of a place in the queue; holds the response's content and
    status."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        retry_after_s: float | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        """Value of the header ``Retry-After``, in seconds; None: not sent."""
        self.code = code
        """The error object's ``code`` where it is not the status, as for ``content_filter``."""

    def body(self) -> dict[str, Any]:
        """The error object as OpenAI's clients and vLLM's server shape it."""
        fallback = "BadRequestError" if self.status < 500 else "InternalServerError"
        kind = _ERROR_TYPES.get(self.status, fallback)
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code or self.status,
            }
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A request whose fields have the right types; whether it fits is decided once its prompt has been
    counted."""

    texts: tuple[str, ...] = ()
    """Prompt as text (for a chat: each message's); its tokens are counted one by one and added up."""
    token_ids: Sequence[int] | None = None
    """Prompt as token ids, instead of text; None: it is text."""
    media_ids: Sequence[int] = ()
    """Ids that stand for the tokens of images and sounds (engine/media.py), behind those of the text."""
    stream: bool = True
    include_usage: bool = True
    max_tokens: int | None
    min_tokens: int = 0
    ignore_eos: bool = False
    continuous_usage: bool = False
    """Whether every chunk carries usage, as vLLM does for ``stream_options.continuous_usage_stats``."""
    priority: int = 0
    """Priority of the request; the lower goes first, where the engine schedules by it."""
    thinks: bool = True
    """Whether the model may reason; False: ``chat_template_kwargs.enable_thinking`` is false, or
    ``reasoning_effort`` is none."""
    adapter: str = ""
    """The LoRA adapter that it names as its model; empty: the model itself."""
    structured: StructuredOutput | None = None
    """The form that the reply has to have, where the request settles it: ``tool_choice`` required or the name
    of a tool, or a JSON schema. With ``auto`` the model is free, and answers in words."""
    generates: bool = True
    """Whether tokens are generated; False: prefill alone, for a vector or a score."""
    caps: bool = False
    """Whether ``max_tokens`` beyond the context is cut to what is left of it, instead of refused."""

    def ceiling(self, prompt_tokens: int, config: EngineConfig) -> int:
        """Maximum number of tokens of the reply. RefusalError if the prompt, or prompt and reply, do not
        fit."""
        limit = config.context_limit_tokens
        if prompt_tokens < 1:
            raise RefusalError(400, "the prompt is empty", "prompt")
        if prompt_tokens >= limit:
            raise RefusalError(
                400,
                f"this model's maximum context length is {limit} tokens, but the prompt has "
                f"{prompt_tokens} and the reply needs at least 1",
                "input_tokens",
            )
        room = limit - prompt_tokens
        unasked = max(min(config.default_max_tokens, room), self.min_tokens)
        ceiling = unasked if self.max_tokens is None else self.max_tokens
        if self.caps:
            ceiling = min(ceiling, room)
        if ceiling > room:
            raise RefusalError(
                400,
                f"this model's maximum context length is {limit} tokens, but {prompt_tokens} prompt tokens "
                f"and {ceiling} output tokens were requested",
                "min_tokens" if self.max_tokens is None else "max_tokens",
            )
        return ceiling
