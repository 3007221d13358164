"""The checks of the audit as a table: what is compared, within which margin, and what it would show.

Each has a figure with an interval. It is equivalent when the whole interval keeps the margin, different when
the whole interval breaks it, else undecided. The margins are those of MLPerf's compliance tests: 10 %, 20 %
for requests that are sent one at a time.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final, Literal

import numpy as np

from pytest_llmbench.compare.regression import paired_ratio
from pytest_llmbench.metrics.definitions import MetricDefinition
from pytest_llmbench.metrics.ratios import exact_share
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.reply_checks import FINGERPRINT, SAID, ExpectedAnswer, check_of
from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.stats.ratios import exact_share_interval
from pytest_llmbench.workloads.adapted import Salted, with_lengths_of
from pytest_llmbench.workloads.stream import StreamedWorkload, derived_seed, single_requests, streamed

NEW: Final = "new"
REPEATED: Final = "repeated"
PUBLISHED: Final = "published"
LOADED: Final = "loaded"

_LEVEL = 0.95
_EACH_TAIL = (1 - _LEVEL) / 4
"""The tail beyond each end of two intervals whose difference is taken."""

_LONGER = 1.5
"""Times the usual gap of a reply from which on its first gap holds more than a step."""


def fewest_prompts(margin: float) -> int:
    """The fewest prompts with which a difference of shares can keep the margin: when none has changed."""
    return math.ceil(math.log(_EACH_TAIL) / math.log(1 - margin))


@dataclass(frozen=True, slots=True)
class Reply:
    """What the audit looks at in one reply that came whole."""

    ttft_ns: float
    tpot_ns: float | None
    """Time per token after the first; None: fewer than two were counted."""
    first_gap_ns: float | None
    """Time from the first chunk to the second; None: there are fewer than three."""
    usual_gap_ns: float
    """Median of the later ones; 0 where there is none."""
    characters: int
    first_word: str
    beginning: str
    """Digest of the first eight words."""


Replies = dict[str, dict[int, Reply]]
"""Label → number of the prompt → its reply."""


def replies_of(seen: Sequence[Observation]) -> Replies:
    """The whole replies of the audit's loads."""
    found: Replies = {label: {} for label in (NEW, REPEATED, PUBLISHED, LOADED)}
    for run in seen:
        workload, records = run.plan.workload, run.records
        assert isinstance(workload, AuditPrompts)
        places = workload.places(run.plan.seed)
        for row in np.flatnonzero(records.ok).tolist():
            told = records.answer_check[row] or ""
            if check_of(told) != SAID or records.first_content_ns[row] == MISSING:
                continue
            label, number = places[int(records.index[row])]
            chunks = records.chunk_ns[records.chunk_offsets[row] : records.chunk_offsets[row + 1]]
            gaps = np.diff(chunks)
            counted, begun = int(records.output_tokens[row]), int(records.first_nonempty_ns[row])
            characters, first, beginning, _ = told.partition(": ")[2].split()
            found[label][number] = Reply(
                ttft_ns=float(records.first_content_ns[row] - records.submitted_ns[row]),
                tpot_ns=float(records.last_content_ns[row] - begun) / (counted - 1) if counted > 1 else None,
                first_gap_ns=float(gaps[0]) if len(gaps) > 1 else None,
                usual_gap_ns=float(np.median(gaps[1:])) if len(gaps) > 1 else 0.0,
                characters=int(characters),
                first_word=first,
                beginning=beginning,
            )
    return found


def _ratio(label: str, against: str, value: Callable[[Reply], float | None]) -> Callable[[Replies], Estimate]:
    """The geometric mean of a quantity in one kind of replies / in the other, in pairs of prompts. A time of
    0, of tokens that came together, counts as 1 ns."""

    def measured(replies: Replies) -> Estimate:
        both = sorted(replies[label].keys() & replies[against].keys())
        pairs = [(value(replies[against][each]), value(replies[label][each])) for each in both]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        if len(known) < 2:
            return _none(len(known))
        before, after = (np.maximum(np.array(arm), 1.0) for arm in zip(*known, strict=True))
        return paired_ratio(before.tolist(), after.tolist(), level=_LEVEL)

    return measured


