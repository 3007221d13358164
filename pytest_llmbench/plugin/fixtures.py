"""The fixtures. Override ``llm_sut`` to launch a server of your own, ``llm_warmup`` to change the warm-up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.errors import StoreError, SuiteError
from pytest_llmbench.plugin.collection import MARKED, PLACE
from pytest_llmbench.plugin.failures import InvalidRun
from pytest_llmbench.plugin.markers import not_as_measured
from pytest_llmbench.plugin.options import has_endpoint, values
from pytest_llmbench.plugin.session import NO_ENDPOINT, SESSION, failing_in_words
from pytest_llmbench.plugin.verdicts import attempt_at, note_missing, of_attempt

if TYPE_CHECKING:
    from pytest_llmbench.harness.client import LLMClient
    from pytest_llmbench.harness.selftest.run import SelftestResult
    from pytest_llmbench.harness.session import Bench
    from pytest_llmbench.harness.sut.sut import SUT, SetUp
    from pytest_llmbench.methodology.procedure import WarmupPolicy
    from pytest_llmbench.model.request import Workload
    from pytest_llmbench.model.result import TestResult
    from pytest_llmbench.simulator.serving.process import EmbeddedEngine


@pytest.fixture(scope="session")
def llm_sut(pytestconfig: pytest.Config) -> SUT:
    """The system under test, from ``--llm-endpoint`` and ``--llm-sut``.

    Override it to launch a server of your own; return an :class:`~pytest_llmbench.SUT` or a URL::

        @pytest.fixture(scope="session")
        def llm_sut():
            with launch_server() as url:
                yield SUT(url, model="my-model")
    """
    if not has_endpoint(pytestconfig):
        if values(pytestconfig)["require"]:
            pytest.fail(f"--llm-require: {NO_ENDPOINT}", pytrace=False)
        pytest.skip(NO_ENDPOINT)
    with failing_in_words():
        return pytestconfig.stash[SESSION].bench_session.sut_from_settings()


def set_up_of_sut(request: pytest.FixtureRequest) -> SetUp:
    """The set-up of ``llm_sut`` that a test has, for a fixture that requests it."""
    from pytest_llmbench.harness.sut.sut import SetUp

    # pytest has no public way to tell which of several fixtures of one name a test has.
    fixturedef = request._get_active_fixturedef("llm_sut")
    return SetUp(request.config.stash[SESSION].set_ups[fixturedef], request.node.nodeid)


def alone_unless_ours(
    fixturedef: pytest.FixtureDef[object], config: pytest.Config
) -> contextlib.AbstractContextManager[None]:
    """Keep other workers of pytest-xdist from loading a server while the fixture is set up: one of the
    suite's own that starts meanwhile would disturb them.

    The fixture ``llm_sut`` of this module starts none, so nobody is held off for it.
    """
    worker, ours = config.stash[SESSION].worker, getattr(fixturedef.func, "__module__", "") == __name__
    if worker is None or ours:
        return contextlib.nullcontext()
    from pytest_llmbench.harness.machine_lock import machine_lock

    return machine_lock(worker)


@pytest.fixture(scope="session")
def llm_warmup(pytestconfig: pytest.Config) -> WarmupPolicy:
    """How much warm-up is done before a test is measured.

    Override it to return another :class:`~pytest_llmbench.WarmupPolicy`.
    """
    with failing_in_words():
        return pytestconfig.stash[SESSION].bench_session.default_warmup()


@pytest.fixture
def llm_workload() -> Callable[..., Workload]:
    """A factory of workloads, by name or by the lengths of prompts and answers.

    Standard workloads and your own::

        llm_workload("synthetic-uniform")
        llm_workload(input_tokens=64, output_tokens=(16, 32))   # a number is fixed, a pair uniform
        llm_workload("synthetic-uniform", output_tokens=256)    # its inputs, a fixed output limit
        llm_workload("ours", prefix_tokens=512, prefix_fraction=0.5, prefixes=4)
        llm_workload("ours", mix={"chat": (chat, 0.6), "reasoning": (reasoning, 0.4)})

    Lengths may also be a list to choose from, a histogram or a law; ``salt="x"`` defeats prefix caches.
    """
    from pytest_llmbench.harness.workloads.factory import make_workload

    return make_workload


@pytest.fixture
def llm_bench(request: pytest.FixtureRequest, llm_sut: SUT | str, llm_warmup: WarmupPolicy) -> Bench:
    """Runs a plan, ``llm_bench.run(plan)``, or a whole test by hand, ``llm_bench.measure("ttft", rate=20)``.

    In async tests ``await llm_bench.run_async(plan)`` and ``await llm_bench.measure_async(…)``.
    """
    with failing_in_words():
        from pytest_llmbench.harness.session import Bench

        session, missing = request.config.stash[SESSION].bench_session, note_missing(request.node)
        return Bench(session, llm_sut, llm_warmup, missing, set_up_of_sut(request))


@pytest.fixture
def llm_client(request: pytest.FixtureRequest, llm_sut: SUT | str) -> Iterator[LLMClient]:
    """Single requests to the system under test, from async tests. They are not a load and not a measurement.

    The requests use the system's model, dialect, key and TLS settings::

        @pytest.mark.asyncio
        async def test_it_counts(llm_client):
            reply = await llm_client.complete("Count to three.", max_tokens=16)
            assert "2" in reply.text
            assert reply.ttft_ms < 5_000

            async for chunk in llm_client.stream("Count to three.", max_tokens=16):
                print(chunk.text, end="")

    A request that fails raises ``RequestFailedError``; with ``check=False`` ``reply.error`` says why instead.
    """
    from pytest_llmbench.harness.machine_lock import machine_lock

    report = request.config.stash[SESSION]
    with failing_in_words():
        client = report.bench_session.client(llm_sut, set_up_of_sut(request))
    with machine_lock(report.worker):  # no other process of pytest-xdist is measuring meanwhile
        yield client


@pytest.fixture
def llm_cell(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """The keywords of the cell that a test of ``llmbench.grid`` measures; empty for any other test."""
    given: Mapping[str, Any] = getattr(request, "param", {})
    return given


@pytest.fixture
def llm_result(request: pytest.FixtureRequest, llm_sut: SUT | str, llm_warmup: WarmupPolicy) -> TestResult:
    """The judged result of a marked test, which is measured before its body runs.

    Every marked test uses it, even if the test does not name it.
    """
    item = request.node
    marked = item.stash.get(MARKED, None)
    if marked is None:
        pytest.fail("llm_result needs a marker that says what to measure, as @llmbench.ttft()", pytrace=False)
    report = request.config.stash[SESSION]
    mistakes = not_as_measured(marked.parametrized, request.getfixturevalue)
    with failing_in_words(), report.progress(item.nodeid, item.stash[PLACE]):
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=item.nodeid)
        measured = report.bench_session.measure(
            item.nodeid,
            marked.definition,
            marked.parameters,
            llm_sut,
            llm_warmup,
            marked.limits,
            marked.wanted,
            tests=item.stash[PLACE][1],
            set_up=set_up_of_sut(request),
        )
    attempt = attempt_at(item)
    attempt.take(item, measured)
    attempt.profile = partial(report.bench_session.profile, sut=llm_sut, set_up=set_up_of_sut(request))
    request.config.hook.pytest_llmbench_result(item=item, result=measured.result)
    if measured.interrupted:
        # pytest makes no report of a test that a signal ends, and nothing measured may be lost.
        entry = measured.entry("error", error="interrupted by Ctrl-C or SIGTERM")
        report.record.keep(entry | of_attempt(item))
        raise KeyboardInterrupt
    if reasons := measured.void_text():
        told = f"{measured.void_headline()}: this run is not judged\n{reasons}"
        raise InvalidRun(told, measured.void_summary())
    return measured.result.read_by(note_missing(item))


@pytest.fixture
def llm_sim() -> Iterator[Callable[..., EmbeddedEngine]]:
    """Starts embedded engines, for testing one's own suite or client; they are stopped after the test.

    ``llm_sim()`` is the preset ``fast``; ``llm_sim("h100-8b?max_num_seqs=8&fault=reset&fault_rate=0.2")`` is
    any scenario (``python -m pytest_llmbench.simulator --help`` lists the options). What it returns has the
    base ``url``, the ``model`` name, and ``ground_truth()``: what really happened to each request. With
    ``grpc=True`` it has a ``grpc_target`` too (extra ``[grpc]``)::

        def test_my_client_survives_resets(llm_sim):
            engine = llm_sim("fast?fault=reset&fault_rate=0.2&seed=1")
            my_client(engine.url, engine.model)
            assert any(truth.fault == "reset" for truth in engine.ground_truth())
    """
    from pytest_llmbench.simulator.serving.process import EmbeddedEngine

    with contextlib.ExitStack() as running:

        def start(scenario: str = "fast", *, grpc: bool = False) -> EmbeddedEngine:
            with failing_in_words():
                return running.enter_context(EmbeddedEngine.start(scenario, grpc=grpc))

        yield start


@pytest.fixture(scope="session")
def llm_selftest(pytestconfig: pytest.Config) -> SelftestResult:
    """The load that the generator can be trusted with on this host, from a quick selftest of about 13 s.

    The selftest runs once. It tests the transport to ``--llm-endpoint``. The result is stored where possible,
    unless a complete one is already stored, so that later tests cite it::

        def test_this_host_can_load(llm_selftest):
            assert llm_selftest.trusted
            assert llm_selftest.highest_rate_rps >= 200
            assert llm_selftest.gentle.ttft_error.p99 <= 500  # µs
    """
    from pytest_llmbench.harness.machine_lock import machine_lock
    from pytest_llmbench.harness.selftest.certificate import IN_PROCESS, TRANSPORTS, store, transport_to
    from pytest_llmbench.harness.selftest.run import QUICK, run_selftest

    settings = pytestconfig.stash[SESSION].settings
    over = transport_to(settings.endpoint or "", http2=settings.http == "2")
    with failing_in_words(), machine_lock(pytestconfig.stash[SESSION].worker):
        workers = pytestconfig.stash[SESSION].settings.workers
        result = run_selftest(
            QUICK,
            workers=workers if isinstance(workers, int) else 1,  # a cluster cannot be tested here
            over=TRANSPORTS[0] if over == IN_PROCESS else over,
        )
    with contextlib.suppress(StoreError):
        store(result.plain())
    return result
