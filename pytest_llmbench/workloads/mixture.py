"""Mixtures: several workloads in one stream, each request, or each session, from one of them by chance or in
turn; and one workload whose requests name several adapters (LoRA), which is a mixture too.

Request classes of the fairness test each take a range of lengths of one workload: the class is drawn by the
mix ratio, then input and output from the base workload's laws, each redrawn until it lies in the range of the
class. The order of the draws is ours, as the draft names none (AMB-07).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count, cycle, islice
from typing import Any, ClassVar, Final

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.model.numbers import percentage, trimmed
from pytest_llmbench.model.request import Answers, PlannedRequest, Session, Workload, stated_answers
from pytest_llmbench.workloads.lengths import (
    LengthLaw,
    Uniform,
    check_specification,
    mean_between,
    probability_between,
)
from pytest_llmbench.workloads.stream import (
    BulkRandom,
    Rewording,
    StreamedWorkload,
    Unit,
    derived_seed,
    single_requests,
    streamed,
)
from pytest_llmbench.workloads.synthetic import SYNTHETIC_SKEWED, SyntheticWorkload, name_mistakes


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a mixture. ``weight`` is relative to the weights of the other parts."""

    name: str
    workload: Workload
    weight: float
    model: str | None = None
    """The model, or adapter, that its requests name; empty: the one that is measured; None: the one that they
    name already."""


@dataclass(frozen=True, slots=True)
class _OfParts(StreamedWorkload):
    """Base of workloads that draw from several others by weight."""

    name: str
    parts: tuple[Part, ...]
    in_turn: bool = False
    """Whether the parts take turns, in their order and whatever their weights, instead of by chance."""

    @property
    def shares(self) -> tuple[float, ...]:
        """Expected share of each part in the requests, or in the sessions."""
        total = math.fsum(part.weight for part in self.parts)
        return tuple(part.weight / total for part in self.parts)

    @property
    def sources(self) -> Sequence[Workload]:
        return [part.workload for part in self.parts]

    @property
    def labels(self) -> Sequence[str]:
        return tuple(part.name for part in self.parts)

    @property
    def draws_anew(self) -> bool:
        return all(streamed(part.workload).draws_anew for part in self.parts)

    def _picks(self, seed: int) -> Iterator[int]:
        """The index of the part that each request or session is from, without end."""
        if self.in_turn:
            yield from cycle(range(len(self.parts)))
        generator, cumulated = BulkRandom(seed), list(accumulate(self.shares))
        while True:
            point = generator.random()
            yield next((k for k, end in enumerate(cumulated) if point < end), len(cumulated) - 1)

    def _labelled(self, request: PlannedRequest, index: int, picked: int) -> PlannedRequest:
        prefix, part = request.prefix_id, self.parts[picked]
        return replace(
            request,
            index=index,
            class_label=part.name,
            model=request.model if part.model is None else part.model or None,
            # The prefixes of two parts are different ones, whatever numbers the parts gave them.
            prefix_id=None if prefix is None else prefix * len(self.parts) + picked,
        )

    def specification(self) -> Mapping[str, Any]:
        first = "part in turn" if self.in_turn else "part by one random()"
        order = [first, f"next {self.unit} of that part, from a seed of its own"]
        return _specification(self.parts, self.shares, order)


@dataclass(frozen=True, slots=True)
class Mixture(_OfParts):
    """Requests of several workloads; ``class_label`` says which part a request is from.

    Draw order: one ``random()`` per request picks the part by the cumulative weights in the order given.
    Part k is its own sequence, with the seed derived from the seed and ``part k``, and each of its requests
    is taken in turn.
    """

    def __post_init__(self) -> None:
        # One adapter for all requests is a mixture of one part.
        fewest = 1 if any(part.model is not None for part in self.parts) else 2
        mistakes = name_mistakes(self.name) + _part_mistakes(self.parts, fewest)
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=self.where)

    def rewording(self) -> Rewording | None:
        made = {part.name: streamed(part.workload).rewording() for part in self.parts}
        known = {name: draw for name, draw in made.items() if draw is not None}
        if len(known) < len(self.parts):
            return None
        return lambda generator, request, tokens: known[request.class_label](generator, request, tokens)

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        streams = [
            single_requests(p.workload, derived_seed(seed, f"part {k}")) for k, p in enumerate(self.parts)
        ]
        for index, picked in enumerate(self._picks(seed)):
            request = next(streams[picked], None)
            if request is None:
                return
            yield self._labelled(request, index, picked)


