"""Headers that are taken, and fields of a request body by what they change, whatever server reads them.

The workload says what a request asks for. A further field that changes it makes another request of it, so it
is refused, or stands in the manifest and is held against the workload (AMB-33).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

OWN_HEADERS = frozenset(
    {
        "host",
        "connection",
        "accept",
        "accept-encoding",
        "content-type",
        "content-length",
        "transfer-encoding",
        "x-request-id",
    }
)
"""Headers that the load generator writes itself, in lower case."""
OUTPUT_LIMITS = frozenset(
    {
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "max_new_tokens",
        "max_tokens_to_sample",
        "max_length",
        "n_predict",
        "num_predict",
    }
)
"""Names that servers have for the limit that the workload sets."""
OUTPUT_FIELDS = OUTPUT_LIMITS | {
    "min_tokens",
    "min_new_tokens",
    "min_length",
    "stop",
    "stop_token_ids",
    "stop_sequences",
    "stop_strings",
    "stop_regex",
    "ignore_eos",
    "ignore_eos_token",
    "bad_words",
    "thinking_token_budget",
    "max_thinking_tokens",
    "response_format",
    "output_config",
    "tool_choice",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "regex",
    "ebnf",
    "grammar",
}
"""How long a reply becomes, and what ends it."""
INPUT_FIELDS = frozenset(
    {
        "prompt",
        "messages",
        "input",
        "inputs",
        "input_ids",
        "text_input",
        "system",
        "instructions",
        "suffix",
        "tools",
        "documents",
        "echo",
        "truncate",
        "truncate_prompt_tokens",
        "chat_template",
    }
)
"""What the prompt is."""
SAMPLING_FIELDS = frozenset({"temperature", "n", "best_of", "use_beam_search", "beam_width", "logit_bias"})
"""How tokens are chosen, and how many replies there are."""
MEANING_FIELDS = OUTPUT_FIELDS | INPUT_FIELDS | SAMPLING_FIELDS

CHUNK_TOKEN_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "usage": {"stream_options": {"continuous_usage_stats": True}},
    "ids": {"return_token_ids": True},
    "timings": {"timings_per_token": True},
}
"""What asks a server of the OpenAI dialects to say with each chunk how many tokens it holds."""


def present(body: Mapping[str, Any], names: Collection[str]) -> list[str]:
    """Dotted names of the fields of ``body``, at any depth, that are among ``names`` and set."""
    return [dotted for dotted, name, value in _fields(body, "") if name in names and value is not None]


def meaning(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``body`` that change what a request asks for, with their values."""
    return {dotted: value for dotted, name, value in _fields(body, "") if name in MEANING_FIELDS}


def _fields(body: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str, Any]]:
    for name, value in body.items():
        yield prefix + name, name, value
        if isinstance(value, Mapping) and name not in MEANING_FIELDS:
            yield from _fields(value, f"{prefix}{name}.")
