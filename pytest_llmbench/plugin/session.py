"""The plugin's part of a pytest session: lazily built bench, collected entries, terminal section, report
files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.errors import LLMBenchError, SuiteError
from pytest_llmbench.plugin import options
from pytest_llmbench.plugin.failures import MEANINGS, FailedVerdicts, Interruption, NotMeasured
from pytest_llmbench.plugin.interplay import clean_report, clean_warnings, print_internal_error
from pytest_llmbench.plugin.progress import ProgressReporter, announce, display_for, own_output
from pytest_llmbench.redaction import outward, terminal_text, without_credentials

if TYPE_CHECKING:
    from pytest_llmbench.harness.session import BenchSession
    from pytest_llmbench.harness.session_record import SessionRecord
    from pytest_llmbench.harness.settings import Settings
    from pytest_llmbench.harness.sut.early_workers import EarlyWorkers
    from pytest_llmbench.methodology.places import Place
    from pytest_llmbench.plugin.failures import ExitStatus
    from pytest_llmbench.plugin.progress import Output
    from pytest_llmbench.probes.disclosure import SUTFile
    from pytest_llmbench.reports.terminal import Line as TerminalLine
    from pytest_llmbench.store.elsewhere import Mirror

Receiver = Callable[[Sequence[dict[str, Any]]], int]
"""What takes the entries of a session, and returns how many points it sent."""
_WIDEST = 120
_REAUDITED = "llmbench_reaudited"
_MEASURING = frozenset({"llm_result", "llm_bench", "llm_sut"})
MISTAKE = "llmbench_mistake"
"""Attribute of the report of a collection that failed by the author's mistake; crosses from an xdist
worker."""
INSECURE = (
    "llmbench: WARNING: --llm-insecure: the server's certificate is not checked; whoever stands in between "
    "reads the API key and can change the replies"
)
NO_ENDPOINT = "no --llm-endpoint: give the URL of a server, or sim for the embedded engine"


def mark_mistake(report: pytest.CollectReport) -> None:
    """Note on the report of a failed collection that a mistake with our names is the cause, if it is."""
    excinfo = getattr(getattr(report, "call", None), "excinfo", None)
    if excinfo is not None and isinstance(excinfo.value, SuiteError):
        setattr(report, MISTAKE, True)


@contextmanager
def failing_in_words() -> Generator[None, None, None]:
    """Turn our errors into plain messages, without a traceback through our own code."""
    try:
        yield
    except LLMBenchError as error:
        raise NotMeasured(error) from None


def name_of_this_session(config: pytest.Config) -> str:
    """A name for prompts that no other session sends, nor another worker of pytest-xdist: workers measure
    equal parts each for itself, one after the other, on one server."""
    worker = getattr(config, "workerinput", None)
    return os.urandom(4).hex() if worker is None else f"{worker['testrunuid'][:8]}-{worker['workerid']}"


class SessionReport:
    """The state of the plugin, one per process. On an xdist controller it only collects; a worker only
    measures."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self._record: SessionRecord | None = None
        self._bench_session: BenchSession | None = None
        self._early: EarlyWorkers | None = None
        self.set_ups: dict[pytest.FixtureDef[object], int] = {}
        """The numbers of the set-ups of fixtures ``llm_sut`` that are up."""
        self._numbers = count(1)
        self._written: list[str] = []
        self._said: list[str] = []
        self._annotations: list[str] = []
        self._lost: list[str] = []
        """Messages on what could not be written or shown, a line each."""
        self._finished: pytest.Session | None = None
        self._output: Output | None = None
        self._not_collected: list[bool] = []
        """For each failed collection, whether the author's mistake is the reason."""
        self._any_run = False
        self._failed = FailedVerdicts()
        self._status: ExitStatus | None = None
        """The exit status of the session in place of pytest's own; None: pytest's."""
        self._mirror: Mirror | None = None
        """The store of baselines that are kept elsewhere."""
        self._receiver: Receiver | None = None
        self._interruption = Interruption(config)
        if any(value not in (None, "", False) for value in options.values(config).values()):
            try:
                self._check_settings()
            except BaseException:
                self.unconfigure()  # pytest does not: there is no session yet
                raise
        self._output = own_output(of_worker=self.is_worker)

    @cached_property
    def settings(self) -> Settings:
        from pytest_llmbench.harness.settings import Settings

        given = options.values(self.config)
        return Settings.from_options({**given, "new_prompts": name_of_this_session(self.config)})

    @cached_property
    def sut_file(self) -> SUTFile | None:
        """The SUT file; None without one, and where it is broken, which is told elsewhere."""
        if not options.values(self.config)["sut"]:
            return None
        from pytest_llmbench.harness.sut.declared import sut_file_of

        with suppress(SuiteError):
            return sut_file_of(self.settings)
        return None

    @cached_property
    def place(self) -> Place:
        """Where the session measures, found when the first marker asks for it."""
        from pytest_llmbench.harness.sut.declared import accelerator_of
        from pytest_llmbench.methodology.places import Place

        names = tuple(name for part in self.settings.place.split(",") if (name := part.strip()))
        return Place(names, None if self.sut_file is None else accelerator_of(self.settings, self.sut_file))

    @property
    def is_worker(self) -> bool:
        return hasattr(self.config, "workerinput")

    @property
    def worker(self) -> str | None:
        """The name of this pytest-xdist worker; None in any other process."""
        name: str | None = getattr(self.config, "workerinput", {}).get("workerid")
        return name

    @property
    def record(self) -> SessionRecord:
        if self._record is None:
            from pytest_llmbench.harness.session_record import SessionRecord

            invoked = self.config.invocation_params.dir
            root = Path(os.path.relpath(self.config.rootpath, invoked)).as_posix()
            self._record = SessionRecord(self.settings, root)
        return self._record

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The entries of ``report.json``, in the order in which the tests ended."""
        return [] if self._record is None else self._record.entries

    @property
    def bench_session(self) -> BenchSession:
        if self._bench_session is None:
            from pytest_llmbench.harness.session import BenchSession

            self._interruption.install()
            hooks = self.config.hook
            events = hooks.pytest_llmbench_events
            self._bench_session = BenchSession(
                self.settings,
                worker=self.worker,
                sessions=getattr(self.config, "workerinput", {}).get("workercount", 1),
                disclosure=lambda endpoint: self.offered(hooks.pytest_llmbench_disclosure, endpoint=endpoint),
                variants=self.variants_offered,
                early=self._early,
                observers=[partial(events, config=self.config)] if events.get_hookimpls() else [],
            )
        return self._bench_session

    def begin_set_up(self, fixturedef: pytest.FixtureDef[object]) -> None:
        """Number a set-up of ``llm_sut``. What is opened of it is closed before its own end, while its server
        still answers."""
        number = self.set_ups[fixturedef] = next(self._numbers)

        def end() -> None:
            self.set_ups.pop(fixturedef, None)
            if self._bench_session is not None:
                with failing_in_words():
                    self._bench_session.close_set_up(number)

        fixturedef.addfinalizer(end)

    def forget(self, nodeid: str) -> None:
        """Forget what an attempt at a test measured: another one takes its place."""
        if self._bench_session is not None:
            self._bench_session.forget(nodeid)

    def close(self) -> None:
        if self._bench_session is not None:
            self._bench_session.close()
            self._bench_session = None
        if self._early is not None:
            self._early.close()
            self._early = None

    def unconfigure(self) -> None:
        self.close()
        if self._record is not None:
            self._record.close()
        self._interruption.remove()
        if self._output is not None:
            os.close(self._output.descriptor)
            self._output = None

    def start_workers(self) -> None:
        """Start the measuring processes while other things are done before the first load. Not beside other
        workers of pytest-xdist, one of which may be measuring."""
        if self._bench_session is None and not self.is_worker:
            from pytest_llmbench.harness.sut.early_workers import EarlyWorkers

            self._interruption.install()
            self._early = EarlyWorkers(self.settings)

    def offered(self, hook: Callable[..., Any], **given: Any) -> dict[str, Any]:
        """What all implementations of a hook offer, by name."""
        found: dict[str, Any] = {}
        for offered in hook(config=self.config, **given):
            found.update(offered or {})
        return found

    def variants_offered(self, endpoint: str) -> dict[str, Any]:
        """The SUT variants of all hooks, by name."""
        return self.offered(self.config.hook.pytest_llmbench_variants, endpoint=endpoint)

    def _check_settings(self) -> None:
        """Report mistakes in the options before the run, not after it."""
        try:
            if self.settings.report is not None:
                from pytest_llmbench.store.files import check_writable

                check_writable(self.settings.report, "--llm-report")
            self._fetch()
            self._receiver = self._receiver_named(self.settings.send)
            if self.settings.names_baselines:
                _ = self.bench_session.baselines.comparing
        except LLMBenchError as error:
            raise pytest.UsageError("\n".join([str(error), *self._said])) from None

    def _fetch(self) -> None:
        """Bring the copy of a store up to date; what goes wrong is told at the end, and fails nothing. A
        worker of pytest-xdist has what the controller fetched."""
        if ":" not in self.settings.storage:
            return
        from pytest_llmbench.registry import give
        from pytest_llmbench.store.elsewhere import mirror_of

        give("stores", self.offered(self.config.hook.pytest_llmbench_stores))
        self.config.add_cleanup(lambda: give("stores", {}))
        self._mirror = mirror_of(self.settings.storage, "--llm-storage")
        if self._mirror is not None and not self.is_worker:
            self._said += self._mirror.fetch()

    def _receiver_named(self, given: str | None) -> Receiver | None:
        """What takes the figures. SuiteError for none of that name, and for a package that it lacks."""
        if given is None:
            return None
        from pytest_llmbench.registry import named, names

        name, _, where = given.partition(":")
        found = named("receivers", name)
        if found is None or not where:
            known = ", ".join(f"{each}:WHERE" for each in names("receivers"))
            raise SuiteError(f"--llm-send {given!r} names no receiver", remedy=f"there are: {known}")
        made: Receiver = found(where)
        return made

    @contextmanager
    def progress(self, nodeid: str, place: tuple[int, int]) -> Generator[None, None, None]:
        """Show how far the test has got. ``place``: its number, and how many tests there are."""
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        display = None
        if reporter is not None or self.is_worker:
            line = "" if reporter is None else getattr(reporter._tw, "_current_line", "")
            verbosity = self.config.get_verbosity()
            display = display_for(self._output, verbosity, nodeid, place, line, self.worker)
        if display is None or self._output is None:
            yield
            return
        session = self.bench_session
        shown = session.on_progress = ProgressReporter(display)
        session.on_announcement = partial(announce, self._output, line)
        try:
            yield
        finally:
            session.on_progress = session.on_announcement = None
            shown.end()

    def pytest_report_header(self) -> list[str] | None:
        given = options.values(self.config)
        endpoints = given.get("endpoints") or [given["endpoint"]]
        if not endpoints[0]:
            return None
        shown = ", ".join(map(without_credentials, endpoints))
        over = ", over HTTP/2" if self.settings.http == "2" else ""
        if self.settings.proxy:
            over += f", through the proxy {without_credentials(self.settings.proxy)}"
        if self.settings.baseline_endpoint:
            over += f", compared with {without_credentials(self.settings.baseline_endpoint)}"
        lines = [outward(f"llmbench: {shown}, scale {self.settings.scale}{over}")]
        return [*lines, INSECURE] if self.settings.insecure else lines

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Clean the report around all other hooks, since what they add to it has to be clean as well."""
        report = yield
        clean_report(report)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: object) -> bool | None:
        return print_internal_error(excrepr, self.config)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        # The controller of pytest-xdist sends nothing itself, and ends workers that do.
        if options.values(self.config)["endpoint"]:
            self._interruption.install()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._not_collected.append(getattr(report, MISTAKE, False))

    def begin(self, session: pytest.Session) -> None:
        """Claim the report directory before the first test, and start to keep results, if there are load
        tests.

        The controller of pytest-xdist collects nothing, and takes all tests for load tests.
        """
        given = options.values(self.config)
        keeps = given["save"] or given["autosave"] or given["calibrate"]
        if not (given["report"] or given["endpoint"] or keeps):
            return  # nobody's load test: nothing more of ours is loaded
        selected = [
            item.nodeid
            for item in session.items
            if not _MEASURING.isdisjoint(getattr(item, "fixturenames", ()))
        ]
        if self.is_worker or not (selected or self.config.pluginmanager.hasplugin("dsession")):
            return
        try:
            if keeps:
                from pytest_llmbench.store.files import check_writable

                check_writable(self.settings.folder, "--llm-storage")
            found = self.record.begin()
        except LLMBenchError as error:
            raise pytest.UsageError(str(error)) from None
        self.record.select(selected)
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        if found is not None and reporter is not None:
            reporter.write_line(outward(f"llmbench: {found}"), yellow=True)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        if self._record is not None:
            self._record.select(ids)

    # First of all: a plugin that cannot write to its full disk ends the session, and no result with it.
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._interruption.forget()
        if self._record is not None:
            self._record.test_begins(nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if self._record is not None:
            self._record.test_ended(nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, None, None]:
        try:
            yield
        finally:
            self._any_run = True
            self._failed.note(report)
            entry = getattr(report, "llmbench", None)
            if entry is not None:
                if report.failed and entry["outcome"] == "passed":
                    # By its subtests, which pytest counts once it shows the test.
                    entry |= {"outcome": "failed", "error": str(report.longrepr)}
                self.record.keep(entry)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._not_collected and all(self._not_collected) and not self._any_run:
            # Markers or limits in code are wrong, nothing else is, and nothing was run.
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
        if not self.is_worker and options.values(self.config)["exit_codes"]:
            self._status = self._failed.status(session)
            session.exitstatus = session.exitstatus if self._status is None else self._status
        self._finished = session
        clean_warnings(self.config)
        if self._bench_session is not None:
            # The compliance of tests whose clauses a later test meets. The controller had the entries before.
            changed = self._bench_session.reaudit()
            if self.is_worker:
                self.config.workeroutput[_REAUDITED] = changed  # type: ignore[attr-defined]  # pytest-xdist's
            elif changed:
                self.record.reaudit(changed)
        self.close()
        if self.is_worker or self._record is None:
            return
        written = self._record.finish(int(exitstatus), os.environ)
        self._written, self._annotations = written.paths, written.annotations
        self._lost = [*written.problems, *self._record.not_on_disk]
        self._said += [*self._record.said, *(f"llmbench: WARNING: {text}" for text in written.warnings)]
        if not self.entries:
            return
        if self.settings.saves:
            self._save(exitstatus)
        if self._receiver is not None:
            try:
                points = self._receiver(self.entries)
                self._said.append(f"{points} points sent to {self.settings.send}")
            except (LLMBenchError, OSError) as error:
                self._said.append(f"llmbench: WARNING: {' '.join(str(error).split())}")
        self._fail_if_lost()

    def _fail_if_lost(self) -> None:
        """Make the session fail if a result could not be written."""
        session = self._finished
        if self._lost and session is not None and session.exitstatus in (pytest.ExitCode.OK, self._status):
            session.exitstatus, self._status = pytest.ExitCode.TESTS_FAILED, None

    def _save(self, exitstatus: int) -> None:
        name = self.settings.save or "autosave"
        try:
            if exitstatus == pytest.ExitCode.INTERRUPTED:
                self._said.append(f"baseline {name!r} not saved: the session was interrupted")
                return
            from pytest_llmbench.harness.comparison.baselines import save

            path, said = save(self.settings, self.entries, time.time_ns())
            self._said += said
            if path is not None and self._mirror is not None:
                self._said.append(self._mirror.send(path))
        except (LLMBenchError, OSError) as error:
            self._lost.append(f"baseline {name!r} not saved: {' '.join(str(error).split())}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the changes that a pytest-xdist worker sent at its end. One that died sent nothing."""
        if self._record is not None:
            self._record.reaudit(getattr(node, "workeroutput", {}).get(_REAUDITED, []))

    def _section(self, width: int) -> Iterator[TerminalLine]:
        """The lines of the terminal section: everything with ``-v``, only the table with ``-q``. A test that
        cannot be shown does not keep the others from it."""
        from pytest_llmbench.reports.terminal import (
            Line,
            brief_lines,
            closing_lines,
            opening_lines,
            section_lines,
        )

        verbosity, shown = self.config.get_verbosity(), []
        for entry in self.entries:
            try:
                lines = section_lines(entry, width=width) if verbosity > 0 else []
                if verbosity == 0:
                    told = entry["outcome"] in ("failed", "error") and self.config.option.tbstyle != "no"
                    lines = brief_lines(entry, width=width, failure_told=told)
                closing_lines([entry], width=width)
            except Exception as error:  # noqa: BLE001 - of ours, and must not cost the other verdicts
                self._lost.append(f"{entry['nodeid']}: cannot be shown: {type(error).__name__}: {error}")
                continue
            shown.append(entry)
            yield from [*lines, Line("")] if lines else []
        if shown and verbosity >= 0 and (opening := opening_lines(shown, width=width)):
            yield from [*opening, Line("")]
        yield from closing_lines(shown, width=width) if shown else []
        yield Line("")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        skipped = [
            report
            for report in terminalreporter.stats.get("skipped", [])
            if NO_ENDPOINT in str(report.longrepr)
        ]
        if skipped:
            terminalreporter.write_line(f"llmbench: {len(skipped)} load tests skipped, {NO_ENDPOINT}")
        if self.entries:
            self._show_results(terminalreporter)
        elif self._record is not None:
            self._tell_incomplete(terminalreporter)
        if self._status is not None:
            terminalreporter.write_line(f"llmbench: exit status {self._status:d}: {MEANINGS[self._status]}")

    def _show_results(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("LLM serving benchmarks", sep="=")
        for line in self._section(min(terminalreporter._tw.fullwidth, _WIDEST)):
            terminalreporter.write_line(terminal_text(line.text), **line.markup)
        self._fail_if_lost()
        self._tell_incomplete(terminalreporter)
        for path in self._written:
            terminalreporter.write_line(f"report: {path}")
        for text in self._lost:
            terminalreporter.write_line(terminal_text(f"llmbench: ERROR: {text}"), red=True, bold=True)
        for text in self._said:
            terminalreporter.write_line(terminal_text(text))
        for command in self._annotations:
            terminalreporter.write_line(outward(command))

    def _tell_incomplete(self, reporter: pytest.TerminalReporter) -> None:
        if self.record.incomplete is not None:
            from pytest_llmbench.reports.document import incomplete_text

            text = incomplete_text(self.record.incomplete.model_dump())
            reporter.write_line(terminal_text(f"llmbench: {text}"), red=True, bold=True)


SESSION = pytest.StashKey[SessionReport]()