@dataclass(frozen=True, slots=True)
class SessionMix(_OfParts):
    """Sessions of several workloads; ``class_label`` of a turn says which part its session is from.

    Draw order: one ``random()`` per session picks the part by the cumulative weights in the order given. Part
    k is its own sequence, with the seed derived from the seed and ``part k``, and each of its sessions is
    taken in turn.
    """

    unit: ClassVar[Unit] = "session"

    def __post_init__(self) -> None:
        mistakes = name_mistakes(self.name) + _part_mistakes(self.parts, fewest=1)
        mistakes += [
            f"part {part.name!r} has single requests: either all parts have sessions, or none"
            for part in self.parts
            if streamed(part.workload).unit != "session"
        ]
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=self.where)

    @property
    def answers(self) -> Answers:
        """The answers of its parts: live ones take precedence over compared ones, and these over recorded
        ones."""
        strictest: tuple[Answers, ...] = ("live", "live-compared")
        told = {streamed(part.workload).answers for part in self.parts}
        return next((each for each in strictest if each in told), "recorded")

    def isolated(self, name: str) -> SessionMix:
        """The sessions of one part alone."""
        return SessionMix(f"{name} alone", tuple(part for part in self.parts if part.name == name))

    def shapes(self, seed: int) -> Iterator[Session]:
        # Sessions of all parts have no beginning in common: that of a part counts as a session's own.
        parts = [streamed(part.workload) for part in self.parts]
        shapes = [each.shapes(derived_seed(seed, f"part {k}")) for k, each in enumerate(parts)]
        for picked in self._picks(seed):
            session = next(shapes[picked])
            yield replace(session, own_tokens=session.own_tokens + parts[picked].shared_tokens)

    def drawn(self, seed: int) -> Iterator[str]:
        """The name of the part that each session is from, without end."""
        return (self.parts[picked].name for picked in self._picks(seed))

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        streams = [
            streamed(part.workload).stream(derived_seed(seed, f"part {k}"))
            for k, part in enumerate(self.parts)
        ]
        index = 0
        for number, picked in enumerate(self._picks(seed)):
            first = next(streams[picked])
            assert first.turn is not None
            for request in (first, *islice(streams[picked], first.turn.turns - 1)):
                assert request.turn is not None
                turn = replace(request.turn, session=number)
                yield replace(self._labelled(request, index, picked), turn=turn)
                index += 1

    def specification(self) -> Mapping[str, Any]:
        stated = _OfParts.specification(self)
        sessions = {"parts": [each.get("sessions", {}) for each in stated["parts"]]}
        return {**stated, "sessions": sessions, **stated_answers(self.answers)}


def _specification(
    all_parts: tuple[Part, ...], shares: tuple[float, ...], order: list[str]
) -> dict[str, Any]:
    parts = [(p, s, p.workload.specification()) for p, s in zip(all_parts, shares, strict=True)]
    stated = [specification for _, _, specification in parts]
    controls = {each["output_length"]["control"] for each in stated}
    prompts = [each["content"]["system_prompt"] for each in stated]
    typical = [prompt["typical_tokens"] for prompt in prompts if prompt["present"]]
    sharing = [each["prefix_sharing"] for each in stated]
    profiles = [profile for each in stated for profile in each.get("profiles", ())]
    return {
        "input_length": _mixed_length(parts, "input_length"),
        "output_length": _mixed_length(parts, "output_length")
        | {"control": controls.pop() if len(controls) == 1 else "both"},
        "content": {
            "domain": _joined(each["content"]["domain"] for each in stated),
            "language": _joined(each["content"]["language"] for each in stated),
            "system_prompt": {"present": bool(typical), "typical_tokens": max(typical, default=0)},
        },
        "prefix_sharing": {
            "fraction": math.fsum(s * each["fraction"] for s, each in zip(shares, sharing, strict=True)),
            "length": {"type": "mixture", "params": [each["length"] for each in sharing]},
        },
        "temperature": stated[0]["temperature"],
        "stop": list(stated[0]["stop"]),
        "parts": [
            {
                "name": part.name,
                "workload": part.workload.name,
                "share": share,
                **({} if part.model is None else {"model": part.model}),
                **specification,
            }
            for part, share, specification in parts
        ],
        "generation": {
            "generator": "Python random.Random(seed)",
            "order": order,
        },
        **_datasets(parts),
        **({"profiles": profiles} if profiles else {}),
        **_cuts(parts),
    }


