"""Workloads made from another one by a declared change: fixed outputs, other words, salt, a prefix ahead,
users who leave.

Each draws the base workload's own sequence first and changes its requests afterwards, with randomness of its
own, so that whatever is not changed stays bit for bit what the base would have asked.

Shared prefixes are here too: which requests begin with one, how often they really do, and they as requests,
with which a warm prefix cache is filled (AMB-18).
"""

from __future__ import annotations

import math
import random
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.reply_checks import StructuredOutput, tools_of
from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.lengths import Fixed, LengthLaw, law_of, specification_of
from pytest_llmbench.workloads.readable import as_ids, readable_ids, salted_tools, word_ids
from pytest_llmbench.workloads.sequence import drawn, passing
from pytest_llmbench.workloads.stream import (
    BulkRandom,
    Rewording,
    StreamedWorkload,
    derived_seed,
    single_requests,
    streamed,
)
from pytest_llmbench.workloads.synthetic import HIGHEST_CL100K_ID, NO_SHARING, name_mistakes

NO_OUTPUT: Mapping[str, Any] = {"type": "fixed", "params": {"tokens": 0}, "control": "max_tokens"}
"""The output specification where nothing is generated."""


class Adapted(StreamedWorkload):
    """A workload made from another one by a change that it declares; the rest is that of ``base``."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def base(self) -> Workload: ...

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def sources(self) -> Sequence[Workload]:
        return (self.base,)

    @property
    def draws_anew(self) -> bool:
        return streamed(self.base).draws_anew

    def rewording(self) -> Rewording | None:
        return streamed(self.base).rewording()

    def shared_prefixes(self, seed: int) -> Sequence[int]:
        return streamed(self.base).shared_prefixes(seed)

    def declared(self, change: Mapping[str, Any], **changed: Any) -> Mapping[str, Any]:
        """The specification of the base with the values ``changed``, and the change among ``deviations``."""
        base = dict(self.base.specification())
        return base | changed | {"deviations": [*base.get("deviations", ()), change]}


@dataclass(frozen=True, slots=True)
class WithFixedOutput(Adapted):
    """The base workload with a fixed output limit (AMB-11), set after all its draws; inputs stay the same.

    It keeps the base's name and standing, since the draft itself asks for it (section 5.5.2), and declares
    the change under ``deviations``.
    """

    base: Workload
    output_tokens: int

    def __post_init__(self) -> None:
        Fixed(self.output_tokens)

    @property
    def standard(self) -> bool:
        return self.base.standard

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        return _limited(self.base, seed, self.output_tokens)

    def specification(self) -> Mapping[str, Any]:
        replaced = self.base.specification()["output_length"]
        law = specification_of(Fixed(self.output_tokens), replaced["tokenizer"])
        change = {
            "what": "output_length",
            "instead_of": {"type": replaced["type"], "params": replaced["params"]},
            "rule": f"output limit fixed at {self.output_tokens} after all draws (AMB-11)",
        }
        return self.declared(change, output_length={**replaced, **law})


@dataclass(frozen=True, slots=True)
class WithoutOutput(Adapted):
    """The inputs of the base workload alone, for what generates nothing. It declares the change under
    ``deviations``."""

    base: Workload

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        return _limited(self.base, seed, 0)

    def specification(self) -> Mapping[str, Any]:
        change = {"what": "output_length", "rule": "inputs alone: nothing is generated"}
        return self.declared(
            change, output_length={**self.base.specification()["output_length"], **NO_OUTPUT}
        )


def _limited(base: Workload, seed: int, output_tokens: int) -> Iterator[PlannedRequest]:
    return (replace(request, max_tokens=output_tokens) for request in single_requests(base, seed))


@dataclass(frozen=True, slots=True)
class Cuts:
    """Users who do not wait: which requests they cut, and when.

    Drawn from a generator of their own, so all else about the requests stays as it is: whether request 0, 1,
    … is cut (``sharing_flags``), and for each that is, after what time.
    """

    share: float
    """Share of the requests that are cut."""
    after_ms: LengthLaw
    """Distribution of the time from submission to the cut, in milliseconds."""

    def __post_init__(self) -> None:
        number = isinstance(self.share, int | float) and not isinstance(self.share, bool)
        if not number or not 0 <= self.share <= 1:
            raise SuiteError(f"the share of cut requests is {shown(self.share)}: give a share from 0 to 1")

    def times_ns(self, seed: int) -> Iterator[int | None]:
        """For each request in order, the time in nanoseconds after which it is cut; None: its user waits."""
        generator = BulkRandom(derived_seed(seed, "cuts"))
        for cut in sharing_flags(generator, self.share):
            yield self.after_ms.draw(generator) * 1_000_000 if cut else None

    def applied(self, requests: Iterator[PlannedRequest], seed: int) -> Iterator[PlannedRequest]:
        """The requests with the times after which they are cut."""
        pairs = zip(requests, self.times_ns(seed), strict=False)
        return (each if ns is None else replace(each, cut_after_ns=ns) for each, ns in pairs)

    def specification(self) -> dict[str, Any]:
        """The value of ``cuts`` in a workload's specification."""
        after = {"type": self.after_ms.type, "params": dict(self.after_ms.params), "unit": "ms"}
        return {"share": self.share, "after": after, "from": "submission", "figures": CUT_REQUESTS}


