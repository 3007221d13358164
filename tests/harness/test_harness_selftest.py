"""The selftest: errors against the server's notes, the search, what is stored, cited and flagged."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from however_late import LIMITS
from selftest_cases import MS, SCRIPT, TINY, US, late_by, level, observed, request, result

from pytest_llmbench.errors import StoreError
from pytest_llmbench.harness.selftest import certificate as certified
from pytest_llmbench.harness.selftest import run as selftest_report
from pytest_llmbench.harness.selftest.certificate import (
    TRANSPORTS,
    Certificate,
    beyond,
    certificate_path,
    facts_of,
    find,
    store,
    transport_to,
)
from pytest_llmbench.harness.selftest.levels import LevelFigures, Spread, differences, figures
from pytest_llmbench.harness.selftest.run import highest, run_selftest
from pytest_llmbench.harness.session import BenchSession
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.catalogue import definition
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.model.judgement import Validity, ValidityVerdict
from pytest_llmbench.model.observation import SelfCheck
from pytest_llmbench.model.plan import ClosedLoop, OpenLoop
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.registry import names
from pytest_llmbench.simulator.known_delay import Script


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "state"
    monkeypatch.setenv(certified.STATE_DIR_VARIABLE, str(directory))
    return directory


# Errors


def test_errors_are_what_the_stamps_are_off_by() -> None:
    row, truth = request("a", hop_us=30, stamps_us=(10, 25, 5))
    found = differences(observed([row]), {"a": truth}, SCRIPT)
    assert found.ttft.tolist() == [40 * US]  # the way there and the way back
    assert found.stamp.tolist() == [10 * US, 25 * US, 5 * US]
    assert found.itl.tolist() == [15 * US, 20 * US]
    assert found.late.tolist() == [0, 0, 0]
    assert found.unmatched == 0


def test_a_late_server_is_no_error_of_ours() -> None:
    row, truth = request("a")
    shifted = replace(
        row, first_content_ns=row.first_content_ns + 3 * MS, chunk_ns=[at + 3 * MS for at in row.chunk_ns]
    )
    found = differences(observed([shifted]), {"a": late_by(truth, 3000)}, SCRIPT)
    assert found.ttft.tolist() == [40 * US]
    assert found.itl.tolist() == [0, 0]
    assert found.late.tolist() == [3 * MS] * 3


def test_a_server_that_does_not_keep_pace_ends_the_search_in_words() -> None:
    row, truth = request("a")
    seen = figures(observed([row]), {"a": late_by(truth, 6000)}, SCRIPT)
    assert any("the known-delay server itself was late by 6000 µs" in reason for reason in seen.reasons)


def test_requests_that_cannot_be_compared_are_counted() -> None:
    good, truth = request("good")
    failed = replace(request("failed")[0], outcome=Outcome.DISCONNECTED)
    unknown = request("unknown")[0]
    short = replace(request("short")[0], chunk_ns=[good.chunk_ns[0]], chunk_tokens=[1])
    known = dict.fromkeys(("good", "failed", "short"), truth)
    rows = [good, failed, unknown, short]
    assert differences(observed(rows), known, SCRIPT).unmatched == 3
    assert figures(observed(rows), known, SCRIPT).reasons == (
        "3 of 4 requests did not end as the server answered them",
    )


def test_a_reply_in_one_write_has_no_gaps() -> None:
    row, truth = request("a")
    flood = replace(truth, written_ns=truth.written_ns[:1])
    found = differences(observed([row]), {"a": flood}, Script(20_000, 0, 3))
    assert (len(found.itl), len(found.stamp), found.unmatched) == (0, 0, 0)
    assert found.ttft.tolist() == [40 * US]


def test_figures_of_a_level() -> None:
    rows, truths = zip(*(request(name) for name in "abcd"), strict=True)
    seen = figures(observed(list(rows)), dict(zip("abcd", truths, strict=True)), SCRIPT)
    assert seen.holds
    assert seen.ttft_error == Spread(40.0, 40.0, 40.0, 4)
    assert seen.send_lag == Spread(2.0, 2.0, 2.0, 4)
    assert seen.cpu_us_per_request == pytest.approx(0.5 * 2 / 4 * 1e6)
    assert seen.chunks_per_s == pytest.approx(12 / 2)
    decoded_late = figures(observed(list(rows)), {}, SCRIPT, rows[0].submitted_ns + 3_900 * MS)
    assert decoded_late.chunks_per_s == pytest.approx(12 / 4)


@pytest.mark.parametrize(("hop_us", "holds"), [(990, True), (991, False)])
def test_the_limit_of_the_ttft_error(hop_us: int, holds: bool) -> None:
    row, truth = request("a", hop_us=hop_us)
    assert figures(observed([row]), {"a": truth}, SCRIPT).holds is holds


def test_sends_behind_their_schedule_do_not_hold() -> None:
    row, truth = request("a")
    lagging = SelfCheck(send_lag_p99_ns=11 * MS)
    (reason,) = figures(observed([row], check=lagging), {"a": truth}, SCRIPT).reasons
    assert reason.startswith("sends were late by 11 ms at P99 (limit 10 ms)")


def test_a_spread_of_nothing_is_undefined() -> None:
    assert Spread.of(np.empty(0, dtype=np.int64)) == Spread(None, None, None, 0)


# The search


class Host:
    """Holds up to ``limit``; each level takes a second. ``flaky``: loads that fail the first time."""

    def __init__(self, limit: float, flaky: tuple[float, ...] = ()) -> None:
        self.limit = limit
        self.flaky = list(flaky)
        self.now = 0.0
        self.asked: list[float] = []

    def __call__(self, load: float) -> LevelFigures:
        self.asked.append(load)
        self.now += 1.0
        bad = load > self.limit
        if load in self.flaky:
            self.flaky.remove(load)
            bad = True
        return level(f"{load:g} req/s", rate=load, reasons=("late: do this",) if bad else ())

    def search(self, start: float = 100, holds: float | None = 20.0, **bounds: Any) -> Any:
        given = {"limit": 10_000.0, "bisections": 3, "seconds": 100.0} | bounds
        return highest(self, start, holds=holds, **given, clock=lambda: self.now)


SEARCHES: dict[str, tuple[float, dict[str, Any], list[int], float | None, str]] = {
    "doubles, then bisects": (
        700, {}, [100, 200, 400, 800, 800, 566, 673, 734, 734], 673, "734 req/s did not hold: late"
    ),
    "towards what holds, below its start": (
        50, {"bisections": 2}, [100, 100, 45, 67, 67], 45, "67 req/s did not hold: late"
    ),
    "nothing holds": (1, {"holds": None, "bisections": 0}, [100, 100], None, "100 req/s did not hold: late"),
    "its time is up": (
        1e9, {"seconds": 3.0}, [100, 200, 400], 400, "no limit was found in the 3 s of the search"
    ),
    "no time to repeat": (150, {"seconds": 2.0}, [100, 200], 100, "200 req/s did not hold: late"),
    "below the limit": (1e9, {"limit": 300.0}, [100, 200, 300], 300, "300 is the highest load tested here"),
}  # fmt: skip


@pytest.mark.parametrize("what", SEARCHES)
def test_a_search_finds_the_highest_load_that_holds(what: str) -> None:
    limit, bounds, asked, most, ended = SEARCHES[what]
    host = Host(limit)
    found = host.search(**bounds)
    assert (host.asked, found.highest, found.ended) == (asked, most, ended)


def test_a_disturbed_level_is_repeated_and_forgotten() -> None:
    host = Host(limit=700, flaky=(200,))
    found = host.search(bisections=0)
    assert (found.highest, found.ended) == (400, "800 req/s did not hold: late")
    assert host.asked == [100, 200, 200, 400, 800, 800]


# Stored, found, cited


def test_what_is_stored_is_found_again(state: Path) -> None:
    path = store(result().plain())
    assert path == certificate_path()
    assert path.parent == state
    certificate = find()
    assert certificate == Certificate(
        date="2026-01-02T03:04:05Z",
        extent="full",
        trusted=True,
        highest_rate_rps=400.0,
        highest_streams=64,
        ttft_error_p50_us=40.0,
        ttft_error_p99_us=120.0,
        worst_ttft_error_p99_us=120.0,
        itl_error_p99_us=9.0,
        path=str(path),
    )


@pytest.mark.parametrize("key", ["hostname", "kernel", "version", "python", "loop", "cpu"])
def test_a_selftest_of_other_circumstances_is_not_found(key: str) -> None:
    other = {**certified.host_identity(), key: "another"}
    store({**result().plain(), "host": other})
    assert find() is None


def test_a_quick_one_leaves_a_full_one() -> None:
    assert store(result(extent="quick").plain()) is not None
    assert store(result(extent="quick", rate=100.0).plain()) is not None
    assert store(result().plain()) is not None
    assert store(result(extent="quick").plain()) is None
    found = find()
    assert found is not None
    assert found.extent == "full"


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"gentle": null}', "\x00"])
def test_a_broken_file_counts_as_none(text: str) -> None:
    path = certificate_path()
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert find() is None


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be stored"):
        store(result().plain(), tmp_path / "file" / "below")


def test_without_a_selftest_there_is_a_note_and_no_finding() -> None:
    assert facts_of(None).value("generator.selftest") == "not run on this host"
    assert beyond([observed([], OpenLoop(1e6))], None) == ()


# Beyond


def certificate(**changes: Any) -> Certificate:
    return replace(Certificate.of(result().plain()), **changes)


def test_a_run_within_the_range_is_not_flagged() -> None:
    runs = [observed([], OpenLoop(400.0), SelfCheck(peak_in_flight=64)), observed([], ClosedLoop(3))]
    assert beyond(runs, certificate()) == ()


@pytest.mark.parametrize(
    ("load", "peak", "told"),
    [
        (OpenLoop(500.0), 10, "the run needed 500 req/s, more than"),
        (OpenLoop(20.0), 65, "the run needed 65 requests in flight, more than"),
        (ClosedLoop(65), 65, "the run needed 65 requests in flight, more than"),
    ],
)
def test_a_run_beyond_it_is_a_warning(load: Any, peak: int, told: str) -> None:
    inside = observed([], OpenLoop(10.0), SelfCheck(peak_in_flight=1))
    (finding,) = beyond([inside, observed([], load, SelfCheck(peak_in_flight=peak))], certificate())
    assert finding.check == "beyond_certified_range"
    assert finding.message.startswith(told)
    assert "selftest of 2026-01-02" in finding.message
    assert "pytest-llmbench selftest" in finding.message
    assert not finding.ok
    assert Validity((finding,)).verdict is ValidityVerdict.VALID


def test_each_number_of_workers_has_a_selftest_of_its_own() -> None:
    paths = {store({**result(rate=100.0 * n).plain(), "workers": n}) for n in (1, 4)}
    assert len(paths) == 2
    one, four = find(1), find(4)
    assert one is not None
    assert four is not None
    assert (one.workers, one.highest_rate_rps) == (1, 100.0)
    assert (four.workers, four.highest_rate_rps) == (4, 400.0)
    assert facts_of(four).value("generator.selftest")["workers"] == 4
    gentle = [observed([], OpenLoop(1.0), SelfCheck(peak_in_flight=1))]
    assert beyond(gentle, four, 4) == ()


def test_each_transport_has_a_selftest_of_its_own() -> None:
    paths = {store({**result(rate=50.0 * n).plain(), "over": over}) for n, over in enumerate(TRANSPORTS, 1)}
    assert len(paths) == 4
    for n, over in enumerate(TRANSPORTS, 1):
        for workers in (1, 3):
            certificate = find(workers, over)
            assert certificate is not None
            assert (certificate.over, certificate.highest_rate_rps) == (over, 50.0 * n)
            assert facts_of(certificate).value("generator.selftest")["over"] == over
    gentle = [observed([], OpenLoop(1.0), SelfCheck(peak_in_flight=1))]
    (finding,) = beyond(gentle, find(3, "grpc"), 3)
    assert "run pytest-llmbench selftest --over grpc --workers 3" in finding.message
    (finding,) = beyond([observed([], OpenLoop(1e6), SelfCheck())], find(1, "http/2"))
    assert "(pytest-llmbench selftest --over http/2)" in finding.message


def test_a_selftest_of_another_transport_is_not_cited() -> None:
    store(result().plain())
    assert find(1, "grpc") is None
    fact = facts_of(None, "grpc")["generator.selftest"]
    assert fact.value == "not run on this host over grpc"
    assert fact.source == "pytest-llmbench selftest --over grpc"
    told = facts_of(None, transport_to("python:engine:answer", http2=False))
    assert told.value("generator.selftest") == "there is no selftest for endpoints in process"


@pytest.mark.parametrize(
    ("url", "http2", "over"),
    [
        ("http://here:8000/v1", False, "http/1.1"),
        ("https://here/v1", True, "http/2"),
        ("wss://here/v1", False, "websocket"),
        ("grpc://here:50051", False, "grpc"),
        ("grpcs://here:50051", False, "grpc"),
        ("http+unix://%2Frun%2Fengine.sock/v1", False, "http/1.1"),
        ("python:engine:answer", False, "in process"),
    ],
)
def test_the_transport_to_an_endpoint(url: str, http2: bool, over: str) -> None:
    assert transport_to(url, http2=http2) == over


@pytest.mark.parametrize(
    ("workers", "told"),
    [
        (3, r"3 worker processes sent the load, .* covers 4 worker processes: .*selftest --workers 3"),
        (0, r"pytest's own process sent the load, .* covers 1 worker process: .*selftest --workers 0"),
        (
            "ray?workers=8",
            r"workers of a cluster \(ray.*covers 1 worker process: .*a cluster has no selftest",
        ),
    ],
)
def test_a_run_with_another_number_of_workers_is_flagged(workers: int | str, told: str) -> None:
    for count in (1, 4):
        store({**result().plain(), "workers": count})
    gentle = [observed([], OpenLoop(1.0), SelfCheck(peak_in_flight=1))]
    (finding,) = beyond(gentle, find(workers), workers)
    assert re.search(told, finding.message)
    assert not finding.ok
    assert not finding.voids


def test_where_nothing_held_every_load_is_beyond() -> None:
    failed = certificate(highest_rate_rps=None, trusted=False, extent="quick")
    (finding,) = beyond([observed([], OpenLoop(1.0), SelfCheck(peak_in_flight=1))], failed)
    assert "nothing held there" in finding.message
    assert "run a full selftest" in finding.message


def measured(endpoint: str) -> TestResult:
    session = BenchSession(Settings(endpoint=endpoint, scale="quick", host_limits=LIMITS))
    chosen = definition("ttft", where="here")
    parameters = build(chosen.parameters, {"rate": 40.0, "requests": 12}, where="here")
    try:
        return session.measure("t::a", chosen, parameters, endpoint, session.default_warmup()).result
    finally:
        session.close()


def test_a_session_cites_the_selftest_and_flags_what_is_beyond_it() -> None:
    store(result(rate=30.0).plain())
    seen = measured("sim")
    assert seen.facts.value("generator.selftest")["highest_rate_rps"] == 30.0
    assert seen.validity is not None
    assert seen.validity.verdict is ValidityVerdict.VALID
    (finding,) = [found for found in seen.validity.findings if found.check == "beyond_certified_range"]
    assert finding.value == 40.0


def test_a_replay_has_no_generator_to_certify() -> None:
    store(result(rate=30.0).plain())
    seen = measured("replay")
    assert "generator.selftest" not in seen.facts
    assert seen.validity is not None
    assert "beyond_certified_range" not in {found.check for found in seen.validity.findings}


# The whole


@pytest.fixture(scope="module")
def tiny() -> Any:
    heard: list[LevelFigures] = []
    return run_selftest(TINY, heard.append), heard


def test_a_selftest_measures_this_host(tiny: Any) -> None:
    found, heard = tiny
    labels = list(dict.fromkeys(seen.label for seen in heard))
    assert labels[:2] == ["40 req/s", "80 req/s"]
    assert labels[-2:] == ["4 streams", "flood"]
    assert found.gentle.ttft_error.n == 12
    assert found.gentle.itl_error.n == 12 * 2
    assert 0 < found.gentle.ttft_error.p50 < 5_000
    assert found.gentle.stamp_error.p50 < found.gentle.ttft_error.p50
    assert found.flood.chunks_per_s > 1_000
    assert found.flood.itl_error.n == 0
    assert found.check.event_loop
    assert found.host == certified.host_identity()
    assert Certificate.of(json.loads(json.dumps(found.plain()))).extent == "quick"


def test_the_command_prints_writes_and_stores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sampled = ["--sampled"] if names("machine") else []  # it may be left out
    status = selftest_report.main(
        ["--quick", *sampled, "--json", str(tmp_path / "all.json"), "--out", str(tmp_path / "kept")],
        extents=(TINY, TINY),
    )
    plain = json.loads((tmp_path / "all.json").read_text())
    assert status == (0 if plain["trusted"] else 1)
    said = capsys.readouterr().out
    for expected in (
        "40 req/s, gentle",
        *(["the same, sampled"] if sampled else []),
        "80 req/s",
        "4 streams",
        "flood",
        "highest rate:",
        "resolution",
    ):
        assert expected in said
    (kept,) = (tmp_path / "kept").iterdir()
    assert json.loads(kept.read_text()) == plain
    assert find() is None  # it was stored elsewhere


def test_the_exit_status_of_a_host_that_cannot_be_trusted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(selftest_report, "run_selftest", lambda *_, **__: result(trusted=False, rate=None))
    assert selftest_report.main(["--no-store"]) == 1
    said = capsys.readouterr().out
    assert "NOT TO BE TRUSTED" in said
    assert "  - TTFT error 9000 µs at P99" in said
    assert find() is None


def test_the_door() -> None:
    command = [sys.executable, "-m", "pytest_llmbench"]
    helped = subprocess.run([*command, "selftest", "--help"], capture_output=True, text=True, check=True)
    assert "--quick" in helped.stdout
    assert subprocess.run([*command, "serve"], capture_output=True, check=False).returncode == 2


def test_the_fixture_gives_the_result_and_stores_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    canned = result(extent="quick")
    monkeypatch.setattr("pytest_llmbench.harness.selftest.run.run_selftest", lambda *_, **__: canned)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(
        """
        def test_this_host_can_load(llm_selftest):
            assert llm_selftest.trusted
            assert llm_selftest.highest_rate_rps >= 400
            assert llm_selftest.highest_streams >= 64
            assert llm_selftest.gentle.ttft_error.p99 <= 500
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
    found = find()
    assert found is not None
    assert found.date == canned.date
