"""Measuring processes, embedded engines and known-delay servers that begin as forks of a process which has
their modules loaded: a tenth of the time. All tests in this process start theirs so, see ``conftest``.
Sessions of pytest can begin so too, see ``forked_sessions``.

Each is a process of its own that runs all of its program, from its command line on. What is left out is the
interpreter's start, which ``test_generator_own_process`` and ``test_simulator_process`` are about. The
process that forks has one thread and no event loop.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn

import pytest

PROGRAMS = {
    "pytest_llmbench.generator.workers.process": "pytest_llmbench.generator.workers.process",
    "pytest_llmbench.simulator": "pytest_llmbench.simulator.__main__",
    "pytest_llmbench.simulator.known_delay.server": "pytest_llmbench.simulator.known_delay.server",
}
"""What may be asked for after ``-m``, and the module that has its ``main``."""
LATER = (
    "pytest_llmbench.simulator.serving.server",
    "pytest_llmbench.simulator.protocols.grpc_face",
    "pytest_llmbench.simulator.protocols.websocket_protocol",
    "pytest_llmbench.wire.openai_chat",
    "encodings.idna",
    "numpy.ma",
    "uvicorn.lifespan.off",
    "uvicorn.loops.auto",
    "uvicorn.loops.uvloop",
)
"""What those load when they need it; ``numpy.ma`` for the first percentile."""
STARTERS = (
    "pytest_llmbench.generator.workers.pool",
    "pytest_llmbench.simulator.serving.process",
    "pytest_llmbench.simulator.known_delay.process",
)
"""Modules that start them, each by ``subprocess.Popen``."""
_START_S = 60.0
_MOST_BYTES = 100_000
"""Of what is asked: environment and command line."""
_MOST_DESCRIPTORS = 8
_COMM_CHARACTERS = 15
"""Of the name of a process, as the kernel keeps it."""

COMMANDS: dict[int, list[str]] = {}
"""The command lines of the forks that are not known to have ended."""


class ForkedProcess:
    """What those modules want of a ``subprocess.Popen``."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: int | IO[bytes],
        stderr: int | IO[bytes],
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        start_new_session: bool,
        cwd: Path | None = None,
    ) -> None:
        assert start_new_session
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self.args = list(command)
        with ExitStack() as theirs:
            read, self.stdin = _input(stdin, theirs)
            written, self.stdout = _output(stdout, theirs)
            said, self.stderr = _output(stderr, theirs)
            self._ended, told = os.pipe()
            weakref.finalize(self, os.close, self._ended)
            theirs.callback(os.close, told)
            asked = {
                "command": self.args[3:],
                "env": dict(os.environ if env is None else env),
                "directory": str(cwd or Path.cwd()),
                "passed": list(pass_fds),
            }
            self.pid = self._forking().fork(asked, [told, read, written, said, *pass_fds])
        COMMANDS[self.pid] = self.args

    def _forking(self) -> Forks:
        return _started_forks()

    def poll(self) -> int | None:
        return self._status(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self) -> tuple[bytes, bytes]:
        """What a process that did not start has said."""
        said = [pipe.read() if pipe is not None else b"" for pipe in (self.stdout, self.stderr)]
        self.wait()
        return said[0], said[1]

    def _status(self, timeout: float | None) -> int | None:
        """Within this time, in seconds; several threads may ask."""
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            with self._lock:
                if self.returncode is None:
                    self.returncode = int(os.read(self._ended, 20))
                    COMMANDS.pop(self.pid, None)
        return self.returncode


def _input(wanted: int, theirs: ExitStack) -> tuple[int, IO[bytes] | None]:
    """Its end, which ``theirs`` closes, and ours of a pipe."""
    if wanted == subprocess.DEVNULL:
        return theirs.enter_context(Path(os.devnull).open("rb")).fileno(), None
    read, ours = os.pipe()
    theirs.callback(os.close, read)
    return read, os.fdopen(ours, "wb", 0)


def _output(wanted: int | IO[bytes], theirs: ExitStack) -> tuple[int, IO[bytes] | None]:
    if not isinstance(wanted, int):
        return wanted.fileno(), None
    ours, written = os.pipe()
    theirs.callback(os.close, written)
    return written, os.fdopen(ours, "rb", 0)


def _popen(command: Sequence[str], **options: Any) -> ForkedProcess | subprocess.Popen[bytes]:
    if list(command[1:3]) == ["-P", "-m"] and command[3] in PROGRAMS:
        return ForkedProcess(command, **options)
    return subprocess.Popen(command, **options)


_FORKING = SimpleNamespace(
    Popen=_popen,
    PIPE=subprocess.PIPE,
    DEVNULL=subprocess.DEVNULL,
    TimeoutExpired=subprocess.TimeoutExpired,
)
"""All that the modules that start processes take from ``subprocess``."""


def fork_from_now_on() -> None:
    """Processes of these programs begin as forks in all tests but those with ``interpreters_start``. The
    process that forks starts when it is first needed, with what is the environment now, whatever that test
    has changed."""
    _environment.update(os.environ, MALLOC_ARENA_MAX="1", OPENBLAS_NUM_THREADS="1")
    for name in STARTERS:
        import_module(name).subprocess = _FORKING  # type: ignore[attr-defined]