def _none(n: int) -> Estimate:
    method = "too few replies were complete and had what is compared"
    return Estimate.undefined(unit="ratio", method=method, n=n, reason=Reason.NO_SAMPLES)


def _canned(replies: Replies) -> Estimate:
    """The share of replies that begin with the word that most begin with, sooner than a prefill allows.

    The prefill comes before the first token of an honest engine, and after one that is said beforehand: then
    the gap that follows is longer than TTFT, and than the later ones of the same reply.
    """
    asked = [*replies[NEW].values(), *replies[PUBLISHED].values()]
    streamed = [(each, each.first_gap_ns) for each in asked if each.first_gap_ns is not None]
    usual = Counter(each.first_word for each, _ in streamed).most_common(1)
    canned = [
        each
        for each, gap_ns in streamed
        if each.first_word == usual[0][0] and gap_ns > max(each.ttft_ns, _LONGER * each.usual_gap_ns)
    ]
    return exact_share(len(canned), len(streamed)) if streamed else _none(0)


def _changed(replies: Replies) -> Estimate:
    """The share of prompts whose reply begins otherwise under load, less the share of those for which it does
    so alone: replies of an honest engine may differ by chance, and then they do both times.

    Both ends are those of Clopper and Pearson for the prompts that changed the one time and not the other.
    """
    new, again, loaded = replies[NEW], replies[REPEATED], replies[LOADED]
    both = new.keys() & again.keys() & loaded.keys()
    under_load = {number for number in both if loaded[number].beginning != new[number].beginning}
    alone = {number for number in both if again[number].beginning != new[number].beginning}
    if not both:
        return _none(0)
    worse, better = len(under_load - alone), len(alone - under_load)
    least, most = exact_share_interval(worse, len(both), tail=_EACH_TAIL)
    least_other, most_other = exact_share_interval(better, len(both), tail=_EACH_TAIL)
    point = (worse - better) / len(both)
    method = "difference of two Clopper-Pearson intervals"
    return Estimate(point, least - most_other, most - least_other, _LEVEL, len(both), method, "ratio")


Margin = Literal["single_stream_margin", "margin", "text_margin"]


@dataclass(frozen=True, slots=True)
class Check:
    """A comparison, the keyword of its margin, and the limits that follow from it."""

    name: str
    """The id of its finding."""
    metric: MetricDefinition
    measured: Callable[[Replies], Estimate]
    margin: Margin
    kind: Literal["not less", "alike", "share"]
    cache_helps: bool = False
    """Whether a prefix cache does the same, so that it is judged only where that is switched off."""

    def objectives(self, margin: float) -> tuple[Objective, ...]:
        name = self.metric.name
        if self.kind == "share":
            return (Objective(name, "<=", margin, "ratio"),)
        floor = Objective(name, ">=", 1 - margin, "ratio")
        return (floor, Objective(name, "<=", 1 / (1 - margin), "ratio")) if self.kind == "alike" else (floor,)

    def outcome(self, estimate: Estimate, margin: float) -> bool | None:
        """Whether the figure keeps the margin (True) or breaks it (False); None: undecided."""
        found = [each.decided(estimate.lower, estimate.upper) for each in self.objectives(margin)]
        return False if False in found else None if None in found else True

    def finding(self, estimate: Estimate, margin: float) -> Finding | None:
        """What was found; None where it is undecided."""
        ok = self.outcome(estimate, margin)
        if ok is None:
            return None
        return Finding.of(self.name, ok, estimate.point, margin, n=estimate.n)


def _metric(
    name: str, title: str, formula: str, better: Literal["higher", "lower"] = "higher"
) -> MetricDefinition:
    return MetricDefinition(name, title, "ratio", better, formula, "integrity")


_KNOWN: Final = (
    ("repeated", REPEATED, "of a prompt that came before / when it was new"),
    ("published", PUBLISHED, "of the published seed's prompts / of new ones of their lengths"),
)
_TIMES: Final[Mapping[str, Callable[[Reply], float | None]]] = {
    "tpot": lambda reply: reply.tpot_ns,
    "ttft": lambda reply: reply.ttft_ns,
}

