"""Baselines that are kept elsewhere: a store behind three functions, and the copy of it that sessions read.

What is saved is written into a folder here first, and sent then. A store that is down costs no measurement:
the file waits under ``unsent/`` and goes with the next session. Nor does it turn a verdict: a session is
compared with the copy, and says so.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from pytest_llmbench.errors import StoreError, SuiteError, shown
from pytest_llmbench.model.numbers import quantity
from pytest_llmbench.registry import named, names
from pytest_llmbench.store.files import STORAGE, write_text

_T = TypeVar("_T")
_GIVEN = re.compile(r"(?P<name>[a-z][a-z0-9_-]+):(?P<rest>.*)")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}/\d{4,9}_[A-Za-z0-9][\w.-]{0,99}\.json", re.ASCII)
"""The names that are taken, ``Linux-64bit/0001_main.json``: no other becomes a path here."""
_PAUSES_S = (0.5, 2.0)
"""Waits before a call is made again."""
_LONGEST_S = 60.0
"""How long a call may take with all its attempts."""
_MOST_TRIES = 20


class BaselineStore(Protocol):
    """Where baselines are kept that are not in a folder here. Whatever a function raises is taken for a store
    that is down, and tried again; each should give up after some seconds."""

    def names(self) -> Iterable[str]:
        """The names of all sessions, ``MACHINE/NUMBER_NAME.json``."""
        ...

    def read(self, name: str, /) -> str:
        """The text of a session, which is JSON."""
        ...

    def add(self, name: str, text: str, /) -> bool:
        """Keep a session; False, and nothing is kept, where the name is taken."""
        ...


@dataclass(frozen=True)
class Mirror:
    """A store, and the copy of it in a folder here."""

    given: str
    store: BaselineStore
    folder: Path

    @property
    def _unsent(self) -> Path:
        return self.folder / "unsent"

    def fetch(self) -> list[str]:
        """Make the copy what the store has, and send what earlier sessions could not; returns messages."""
        write_text(self.folder / ".gitignore", "*\n")
        try:
            listed = self._patiently(lambda: list(self.store.names()))
            there = {name for name in listed if _NAME.fullmatch(name)}
            for name in sorted(there):
                if not (self.folder / name).exists():
                    write_text(self.folder / name, self._patiently(partial(self.store.read, name)))
        except StoreError as error:
            return [f"WARNING: {error.what}: sessions are compared with the copy in {self.folder}"]
        for path in self.folder.glob("*/*.json"):
            name = path.relative_to(self.folder).as_posix()
            if _NAME.fullmatch(name) and name not in there:
                path.unlink()  # it was taken out of the store
        return [self.send(path) for path in sorted(self._unsent.rglob("*.json"))]

    def send(self, path: Path) -> str:
        """Send a saved session under its number, or the next that is free there; returns what became of it.
        What cannot be sent waits."""
        machine, file = path.parts[-2:]
        waiting = self._unsent / machine / file
        waiting.parent.mkdir(parents=True, exist_ok=True)
        path.rename(waiting)
        number, _, rest = file.partition("_")
        try:
            text = waiting.read_text("utf-8")
            for at in range(int(number), int(number) + _MOST_TRIES):
                name = f"{machine}/{at:04d}_{rest}"
                # A store that kept it and could not say so has it already.
                taken = not self._patiently(partial(self.store.add, name, text))
                if not taken or self._patiently(partial(self.store.read, name)) == text:
                    (self.folder / machine).mkdir(exist_ok=True)
                    waiting.rename(self.folder / name)
                    return f"baseline sent to {self.given} as {name}"
            raise StoreError(f"{self.given} has no free number")
        except StoreError as error:
            return f"WARNING: {error.what}: the session is kept in {waiting} and sent with the next one"

    def _patiently(self, call: Callable[[], _T]) -> _T:
        """What the call returns, tried three times, within a minute. StoreError if it does not."""
        found: list[_T] = []
        raised: list[BaseException] = []

        def attempt() -> None:
            for pause_s in (*_PAUSES_S, None):
                try:
                    found.append(call())
                    return
                except Exception as error:  # noqa: BLE001 - of a store that others wrote
                    raised.append(error)
                    if pause_s is not None:
                        time.sleep(pause_s)

        # A thread, since a store may wait for ever; as a daemon it does not keep the session from its end.
        thread = threading.Thread(target=attempt, daemon=True, name="llmbench-store")
        thread.start()
        thread.join(_LONGEST_S)
        if found:
            return found[0]
        if thread.is_alive():
            why = f"no answer within {quantity(_LONGEST_S, 's')}"
        else:
            why = " ".join(f"{type(raised[-1]).__name__}: {raised[-1]}".split())[:300]
        raise StoreError(f"the store {self.given} does not answer ({why})")


def is_elsewhere(given: str) -> bool:
    """Whether the name of a storage is that of a store, ``NAME:WHERE``, and not of a folder."""
    return _GIVEN.fullmatch(given) is not None and not Path(given).exists()


def folder_of(given: str) -> Path:
    """The folder that is read and written: the one that is named, or that of the copy of a store."""
    if not is_elsewhere(given):
        return Path(given)
    digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return Path(STORAGE, "copies", f"{re.sub(r'[^A-Za-z0-9._-]+', '-', given)[:60]}-{digest}")


def mirror_of(given: str, option: str) -> Mirror | None:
    """The store of that name with its copy; None for a folder. SuiteError for a store that is not known."""
    found = _GIVEN.fullmatch(given)
    if found is None or not is_elsewhere(given):
        return None
    make: Callable[[str], BaselineStore] | None = named("stores", found["name"])
    if make is None:
        known: Sequence[str] = names("stores")
        raise SuiteError(
            f"{option} {shown(given)}: there is no store {found['name']!r}",
            remedy=f"there are: {', '.join(known)}; the hook pytest_llmbench_stores adds others; for a "
            f"folder write ./{given}",
        )
    return Mirror(given, make(found["rest"]), folder_of(given))