BASE = "base"
"""Label of the requests that name no adapter."""


def zipf(names: Sequence[str], exponent: float = 1.0) -> dict[str, float]:
    """Shares of adapters by Zipf's law, for ``adapters=``: name k, counted from 1, gets a share proportional
    to ``k ** -exponent``; the shares add up to 1. Raises SuiteError for no names or an impossible
    exponent."""
    if not names or not 0 <= exponent <= LARGEST_EXPONENT:
        raise SuiteError(
            f"zipf of {len(names)} names with exponent {shown(exponent)}",
            where="adapters",
            remedy=f"give at least one name, and an exponent from 0 (equal shares) to {LARGEST_EXPONENT}",
        )
    weights = [number**-exponent for number in range(1, len(names) + 1)]
    return {name: weight / math.fsum(weights) for name, weight in zip(names, weights, strict=True)}


def of_adapters(base: Workload, adapters: Mapping[str, float] | Sequence[str]) -> Mixture | SessionMix:
    """The workload with an adapter named by each request, or by all turns of a session; labelled by adapter.

    ``adapters``: the share of each, what remains going to the base model, labelled ``base``; or names, which
    take turns. Each adapter has prompts of its own. Raises SuiteError.
    """
    in_turn = not isinstance(adapters, Mapping)
    shares = adapters if isinstance(adapters, Mapping) else dict.fromkeys(adapters, 1.0)
    parts = [Part(name, base, share, model=name) for name, share in shares.items()]
    rest = 0.0 if in_turn else 1.0 - math.fsum(shares.values())
    if rest > NO_REST:
        parts.append(Part(BASE, base, rest))
    kind = SessionMix if streamed(base).unit == "session" else Mixture
    count = f"{len(shares)} adapter{'s' * (len(shares) > 1)}"
    return kind(f"{base.name} on {count}", tuple(parts), in_turn)


def on_base_model(mixture: Workload) -> Workload:
    """The same requests of a mixture, with the same labels, none of which names a model."""
    assert isinstance(mixture, _OfParts)
    return replace(mixture, parts=tuple(replace(part, model="") for part in mixture.parts))


def chat_reasoning_mix(
    chat: Workload, reasoning: Workload, ratio: float = 0.4, name: str = "chat-and-reasoning"
) -> Mixture:
    """Chat requests with a share ``ratio`` of reasoning requests among them (long reasoning, long
    answers)."""
    if not 0 < ratio < 1:
        raise SuiteError(f"ratio is {ratio}: give the share of reasoning, between 0 and 1", where=name)
    return Mixture(name, (Part("chat", chat, 1 - ratio), Part("reasoning", reasoning, ratio)))


def _mixed_length(parts: list[tuple[Part, float, Mapping[str, Any]]], side: str) -> dict[str, Any]:
    laws = [
        {"part": p.name, "share": share, **{key: stated[side][key] for key in ("type", "params")}}
        for p, share, stated in parts
    ]
    tokenizer = parts[0][2][side]["tokenizer"]
    return {"type": "empirical", "params": {"mixture": laws}, "unit": "tokens", "tokenizer": tokenizer}


