"""Arms that ask one server must not find in its prefix cache what the other arm left there."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.comparison.arms import Arm, cached_share, without_shared_cache
from pytest_llmbench.harness.comparison.replication import ArmRuns
from pytest_llmbench.harness.sut.endpoint import Endpoint
from pytest_llmbench.harness.sut.open_sut import OpenSUT
from pytest_llmbench.methodology.catalogue import definition
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.adapted import SharedPrefix
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.sequence import drawn
from pytest_llmbench.workloads.sessions import SessionWorkload

PLAIN = workload("synthetic-uniform")
TTFT, PREFIX_CACHE = (definition(name, where="here") for name in ("ttft", "prefix_cache"))
OPEN = TTFT.parameters(rate=20, requests=3)


def arm(name: str, url: str, variant: str = "", *, of: Workload = PLAIN, **own: Any) -> Arm:
    servers = {
        "": Endpoint(""),
        "asked_otherwise": Endpoint("asked_otherwise"),
        "elsewhere": Endpoint("elsewhere", server="elsewhere"),
    }
    opened = SimpleNamespace(
        base_url=url,
        key=f"{name} {url}",
        virtual=False,
        launched=None,
        executor=SimpleNamespace(servers=servers),
    )
    opened.__dict__.update(own)
    opened.server = cast(Any, OpenSUT.server).fget(opened)
    return Arm(name, cast(OpenSUT, opened), Setting(of, 1), variant)


def prompts(of: Arm) -> list[list[int]]:
    requests = of.setting.workload.requests(3, 1)
    return [list(request.token_ids or ()) for request in requests]


def test_two_servers_are_sent_exactly_the_same() -> None:
    arms = [arm("candidate", "http://a:1/v1"), arm("baseline", "http://b:1/v1")]
    kept, said = without_shared_cache(arms, TTFT, OPEN)
    assert kept == arms
    assert said == ()
    assert arms[0].server != arm("baseline", "http://a:2/v1").server


@pytest.mark.parametrize(
    ("second", "variant"), [("http://a:1/other", ""), ("http://a:1/v1", "asked_otherwise")]
)
def test_arms_on_one_server_begin_otherwise_and_go_on_alike(second: str, variant: str) -> None:
    arms = [arm("candidate", "http://a:1/v1"), arm("baseline", second, variant)]
    (ours, theirs), said = without_shared_cache(arms, TTFT, OPEN)
    assert [note.id for note in said] == ["arms_apart.salted"]
    for mine, other in zip(prompts(ours), prompts(theirs), strict=True):
        assert len(mine) == len(other)
        assert mine[:6] != other[:6]
        assert mine[6:] == other[6:]


@pytest.mark.parametrize("of", [PLAIN, SharedPrefix("shared", PLAIN, Fixed(64), 0.5)], ids=lambda of: of.name)
@pytest.mark.parametrize("given", [{"rate": 20}, {"concurrency": 2}], ids=str)
def test_arms_of_one_list_on_one_server_have_its_lengths_and_their_own_words(
    of: Workload, given: dict[str, Any]
) -> None:
    parameters = TTFT.parameters(requests=20, runs=2, **given)
    arms = [arm(name, "http://a:1/v1", of=of) for name in ("candidate", "baseline")]
    arms = [replace(each, setting=replace(each.setting, lengths="shared", salt="monday")) for each in arms]
    made, said = without_shared_cache(arms, TTFT, parameters)
    assert [note.id for note in said] == ["arms_apart.own_words"]
    ours, theirs = (TTFT.plans(parameters, each.setting) for each in made)
    assert [plan.workload.name for plan in ours] == [of.name] * 2
    for mine, other in zip(ours, theirs, strict=True):
        sent, asked = (drawn(each.workload, each.first, 20, each.seed) for each in (mine, other))
        assert [request.input_tokens for request in sent] == [request.input_tokens for request in asked]
        assert mine.schedule_seed == other.schedule_seed
        beginnings = [[tuple(request.token_ids or ())[:6] for request in each] for each in (sent, asked)]
        assert not set(beginnings[0]) & set(beginnings[1])


@pytest.mark.parametrize(
    ("test", "url", "variant", "virtual"),
    [
        (TTFT, "http://a:1/v1", "elsewhere", False),  # a variant with a server of its own
        (TTFT, "replay", "", True),  # each has an engine of its own
        (PREFIX_CACHE, "http://a:1/v1", "", False),  # which is the test of the cache
    ],
)
def test_arms_that_share_no_cache_keep_their_prompts(
    test: Any, url: str, variant: str, virtual: bool
) -> None:
    arms = [arm("candidate", url, virtual=virtual), arm("baseline", url, variant, virtual=virtual)]
    parameters = OPEN if test is TTFT else test.parameters()
    assert without_shared_cache(arms, test, parameters) == (arms, ())


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (SharedPrefix("shared", PLAIN, Fixed(64), 0.5), "shares prefixes"),
        # Salted turns would not begin with those before them, and be turns no more.
        (SessionWorkload("talk", Fixed(3), Fixed(20), Fixed(5)), "is of sessions"),
    ],
)
def test_a_workload_that_cannot_be_salted_is_left_alone_with_a_word(of: Workload, why: str) -> None:
    arms = [arm(name, "http://a:1/v1", of=of) for name in ("candidate", "baseline")]
    kept, (note,) = without_shared_cache(arms, TTFT, OPEN)
    assert kept == arms
    assert f"could not be salted, since the workload {why}" in str(note)


def test_plans_go_to_the_variant_and_a_test_of_variants_is_refused() -> None:
    plan = LoadPlan("run", workload("synthetic-uniform"), ClosedLoop(1), 1, seed=1)
    assert arm("baseline", "http://a:1/v1", "elsewhere").planned(plan).variant == "elsewhere"
    assert arm("candidate", "http://a:1/v1").planned(plan) is plan
    with pytest.raises(SuiteError, match="measures variants itself"):
        arm("baseline", "http://a:1/v1", "elsewhere").planned(plan.with_(variant="cache_enabled"))


def test_what_an_arm_had_from_a_cache_is_told_by_the_metrics_page_where_replies_do_not_tell_it() -> None:
    engine = ReplayEngine(parse_scenario("fast?prefix_caching=true"))
    plan = LoadPlan("measure", PLAIN, ClosedLoop(2), 20, seed=1)
    cold, warm = engine.run(plan), engine.run(plan)

    def share(seen: Observation, *, told: bool) -> float | None:
        if not told:
            unknown = np.full(len(seen.records), MISSING)
            seen = replace(seen, records=replace(seen.records, cached_tokens=unknown))
        result = cast(TestResult, SimpleNamespace(observations=(seen,)))
        return cached_share(ArmRuns(result, {}, (result,)))

    assert share(cold, told=False) == 0.0
    assert share(warm, told=False) == pytest.approx(share(warm, told=True), abs=0.02)
    assert cast(float, share(warm, told=False)) > 0.8
    assert share(replace(warm, engine=None), told=False) is None
