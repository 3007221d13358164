"""LoadPlans of a given length, the levels that searches, sweeps and comparisons are made of; and the seed of
each part of a test, so that no two parts draw the same numbers and no prompt is sent twice.

A part is what takes one sequence of requests from its beginning: a load and its repetitions, a search, a
level of a sweep, a warm-up. Its seed follows from the seed of the session and from what its author asked for,
never from what was measured or from the order of the tests. So the same command sends the same prompts, with
other tests selected too; two tests that ask for the same part ask for the same requests and share one
measurement; and two parts that differ in anything have no prompt in common.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_llmbench.arrivals import arrival_seed, count_within
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, Load, LoadPlan, OpenLoop
from pytest_llmbench.model.request import Workload
from pytest_llmbench.workloads.adapted import with_lengths_of
from pytest_llmbench.workloads.stream import part_seed, streamed

_DIGITS = 8
_NOT_DRAWN_BY = {"input_length": ("tokenizer", "exact")}
"""The parts of a specification that differ between compared servers, although these get the same requests."""


@dataclass(frozen=True, slots=True)
class LoadPart:
    """A part of a test. ``name``: the kind of part, and the first digits of the SHA-256 of all that it was
    asked for with."""

    name: str
    seed: int

    def plan(self, setting: Setting, label: str, load: Load, requests: int, **more: Any) -> LoadPlan:
        """A load of this part. ``more``: further fields of the plan; without ``workload`` it is that of the
        setting."""
        usual: dict[str, Any] = {
            "workload": setting.workload,
            "seed": self.seed,
            "part": self.name,
            "deadlines": setting.deadlines,
            "ignore_eos": setting.ignore_eos,
        }
        return LoadPlan(label=label, load=load, requests=requests, **(usual | more))


def derived_seed(seed: int, purpose: str) -> int:
    """A seed for ``purpose``, fixed by ``seed``: the first 4 bytes of SHA-256 of ``"seed/purpose"``."""
    return part_seed(seed, purpose)


def part_of(setting: Setting, workload: Workload, kind: str, **asked: Any) -> LoadPart:
    """The part ``kind`` of a measurement. ``asked``: what decides its loads, as given by the author of the
    test or fixed by the method; JSON values."""
    # Without the salt of one arm of a comparison and the server that counts tokens: arms are to have equal
    # lengths.
    stated = {key: value for key, value in workload.specification().items() if key != "deviations"}
    for key, left_out in _NOT_DRAWN_BY.items():
        stated[key] = {name: value for name, value in stated[key].items() if name not in left_out}
    content = {
        "workload": {**stated, "name": workload.name},
        "timeout_s": setting.timeout_s,
        "salt": setting.salt,
        **asked,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    name = f"{kind} {hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"
    return LoadPart(name, derived_seed(setting.seed, name))


def with_lengths(setting: Setting, kind: str, **asked: Any) -> Setting:
    """The setting whose workload has the one list of lengths of the part ``kind``, if it wants one.

    The list is the one that the part has in a session without a salt (the lengths that ``--llm-prompts=seed``
    sends), so it is the same in all sessions and arms of this seed, while the words are those of the part.
    Unchanged where the workload has no other words (:func:`with_lengths_of`) or has its list already.
    """
    if setting.lengths == "drawn" or streamed(setting.workload).lengths_seed is not None:
        return setting
    listed = part_of(replace(setting, salt=""), setting.workload, kind, **asked)
    return replace(setting, workload=with_lengths_of(setting.workload, listed.seed))


MOST_REQUESTS = 200_000
"""The most requests of one closed-loop level, whatever its rate: an error on our side must not become an
endless load."""

FASTEST_PER_SLOT_RPS = 50.0
"""Assumed most requests per second of a slot where nothing is known: none is over in less than 20 ms. A level
that runs out of requests ends early, and its window with it."""


@dataclass
class RequestSlice:
    """The requests of one sequence, handed out in slices (appendix A.1.4: a shorter run is a prefix of a
    longer one). Every part of a test has a sequence of its own, so no prompt is sent twice and no prefix
    cache helps a later load."""

    workload: Workload
    part: LoadPart | None = None
    """The part whose sequence it is; None: it belongs to none yet, and has the seed of the setting itself."""
    first: int = 0
    """Index of the next request to be sent."""
    variant: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of every LoadPlan made from it."""

    def next_part(self, setting: Setting, kind: str, *, paired: bool = False, **asked: Any) -> RequestSlice:
        """The sequence of the part that comes next. ``asked``: see :func:`part_of`. ``paired``: every variant
        gets the same requests, since they are compared one with one."""
        after = "" if self.part is None else self.part.name
        variant = None if paired else self.variant
        part = part_of(setting, self.workload, kind, after=after, variant=variant, **asked)
        return replace(self, part=part, first=0)

    def seed(self, setting: Setting) -> int:
        return setting.seed if self.part is None else self.part.seed

    def open_loop(
        self, setting: Setting, label: str, load: OpenLoop, duration_s: float, *, at_least: int = 1
    ) -> LoadPlan:
        """An open loop with all arrivals of the schedule within ``duration_s``, or as much longer as the next
        ``at_least`` of them take. One alone does not make it longer."""
        if at_least > 1:
            duration_s = self.seconds_for(setting, load, at_least, duration_s)
        count = max(1, count_within(load, duration_s, self._arrivals(setting), self.first))
        return self._plan(setting, label, load, requests=count, duration_s=duration_s)

    def closed_loop(
        self,
        setting: Setting,
        label: str,
        concurrency: int,
        *,
        duration_s: float | None,
        at_least: int,
        most_rps: float | None = None,
    ) -> LoadPlan:
        """A closed loop of at least ``at_least`` requests and at least ``duration_s``.

        ``most_rps`` is a rate that it will not exceed, which bounds how many requests are drawn.
        """
        ceiling = at_least
        if duration_s is not None:
            rate = FASTEST_PER_SLOT_RPS * concurrency if most_rps is None else most_rps
            ceiling = min(MOST_REQUESTS, max(at_least, math.ceil(rate * duration_s) + concurrency))
        return self._plan(
            setting,
            label,
            ClosedLoop(concurrency),
            requests=at_least,
            duration_s=duration_s,
            max_requests=ceiling if duration_s is not None else None,
        )

    def seconds_for(self, setting: Setting, load: OpenLoop, count: int, least_s: float = 0.0) -> float:
        """A duration of at least ``least_s`` within which the next ``count`` requests arrive."""
        seed, seconds = self._arrivals(setting), max(least_s, count / load.rate)
        while count_within(load, seconds, seed, self.first) < count:
            seconds *= 1.02
        return seconds

    def _arrivals(self, setting: Setting) -> int:
        """The seed of the arrivals, as :attr:`LoadPlan.schedule_seed` has it."""
        listed = streamed(self.workload).lengths_seed
        return arrival_seed(self.seed(setting) if listed is None else listed)

    def sent(self, seen: Observation) -> Observation:
        """Take the requests of a run out of what is left; returns its observation."""
        # Several workers may leave gaps at the end of a load that was defined by its time.
        last = int(seen.records.index.max()) if len(seen.records) else -1
        self.first = max(self.first, seen.plan.first + len(seen.records), last + 1)
        return seen

    def _plan(self, setting: Setting, label: str, load: Load, **amount: Any) -> LoadPlan:
        return (self.part or LoadPart("", setting.seed)).plan(
            setting,
            label,
            load,
            workload=self.workload,
            lengths_seed=streamed(self.workload).lengths_seed,
            first=self.first,
            variant=self.variant,
            **amount,
            **self.changes,
        )
