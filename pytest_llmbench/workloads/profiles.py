"""Workload profiles ``profile:NAME``, after draft-mondal-llm-serving-workload-profiles-00.

The draft names 25 classes of production traffic, each with its ranges of input and output tokens. Those that
are known here stand in ``profiles.toml``, with what is taken from the draft, what was chosen here and what is
not known. A profile is a stream of single requests, and a custom workload: none of the methodology's own.
"""

from __future__ import annotations

import difflib
import importlib.resources
import math
import tomllib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, count, repeat
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.reply_checks import StructuredOutput, compact, parameters_of
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.workloads.adapted import FLAG_BLOCK, NO_OUTPUT, Cuts, sharing_flags
from pytest_llmbench.workloads.lengths import Fixed, LengthLaw, LogNormal, specification_of
from pytest_llmbench.workloads.readable import (
    as_ids,
    encoded,
    readable_ids,
    tools_of_length,
)
from pytest_llmbench.workloads.stream import BulkRandom, Rewording, StreamedWorkload, derived_seed
from pytest_llmbench.workloads.synthetic import NO_SHARING, NO_SYSTEM_PROMPT, specified

PREFIX: Final = "profile:"
SOURCE: Final = "after draft-mondal-llm-serving-workload-profiles-00"
LIMITED: Final = ("ttft.p99", "e2e.p99", "latency.p99")
"""Metrics on which a profile may suggest a limit."""

_FILE: Final = "profiles.toml"
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Heads:
    """Beginnings that prompts have in common: ``of`` at a time, each of ``tokens`` (least, most)."""

    what: str
    tokens: Range
    of: int
    share: float = 1.0
    """Share of the requests that begin with a shared one; the others have a beginning of their own, as
    long."""
    exponent: float = 0.0
    """Exponent of Zipf's law by which one is chosen; 0: all are equally likely."""
    uses: Range | None = None
    """Number of requests (least, most) after which a new one takes its place; None: never."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One entry of ``profiles.toml``, which explains the keys."""

    code: str
    group: str
    title: str
    input: Range
    output: Range
    latency: str
    limits: tuple[tuple[str, float], ...] = ()
    """Suggested limits, (metric, milliseconds), which are shown and not applied."""
    heads: Heads | None = None
    own: Range | None = None
    calls: float | None = None
    """Share of the requests that have to be answered with a tool call; the others with the arguments of one
    as JSON. The heads are then tools. ``None``: answers are free text."""
    cuts: Cuts | None = None
    """When users cut their requests; ``None``: they never do."""
    session: bool = False
    left_out: str = ""
    not_known: str = ""

    @property
    def generates(self) -> bool:
        return self.output[1] > 0

    @property
    def suggestions(self) -> tuple[str, ...]:
        """The suggested limits as text: ``ttft.p99 <= 500 ms``."""
        return tuple(f"{metric} <= {trimmed(limit)} ms" for metric, limit in self.limits)

    @property
    def own_law(self) -> LengthLaw:
        """Distribution of the input tokens after the head; of all input tokens where there are no heads."""
        return spread(self.own or self.input)


