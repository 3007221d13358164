"""Requests with the lengths of another sequence, and words of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.store.objects import encoded, rebuilt
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.adapted import (
    Cuts,
    Salted,
    SameLengths,
    SharedPrefix,
    WithCuts,
    WithFixedOutput,
    with_lengths_of,
)
from pytest_llmbench.workloads.catalogue import mixed, reference_variant, workload
from pytest_llmbench.workloads.dataset import DatasetIdentity, DatasetWorkload, Prompt
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.long_context import LongContextWorkload
from pytest_llmbench.workloads.mixture import ClassMix
from pytest_llmbench.workloads.sessions import ProbeSessions
from pytest_llmbench.workloads.stream import streamed
from pytest_llmbench.workloads.synthetic import SYNTHETIC_SKEWED, SYNTHETIC_UNIFORM, SyntheticWorkload
from pytest_llmbench.workloads.trace import TraceEntry, TraceWorkload

LIST, MONDAY, TUESDAY = 7, 8, 9
OF_FEW_IDS = SyntheticWorkload("few ids", Uniform(20, 60), Fixed(8), highest_token_id=300)
WORKLOADS: tuple[Workload, ...] = (
    SYNTHETIC_UNIFORM,
    SYNTHETIC_SKEWED,
    OF_FEW_IDS,
    ClassMix(),
    LongContextWorkload(Uniform(200, 400), name="documents"),
    WithFixedOutput(SYNTHETIC_UNIFORM, 16),
    WithCuts(SYNTHETIC_UNIFORM, Cuts(0.4, Uniform(5, 50))),
    SharedPrefix("prefixed", OF_FEW_IDS, Uniform(10, 30), 0.5, prefixes=3),
    mixed({"few": (OF_FEW_IDS, 1.0), "chat": ("profile:CHAT", 1.0), "rag": ("profile:RAGN", 2.0)}),
    *(workload(f"profile:{code}") for code in ("CHAT", "RAGN", "EMBED")),
)


def _shape(request: PlannedRequest) -> tuple[object, ...]:
    return (
        request.index,
        request.max_tokens,
        request.input_tokens,
        len(request.token_ids or ()),
        request.class_label,
        request.prefix_id,
        request.shared_prefix_tokens,
        request.cut_after_ns,
        request.temperature,
    )


@pytest.mark.parametrize("base", WORKLOADS, ids=lambda base: base.name)
def test_lengths_are_those_of_the_list_and_words_of_the_load(base: Workload) -> None:
    listed = with_lengths_of(base, LIST)
    assert isinstance(listed, SameLengths)
    plain, one, other = base.requests(60, LIST), listed.requests(60, MONDAY), listed.requests(60, TUESDAY)
    assert [*map(_shape, plain)] == [*map(_shape, one)] == [*map(_shape, other)]
    beginnings = [tuple(request.token_ids or ())[:8] for every in (plain, one, other) for request in every]
    shared = sum(request.shared_prefix_tokens > 0 for request in one)
    if not shared:  # no prompt begins as another does, in this load or another
        assert len(set(beginnings)) == len(beginnings)
    assert not {*beginnings[60:120]} & {*beginnings[120:]}
    assert list(listed.requests(20, MONDAY)) == list(one[:20])


def test_a_prefix_is_shared_as_before_by_requests_of_the_load_alone() -> None:
    base = SharedPrefix("prefixed", OF_FEW_IDS, Uniform(10, 30), 0.5, prefixes=3)
    listed = with_lengths_of(base, LIST)
    assert streamed(listed).shared_prefixes(MONDAY) == base.shared_prefixes(LIST)
    heads: dict[int, set[tuple[int, ...]]] = {}
    for request in listed.requests(80, MONDAY):
        if request.prefix_id is not None:
            head = tuple(request.token_ids or ())[: request.shared_prefix_tokens]
            heads.setdefault(request.prefix_id, set()).add(head)
    assert {number: len(found) for number, found in heads.items()} == {0: 1, 1: 1, 2: 1}
    assert len(set.union(*heads.values())) == 3


def test_ids_stay_those_of_the_base_and_readable_texts_have_their_tokens() -> None:
    few = with_lengths_of(OF_FEW_IDS, LIST).requests(50, MONDAY)
    assert 250 < max(max(request.token_ids or ()) for request in few) <= 300
    tokenizer = reference_tokenizer()
    for name in ("profile:CHAT", "profile:RAGN"):
        for request in with_lengths_of(workload(name), LIST).requests(5, MONDAY):
            text = tokenizer.decode(list(request.token_ids or ()))
            assert tokenizer.count(text) == request.input_tokens


def test_it_keeps_name_and_standing_and_declares_the_change() -> None:
    listed = with_lengths_of(SYNTHETIC_UNIFORM, LIST)
    assert (listed.name, listed.standard) == ("synthetic-uniform", True)
    (change,) = listed.specification()["deviations"]
    assert (change["what"], change["lengths_seed"]) == ("words", LIST)
    assert streamed(listed).lengths_seed == LIST
    assert streamed(SYNTHETIC_UNIFORM).lengths_seed is None


@pytest.mark.parametrize(
    "base",
    [SYNTHETIC_UNIFORM, WithFixedOutput(SYNTHETIC_UNIFORM, 16), ClassMix()],
    ids=lambda base: base.name,
)
def test_a_report_makes_it_anew(base: Workload) -> None:
    listed = with_lengths_of(base, LIST)
    assert reference_variant(listed.name, listed.specification()) == listed
    assert rebuilt(encoded(listed)) == listed


TEXTS = DatasetWorkload("mine", (Prompt("Why?", 8),), DatasetIdentity("mine", "1", "all"))


def test_texts_that_are_what_they_are_have_no_list() -> None:
    for base in (TEXTS, workload("profile:FUNC"), Salted(SYNTHETIC_UNIFORM, "a"), workload("session:chat")):
        assert with_lengths_of(base, LIST) is base


def test_another_seed_gives_other_prompts_but_of_a_data_set() -> None:
    talks = streamed(workload("session:chat"))
    trace = TraceWorkload("t", (TraceEntry(0, 8, 8),), TEXTS.dataset)
    drawn = (*WORKLOADS, *(with_lengths_of(each, LIST) for each in WORKLOADS), workload("arithmetic"), talks)
    drawn = (
        *drawn,
        ProbeSessions(talks, LIST, (1,)),
        Salted(TEXTS, "a"),
        trace,
        mixed({"session:chat": 1.0}),
    )
    assert [each.name for each in drawn if not streamed(each).draws_anew] == []
    assert not TEXTS.draws_anew
    assert not streamed(WithFixedOutput(TEXTS, 5)).draws_anew
    assert not mixed({"a": (TEXTS, 1.0), "b": (OF_FEW_IDS, 1.0)}).draws_anew


class Terse:
    """A workload of the user's own that hands on what it does not define."""

    name, standard = "terse", False

    def __init__(self, base: Workload) -> None:
        self.base = base

    def __getattr__(self, name: str) -> object:
        return getattr(self.base, name)

    def requests(self, count: int, seed: int) -> list[PlannedRequest]:
        return [replace(request, max_tokens=5) for request in self.base.requests(count, seed)]


def test_defaults_of_ours_say_nothing_of_a_class_that_hands_on() -> None:
    terse: Workload = workload(Terse(SYNTHETIC_UNIFORM))  # type: ignore[arg-type]
    assert streamed(terse).unit == "request"
    listed = with_lengths_of(terse, LIST)
    assert listed.name == "terse"
    assert {request.max_tokens for request in listed.requests(9, MONDAY)} == {5}
    assert mixed({"a": (terse, 1.0), "b": (OF_FEW_IDS, 1.0)}).requests(4, MONDAY)


def test_one_that_hands_on_to_sessions_has_sessions() -> None:
    assert streamed(Terse(workload("session:chat"))).unit == "session"  # type: ignore[arg-type]
