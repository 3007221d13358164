"""The phases of replies that reason, worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from metric_rows import instant, row

from pytest_llmbench.metrics import latency, reasoning
from pytest_llmbench.metrics.definitions import is_metric
from pytest_llmbench.metrics.itl import itl_distribution
from pytest_llmbench.model.observation import EngineReadings
from pytest_llmbench.model.record import Outcome, RequestRecord, TokenSource
from pytest_llmbench.model.records import Records

SEEN = {"reasoning_tokens": 2, "reasoning_token_source": TokenSource.SERVER_USAGE}


def thinking(index: int = 0, *, end: float | None = 120.0, last: float = 120.0, **more: Any) -> RequestRecord:
    """Thoughts at 100 and 120 ms, the answer at 150, 160 and 190."""
    values: dict[str, Any] = {
        "chunks": (100.0, 120.0, 150.0, 160.0, 190.0), "first_reasoning": 100.0, "first_content": 150.0,
        "thinking_end_ns": instant(end), "last_reasoning_ns": instant(last), **SEEN,
    }  # fmt: skip
    return row(index, **(values | more))


PLAIN = row(1)
FAILED = thinking(2, outcome=Outcome.TIMEOUT)
HIDDEN = thinking(3, first_reasoning=None, end=None, last_reasoning_ns=None)
MERGED = thinking(4, end=120.0, last=150.0)
INTERLEAVED = thinking(5, last=190.0)
SPOKE_FIRST = thinking(6, end=None, last=160.0, first_reasoning=155.0)
UNCOUNTED = thinking(7, reasoning_tokens=None, reasoning_token_source=TokenSource.NONE)
SILENT = thinking(8, first_content=None, end=None, outcome=Outcome.EMPTY)
ALL = Records.from_rows(
    [thinking(), PLAIN, FAILED, HIDDEN, MERGED, INTERLEAVED, SPOKE_FIRST, UNCOUNTED, SILENT]
)


def test_ttot_is_of_replies_with_an_end_of_thinking() -> None:
    assert latency.ttot_ms(ALL).tolist() == [30.0, 30.0, 30.0, 30.0], "0, merged, interleaved, uncounted"
    assert latency.ttot_ms(Records.from_rows([PLAIN, HIDDEN, SILENT])).tolist() == []


def test_ttfo_is_of_all_replies() -> None:
    assert latency.ttfo_ms(ALL).tolist() == [150.0, 100.0, *[150.0] * 5]


def test_gaps_of_the_output_phase_begin_with_the_first_visible_token() -> None:
    samples = reasoning.output_itl_samples(Records.from_rows([thinking(), PLAIN]), "direct")
    assert samples.values.tolist() == [10.0, 30.0, 10.0, 10.0]
    whole = itl_distribution(samples)
    assert whole["itl.p50"].point == 10.0
    none = reasoning.output_itl_samples(Records.from_rows([SILENT]), "direct")
    assert none.counts.gaps == 0


@pytest.mark.parametrize(
    ("sizes", "option"), [((1, 1, 1, 1, 1), "direct"), ((1, 2, 2, 2, 2), "A"), ((), "A")]
)
def test_chunks_of_several_tokens_are_timed_as_chunks(sizes: tuple[int, ...], option: str) -> None:
    assert reasoning.output_itl_option([Records.from_rows([thinking(chunk_tokens=sizes)])]) == option


def test_think_tokens_are_of_replies_that_reasoned_and_were_counted() -> None:
    zero = row(9, reasoning_tokens=0, reasoning_token_source=TokenSource.SERVER_USAGE)
    records = Records.from_rows([thinking(reasoning_tokens=40), zero, PLAIN, FAILED, HIDDEN, UNCOUNTED])
    assert reasoning.think_tokens(records).tolist() == [40.0, 2.0]


def test_the_share_of_thoughts() -> None:
    counted = Records.from_rows([thinking(), PLAIN, HIDDEN, FAILED])
    share = reasoning.think_share([counted], seed=1)
    assert share.point == pytest.approx((2 + 0 + 2) / (5 + 3 + 5))
    unknown = reasoning.think_share([ALL], seed=1)
    assert (unknown.point, unknown.method) == (
        None,
        "the reasoning of 1 replies was not counted",
    )
    assert reasoning.think_share([Records.from_rows([])], seed=1).point is None
    unseen = reasoning.think_share([Records.from_rows([PLAIN])], seed=1)
    assert unseen.point is None, "it may be hidden"
    said = reasoning.think_share([Records.from_rows([row(1, reasoning_tokens=0)])], seed=1)
    assert said.point == 0.0


def test_every_reply_is_of_a_kind_that_is_told() -> None:
    kinds = reasoning.reply_kinds([ALL])
    assert kinds == reasoning.ReplyKinds(
        ok=7, reasoned=6, hidden=1, spoke_first=1, merged=1, interleaved=2, uncounted=1, never_spoke=1,
        sources=(("server_usage", 5),),
    )  # fmt: skip


def ended(*reasons: str | None, **more: Any) -> Records:
    return Records.from_rows(
        [thinking(n, thinking_end_reason=each, **more) for n, each in enumerate(reasons)]
    )


def test_budget_forcing_by_reason() -> None:
    records = ended(*["converged"] * 70, *["hard_cap"] * 20, *["overthinking"] * 10)
    found = reasoning.budget_force_rate([records])
    assert {name: each.point for name, each in found.items()} == {
        "budget_force_rate": 0.3,
        "budget_force_rate[hard_cap]": 0.2,
        "budget_force_rate[overthinking]": 0.1,
    }
    own = reasoning.budget_force_rate([records], {"converged", "overthinking"})
    assert own["budget_force_rate"].point == 0.2
    assert reasoning.end_reasons([records])["hard_cap"] == 20


def test_none_forced_is_a_share_with_an_interval() -> None:
    none = reasoning.budget_force_rate([ended(*["converged"] * 100)])["budget_force_rate"]
    assert none.point == none.lower == 0.0
    assert none.upper is not None
    assert 0.02 < none.upper < 0.05


def test_a_server_that_tells_only_some_may_have_forced_the_others() -> None:
    found = reasoning.budget_force_rate([ended(*["converged"] * 50, *[None] * 50)])["budget_force_rate"]
    assert (found.point, found.n) == (0.0, 50)
    assert found.upper is None or found.upper > 0.5
    assert "of 50 more the server does not say it" in found.method
    silent = reasoning.budget_force_rate([ended(None, None)])
    assert silent["budget_force_rate"].point is None
    assert silent["budget_force_rate"].method == reasoning.NOT_REPORTED


def test_whatever_words_a_server_has_there_are_few_metrics_and_all_are_known() -> None:
    odd = ["5-10", "a]b[c", "two\nlines", ".p99", "x" * 80]
    found = reasoning.budget_force_rate([ended(*odd)])
    assert all(is_metric(name) for name in found)
    assert len(found) == 6
    many = reasoning.budget_force_rate([ended(*[f"reason {n}" for n in range(100)])])
    assert len(many) == 1 + reasoning.MOST_REASONS
    assert many["budget_force_rate"].point == 1.0


def readings(before: float | None, after: float | None) -> EngineReadings:
    def totals(count: float | None) -> dict[str, float]:
        return {} if count is None else {"critical_evictions": count}

    return EngineReadings(np.empty(0, dtype=np.int64), {}, totals(before), totals(after))


def page(before: dict[str, float], after: dict[str, float]) -> EngineReadings:
    def totals(ends: dict[str, float]) -> dict[str, float]:
        return {f"thinking_ended[{reason}]": count for reason, count in ends.items()}

    return EngineReadings(np.empty(0, dtype=np.int64), {}, totals(before), totals(after))


def test_budget_forcing_by_a_counter_of_the_page() -> None:
    first = page({"converged": 40, "hard_cap": 1, "budget": 9}, {"converged": 85, "hard_cap": 6, "budget": 9})
    second = page({"converged": 0, "budget": 0}, {"converged": 45, "budget": 5})
    runs = [ended(*[None] * 50), ended(*[None] * 50)]
    found = reasoning.budget_force_rate(runs, engines=[first, second])
    assert {name: each.point for name, each in found.items()} == {
        "budget_force_rate": 0.1,
        "budget_force_rate[hard_cap]": 0.05,
        "budget_force_rate[budget]": 0.05,
    }
    every = found["budget_force_rate"]
    assert every.n == 100
    # Clopper and Pearson of 10 in 100.
    assert (every.lower, every.upper) == (pytest.approx(0.0490, abs=1e-4), pytest.approx(0.1762, abs=1e-4))
    assert reasoning.end_reasons(runs, [first, second]) == {"converged": 90, "hard_cap": 5, "budget": 5}


def test_a_counter_that_misses_replies_may_have_missed_forced_ones() -> None:
    runs = [ended(*[None] * 100)]
    found = reasoning.budget_force_rate(runs, engines=[page({"converged": 0}, {"converged": 50})])[
        "budget_force_rate"
    ]
    assert (found.point, found.lower, found.n) == (0.0, 0.0, 50)
    assert found.upper is not None
    assert found.upper > 0.5
    assert "of 50 more it does not say it" in found.method


@pytest.mark.parametrize("other", [None, page({"converged": 5}, {"converged": 2}), page({}, {})])
def test_a_counter_that_not_every_run_has_is_left_for_what_requests_say(other: EngineReadings | None) -> None:
    runs = [ended("hard_cap", "converged"), ended("converged", "converged")]
    counted = [page({"converged": 0}, {"converged": 2}), other]
    found = reasoning.budget_force_rate(runs, engines=counted)["budget_force_rate"]
    assert (found.point, found.n) == (0.25, 4)


def evicted(*counts: int | None, status: int = 200) -> Records:
    return Records.from_rows(
        [thinking(n, critical_evictions=each, http_status=status) for n, each in enumerate(counts)]
    )


def test_critical_evictions() -> None:
    def ends(runs: list[Records], engines: list[EngineReadings | None]) -> tuple[float | None, ...]:
        found = reasoning.critical_evictions(runs, engines)
        return found.point, found.lower, found.upper

    assert ends([evicted(0, 0), evicted(1, 2)], [None, None]) == (3.0, 3.0, 3.0)
    assert ends([evicted(0, 0)], [None]) == (0.0, 0.0, 0.0)
    assert ends([evicted(0, None)], [None]) == (0.0, 0.0, None), (
        "one that does not say it may have been evicted"
    )
    assert ends([evicted(None, None)], [readings(None, 7)]) == (None, None, None), "absence is not zero"
    assert ends([evicted(None, 1)], [readings(4, 7)]) == (3.0, 3.0, 3.0), "the page counts all requests"
    assert ends([evicted(1), evicted(2)], [readings(4, 7), None]) == (3.0, 3.0, 3.0)
    assert ends([evicted(0), evicted(None, status=503)], [None, None]) == (0.0, 0.0, 0.0), (
        "it was never taken in"
    )