def _datasets(parts: list[tuple[Part, float, Mapping[str, Any]]]) -> dict[str, Any]:
    """The data sets of the parts as one; each is stated in full under ``parts``."""
    found = [stated["dataset"] for _, _, stated in parts if "dataset" in stated]
    if not found:
        return {}
    one = {key: _joined(each.get(key, "") for each in found) for key in _DATASET_KEYS}
    steps = [step for each in found for step in each.get("preprocessing", ())]
    return {"dataset": one | {"preprocessing": list(dict.fromkeys(steps))}}


def _cuts(parts: list[tuple[Part, float, Mapping[str, Any]]]) -> dict[str, Any]:
    """The cuts of all parts, as one statement."""
    found = [(share, stated["cuts"]) for _, share, stated in parts if "cuts" in stated]
    if not found:
        return {}
    after = {"type": "mixture", "params": [cuts["after"] for _, cuts in found]}
    return {
        "cuts": found[0][1] | {"share": math.fsum(s * cuts["share"] for s, cuts in found), "after": after}
    }


LARGEST_WEIGHT = 1e9
LARGEST_EXPONENT = 10
NO_REST = 1e-9
"""A remaining share that is the rounding of a sum."""
_RANGE = re.compile(r"\d+(-\d+|\+)")
_DATASET_KEYS = ("name", "version", "subset", "subset_method", "file_sha256")


def _joined(words: Any) -> str:
    return ", ".join(dict.fromkeys(word for word in words if word))


def _part_mistakes(parts: tuple[Part, ...], fewest: int = 2) -> list[str]:
    if len(parts) < fewest:
        return [f"there are {len(parts)} parts: a mixture needs at least two"]
    found = []
    names = [part.name for part in parts]
    if len(set(names)) < len(names) or "" in names:
        found.append(f"the parts have the names {names}: give each a different name")
    # They stand in the names of metrics: ttft[label].p99, beside ttft[0-256].p99 of a range of lengths.
    found += [
        f"a part has the name {name!r}: use no brackets and no range of numbers"
        for name in names
        if set("[]") & set(name) or _RANGE.fullmatch(name)
    ]
    for part in parts:
        if not 0 < part.weight <= LARGEST_WEIGHT:
            told = f"the weight of {part.name!r} is {shown(part.weight)}"
            found.append(f"{told}: give a number above 0, at most {trimmed(LARGEST_WEIGHT)}")
        mistakes = check_specification(part.workload)
        if not mistakes and "exact" in part.workload.specification()["input_length"]:
            mistakes = ["a mixture cannot have prompts of exact lengths: leave out exact = true"]
        found += [f"part {part.name!r}: {mistake}" for mistake in mistakes]
    return found or _disagreements(parts)


def _disagreements(parts: tuple[Part, ...]) -> list[str]:
    """Mistakes: properties that must be equal in all parts and are not."""
    stated = [part.workload.specification() for part in parts]
    values = {
        "temperature": [each["temperature"] for each in stated],
        "stop": [list(each["stop"]) for each in stated],
        "tokenizer": [each["input_length"]["tokenizer"] for each in stated],
    }
    return [
        f"the parts have different values of {key}: {given}"
        for key, given in values.items()
        if any(value != given[0] for value in given)
    ]


CHAT_AND_REASONING = chat_reasoning_mix(
    SyntheticWorkload("chat", Uniform(64, 512), Uniform(512, 1024)),
    SyntheticWorkload("reasoning", Uniform(128, 1024), Uniform(1024, 4096)),
)
"""The usual mix, in which four of ten requests have room for long reasoning. Output limits of chat leave room
for short reasoning, since a model that reasons does so before every answer."""


Range = tuple[int, int]

_RAREST = 1e-4
"""Least share of the draws within a range: below it drawing would take forever."""


@dataclass(frozen=True, slots=True)
class RequestClass:
    """Requests whose input and output limit lie in the given ranges (both ends included), and their share."""

    name: str
    input: Range
    output: Range
    share: float


SHORT: Final = RequestClass("short", input=(64, 256), output=(32, 128), share=0.8)
LONG: Final = RequestClass("long", input=(1024, 4096), output=(256, 1024), share=0.2)
"""Two request classes of the draft's example (section 5.6.2), mixed 80 to 20."""