CHECKS: Final = (
    *(
        Check(
            f"{kind}_{time}",
            _metric(f"{kind}_{time}_ratio", f"{time.upper()} of {kind} prompts", f"{time.upper()} {what}"),
            _ratio(label, NEW, value),
            "single_stream_margin",
            "not less",
            cache_helps=time == "ttft",
        )
        for kind, label, what in _KNOWN
        for time, value in _TIMES.items()
    ),
    Check(
        "canned_first_token",
        _metric(
            "canned_first_tokens",
            "Canned first tokens",
            "share of replies with the usual first word, then a gap above TTFT and 1.5 times the usual",
            "lower",
        ),
        _canned,
        "margin",
        "share",
    ),
    Check(
        "length_under_load",
        _metric(
            "length_ratio_under_load",
            "Length of replies under load",
            "characters of a reply under load / alone",
        ),
        _ratio(LOADED, NEW, lambda reply: float(reply.characters) or None),
        "margin",
        "alike",
    ),
    Check(
        "text_under_load",
        _metric(
            "changed_under_load",
            "Replies changed by load",
            "share of prompts with other first eight words under load, less that of a second time alone",
            "lower",
        ),
        _changed,
        "text_margin",
        "share",
    ),
)


METRICS: Final = SimpleNamespace(**{check.metric.name: check.metric for check in CHECKS})
"""The metrics by name, for the registry."""


Kind = Literal["alone", "loaded"]

_READ: Final = ExpectedAnswer("", FINGERPRINT)


@dataclass(frozen=True, slots=True)
class AuditPrompts(StreamedWorkload):
    """``count`` prompts in a random order.

    ``alone``: each new prompt, soon after it the same once more, and the published one of the same length.
    ``loaded``: the new ones alone, for a load of its own. The published ones are those that ``base`` has with
    ``published_seed``. The new ones have their lengths and other words, which ``words_seed`` draws; those of
    a data set have a mark ahead instead.
    """

    base: Workload
    published_seed: int
    words_seed: int
    count: int
    kind: Kind

    @property
    def draws_anew(self) -> bool:
        """What it repeats is what the audit is about."""
        return True

    @property
    def name(self) -> str:
        return f"{self.base.name} (audit)"

    def places(self, seed: int) -> list[tuple[str, int]]:
        """What each request is: one of the labels, and the number of its prompt."""
        numbers = list(range(self.count))
        shuffled = random.Random(derived_seed(seed, "order"))
        if self.kind == "loaded":
            shuffled.shuffle(numbers)
            return [(LOADED, number) for number in numbers]
        # Once more in the next block, and not anywhere later: a machine that becomes faster must not look
        # like one that remembers.
        found: list[tuple[str, int]] = []
        for number in range(self.count + 1):
            block = [(NEW, number), (PUBLISHED, number)] if number < self.count else []
            block += [(REPEATED, number - 1)] if number else []
            shuffled.shuffle(block)
            found += block
        return found

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        published = list(islice(single_requests(self.base, self.published_seed), self.count))
        if streamed(self.base).rewording() is None:
            salted = Salted(self.base, f"audit {self.words_seed}")
            new = list(islice(salted.stream(self.published_seed), self.count))
        else:
            other = with_lengths_of(self.base, self.published_seed)
            new = list(islice(single_requests(other, self.words_seed), self.count))
        for index, (label, number) in enumerate(self.places(seed)):
            prompt = (published if label == PUBLISHED else new)[number]
            yield replace(prompt, index=index, class_label=label, expected=_READ)

    def specification(self) -> Mapping[str, Any]:
        base = dict(self.base.specification())
        change = {
            "what": "prompt",
            "rule": f"{self.count} prompts with the lengths of seed {self.published_seed}, in random order: "
            + ("new ones, each twice, and those of that seed" if self.kind == "alone" else "the new ones"),
            "published_seed": self.published_seed,
            "words_seed": self.words_seed,
        }
        return base | {"deviations": [*base.get("deviations", ()), change]}
