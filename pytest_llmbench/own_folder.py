"""The folder for the temporary files of this process, and how the folders of killed processes are found.

A process that needs files with names makes a folder for them, in the user's own folder among the machine's
temporary files, and holds a lock beside it. The kernel takes the lock away from a process that dies, so the
folder of a dead one is told from that of a live one without a doubt: no process id can have been given to
another, and none is taken for dead because it lives in another container. The next process that makes a
folder removes what dead ones have left.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.errors import StoreError

_PREFIX = "process-"
_LOCK = ".lock"


@dataclass(frozen=True)
class _Own:
    path: Path
    lock: int
    """File descriptor of the lock. A forked child has it too: then the folder is taken for a live one's a
    while longer."""
    pid: int


_GUARD = threading.Lock()
_MADE: dict[Path, _Own] = {}
"""The folders made so far, by the user's folder, which moves with ``TMPDIR``."""


def user_folder() -> Path:
    """Return the folder for our temporary files that belongs to this user alone.

    In a folder that everyone may write to, somebody else can take a name that can be guessed. Raises
    StoreError where that has happened.
    """
    path = Path(tempfile.gettempdir()) / f"pytest-llmbench-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise StoreError(
            "the folder for our temporary files is not this user's alone",
            where=str(path),
            remedy="remove it, or give another folder for temporary files by TMPDIR",
        )
    return path


def own_folder() -> Path:
    """Return the folder of this process; it is removed when the process ends. Raises StoreError or
    OSError."""
    user = user_folder()
    with _GUARD:
        own = _MADE.get(user)
        if own is None or own.pid != os.getpid() or not own.path.is_dir():
            remove_leftovers(user)
            own = _MADE[user] = _made(user)
            atexit.register(_remove, own)
        return own.path


def remove_leftovers(user: Path) -> None:
    """Removes the folders of dead processes. What cannot be told or removed stays."""
    for lock in user.glob(f"{_PREFIX}*{_LOCK}"):
        try:
            descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_files(lock.with_suffix(""))
        except OSError:  # its owner lives, or the file system has no locks
            continue
        finally:
            os.close(descriptor)


def _made(user: Path) -> _Own:
    while True:
        path = user / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        lock = path.with_suffix(_LOCK)
        flags = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(lock, flags, 0o600)
        # Another process may take it for a leftover before the lock is held: then there is nothing in it yet.
        if _locked(descriptor) and os.fstat(descriptor).st_nlink:
            path.mkdir(mode=0o700)
            return _Own(path, descriptor, os.getpid())
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks here: nobody else gets one either
        return True
    return True


def _remove(own: _Own) -> None:
    if own.pid == os.getpid():  # a forked child that ends owns nothing
        _remove_files(own.path)
        os.close(own.lock)


def _remove_files(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if not path.exists():
        path.with_suffix(_LOCK).unlink(missing_ok=True)