@dataclass(frozen=True, slots=True)
class ProfileWorkload(StreamedWorkload):
    """Single requests of a profile: readable random words, of exactly the drawn lengths in cl100k_base.

    Draw order: the heads from a generator of their own (:class:`_Pool`); per request, if there are heads,
    whether it begins with a shared one (``sharing_flags``) and with which, or the length of one of its own;
    then the tokens after it, the output limit, the words. Forms of replies, and what users cut: generators of
    their own, too.
    """

    draws_anew = True

    profile: Profile

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.profile.code}"

    def shared_prefixes(self, seed: int) -> Sequence[int]:
        """Lengths of the heads; empty if they are replaced as the stream goes on."""
        heads = self.profile.heads
        if heads is None or heads.uses is not None:
            return ()
        pool = _Pool(heads, seed, structured=self.profile.calls is not None)
        return [len(head.ids) for _, head, _ in pool.held]

    def rewording(self) -> Rewording | None:
        if self.profile.calls is not None:
            return None  # its heads are tools
        return lambda generator, _, tokens: as_ids(readable_ids(generator, tokens))

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        generator = BulkRandom(seed)
        heads, own = self.profile.heads, self.profile.own_law
        reply = spread(self.profile.output) if self.profile.generates else None
        calls = self.profile.calls
        pool = None if heads is None else _Pool(heads, seed, structured=calls is not None)
        forms = None if calls is None else _Forms(calls, seed)
        cuts = repeat(None) if self.profile.cuts is None else self.profile.cuts.times_ns(seed)
        for index in count():
            # Without heads, one of no words: it takes a draw, which is a part of every known sequence.
            number, head = (None, _words(generator, 0)) if pool is None else pool.draw()
            ids, shared = head.ids, 0 if number is None else len(head.ids)
            tokens, limit = own.draw(generator), 0 if reply is None else reply.draw(generator)
            ids = ids + as_ids(readable_ids(generator, tokens))
            yield PlannedRequest(
                index=index,
                max_tokens=limit,
                input_tokens=len(ids),
                token_ids=ids,
                prefix_id=number,
                shared_prefix_tokens=shared,
                structured=None if forms is None else forms.draw(head.tools),
                cut_after_ns=next(cuts),
            )

    def specification(self) -> Mapping[str, Any]:
        profile = self.profile
        own = specification_of(profile.own_law, "cl100k_base")
        return specified(
            own if profile.heads is None else _sum_of(profile.heads, own),
            specification_of(spread(profile.output), "cl100k_base")
            if profile.generates
            else {"unit": "tokens", "tokenizer": "cl100k_base", **NO_OUTPUT},
            domain="readable random words",
            system_prompt=_system_prompt(profile),
            sharing=_sharing(profile.heads),
            structured_output=_structured(profile),
            cuts=profile.cuts and profile.cuts.specification(),
            order=[
                "heads from a seed of their own",
                f"flags of every {FLAG_BLOCK} requests, which head",
                "tokens after the head",
                *(["output limit"] if profile.generates else []),
                "words",
            ],
            profiles=[
                {
                    "code": profile.code,
                    "source": SOURCE,
                    "latency_class": profile.latency or "none given",
                    "suggested_limits": list(profile.suggestions),
                    "session_by_nature": profile.session,
                    "left_out": profile.left_out,
                    "not_known": profile.not_known,
                }
            ],
        )


def spread(tokens: Range) -> LengthLaw:
    """Log-normal distribution around the geometric middle of a range that holds four of its standard
    deviations, so 95 of 100 lengths before they are clamped to it. The draft gives ranges and no
    distributions."""
    low, high = (math.log(end) for end in tokens)
    if tokens[0] == tokens[1]:
        return Fixed(tokens[0])
    return LogNormal(round((low + high) / 2, 4), round((high - low) / 4, 4), *tokens)


def profile_workload(name: str) -> ProfileWorkload:
    """The workload called ``profile:NAME``. Raises SuiteError for a profile that is not known."""
    code = name.removeprefix(PREFIX)
    if code in profiles():
        return ProfileWorkload(profiles()[code])
    close = difflib.get_close_matches(code.upper(), profiles(), n=1)
    hint = f"did you mean '{PREFIX}{close[0]}'? " if close else ""
    raise SuiteError(f"unknown profile {shown(name)}", remedy=f"{hint}profiles: {', '.join(profiles())}")


def without_output(stated: Sequence[Mapping[str, Any]]) -> list[str]:
    """The codes of those profiles, given as ``specification()["profiles"]``, that generate nothing."""
    known = profiles()
    codes = (str(each.get("code")) for each in stated)
    return [code for code in codes if code in known and not known[code].generates]


def told_of(stated: Sequence[Mapping[str, Any]]) -> list[str]:
    """Notes on profiles, given as ``specification()["profiles"]``: a line each. The statements may come from
    a stored report, which need not be ours."""
    found = []
    for each in stated:
        limits = ", ".join(map(str, each.get("suggested_limits") or ())) or "no limit"
        session = ", a session by nature, sent as single requests" if each.get("session_by_nature") else ""
        found.append(
            f"{PREFIX}{each.get('code')}, {each.get('source')}: latency class {each.get('latency_class')}"
            f"{session}; suggests {limits} (a suggestion, not applied)"
        )
    return found


@cache
def profiles() -> Mapping[str, Profile]:
    """Code → profile, in the order of the groups."""
    lines = _document()["profiles"]
    return MappingProxyType({code: _profile(code, line) for code, line in lines.items()})


def groups() -> Mapping[str, str]:
    """Letter of a group → its name."""
    found: Mapping[str, str] = _document()["groups"]
    return found


@cache
def _document() -> Mapping[str, Any]:
    text = importlib.resources.files("pytest_llmbench.workloads").joinpath(_FILE).read_text("utf-8")
    return tomllib.loads(text)


def _profile(code: str, line: Mapping[str, Any]) -> Profile:
    heads = line.get("heads")
    read_here = ("heads", "limits", "structured", "cuts")
    given = {key: value for key, value in line.items() if key not in read_here}
    if "cuts" in line:
        given["cuts"] = Cuts(line["cuts"]["share"], spread(tuple(line["cuts"]["after_ms"])))
    given |= {"calls": line["structured"]["calls"]} if "structured" in line else {}
    given |= {key: tuple(given[key]) for key in ("input", "output", "own") if key in given}
    made = None
    if heads is not None:
        made = Heads(**heads | {key: tuple(heads[key]) for key in ("tokens", "uses") if key in heads})
    return Profile(code=code, **given, limits=tuple(line.get("limits", {}).items()), heads=made)