def cuts_of(share: Any, after_s: Any) -> Cuts | None:
    """The cuts by ``cut_share`` and ``cut_after_s``; None if neither is given. SuiteError if only one is, and
    for an invalid share or time."""
    if share is None and after_s is None:
        return None
    if share is None or after_s is None:
        raise SuiteError("cut_share and cut_after_s belong together: how many requests are cut, and when")
    return Cuts(share, seconds_law(after_s, "cut_after_s"))


CUT_REQUESTS: Final = (
    "requests that their users were to cut are load; they are left out of latencies, and count neither as "
    "completed nor as failed, whether the reply was complete before that or not"
)


def told_of_cuts(stated: Any) -> str:
    """The cuts in words, ``users cut 25 % of the requests``, from ``specification()["cuts"]``; empty if there
    are none. The specification may come from a stored report, which need not be ours."""
    share = stated.get("share") if isinstance(stated, Mapping) else None
    if not isinstance(share, int | float):
        return ""
    percent = float(f"{100 * share:.3g}")  # a rule of the specification, by which baselines are compared
    return f"users cut {trimmed(percent)} % of the requests"


def seconds_law(value: Any, what: str) -> LengthLaw:
    """A distribution in milliseconds from seconds: a number, a pair (uniform) or a list to choose from.

    Raises SuiteError for anything else, and for less than a millisecond; ``what`` it is called.
    """
    several = isinstance(value, Sequence) and not isinstance(value, str)
    seconds = list(value) if several else [value]
    if not seconds or not all(map(_is_time, seconds)):
        raise SuiteError(f"{what} is {shown(value)}: give seconds, at least 0.001, a pair or a list of them")
    ms = [round(each * 1000) for each in seconds]
    return law_of((tuple(ms) if isinstance(value, tuple) else ms) if several else ms[0], what)


def _is_time(seconds: Any) -> bool:
    return (
        isinstance(seconds, int | float)
        and not isinstance(seconds, bool)
        and math.isfinite(seconds)
        and seconds >= 0.001
    )


@dataclass(frozen=True, slots=True)
class WithCuts(Adapted):
    """The base workload, with a share of its requests cut by users after some time."""

    base: Workload
    cuts: Cuts

    def __post_init__(self) -> None:
        if "cuts" in self.base.specification():
            raise SuiteError("its users cut requests already", where=f"workload {self.base.name!r}")

    @property
    def name(self) -> str:
        return f"{self.base.name} (with cuts)"

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        return self.cuts.applied(single_requests(self.base, seed), seed)

    def specification(self) -> Mapping[str, Any]:
        cuts = self.cuts.specification()
        return self.declared({"what": "cuts", "rule": told_of_cuts(cuts)}, cuts=cuts)


def without_outputs(workload: Workload) -> Workload:
    """The workload for requests that generate nothing: only its inputs, if it asks for outputs."""
    asked = workload.specification()["output_length"]
    return workload if asked.get("params") == NO_OUTPUT["params"] else WithoutOutput(workload)