@dataclass(frozen=True, slots=True)
class ClassMix(StreamedWorkload):
    """The base workload, conditional on classes. Requests carry the name of their class as ``class_label``.

    Per request: one ``random()`` picks the class by the cumulative shares in the order given; the input
    length is drawn until it lies in the range of the class, then the output limit, then the ids. It keeps
    the name and the standing of its base.
    """

    draws_anew = True

    classes: tuple[RequestClass, ...] = (SHORT, LONG)
    base: SyntheticWorkload = SYNTHETIC_SKEWED

    def __post_init__(self) -> None:
        mistakes = _mistakes(self)
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=f"request classes of {self.base.name!r}")

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def standard(self) -> bool:
        return self.base.standard

    @property
    def labels(self) -> Sequence[str]:
        return tuple(each.name for each in self.classes)

    def isolated(self, name: str) -> ClassMix:
        """The workload with this class alone, the baseline of the fairness test."""
        return replace(self, classes=(replace(self.named(name), share=1.0),))

    def named(self, name: str) -> RequestClass:
        """The class called ``name``."""
        for candidate in self.classes:
            if candidate.name == name:
                return candidate
        known = ", ".join(candidate.name for candidate in self.classes)
        raise SuiteError(f"no request class {name!r}", where=self.where, remedy=f"there are: {known}")

    def mean_tokens(self, name: str | None = None) -> float:
        """Expected input plus output limit of a request of class ``name``; without a name that of the mix.

        Exact, from the laws as rounded and clamped. AMB-08 makes class rates from it.
        """
        if name is None:
            return math.fsum(each.share * self.mean_tokens(each.name) for each in self.classes)
        wanted = self.named(name)
        laws = self.base.input_tokens, self.base.output_tokens
        return mean_between(laws[0], *wanted.input) + mean_between(laws[1], *wanted.output)

    def rewording(self) -> Rewording:
        return self.base.rewording()

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        generator = BulkRandom(seed)
        cumulated = list(accumulate(each.share for each in self.classes))
        for index in count():
            point = generator.random()
            picked = next((c for c, end in zip(self.classes, cumulated, strict=True) if point < end), None)
            picked = picked or self.classes[-1]
            input_tokens = _draw_inside(self.base.input_tokens, picked.input, generator)
            max_tokens = _draw_inside(self.base.output_tokens, picked.output, generator)
            yield self.base.request(generator, index, input_tokens, max_tokens, picked.name)

    def specification(self) -> Mapping[str, Any]:
        classes = [
            {"name": c.name, "input": list(c.input), "output": list(c.output), "share": c.share}
            for c in self.classes
        ]
        base = dict(self.base.specification())
        order = ["class", "input length until in range", "output limit until in range", "token ids"]
        return base | {"classes": classes, "generation": dict(base["generation"]) | {"order": order}}


def _draw_inside(law: LengthLaw, wanted: Range, generator: BulkRandom) -> int:
    while True:
        tokens = law.draw(generator)
        if wanted[0] <= tokens <= wanted[1]:
            return tokens


def _mistakes(mix: ClassMix) -> list[str]:
    if not mix.classes:
        return ["there are none: give at least one"]
    found = []
    names = [each.name for each in mix.classes]
    if len(set(names)) < len(names) or "" in names:
        found.append(f"the names are {names}: give each class a different name")
    found += [
        f"the share of {each.name!r} is {each.share}: give a number above 0"
        for each in mix.classes
        if not each.share > 0
    ]
    if not found and abs(math.fsum(each.share for each in mix.classes) - 1) > 1e-9:
        found.append(f"the shares {[each.share for each in mix.classes]} do not add up to 1")
    laws = {"input": mix.base.input_tokens, "output": mix.base.output_tokens}
    return found + [
        f"{side} {wanted[0]} to {wanted[1]} of {each.name!r} is out of reach: the base draws such a length "
        f"in {percentage(max(0.0, probability_between(law, *wanted)))} of all cases"
        for each in mix.classes
        for side, law in laws.items()
        for wanted in [each.input if side == "input" else each.output]
        if probability_between(law, *wanted) < _RAREST
    ]
