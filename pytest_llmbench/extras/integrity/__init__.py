"""An audit against gaming (section 7.2 of the draft): is a benchmark served as everything else is?"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.model.wording import Sentence
from pytest_llmbench.registry import Extra

_HERE = "pytest_llmbench.extras.integrity"

EXTRA = Extra(
    tests={"integrity": f"{_HERE}.procedure:TEST"},
    main_metrics={"integrity": f"{_HERE}.procedure:MAIN_METRICS"},
    metrics={
        name: f"{_HERE}.checks:METRICS.{name}"
        for name in (
            "repeated_tpot_ratio",
            "repeated_ttft_ratio",
            "published_tpot_ratio",
            "published_ttft_ratio",
            "length_ratio_under_load",
            "canned_first_tokens",
            "changed_under_load",
        )
    },
    sentences={"integrity": f"{_HERE}:SENTENCES"},
)

_MEANS = "the margin is {limit}, over {n} prompts"


def _faster(what: str, means: str) -> Sentence:
    return Sentence(f"{what} takes {{value}} of that of new ones ({_MEANS})", means, "ratio")


_MEMORY = "replies come from a memory of earlier ones, which does not help users with their own prompts"
_KNOWN = "the system knows the benchmark's prompts, or keeps replies of earlier sessions"

SENTENCES: Mapping[str, Sentence] = MappingProxyType(
    {
        "repeated_tpot": _faster("a token of a repeated prompt", _MEMORY),
        "repeated_ttft": _faster(
            "the first token of a repeated prompt", f"{_MEMORY}; or a prefix cache is on"
        ),
        "published_tpot": _faster("a token of a published prompt", _KNOWN),
        "published_ttft": _faster(
            "the first token of a published prompt", f"{_KNOWN}; or a prefix cache is on"
        ),
        "canned_first_token": Sentence(
            f"{{value}} of the replies begin with the same word, sooner than the prefill allows ({_MEANS})",
            "the first token shows nothing about the model, so TTFT is misleading",
            "ratio",
        ),
        "length_under_load": Sentence(
            f"replies under load have {{value}} of the length that they have alone ({_MEANS})",
            "the system does other work under load, so rates and latencies are not those of whole replies",
            "ratio",
        ),
        "text_under_load": Sentence(
            f"{{value}} of the replies begin differently under load, beyond what changes alone ({_MEANS})",
            "another model may answer when the system is full; batching alone changes few beginnings",
            "ratio",
        ),
        "ttft_not_judged": Sentence(
            "TTFT of repeated and published prompts is no limit here: the prefix cache is not declared to be "
            "disabled, and does the same"
        ),
    }
)