@dataclass(frozen=True, slots=True)
class Salted(Adapted):
    """The base workload with a different beginning for every request, so that no prefix cache can help.

    The first six ids of a prompt are replaced: the first three number the request, the next three are drawn
    from the salt and the seed. They spell words where the base has readable text, so the length stays exact.
    A prompt given as text gets a short mark in front and is counted again. Prefixes of the base are no longer
    shared.
    """

    draws_anew = True

    base: Workload
    salt: str

    def __post_init__(self) -> None:
        if not self.salt:
            raise SuiteError("the salt is empty: give any word", where=f"salted {self.base.name!r}")

    @property
    def name(self) -> str:
        return f"{self.base.name} (salted)"

    def rewording(self) -> None:
        return None

    def shared_prefixes(self, seed: int) -> Sequence[int]:  # noqa: ARG002 - none is shared any more
        return ()

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        generator = BulkRandom(derived_seed(seed, f"salt {self.salt}"))
        alphabet = range(highest_id(self.base) + 1) if _is_random(self.base) else word_ids().tolist()
        mark = [generator.choice(alphabet) for _ in range(3)]
        word = f"{generator.getrandbits(32):08x}"
        for request in single_requests(self.base, seed):
            yield _salted(request, mark, alphabet, word)

    def specification(self) -> Mapping[str, Any]:
        change = {"what": "prompt", "rule": "a different beginning for every request", "salt": self.salt}
        return self.declared(change, prefix_sharing=dict(NO_SHARING))


