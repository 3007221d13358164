"""A machine that slept under load: the load ends, and is void."""

from __future__ import annotations

import time

from scripted_server import REPLY, reply

from pytest_llmbench.generator import selfcheck
from pytest_llmbench.generator.selfcheck import SleepWatch, asleep_ns
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity

S = 1_000_000_000


def test_the_difference_of_the_clocks_does_not_move_by_itself():
    watch = SleepWatch()
    assert all(watch.verdict() is None for _ in range(1000))
    assert asleep_ns() >= 0


def test_where_no_clock_tells_nothing_is_claimed(monkeypatch):
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    assert asleep_ns() == 0
    assert SleepWatch().verdict() is None


def test_a_load_in_which_the_machine_slept_is_void(serve, generator_for, plan, monkeypatch):
    looks = 0

    def slept() -> int:
        nonlocal looks
        looks += 1
        return 5 * S if looks < 4 else 5 * S + 12 * S + S // 2

    monkeypatch.setattr(selfcheck, "asleep_ns", slept)
    server = serve(reply(REPLY))
    seen = generator_for(server).run(plan(requests=100_000))
    assert seen.interrupted is not None
    assert "suspended for 12.5 s" in seen.interrupted
    assert len(seen.records) < 100_000
    judged = validity([seen], Budget())
    assert judged.verdict == "invalid"
    assert any("suspended for 12.5 s" in finding.message for finding in judged.findings)
