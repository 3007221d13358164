"""Facts of this host: environment, topology, clock synchronisation, round trip."""

from __future__ import annotations

import json
import sys

import pytest

from pytest_llmbench.model.facts import Fact, Origin
from pytest_llmbench.probes.endpoint import engine_facts
from pytest_llmbench.probes.host import (
    ClockSync,
    environment,
    host_facts,
    is_public,
    own_addresses,
    topology_of,
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


def test_an_engine_is_named_only_by_its_own_word():
    assert engine_facts({}, "", "") == {}
    assert engine_facts({"owned_by": "acme"}, "nginx", "fp_44709d6fcb") == {}
    assert engine_facts({"owned_by": "sglang"}, "uvicorn", "") == {"sut.software.engine": "SGLang"}
    assert engine_facts({}, "llama.cpp", "") == {"sut.software.engine": "llama.cpp"}
    assert engine_facts({"max_model_len": True}, "", "") == {}
