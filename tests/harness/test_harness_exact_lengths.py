"""Prompts that the server counts as exactly the drawn length."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from pytest_llmbench.harness.execution import SentBefore
from pytest_llmbench.harness.session import Bench, BenchSession
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.workloads.exact_lengths import ExactLengths, TokenCounter, bound
from pytest_llmbench.harness.workloads.files import read_workload_file
from pytest_llmbench.methodology.procedure import WarmupPolicy
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.adapted import WithFixedOutput, with_lengths_of
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.stream import streamed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

BASE = SyntheticWorkload("mine", Uniform(30, 60), Fixed(4))
TEMPLATE = 11


def words_and_template(text: str) -> int:
    return TEMPLATE + len(text.split())


class FakeServerCount:
    def __init__(self, runs: bool = False, pairs: frozenset[str] = frozenset()) -> None:
        self.closed = 0
        self.leaves_traces = runs
        self.asked: list[str] = []
        self._pairs = pairs

    def __call__(self, text: str) -> int:
        self.asked.append(text)
        words = text.split()
        pairs = sum(f"{one} {next_one}" in self._pairs for one, next_one in pairwise(words))
        return words_and_template(text) - pairs

    def __exit__(self, *_: Any) -> None:
        self.closed += 1


def counter(server: str = "http://a/v1", **count: Any) -> tuple[TokenCounter, list[FakeServerCount]]:
    made: list[FakeServerCount] = []

    def make() -> Any:
        made.append(FakeServerCount(**count))
        return made[-1]

    return TokenCounter(make, server), made


def test_bound_to_a_server_every_prompt_has_its_length() -> None:
    count, made = counter()
    exact = bound(ExactLengths(BASE), count)
    assert made == []  # nothing is opened before it is asked
    drawn = exact.requests(8, 1)
    assert [words_and_template(request.text or "") for request in drawn] == [
        request.input_tokens for request in BASE.requests(8, 1)
    ]
    assert len({request.text for request in drawn}) == 8
    assert [request.text for request in exact.requests(3, 1)] == [request.text for request in drawn[:3]]
    assert len(made) == 1
    count.close()
    count.close()
    assert made[0].closed == 1


def test_lengths_of_a_list_have_texts_of_their_own() -> None:
    count, _ = counter()
    listed = with_lengths_of(bound(ExactLengths(BASE), count), 7)
    assert streamed(listed).lengths_seed == 7
    one, other = listed.requests(8, 1), listed.requests(8, 2)
    lengths = [request.input_tokens for request in BASE.requests(8, 7)]
    for drawn in (one, other):
        assert [request.input_tokens for request in drawn] == lengths
        assert [words_and_template(request.text or "") for request in drawn] == lengths
    assert not {request.text for request in one} & {request.text for request in other}


def test_where_counting_runs_the_model_the_prompts_that_are_sent_are_others() -> None:
    """Else all of them lie in the prefix cache when they are measured."""
    count, made = counter(runs=True)
    exact = bound(ExactLengths(BASE), count)
    texts = [str(request.text) for request in exact.requests(8, 1)]
    assert [words_and_template(text) for text in texts] == [r.input_tokens for r in BASE.requests(8, 1)]
    for text in texts:
        words = text.split()
        for asked in made[0].asked:
            assert asked.split()[:2] != words[:2]
    assert [request.text for request in exact.requests(8, 1)] == texts
    assert not exact.shows_prompts
    free, _ = counter()
    assert [str(request.text) for request in bound(ExactLengths(BASE), free).requests(8, 1)] != texts


def test_what_no_other_order_can_hide_is_told() -> None:
    """A vocabulary with tokens that reach from one word into the next."""
    count, _ = counter(runs=True, pairs=frozenset({"early train"}))
    exact = bound(ExactLengths(BASE), count)
    plan = LoadPlan("measure", WithFixedOutput(exact, 2), ClosedLoop(2), 6, seed=1)
    engine, sent = ReplayEngine(parse_scenario("fast")), SentBefore()
    before = engine.run(plan.with_(workload=BASE))
    sent.note("a server", "a test", before)
    assert sent.findings("a test") == ()
    exact.requests(6, 1)
    assert exact.shows_prompts
    sent.note("a server", "a test", replace(before, plan=plan))
    (found,) = sent.findings("a test")
    assert (found.check, found.value) == ("prompts_sent_before", 1.0)
    assert "only of prompts that it runs" in found.message


def test_unbound_it_has_the_lengths_of_its_base() -> None:
    exact = ExactLengths(BASE)
    assert list(exact.requests(4, 1)) == list(BASE.requests(4, 1))
    assert workload(exact) is exact  # completely specified
    assert not exact.standard
    assert bound(exact, None) is exact
    assert bound(BASE, counter()[0]) is BASE


def test_workloads_of_two_servers_are_two() -> None:
    first, second = (bound(ExactLengths(BASE), counter(url)[0]) for url in ("http://a/v1", "http://b/v1"))
    assert first != second
    assert first.specification() != second.specification()
    assert first != ExactLengths(BASE)
    assert "http://a/v1" in first.specification()["input_length"]["tokenizer"]


@pytest.mark.parametrize("exact", [True, False])
def test_of_a_file(tmp_path: Any, exact: bool) -> None:
    file = tmp_path / "w.toml"
    file.write_text(f"[workloads.x]\ninput_tokens = 9\noutput_tokens = 1\nexact = {str(exact).lower()}\n")
    assert isinstance(read_workload_file(file)["x"], ExactLengths) is exact


def test_a_server_counts_what_was_asked_for() -> None:
    with closing(BenchSession(Settings(endpoint="sim", scale="quick"))) as session:
        bench = Bench(session, "sim", WarmupPolicy.none())
        (run,) = bench.measure(concurrency=2, requests=6, workload=ExactLengths(BASE)).observations
    assert run.records.counts()["ok"] == 6
    assert run.records.input_tokens.tolist() == run.records.requested_input_tokens.tolist()
