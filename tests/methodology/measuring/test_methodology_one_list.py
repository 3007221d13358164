"""One list of lengths for the runs of a load, and for other sessions and arms, with words of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from replayed_sut import ReplayedSUT

from pytest_llmbench.compliance.evidence import Evidence, EvidenceView
from pytest_llmbench.compliance.workload_evidence import regenerated
from pytest_llmbench.methodology.sections import ttft
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.workloads.dataset import DatasetIdentity, DatasetWorkload, Prompt
from pytest_llmbench.workloads.sequence import drawn
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

JOB: dict[str, Any] = {"concurrency": 2, "requests": 20, "runs": 3}
CLOSED: dict[str, Any] = {**JOB, "steady": True}
OPEN: dict[str, Any] = {"rate": 20, "requests": 20, "runs": 3}
KINDS = pytest.mark.parametrize("given", [CLOSED, OPEN], ids=["closed", "open"])


def _plans(lengths: str, given: dict[str, Any], **more: Any) -> Sequence[LoadPlan]:
    parameters = ttft.Parameters(**given)
    return ttft.TEST.plans(parameters, ReplayedSUT().setting(parameters.workload, lengths=lengths, **more))


def _lengths(plan: LoadPlan) -> list[tuple[int, int]]:
    sent = drawn(plan.workload, plan.first, plan.requests, plan.seed)
    return [(request.input_tokens, request.max_tokens) for request in sent]


def _beginnings(plans: Sequence[LoadPlan]) -> list[tuple[int, ...]]:
    sent = [request for p in plans for request in drawn(p.workload, p.first, p.requests, p.seed)]
    return [tuple(request.token_ids or ())[:8] for request in sent]


@pytest.mark.parametrize(("lengths", "given"), [("drawn", JOB), ("shared", JOB), ("repeated", OPEN)])
def test_repeated_lengths_are_the_same_in_every_run_with_new_words(
    lengths: Any, given: dict[str, Any]
) -> None:
    plans = _plans(lengths, given)
    first = _lengths(plans[0])
    assert len(set(first)) > 10
    assert [_lengths(plan) for plan in plans] == [first] * 3
    assert len({plan.key for plan in plans}) == 3
    assert len({plan.schedule_seed for plan in plans}) == 1
    assert len(set(_beginnings(plans))) == 60


@KINDS
@pytest.mark.parametrize("lengths", ["shared", "repeated"])
def test_another_session_has_the_list_and_other_words(given: dict[str, Any], lengths: str) -> None:
    monday, tuesday = (_plans(lengths, given, salt=day) for day in ("monday", "tuesday"))
    assert [*map(_lengths, monday)] == [*map(_lengths, tuesday)]
    assert [plan.schedule_seed for plan in monday] == [plan.schedule_seed for plan in tuesday]
    assert len(set(_beginnings([*monday, *tuesday]))) == 120


@KINDS
def test_a_shared_list_is_that_of_sessions_without_a_name_each_run_its_stretch(given: dict[str, Any]) -> None:
    listed, plain = _plans("shared", given, salt="monday"), _plans("drawn", given)
    assert [plan.first for plan in listed] == [0, 20, 40]
    assert [*map(_lengths, listed)] == [*map(_lengths, plain)]
    assert [plan.schedule_seed for plan in listed] == [plan.seed for plan in plain]
    renamed = _plans("drawn", given, salt="monday")
    assert [*map(_lengths, renamed)] != [*map(_lengths, plain)]


def _spoiled_once(lengths: str, given: dict[str, Any]) -> list[LoadPlan]:
    """The plans of a test whose second run this machine spoils once."""
    spoiled: list[LoadPlan] = []

    def world(seen: Observation) -> Observation:
        if seen.plan.label != "run 2 of 3" or spoiled:
            return seen
        spoiled.append(seen.plan)
        return replace(seen, selfcheck=replace(seen.selfcheck, send_lag_p99_ns=44_000_000))

    sut = ReplayedSUT(change=world)
    sut.measure(ttft.TEST, keep={"lengths": lengths}, **given)
    return [plan for plan in sut.plans if plan.label.startswith("run")]


@pytest.mark.parametrize("lengths", ["shared", "repeated"])
def test_a_run_that_is_measured_again_has_its_lengths_again_and_new_words(lengths: str) -> None:
    plans = _spoiled_once(lengths, OPEN)
    assert [(plan.label, plan.attempt) for plan in plans] == [
        ("run 1 of 3", 1),
        ("run 2 of 3", 1),
        ("run 2 of 3", 2),
        ("run 3 of 3", 1),
    ]
    assert _lengths(plans[1]) == _lengths(plans[2])
    assert len(set(_beginnings(plans))) == 80


@KINDS
@pytest.mark.parametrize("lengths", ["shared", "repeated"])
def test_what_was_sent_is_drawn_again_from_the_facts(given: dict[str, Any], lengths: str) -> None:
    result = ReplayedSUT().measure(ttft.TEST, keep={"lengths": lengths, "salt": "monday"}, **given)
    view = EvidenceView(Evidence("ttft", result))
    assert regenerated(view) is None
    assert regenerated(view, by_reference=True) is None
    assert result.facts.value("workload.n_requests") == 60
    assert result.facts.value("workload.standard") is True
    if lengths == "repeated" and "rate" in given:
        due = [seen.records.scheduled_ns - seen.started_ns for seen in result.observations]
        assert np.array_equal(due[0], due[1])
        assert np.array_equal(due[0], due[2])


def test_a_data_set_is_sent_as_before() -> None:
    texts = tuple(Prompt(f"Question {k}?", 8) for k in range(400))
    given = JOB | {"workload": DatasetWorkload("mine", texts, DatasetIdentity("mine", "1", "all"))}
    assert [plan.first for plan in _plans("repeated", given)] == [0, 20, 40]
    assert [*map(_lengths, _plans("repeated", given))] == [*map(_lengths, _plans("drawn", given))]


def test_another_seed_has_another_list() -> None:
    one, other = (_plans("drawn", JOB | {"workload": SYNTHETIC_UNIFORM}) for _ in range(2))
    assert _lengths(one[0]) == _lengths(other[0])
    moved = ttft.TEST.plans(
        ttft.Parameters(**JOB), replace(ReplayedSUT().setting("synthetic-uniform"), seed=43)
    )
    assert _lengths(moved[0]) != _lengths(one[0])
