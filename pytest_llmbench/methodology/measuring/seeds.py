"""Seeds for the parts of a test, so that no two parts draw the same numbers and no prompt is sent twice.

A part is what takes one sequence of requests from its beginning: a load and its repetitions, a search, a
level of a sweep, a warm-up. Its seed follows from the seed of the session and from what its author asked for,
never from what was measured or from the order of the tests. So the same command sends the same prompts, with
other tests selected too; two tests that ask for the same part ask for the same requests and share one
measurement; and two parts that differ in anything have no prompt in common.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.model.request import Workload
from pytest_llmbench.workloads.stream import part_seed

_DIGITS = 8
_NOT_DRAWN_BY = {"input_length": ("tokenizer", "exact")}
"""The parts of a specification that differ between the servers that are compared, which get the same
requests."""


@dataclass(frozen=True, slots=True)
class Part:
    """``name``: the kind of part, and the first digits of the SHA-256 of all that it was asked for with."""

    name: str
    seed: int


def derived_seed(seed: int, purpose: str) -> int:
    """A seed for ``purpose``, fixed by ``seed``: the first 4 bytes of SHA-256 of ``"seed/purpose"``."""
    return part_seed(seed, purpose)


def part_of(setting: Setting, workload: Workload, kind: str, **asked: Any) -> Part:
    """The part ``kind`` of a measurement. ``asked``: what decides its loads, as the author of the test gave
    it or the method fixes it; JSON values."""
    content = {
        "workload": _identity(workload),
        "timeout_s": setting.timeout_s,
        "salt": setting.salt,
        **asked,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    name = f"{kind} {hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"
    return Part(name, derived_seed(setting.seed, name))


def _identity(workload: Workload) -> Mapping[str, Any]:
    """What tells apart workloads that draw alike. Not the salt of one arm of a comparison, nor the server
    that counts tokens: arms are to have equal lengths."""
    stated = {key: value for key, value in workload.specification().items() if key != "deviations"}
    for key, left_out in _NOT_DRAWN_BY.items():
        stated[key] = {name: value for name, value in stated[key].items() if name not in left_out}
    return {**stated, "name": workload.name}