def _salted(request: PlannedRequest, mark: list[int], alphabet: Sequence[int], word: str) -> PlannedRequest:
    alone = replace(request, prefix_id=None, shared_prefix_tokens=0)
    if request.structured is not None and request.structured.tools:
        return _salted_tools(alone, request.structured, f"{request.index} {word}")
    if request.token_ids is None:
        text = f"[{request.index} {word}] {request.text}"
        return replace(alone, text=text, input_tokens=reference_tokenizer().count(text))
    size = len(alphabet)
    number = [alphabet[request.index // size**place % size] for place in range(3)]
    beginning = array("I", number + mark)
    ids = array("I", request.token_ids)
    kept = min(len(beginning), len(ids))
    return replace(alone, text=None, token_ids=beginning[:kept] + ids[kept:])


def _salted_tools(alone: PlannedRequest, asked: StructuredOutput, salt: str) -> PlannedRequest:
    """The request with the salt in the first tool's description, as tools are what a server puts first. It is
    counted as part of the tools."""
    tools, tokenizer = salted_tools(list(tools_of(asked.tools)), salt), reference_tokenizer()
    marked = replace(alone, structured=replace(asked, tools=tools))
    if alone.token_ids is None:
        text = tools + (alone.text or "").removeprefix(asked.tools)
        return replace(marked, text=text, input_tokens=tokenizer.count(text))
    own = array("I", alone.token_ids)[len(tokenizer.encode(asked.tools)) :]
    ids = array("I", tokenizer.encode(tools)) + own
    return replace(marked, text=None, token_ids=ids, input_tokens=len(ids))


@dataclass(frozen=True, slots=True)
class SameLengths(Adapted):
    """One list of lengths, fresh words: request i is request i of ``base`` with ``lengths_seed`` (lengths,
    class, shared prefix, cut), with ids drawn with the seed of the load: prefix by prefix where they occur
    first, then what is the request's own.

    The lengths that are drawn decide much of what a run measures and say nothing about the system, so loads
    that are compared get one list of them; with new words, so that no prefix cache helps. It keeps the name
    and the standing of its base, whose laws it has, and declares the change.
    """

    draws_anew = True

    base: StreamedWorkload
    lengths_seed: int = field()  # without this the inherited property would be its default

    @property
    def standard(self) -> bool:
        return self.base.standard

    def rewording(self) -> None:
        return None

    def shared_prefixes(self, seed: int) -> Sequence[int]:  # noqa: ARG002 - they are those of the list
        return self.base.shared_prefixes(self.lengths_seed)

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        draw = self.base.rewording()
        assert draw is not None, f"{self.name} has no other words"
        generator = BulkRandom(derived_seed(seed, "words"))
        prefixes: dict[int, array[int]] = {}
        for request in self.base.stream(self.lengths_seed):
            shared, number = request.shared_prefix_tokens, request.prefix_id
            if number is None:
                yield replace(request, token_ids=draw(generator, request, request.input_tokens))
                continue
            if number not in prefixes:
                prefixes[number] = draw(generator, request, shared)
            own = draw(generator, request, request.input_tokens - shared)
            yield replace(request, token_ids=prefixes[number] + own)

    def specification(self) -> Mapping[str, Any]:
        change = {
            "what": "words",
            "rule": f"lengths of the sequence of seed {self.lengths_seed}, ids drawn by the load's own seed",
            "lengths_seed": self.lengths_seed,
        }
        return self.declared(change)


def with_lengths_of(workload: Workload, seed: int) -> Workload:
    """The workload with the lengths that it draws with ``seed``, whatever the seed of a load; unchanged where
    its prompts cannot be drawn anew: a data set, a trace and sessions have texts of their own."""
    source = streamed(workload)
    return source.with_lengths_of(seed) if source.rewording() is None else SameLengths(source, seed)


@dataclass(frozen=True, slots=True)
class SharedPrefix(Adapted):
    """The base workload, with a fraction of its requests beginning with one of ``prefixes`` shared
    prefixes.

    The prefix precedes the prompt of the base and makes it longer. Draw order, from a seed of its own: the
    lengths of all prefixes, their content one after the other, then per request whether it shares
    (``sharing_flags``) and, if so, ``randrange(prefixes)``. Prefixes are ids like those of the base, or
    readable text where the base has text.
    """

    name: str = field()  # without this the inherited property would be its default
    base: Workload
    prefix_tokens: LengthLaw
    fraction: float
    prefixes: int = 1

    def __post_init__(self) -> None:
        mistakes = name_mistakes(self.name)
        if not 0 <= self.fraction <= 1:
            mistakes.append(f"fraction is {self.fraction}: give a share between 0 and 1")
        if not isinstance(self.prefixes, int) or self.prefixes < 1:
            mistakes.append(f"prefixes is {self.prefixes}: give a whole number, at least 1")
        if self.base.specification()["prefix_sharing"]["fraction"] != 0:
            mistakes.append(f"{self.base.name!r} shares prefixes already")
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=self.where)

    def shared_prefixes(self, seed: int) -> Sequence[int]:
        """Lengths of the prefixes."""
        generator = BulkRandom(derived_seed(seed, "shared prefixes"))
        return tuple(self.prefix_tokens.draw(generator) for _ in range(self.prefixes))

    def rewording(self) -> Rewording | None:
        return streamed(self.base).rewording() if _is_random(self.base) else None

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        generator = BulkRandom(derived_seed(seed, "shared prefixes"))
        lengths = [self.prefix_tokens.draw(generator) for _ in range(self.prefixes)]
        highest = highest_id(self.base) if _is_random(self.base) else None
        heads = [
            as_ids(readable_ids(generator, tokens))
            if highest is None
            else generator.randints(0, highest, tokens)
            for tokens in lengths
        ]
        flags = sharing_flags(generator, self.fraction)
        for request in single_requests(self.base, seed):
            rank = generator.randrange(self.prefixes) if next(flags) else None
            yield request if rank is None else _prefixed(request, heads[rank], rank)

    def specification(self) -> Mapping[str, Any]:
        base = dict(self.base.specification())
        length = {"type": self.prefix_tokens.type, "params": dict(self.prefix_tokens.params)}
        sharing = {"fraction": self.fraction, "length": length, "prefixes": self.prefixes}
        order = ["prefix lengths", "prefixes", f"flags of every {FLAG_BLOCK} requests", "which prefix"]
        return base | {
            "prefix_sharing": sharing,
            "generation": {"base": base.get("generation", self.base.name), "prefix_order": order},
        }


def _prefixed(request: PlannedRequest, head: array[int], rank: int) -> PlannedRequest:
    if request.structured is not None and request.structured.tools:
        raise SuiteError(
            "its requests begin with tool schemas, which servers put before all else",
            where=f"prefix ahead of request {request.index}",
            remedy="leave the prefix out: share the tools instead",
        )
    shared = replace(request, prefix_id=rank, shared_prefix_tokens=len(head))
    if request.token_ids is not None and request.text is None:
        ids = head + array("I", request.token_ids)
        return replace(shared, token_ids=ids, input_tokens=len(ids))
    text = f"{reference_tokenizer().decode(list(head))}\n\n{request.text}"
    return replace(shared, token_ids=None, text=text, input_tokens=reference_tokenizer().count(text))


def _is_random(workload: Workload) -> bool:
    """Whether its prompts are random ids; if not, they are readable text."""
    return bool(workload.specification()["content"]["domain"] == "random")


def highest_id(workload: Workload) -> int:
    """The highest id that the workload draws, by its specification; else the highest of cl100k_base."""
    ids = workload.specification().get("generation", {})
    stated = ids.get("token_ids", {}).get("max") if isinstance(ids, Mapping) else None
    return stated if isinstance(stated, int) else HIGHEST_CL100K_ID


FLAG_BLOCK = 10
"""Number of requests per shuffled list of flags."""


def sharing_flags(generator: random.Random, fraction: float) -> Iterator[bool]:
    """Whether request 0, 1, … begins with a shared prefix: exactly the share, to within one request in ten.

    A sequence of known length would shuffle one list with exactly round(fraction · n) carriers. Here n is ten
    and the next list is shuffled when the last is used up, so that a shorter sequence stays the beginning of
    a longer one and every stretch of it has the share that the audit looks for.
    """
    given = blocks = 0
    while True:
        blocks += 1
        carriers = round(fraction * FLAG_BLOCK * blocks) - given
        given += carriers
        flags = [True] * carriers + [False] * (FLAG_BLOCK - carriers)
        generator.shuffle(flags)
        yield from flags


def realised_sharing(workload: Workload, first: int, count: int, seed: int) -> dict[str, Any]:
    """The realised sharing of prefixes in a stretch of the sequence, for the fact
    ``workload.prefix_sharing``.

    Keys: ``realised_fraction``, ``contexts`` (lengths of the prefixes in tokens), ``realised_by_rank``
    (requests per prefix). Of a workload that does not know its prefixes ahead, those that occur, the most
    frequent first. Empty for a workload whose requests share none.
    """
    every, uses, lengths = 0, Counter[int](), dict[int, int]()
    for request in passing(workload, first, count, seed):
        every += 1
        prefix = request.prefix_id
        if prefix is not None:
            uses[prefix] += 1
            lengths[prefix] = max(lengths.get(prefix, 0), request.shared_prefix_tokens)
    known = streamed(workload).shared_prefixes(seed)
    if not every or (not uses and not known):
        return {}
    if known:
        contexts = list(known)
        by_rank = [uses[rank] for rank in range(len(contexts))]
    else:
        ranked = uses.most_common()
        contexts = [lengths[prefix] for prefix, _ in ranked]
        by_rank = [times for _, times in ranked]
    return {
        "realised_fraction": uses.total() / every,
        "contexts": contexts,
        "realised_by_rank": by_rank,
    }


@dataclass(frozen=True)
class Prefixes:
    """One request of one output token for every shared prefix in the first ``among`` requests of ``base``.

    Only the prefixes, not whole prompts: a cache that held the measured prompts themselves would show a
    benefit that no traffic has.
    """

    base: Workload
    among: int

    @property
    def name(self) -> str:
        return f"prefixes of {self.base.name}"

    @property
    def standard(self) -> bool:
        return False

    def count(self, seed: int) -> int:
        """How many different prefixes there are."""
        return len(self._carriers(seed))

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        return [_prefix_of(request, index) for index, request in enumerate(self._carriers(seed)[:count])]

    def specification(self) -> Mapping[str, Any]:
        return dict(self.base.specification())

    def _carriers(self, seed: int) -> list[PlannedRequest]:
        """The first request with each prefix; the longest of those whose prefixes have an id in common. Of a
        session only its first turn: what later ones share is their own history, and no other session's."""
        longest: dict[int, PlannedRequest] = {}
        for request in drawn(self.base, 0, self.among, seed):
            first = request.turn is None or request.turn.number == 1
            if request.prefix_id is not None and first:
                held = longest.get(request.prefix_id)
                if held is None or held.shared_prefix_tokens < request.shared_prefix_tokens:
                    longest[request.prefix_id] = request
        return list(longest.values())


def _prefix_of(request: PlannedRequest, index: int) -> PlannedRequest:
    # Tools go in a field of their own, and some servers refuse a message without any text.
    length = request.shared_prefix_tokens + (request.structured is not None)
    ids, text = request.token_ids, request.text
    if ids is not None:
        ids, text = ids[:length], None
    elif text is not None:
        tokenizer = reference_tokenizer()
        text = tokenizer.decode(tokenizer.encode(text)[:length])
    return replace(
        request, index=index, max_tokens=1, input_tokens=length, token_ids=ids, text=text, turn=None
    )
