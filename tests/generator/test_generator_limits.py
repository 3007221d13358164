"""Descriptors and local ports: what a plan needs, what is said before it, what helps afterwards."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from planned_load import TextWorkload
from scripted_server import REPLY

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.limits import (
    KEPT,
    Limits,
    LoadLimits,
    exhaustion_remedy,
    mean_tokens,
    peak_connections,
    refuse_too_much,
)
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, OpenLoop


@pytest.mark.parametrize(
    ("load", "requests", "changes", "tokens", "expected"),
    [
        (ClosedLoop(64), 1000, {}, 0.0, 64),
        (ClosedLoop(64), 10, {}, 0.0, 10),
        (ClosedLoop(64), 10, {"duration_s": 5.0, "max_requests": 40}, 0.0, 40),
        (OpenLoop(100.0), 10_000, {}, 0.0, 50 + 29),  # 4 √50 = 28.3
        (OpenLoop(100.0), 10_000, {}, 50.0, 100 + 40),
        (OpenLoop(100.0), 120, {}, 50.0, 120),
        (OpenLoop(100.0, most_in_flight=7), 120, {}, 50.0, 7),
        (OpenLoop(100.0), 10_000, {"deadlines": Deadlines(total_s=0.25)}, 50.0, 25 + 20),
    ],
)
def test_connections_that_a_plan_needs(plan, load, requests, changes, tokens, expected):
    assert peak_connections(plan(requests, load=load, **changes), tokens) == expected


def test_tokens_that_are_asked_for():
    assert mean_tokens(TextWorkload().requests(3, 1)) == 8.0
    assert mean_tokens([]) == 0.0


def test_what_there_is_too_little_of_is_said_with_the_command():
    refuse_too_much(100, Limits(), "measure")
    refuse_too_much(100, Limits(100 + KEPT, 100), "measure")
    with pytest.raises(SuiteError) as refused:
        refuse_too_much(101, Limits(100 + KEPT, 100), "measure")
    for part in (
        "measure: 2 mistakes",
        f"101 connections need {101 + KEPT} open files, the limit is {100 + KEPT}",
        "ulimit -n 65536",
        "there are 100",
        'sudo sysctl -w net.ipv4.ip_local_port_range="1024 65535"',
        "lower rate or concurrency",
    ):
        assert part in str(refused.value)


def test_what_the_system_refuses_later_has_its_remedy():
    assert "sysctl" in exhaustion_remedy(f"cannot connect to x: {os.strerror(errno.EADDRNOTAVAIL)}")
    assert "ulimit" in exhaustion_remedy(f"cannot connect to x: {os.strerror(errno.EMFILE)}")


def test_nothing_is_sent_beyond_the_limits(serve, generator_for, plan):
    server = serve(lambda conversation: conversation.send(REPLY))
    generator = generator_for(server, limits=LoadLimits(Limits(descriptors=100)))
    with pytest.raises(SuiteError, match="50 connections need 114 open files"):
        generator.run(plan(60, load=ClosedLoop(50)))
    assert server.served == []
    assert generator.run(plan(60, load=ClosedLoop(36))).records.counts()["ok"] == 60


def test_ports_are_counted_for_all_workers_together(plan):
    host, address = Limits(descriptors=1, ports=30), Address("http://127.0.0.1:9/v1")
    with (
        DistributedLoadGenerator(address, "chat", workers=2, model="m", host=host) as generator,
        pytest.raises(SuiteError, match="50 connections to one server need as many local ports"),
    ):
        generator.run(plan(60, load=ClosedLoop(50)))


CRAMPED = """
    import resource, sys
    sys.path.insert(0, {tests!r})
    from planned_load import TextWorkload
    from pytest_llmbench.errors import SuiteError
    from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
    from pytest_llmbench.generator.workers.protocol import Address
    from pytest_llmbench.model.plan import ClosedLoop, LoadPlan

    resource.setrlimit(resource.RLIMIT_NOFILE, (60, 200))
    with DistributedLoadGenerator(Address({url!r}), "chat", workers=1, model="m") as generator:
        seen = generator.run(LoadPlan("fits", TextWorkload(), ClosedLoop(100), requests=100, seed=1))
        print(seen.records.counts()["ok"], resource.getrlimit(resource.RLIMIT_NOFILE))
        try:
            generator.run(LoadPlan("does not", TextWorkload(), ClosedLoop(150), requests=200, seed=1))
        except SuiteError as error:
            print(error)
"""


def test_a_worker_raises_its_own_limit_and_says_when_that_is_not_enough(serve):
    server = serve(lambda conversation: conversation.send(REPLY))
    script = textwrap.dedent(CRAMPED).format(tests=str(Path(__file__).parents[1]), url=server.url)
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert said.stdout.splitlines()[0] == "100 (60, 200)", said.stderr
    assert "does not: 150 connections need 214 open files, the limit is 200" in said.stdout
    assert "ulimit -n 65536" in said.stdout
