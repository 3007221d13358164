"""Speculative decoding: how many guessed tokens are accepted, and what it gains against none."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.model.wording import Sentence
from pytest_llmbench.registry import Extra

_HERE = "pytest_llmbench.extras.speculative"

EXTRA = Extra(
    tests={"speculative": f"{_HERE}.procedure:TEST"},
    main_metrics={"speculative": f"{_HERE}.procedure:MAIN_METRICS"},
    metrics={
        "acceptance_length": f"{_HERE}.procedure:LENGTH",
        "acceptance_rate": f"{_HERE}.procedure:RATE",
        "acceptance_at": f"{_HERE}.procedure:AT",
        "tokens_per_step": f"{_HERE}.procedure:PER_STEP",
        "tokens_per_event": f"{_HERE}.procedure:PER_EVENT",
        "speedup": f"{_HERE}.procedure:SPEEDUP",
    },
    sentences={"speculative": f"{_HERE}:SENTENCES"},
)

SENTENCES: Mapping[str, Sentence] = MappingProxyType(
    {
        "steps_in_stream": Sentence(
            "an event of the stream holds {value} of the tokens that the engine reports for a step",
            "steps come together or apart on their way, so ITL is that of events, and no gap is a step",
            "ratio",
        ),
        "acceptance_told_by": Sentence("acceptance comes from {source}"),
        "steps_without_draft": Sentence(
            "{share} of the steps had a draft: acceptance_length is of these alone, tokens_per_step of all"
        ),
        "no_acceptance_told": Sentence(
            "neither the metrics page nor the replies report guessed tokens: speculative decoding is off, or "
            "the engine does not count it"
        ),
    }
)
