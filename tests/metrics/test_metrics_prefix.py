from __future__ import annotations

import numpy as np
import pytest
from metric_rows import row

from pytest_llmbench.metrics.kv_cache import cache_hit_rate, cached_input_share
from pytest_llmbench.model.estimate import EstimateKind
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import Records


def request(index: int, cached: int | None, shared: int, tokens: int = 100, ok: bool = True):  # type: ignore[no-untyped-def]
    return row(
        index,
        submitted=float(index),
        cached_tokens=cached,
        shared_prefix_tokens=shared,
        input_tokens=tokens,
        outcome=Outcome.OK if ok else Outcome.TIMEOUT,
    )


def test_hits_are_of_the_shared_prefix() -> None:
    seen = Records.from_rows(
        [
            request(0, 0, 60),
            request(1, 64, 60),  # a block more than the prefix counts as the prefix
            request(2, 48, 80),
            request(3, 16, 0),  # shares nothing
            request(4, None, 60, ok=False),
        ]
    )
    rate = cache_hit_rate([seen], seed=1)
    assert rate.point == pytest.approx((60 + 48) / 200)
    assert (rate.n, rate.unit) == (3, "ratio")
    share = cached_input_share([seen], seed=1)
    assert share.point == pytest.approx((64 + 48 + 16) / 400)
    assert share.n == 4


def test_the_interval_holds_the_truth() -> None:
    random = np.random.default_rng(1)
    rows = [
        request(index, 64 if hit else 0, 64, tokens=128) for index, hit in enumerate(random.random(800) < 0.7)
    ]
    rate = cache_hit_rate([Records.from_rows(rows)], seed=1)
    assert rate.lower is not None
    assert rate.upper is not None
    assert 0.55 < rate.lower < 0.7 < rate.upper < 0.85
    assert cached_input_share([Records.from_rows(rows)], seed=1).point == pytest.approx(rate.point / 2)  # type: ignore[operator]


def test_the_interval_of_a_share_stays_within_0_and_1() -> None:
    """Misses that come together leave few effective requests, and a crude interval that would pass 1."""
    hits = ([0] * 4 + [64] * 36) * 2
    seen = Records.from_rows([request(index, hit, 64, tokens=66) for index, hit in enumerate(hits)])
    rate = cache_hit_rate([seen], seed=1)
    assert rate.kind is EstimateKind.CRUDE
    assert rate.lower is not None
    assert 0.0 <= rate.lower < 0.9
    assert rate.upper == 1.0
    share = cached_input_share([seen], seed=1)
    assert share.upper is not None
    assert share.upper <= 1.0


@pytest.mark.parametrize(
    ("cached", "reason"),
    [
        ((None, None), "the server gives no cached token counts"),
        ((5, None), "1 of 2 requests that share a prefix have no cached token count"),
    ],
)
def test_missing_counts(cached: tuple[int | None, ...], reason: str) -> None:
    seen = Records.from_rows([request(index, own, 60) for index, own in enumerate(cached)])
    rate = cache_hit_rate([seen], seed=1)
    assert (rate.point, rate.method, rate.n) == (None, reason, 2)
    assert cached_input_share([seen], seed=1).point is None


def test_nothing_shared_and_nothing_counted() -> None:
    nothing = cache_hit_rate([Records.from_rows([request(0, 5, 0)])], seed=1)
    assert nothing.method == "no requests that share a prefix"
    assert not cached_input_share([], seed=1).defined
    uncounted = request(0, 5, 60)
    uncounted.input_tokens = None
    share = cached_input_share([Records.from_rows([uncounted])], seed=1)
    assert share.method == "1 of 1 successful requests have no input token count"