@pytest.fixture
def interpreters_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what a fork does not have: a start, an environment and a command line of its own."""
    for name in STARTERS:
        monkeypatch.setattr(import_module(name), "subprocess", subprocess)


class Forks:
    """Our end of the line to a process that forks. It ends when that is closed, so with this process."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._line.settimeout(_START_S)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, *program: str) -> Forks:
        """Of what this program has loaded; a further argument is the descriptor of its end."""
        ours, theirs = line_of_forks()
        forks = cls(ours)
        with theirs:
            forks._process = subprocess.Popen(
                [sys.executable, *program, str(theirs.fileno())],
                cwd=Path(__file__).parent,
                stdin=subprocess.DEVNULL,
                env=_environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(forks.close)
        return forks

    def fork(self, asked: Mapping[str, Any], descriptors: list[int]) -> int:
        """Of that process, whose descriptors are: for its exit status, standard ones, further ones."""
        with self._lock:
            socket.send_fds(self._line, [json.dumps(asked).encode()], descriptors)
            pid = self._line.recv(100)
        assert pid, "the process that forks has ended"
        return int(pid)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        self._line.close()
        if self._process is not None:
            self._process.wait(_START_S)


def line_of_forks() -> tuple[socket.socket, socket.socket]:
    """Ours, and that of the process that forks."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


_environment: dict[str, str] = {}
"""Of the process that forks; forks have their own."""
_forks: Forks | None = None
_starting = threading.Lock()


def _started_forks() -> Forks:
    global _forks
    with _starting:
        if _forks is None:
            _forks = Forks.start("-P", __file__)
        return _forks


def fork_at(forks: Forks) -> None:
    """From now on, and not at one that starts when it is first needed."""
    global _forks
    _forks = forks


def forks() -> int | None:
    """The process that forks, if it has been needed."""
    return None if _forks is None else _forks.pid


Mains = Mapping[str, Callable[[], object]]
"""What a fork may become, by name. What it returns is its exit status, none being 0."""


def loaded() -> Mains:
    """All that a fork would do again is done. What is frozen here is no garbage of theirs: the collector of a
    fork that looks at it copies its memory. ``quiet_gc`` has no need to count it."""
    for module in (*PROGRAMS.values(), *LATER):
        import_module(module)
    from pytest_llmbench.generator.workers.protocol import own_version
    from pytest_llmbench.simulator.scenario.variants import software_version
    from pytest_llmbench.timing import collector
    from pytest_llmbench.tokens.reference import reference_tokenizer

    reference_tokenizer("cl100k_base").encode("a")
    software_version()
    own_version()
    gc.collect()
    gc.freeze()
    collector.frozen_by_others = lambda: True
    return {name: import_module(module).main for name, module in PROGRAMS.items()}


def serve(line: socket.socket, mains: Mains) -> None:
    """Fork for each message, until the other end is closed; tell how each fork ended."""
    with selectors.DefaultSelector() as selector:
        selector.register(line, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not line:
                    selector.unregister(key.fileobj)
                    _tell_the_end(int(key.fd), *key.data)
                    continue
                message, descriptors, _, _ = socket.recv_fds(line, _MOST_BYTES, _MOST_DESCRIPTORS)
                if not message:
                    return
                pid = _forked(json.loads(message), descriptors[1:], mains)
                line.send(str(pid).encode())
                for descriptor in descriptors[1:]:
                    os.close(descriptor)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, descriptors[0]))


def _forked(asked: Mapping[str, Any], descriptors: list[int], mains: Mains) -> int:
    """In a session of its own before anybody knows of it, so that its group can be killed."""
    alone, begun = os.pipe()
    pid = os.fork()
    if not pid:
        os.setsid()
        os.close(begun)
        _become(asked, descriptors, mains)
    os.close(begun)
    os.read(alone, 1)
    os.close(alone)
    return pid


def _tell_the_end(pidfd: int, pid: int, told: int) -> None:
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):  # nobody asks
        os.write(told, str(os.waitstatus_to_exitcode(status)).encode())
    os.close(told)
    os.close(pidfd)


def _become(asked: Mapping[str, Any], descriptors: list[int], mains: Mains) -> NoReturn:
    """The program, in a fork."""
    name, *arguments = asked["command"]

    def run() -> object:
        passed = descriptors[3:]
        keep_only(descriptors[:3], passed)
        Path("/proc/self/comm").write_text(name[-_COMM_CHARACTERS:], "utf-8")
        there = dict(zip(map(str, asked["passed"]), map(str, passed), strict=True))
        sys.argv = [name, *(there.get(each, each) for each in arguments)]
        os.environ.clear()
        os.environ.update(asked["env"])
        os.chdir(asked["directory"])
        return mains[name]()

    run_to_the_end(run)


def keep_only(standard: Sequence[int], others: Sequence[int]) -> None:
    """Of what is open: these as standard input, output and errors, and others."""
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers
        if int(name) > 2 and int(name) not in others:
            with suppress(OSError):  # that which listed them
                os.close(int(name))


def run_to_the_end(main: Callable[[], object]) -> NoReturn:
    """It, and then this process, as an interpreter does."""
    status = 1
    try:
        returned = main()
        status = returned if isinstance(returned, int) else 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - told in the log, and never beyond this fork
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as own_line:
        serve(own_line, loaded())
