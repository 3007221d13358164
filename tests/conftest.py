"""Loaded before any test: everything that the plugin loads lazily; and who may use the machine when.

pytester's in-process runs forget the modules that they loaded, and extension modules such as NumPy's cannot
be loaded twice in a process. "cannot load module more than once per process" means that one is missing here.

A test whose subject is timing has the mark ``timing``: none of the other processes of pytest-xdist runs a
test while it does. All others must not depend on how busy the machine is: those that send a load take
``however_late``.

Property tests draw the same examples in every run, so that a change is what makes one fail, and none has a
deadline: a busy machine takes any time for an example. ``--hypothesis-profile=explore`` draws others each
time.
"""

import atexit
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages

import pytest
from however_late import however_late  # noqa: F401 - a fixture

import pytest_llmbench
from pytest_llmbench import redaction

LOADED = (
    *("httpcore", "matplotlib.backends.backend_svg", "matplotlib.figure", "numpy.fft", "numpy.random"),
    *("orjson", "prometheus_client.parser", "psutil", "scipy.fft", "scipy.stats", "tiktoken", "tokenizers"),
    *("uvloop", "yaml"),
    *("pytest_llmbench.harness.beforehand", "pytest_llmbench.harness.plan"),
    *("pytest_llmbench.harness.report_files", "pytest_llmbench.harness.session"),
    *("pytest_llmbench.harness.session_record", "pytest_llmbench.reports.plots"),
    *("pytest_llmbench.reports.terminal", "pytest_llmbench.timing"),
)
"""What is loaded before any test."""

_SHARED = "PYTEST_LLMBENCH_TESTS_DIR"
"""A folder of this run of the tests; the processes of pytest-xdist inherit it from the first one."""
if _SHARED not in os.environ:
    os.environ[_SHARED] = tempfile.mkdtemp(prefix="llmbench-tests-")
    atexit.register(shutil.rmtree, os.environ[_SHARED], ignore_errors=True)
_FOLDER = Path(os.environ[_SHARED])

# Where byte code is not kept (usual in containers), each process that tests start compiles every module anew,
# which is half of its start, and each process of pytest-xdist does so too. While tests run, it is kept.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A library of linear algebra that computes on all cores waits for them by spinning, which on a busy machine
# takes far more than what it computes. The processes of pytest-xdist load it later, and inherit this.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A selftest that the developer ran here would add findings of its own to the results under test.
os.environ["PYTEST_LLMBENCH_STATE_DIR"] = tempfile.mkdtemp(prefix="state-", dir=_FOLDER)

# Sessions under test would write into the summary of the job that runs these tests, and annotate it.
for _variable in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
    os.environ.pop(_variable, None)

# A run in the background of a shell without job control inherits an ignored SIGINT, and so would the
# processes that tests start in order to interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_INSTALLED = find_spec("hypothesis") is not None
if _INSTALLED:
    from hypothesis import HealthCheck, settings

    _PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("same", _PATIENT, derandomize=True)
    settings.register_profile("explore", _PATIENT, derandomize=False)
    settings.load_profile("same")
else:  # `pytest --help` in a clone where the package alone is installed
    collect_ignore_glob = ["*"]


def pytest_report_header() -> str | None:
    return None if _INSTALLED else "the project's own tests are left out: they need pip install '.[test]'"


def pytest_configure(config: pytest.Config) -> None:
    """The process that only gives tests to those of pytest-xdist loads nothing for them."""
    if _INSTALLED and (hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None)):
        for name in LOADED:
            import_module(name)


@pytest.fixture
def pytester(whole_plugin: None, pytester: pytest.Pytester) -> pytest.Pytester:
    return pytester


@pytest.fixture(scope="session")
def whole_plugin() -> None:
    """A session under test in this process forgets the modules that it is first to load, and what they had
    read, such as the clauses of the draft: the next one would load and read them again. Ray is not needed.

    Of the scope of the session, so that it comes before ``pytester``, which forgets what is loaded later."""
    for module in walk_packages(pytest_llmbench.__path__, "pytest_llmbench."):
        if not module.name.endswith(".__main__") and ".ray." not in module.name:
            import_module(module.name)


@pytest.fixture(autouse=True)
def secrets_of_its_own() -> Generator[None, None, None]:
    """What a test keeps secret is no secret in the tests that follow, which share this process."""
    before = set(redaction._KNOWN)
    yield
    if before != redaction._KNOWN:
        redaction._KNOWN.clear()
        redaction._KNOWN.update(before)
        redaction._redactor.cache_clear()


def _is_timing(item: pytest.Item | None) -> bool:
    return item is not None and item.get_closest_marker("timing") is not None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Tests of timing that follow each other keep the machine: the others need not end once for each."""
    if not _machine.held:
        _machine.take(alone=_is_timing(item))
    try:
        return (yield)
    finally:
        if not (_is_timing(item) and _is_timing(nextitem)):
            _machine.give_back()


class _Machine:
    """Shared with the tests of other processes, or ``alone``. Who waits to be alone stands at the turnstile,
    so that no further test begins."""

    def __init__(self) -> None:
        self._locks = ExitStack()
        self.held = False

    def take(self, *, alone: bool) -> None:
        turnstile, machine = (
            self._locks.enter_context((_FOLDER / name).open("w")) for name in ("turnstile", "machine")
        )
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        fcntl.flock(machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            fcntl.flock(turnstile, fcntl.LOCK_UN)
        self.held = True

    def give_back(self) -> None:
        self._locks.close()
        self.held = False


_machine = _Machine()
