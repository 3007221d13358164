"""Facts of this host: environment, topology, clock synchronisation, round trip."""

from __future__ import annotations

import json
import socket
import sys

import pytest

from pytest_llmbench.model.facts import Fact, Origin
from pytest_llmbench.probes.endpoint import engine_facts
from pytest_llmbench.probes.host import (
    CHRONY,
    NTPD,
    ClockSync,
    environment,
    host_facts,
    is_public,
    own_addresses,
    parse_chrony,
    parse_ntpd,
    read_clock_sync,
    run_bounded,
    topology_of,
)
from pytest_llmbench.probes.rtt import SAMPLES, probe_rtt

TRACKING = (
    "A29FC87B,162.159.200.123,4,1776153600.1,-0.000250000,0.000021,0.000034,"
    "-1.234,0.001,0.015,0.012000000,0.001500000,64.0,Normal\n"
)
SYNC = ClockSync("ntp", offset_ms=0.4, accuracy_ms=2.0, server="192.0.2.7", source="chronyc tracking")


def test_environment_describes_this_interpreter_and_host():
    found = environment()
    assert found["python"].endswith(".".join(map(str, sys.version_info[:3])))
    assert found["cpus_logical"] >= found["cpus_usable"] >= 1
    assert found["memory_gib"] > 0
    assert len(found["load_average"]) == 3
    assert found["packages"]["pytest"] == pytest.__version__
    assert json.loads(json.dumps(found)) == found
    assert None not in found.values()


def test_loopback_is_the_same_machine():
    assert topology_of("127.0.0.1", ()) == "single_machine"
    assert topology_of("localhost", ()) == "single_machine"
    assert topology_of("::1", ()) == "single_machine"


def test_an_own_address_is_the_same_machine():
    assert topology_of("192.0.2.7", {"192.0.2.7"}) == "single_machine"
    assert topology_of("192.0.2.7", {"192.0.2.8"}) == "distributed"
    assert "127.0.0.1" in own_addresses()


def test_an_unknown_host_has_no_topology():
    assert topology_of("no-such-host.invalid", ()) is None


@pytest.mark.parametrize(
    ("host", "public"),
    [
        ("8.8.8.8", True),
        ("2001:4860:4860::8888", True),
        ("127.0.0.1", False),
        ("localhost", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("169.254.1.1", False),
        ("fd00::1", False),
        ("fe80::1", False),
        ("no-such-host.invalid", False),
        ("a" * 100 + ".invalid", False),
    ],
)
def test_which_hosts_are_public(host: str, public: bool) -> None:
    assert is_public(host) is public
    assert "clock.topology" not in host_facts("no-such-host.invalid", clock=SYNC)


def test_one_machine_has_one_clock():
    facts = host_facts("127.0.0.1", clock=SYNC)
    assert facts.value("clock.topology") == "single_machine"
    assert facts.value("clock.method") == "shared clock"
    assert "clock.offset_ms" not in facts


def test_two_machines_have_the_clock_that_is_kept_here():
    facts = host_facts("192.0.2.1", clock=SYNC)
    assert facts.value("clock.topology") == "distributed"
    assert facts["clock.method"] == Fact("ntp", Origin.DETECTED, "chronyc tracking")
    assert facts.value("clock.accuracy_ms") == 2.0
    assert facts.value("clock.offset_ms") == 0.4
    assert facts.value("clock.ntp_server") == "192.0.2.7"


def test_chrony():
    sync = parse_chrony(TRACKING)
    assert sync is not None
    assert sync.method == "ntp"
    assert sync.server == "162.159.200.123"
    assert sync.offset_ms == pytest.approx(-0.25)
    assert sync.accuracy_ms == pytest.approx(0.25 + 1.5 + 6.0)


def test_chrony_of_older_versions_has_a_column_less():
    sync = parse_chrony(TRACKING.replace("162.159.200.123,", ""))
    assert sync is not None
    assert (sync.offset_ms, sync.server) == (pytest.approx(-0.25), "A29FC87B")


def test_chrony_that_follows_a_ptp_clock():
    sync = parse_chrony(TRACKING.replace("162.159.200.123", "PHC0"))
    assert sync is not None
    assert sync.method == "ptp"


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "506 Cannot talk to daemon",
        TRACKING.replace("Normal", "Not synchronised"),
        TRACKING.replace("-0.000250000", "x"),
    ],
)
def test_chrony_that_says_nothing_usable(answer):
    assert parse_chrony(answer) is None


def test_ntpd():
    sync = parse_ntpd("leap=00, offset=-0.123, rootdelay=4.000,\nrootdisp=1.5, refid=192.0.2.7\n")
    assert sync is not None
    assert (sync.offset_ms, sync.server, sync.method) == (-0.123, "192.0.2.7", "ntp")
    assert sync.accuracy_ms == pytest.approx(0.123 + 1.5 + 2.0)


@pytest.mark.parametrize(
    "answer", ["", "ntpq: read: Connection refused", "leap=11, offset=0.0, rootdelay=0.0, rootdisp=0.0"]
)
def test_ntpd_that_says_nothing_usable(answer):
    assert parse_ntpd(answer) is None


def test_chrony_is_asked_first_and_ntpd_next():
    asked = []

    def run(command):
        asked.append(command)
        return "leap=00, offset=1.0, rootdelay=0.0, rootdisp=0.0" if command == NTPD else None

    sync = read_clock_sync(run)
    assert asked == [CHRONY, NTPD]
    assert sync is not None
    assert sync.source == "ntpq rv"
    assert read_clock_sync(lambda command: None) is None


def test_commands_are_bounded():
    assert run_bounded((sys.executable, "-c", "print('fine')")) == "fine\n"
    assert run_bounded((sys.executable, "-c", "import time; time.sleep(30)"), limit_s=0.2) is None
    assert run_bounded((sys.executable, "-c", "print('no'); exit(3)")) is None
    assert run_bounded(("no-such-command-here",)) is None


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield listening.getsockname()


def test_rtt_of_a_listening_port(listener):
    host, port = listener
    facts = probe_rtt(host, port)
    rtt = facts.value("network.rtt_ms")
    assert rtt["n"] == SAMPLES >= 10
    assert rtt["failed"] == 0
    assert 0 < rtt["min"] <= rtt["p50"] <= rtt["max"] < 1000
    assert facts["network.rtt_ms"].origin is Origin.DETECTED
    assert f"{host}:{port}" in facts["network.rtt_ms"].source


def test_rtt_keeps_to_its_number_of_samples(listener):
    assert probe_rtt(*listener, samples=3).value("network.rtt_ms")["n"] == 3


def test_no_rtt_where_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = taken.getsockname()
    assert len(probe_rtt(*address)) == 0
    assert len(probe_rtt("no-such-host.invalid", 80)) == 0


def test_rtt_ends_with_its_budget():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket() for _ in range(4)]
        for extra in waiting:
            extra.setblocking(False)
            extra.connect_ex(full.getsockname())
        facts = probe_rtt(*full.getsockname(), timeout_s=5.0, budget_s=0.3)
        for extra in waiting:
            extra.close()
    assert len(facts) == 0


def test_an_engine_is_named_only_by_its_own_word():
    assert engine_facts({}, "", "") == {}
    assert engine_facts({"owned_by": "acme"}, "nginx", "fp_44709d6fcb") == {}
    assert engine_facts({"owned_by": "sglang"}, "uvicorn", "") == {"sut.software.engine": "SGLang"}
    assert engine_facts({}, "llama.cpp", "") == {"sut.software.engine": "llama.cpp"}
    assert engine_facts({"max_model_len": True}, "", "") == {}