class _Head(NamedTuple):
    """A beginning of prompts; ``tools``: the tools if it is their JSON text."""

    ids: Any
    tools: str = ""


def _words(generator: BulkRandom, tokens: int) -> _Head:
    return _Head(as_ids(readable_ids(generator, tokens)))


class _Forms:
    """The structures that replies are asked for, in the order of the requests: whether it is a call, and
    otherwise the tool whose arguments are the answer."""

    def __init__(self, calls: float, seed: int) -> None:
        self._generator = BulkRandom(derived_seed(seed, "forms"))
        self._flags = sharing_flags(self._generator, calls)

    def draw(self, tools: str) -> StructuredOutput:
        if next(self._flags):
            return StructuredOutput(tools)
        schemas = list(parameters_of(tools).values())
        return StructuredOutput(tools, compact(self._generator.choice(schemas)))


class _Pool:
    """The heads of one stream, drawn from a generator of their own: for each its length, how often it is used
    if that is bounded, its words."""

    def __init__(self, heads: Heads, seed: int, *, structured: bool = False) -> None:
        """``structured``: whether the heads are tools."""
        self._heads, self._structured = heads, structured
        self._generator = BulkRandom(derived_seed(seed, "heads"))
        self._law = spread(heads.tokens)
        self._made = 0
        self.held = [self._new() for _ in range(heads.of)]
        self._flags = sharing_flags(self._generator, heads.share)
        self._cumulated = list(accumulate((rank + 1) ** -heads.exponent for rank in range(heads.of)))

    def _new(self) -> tuple[int, _Head, float]:
        """A new head: its number, the head, and how often it may be used."""
        number, self._made = self._made, self._made + 1
        tokens = self._law.draw(self._generator)
        uses = math.inf if self._heads.uses is None else self._generator.randint(*self._heads.uses)
        return number, self._head(tokens), uses

    def _head(self, tokens: int) -> _Head:
        if not self._structured:
            return _words(self._generator, tokens)
        tools = tools_of_length(self._generator, tokens)
        return _Head(array("I", encoded(tools)), tools)

    def draw(self) -> tuple[int | None, _Head]:
        """A shared head with its number, or None and a head that no other request has."""
        if not next(self._flags):
            return None, self._head(self._law.draw(self._generator))
        point = self._generator.random() * self._cumulated[-1]
        rank = bisect_right(self._cumulated, point, hi=len(self._cumulated) - 1)
        number, head, uses = self.held[rank]
        self.held[rank] = (number, head, uses - 1) if uses > 1 else self._new()
        return number, head


def _sum_of(heads: Heads, own: Mapping[str, Any]) -> dict[str, Any]:
    head = spread(heads.tokens)
    ends = (own["params"].get("min", 0), own["params"].get("max", 0))
    params = {
        "sum_of": [
            {"part": heads.what, "type": head.type, "params": dict(head.params)},
            {"part": "what comes after", "type": own["type"], "params": own["params"]},
        ],
        "min": head.bounds[0] + ends[0],
        "max": head.bounds[1] + ends[1],
    }
    return {"type": "empirical", "params": params, "unit": own["unit"], "tokenizer": own["tokenizer"]}


def _sharing(heads: Heads | None) -> Mapping[str, Any]:
    if heads is None:
        return NO_SHARING
    law = spread(heads.tokens)
    choice = f"Zipf, exponent {trimmed(heads.exponent)}" if heads.exponent else "all alike"
    told: dict[str, Any] = {
        "fraction": heads.share,
        "length": {"type": law.type, "params": dict(law.params)},
        "prefixes": heads.of,
        "choice": choice,
        "what": heads.what,
    }
    return told if heads.uses is None else told | {"requests_per_prefix": list(heads.uses)}


def _structured(profile: Profile) -> dict[str, Any] | None:
    if profile.calls is None:
        return None
    return {
        "calls": profile.calls,
        "schemas": "of OpenAI's function calling, drawn from the seed",
        "counted_as": "input, as compact JSON in cl100k_base",
        "not_counted": "what the server's chat template makes of them",
    }


def _system_prompt(profile: Profile) -> Mapping[str, Any]:
    heads = profile.heads
    if heads is None or "system prompt" not in heads.what:
        return NO_SYSTEM_PROMPT
    typical = round(math.exp((math.log(heads.tokens[0]) + math.log(heads.tokens[1])) / 2))
    return {"present": True, "typical_tokens": typical, "counted_as": "input"}
