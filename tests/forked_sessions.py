"""Sessions of pytest, and workers of pytest-xdist, that begin as forks of a process which has pytest and all
of the plugin loaded: most of what a small session computes is to load them.

Each is a process of its own, with its command line, environment, folder, output and signals. What is left out
is the interpreter's start. A session is the parent of one more process, which forks what it starts itself:
its measuring processes, engines and workers.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from pkgutil import walk_packages
from types import SimpleNamespace
from typing import IO, Any

import pytest
from forked_processes import (
    ForkedProcess,
    Forks,
    Mains,
    fork_at,
    fork_from_now_on,
    keep_only,
    line_of_forks,
    loaded,
    run_to_the_end,
    serve,
)
from pytest_apart import WITHOUT_OTHERS

WORKER = "import sys;exec(eval(sys.stdin.readline()))"
"""What execnet has an interpreter do that is to be a worker."""
LATER = (
    *("certifi", "charset_normalizer", "h11", "h2.connection", "httpcore", "prometheus_client.parser"),
    *("numpy.random", "scipy.fft", "scipy.special", "yaml"),
)
"""What the plugin loads when it needs it."""
_forks: Forks | None = None
_starting = threading.Lock()


class ForkedSession(ForkedProcess):
    """A session whose output, and errors if nobody else wants them, are in a file until it has ended."""

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str],
        env: Mapping[str, str] | None = None,
        output: IO[bytes] | None = None,
        errors: IO[bytes] | None = None,
    ) -> None:
        self._output = output or tempfile.TemporaryFile()  # noqa: SIM115 - closed below
        weakref.finalize(self, self._output.close)
        super().__init__(
            [sys.executable, "-P", "-m", "pytest", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=errors or self._output,
            env=env,
            cwd=folder,
            start_new_session=True,
        )

    def _forking(self) -> Forks:
        return _started_forks()

    def text(self, timeout: float | None = None) -> str:
        """All that it has written, at its end."""
        self.wait(timeout)
        return read_again(self._output)


def started(folder: Path, *arguments: str, **more: Any) -> ForkedSession:
    """A session of what is in ``folder``, only with the plugins that belong to the subject; ``more`` as the
    class takes it."""
    return ForkedSession(folder, ["-p", "no:cacheprovider", *WITHOUT_OTHERS, *arguments], **more)


def read_again(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


class _ForkedWorker(ForkedProcess):
    """What execnet wants of a worker's ``subprocess.Popen``."""

    def __init__(self, command: Sequence[str], *, stdin: int, stdout: int) -> None:
        assert command[-1] == WORKER
        with open(2, "wb", closefd=False) as errors:
            super().__init__(command, stdin=stdin, stdout=stdout, stderr=errors, start_new_session=True)

    def _forking(self) -> Forks:
        return _started_forks()


def fork_workers(replace: Callable[[object, str, object], None] = setattr) -> None:
    """Of the sessions in this process, if there can be any."""
    try:
        from execnet.gateway_base import ThreadExecModel
    except ImportError:
        return
    replace(ThreadExecModel, "subprocess", SimpleNamespace(Popen=_ForkedWorker, PIPE=subprocess.PIPE))


def _started_forks() -> Forks:
    global _forks
    with _starting:
        if _forks is None:
            _forks = Forks.start(__file__)
        return _forks


def _mains() -> Mains:
    """All that sessions use is there. pytest comes first and in a session, so that it rewrites assertions of
    the plugin's modules as it does for a session that is the first to load them."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        os.chdir(folder)
        pytest.main(["-p", "no:cacheprovider", *WITHOUT_OTHERS])
        os.chdir("/")
    import pytest_llmbench

    for name in LATER:
        import_module(name)
    for module in walk_packages(pytest_llmbench.__path__, "pytest_llmbench."):
        if not module.name.endswith(".__main__") and ".ray." not in module.name:
            import_module(module.name)
    import_module("pytest_llmbench.compliance.audit").load_catalogue()
    mains = dict(loaded())
    mains.update({"pytest": lambda: _session(mains), WORKER: lambda: _worker(mains)})
    return mains


def _session(mains: Mains) -> object:
    _as_an_interpreter_starts(mains)
    return pytest.main()


def _worker(mains: Mains) -> None:
    _as_an_interpreter_starts(mains)
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})


def _as_an_interpreter_starts(mains: Mains) -> None:
    """With streams of its own, and with folders for modules and temporary files by its own environment; and
    the process that forks what this one starts, as long as it has one thread."""
    global _forks
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder for folder in folders if folder and folder not in sys.path]
    if "xdist" in sys.modules:
        import_module("xdist.plugin")._sys_path[:] = sys.path  # what it gives to its workers
    tempfile.tempdir = None
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for as long as this process
    sys.stdout = open(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    ours, theirs = line_of_forks()
    if not os.fork():
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        keep_only([nothing] * 3, [theirs.fileno()])
        run_to_the_end(lambda: serve(theirs, mains))
    theirs.close()
    _forks = Forks(ours)
    fork_at(_forks)
    fork_from_now_on()
    fork_workers()


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # nothing of the tests is there for sessions
    with socket.socket(fileno=int(sys.argv[1])) as own_line:
        serve(own_line, _mains())
