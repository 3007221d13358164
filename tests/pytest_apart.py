"""pytest in a process of its own, for sessions that in this one would not be what is tested."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO

_OTHERS = ("hypothesispytest", "html", "metadata", "timeout")
"""Plugins that those sessions do not need, and which would take time to load."""
WITHOUT_OTHERS = [word for name in _OTHERS for word in ("-p", f"no:{name}")]


class Session(subprocess.Popen[bytes]):
    """A session of what is in ``folder``, only with the plugins that belong to the subject. Its output, and
    errors if nobody else wants them, are in a file until it has ended."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        output: IO[bytes] | None = None,
        errors: IO[bytes] | None = None,
    ) -> None:
        self._output = output or tempfile.TemporaryFile()  # noqa: SIM115 - closed below
        weakref.finalize(self, self._output.close)
        super().__init__(
            [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", *WITHOUT_OTHERS, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=errors or self._output,
            env=dict(os.environ if env is None else env),
            cwd=folder,
            start_new_session=True,
        )

    def text(self, timeout: float | None = None) -> str:
        """All that it has written, at its end."""
        self.wait(timeout)
        return read_again(self._output)


def read_again(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
