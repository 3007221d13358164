"""Prompts that go out again: in runs that are measured again, and of data sets that have no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_llmbench.harness.execution import SentBefore
from pytest_llmbench.harness.session import BenchSession
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.catalogue import definition
from pytest_llmbench.methodology.measuring.load_plans import part_of
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.model.messages import Piece
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.adapted import Salted
from pytest_llmbench.workloads.dataset import DatasetIdentity, DatasetWorkload, Prompt
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM, SyntheticWorkload

SETTINGS = Settings(endpoint="replay:fast", scale="quick", allow_overload=True)


def _measured(sessions: BenchSession, nodeid: str, **given: Any) -> TestResult:
    test, sut = definition("ttft"), sessions.sut_from_settings()
    parameters = build(test.parameters, {"concurrency": 2, "requests": 20, **given})
    return sessions.measure(nodeid, test, parameters, sut, sessions.default_warmup()).result


def _digests(results: Sequence[TestResult]) -> list[str]:
    return [result.facts.value("workload.sequence_sha256") for result in results]


def test_what_is_measured_once_more_or_anew_has_prompts_of_its_own() -> None:
    session = BenchSession(SETTINGS)
    once = _measured(session, "t::a")
    shared = _measured(session, "t::b")
    rerun = _measured(session, "t::a")
    anew = _measured(session, "t::c", fresh=True)
    rerun_anew = _measured(session, "t::c", fresh=True)
    session.close()
    assert shared.observations[0].shared_from == "t::a"
    assert _digests([once]) == _digests([shared])
    assert len(set(_digests([once, rerun, anew, rerun_anew]))) == 4
    again = BenchSession(SETTINGS)
    assert _digests([_measured(again, "t::c", fresh=True)]) == _digests([anew])
    again.close()


def _list(prompts: int) -> DatasetWorkload:
    identity = DatasetIdentity("mine", "1", "all")
    return DatasetWorkload("mine", tuple(Prompt(f"Question {k}?", 8) for k in range(prompts)), identity)


def _share(result: TestResult) -> float | None:
    (found,) = [each for each in result.findings if each.check == "prompts_sent_before"] or [None]
    return None if found is None else found.value


def test_prompts_that_a_data_set_has_no_others_of_are_told() -> None:
    session = BenchSession(SETTINGS)
    workload = _list(3)
    three = _measured(session, "t::a", workload=workload)
    (finding,) = [each for each in three.findings if each.check == "prompts_sent_before"]
    assert finding.value == 1.0  # the warm-up had them all
    assert not finding.voids
    assert "had already sent 100 % of the measured prompts" in finding.message
    assert not three.validity.reasons
    session.close()


def test_a_large_data_set_is_sent_before_only_as_far_as_chance_has_it() -> None:
    session = BenchSession(SETTINGS)
    shares = [_share(_measured(session, f"t::{k}", workload=_list(400), requests=21 + k)) for k in range(4)]
    session.close()
    # 10 of the warm-up and some 20 of each test before it, of 400
    assert all(share is None or share < 0.4 for share in shares)
    assert shares[-1] is not None


def test_an_emptied_server_has_had_nothing() -> None:
    plan = LoadPlan("measure", _list(5), ClosedLoop(1), 5, seed=1)
    seen = ReplayEngine(parse_scenario("fast")).run(plan)
    sent = SentBefore()
    sent.note(("host", "#0"), "a", seen)
    assert sent.findings("a") == ()
    sent.note(("host", "#1"), "b", seen)
    assert sent.findings("b") == ()
    sent.note(("host", "#1"), "c", seen)
    (finding,) = sent.findings("c")
    assert finding.value == 1.0
    assert sent.findings("c") == ()


def test_one_question_about_many_images_is_many_prompts() -> None:
    asked = tuple(Prompt("What is this?", 8, media=(Piece("image", seed, 56, 28),)) for seed in range(4))
    plan = LoadPlan("measure", replace(_list(1), prompts=asked), ClosedLoop(1), 4, seed=1)
    seen, sent = ReplayEngine(parse_scenario("fast")).run(plan), SentBefore()
    sent.note("host", "a", seen)
    assert sent.findings("a") == ()
    sent.note("host", "b", seen)
    assert [finding.value for finding in sent.findings("b")] == [1.0]


def test_a_load_that_is_sent_again_is_found_by_its_seed_too() -> None:
    plan = LoadPlan("measure", SyntheticWorkload("small", Fixed(8), Fixed(2)), ClosedLoop(2), 4, seed=1)
    engine, sent = ReplayEngine(parse_scenario("fast")), SentBefore()
    sent.note("host", "a", engine.run(plan.with_(phase=Phase.WARMUP)))
    sent.note("host", "b", engine.run(plan.with_(first=2)))
    (finding,) = sent.findings("b")
    assert finding.value == 0.5
    sent.note("host", "c", engine.run(plan.with_(seed=2)))
    assert sent.findings("c") == ()


def test_the_salt_of_one_arm_changes_no_lengths() -> None:
    setting = Setting(SYNTHETIC_UNIFORM, 42)
    one, other = (part_of(setting, Salted(SYNTHETIC_UNIFORM, arm), "load") for arm in ("a", "b"))
    assert one == other


@pytest.mark.parametrize("change", [{"seed": 43}, {"salt": "t::a"}, {"timeout_s": 5.0}], ids=str)
def test_what_makes_a_part_another_one(change: dict[str, Any]) -> None:
    setting = Setting(SYNTHETIC_UNIFORM, 42)
    assert part_of(setting, SYNTHETIC_UNIFORM, "load").seed != (
        part_of(replace(setting, **change), SYNTHETIC_UNIFORM, "load").seed
    )
