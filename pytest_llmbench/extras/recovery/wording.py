"""What a recovery says."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.model.wording import Sentence

SENTENCES: Mapping[str, Sentence] = MappingProxyType(
    {
        "not_recovered": Sentence(
            "run {run}: {limit} did not hold again within the load, which went on for {seconds} s: "
            "time_to_recovery is at least that"
        ),
        "no_event": Sentence("run {run}: in virtual time no command is run, so there is no time to recover"),
        "never_broken": Sentence("run {run}: the limit held all the time, so there is no time to recover"),
    }
)
