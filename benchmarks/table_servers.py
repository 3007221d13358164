"""The server of known delays that ``bench_table.py`` measures against, and what its log says of a client."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
from table_clients import first

NATIVE = Path(__file__).with_name("native")
_ID = 40
_PATIENCE_S = 20.0


def compiled(directory: Path) -> Path:
    """Builds server and client into ``directory``. Ends the program where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SystemExit("a C compiler is needed: apt-get install gcc, or xcode-select")
    for name in ("server", "client"):
        source = NATIVE / f"{name}.c"
        command = [compiler, "-O2", "-std=gnu11", "-o", directory / name, source]
        subprocess.run(command, check=True, timeout=120)
    return directory


class KnownServer:
    """Runs on one core until left; then its log is there to be compared with."""

    def __init__(
        self,
        built: Path,
        work: Path,
        tokens: int,
        *,
        ttft_us: int = 0,
        itl_us: int = 0,
        cpu: int,
        port: int | None = None,
    ) -> None:
        self._log = work / f"truth-{cpu}.log"
        self._tokens = tokens
        command = [built / "server", str(tokens), str(ttft_us), str(itl_us), self._log]
        self._command = [str(part) for part in (*command, *(() if port is None else (port,)))]
        self._cpu = cpu
        self.port = 0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen([*first(), *self._command], stdout=subprocess.PIPE)
        os.sched_setaffinity(self._process.pid, {self._cpu})
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def truth(self) -> dict[str, npt.NDArray[np.int64]]:
        """By request id: last byte of the request arrived, then the write of each text event (ns)."""
        size = _ID + 8 * (1 + self._tokens)
        data = self._log.read_bytes()
        return {
            data[at : at + _ID].split(b"\0", 1)[0].decode(): np.frombuffer(
                data, np.int64, 1 + self._tokens, at + _ID
            )
            for at in range(0, len(data) - size + 1, size)
        }

    def errors(self, records: Path) -> dict[str, float]:
        """What the records of a run say, less what happened, request by request and gap by gap."""
        truth, ttft, itl = self.truth(), [], []
        for line in records.read_text().splitlines()[1:]:
            record = json.loads(line)
            true = truth.get(record["request_id"])
            if true is None or len(record["chunk_ns"]) != self._tokens:
                continue
            ttft.append(record["first_content_ns"] - record["submitted_ns"] - int(true[1] - true[0]))
            itl.append(np.abs(np.diff(record["chunk_ns"]) - np.diff(true[1:])))
        if not ttft:
            raise SystemExit("no request of the records is in the server's log")
        gaps = np.concatenate(itl)
        return {
            "compared requests": float(len(ttft)),
            "TTFT error P50 ms": float(np.percentile(ttft, 50)) / 1e6,
            "TTFT error P99 ms": float(np.percentile(ttft, 99)) / 1e6,
            "ITL error P50 ms": float(np.percentile(gaps, 50)) / 1e6,
            "ITL error P99 ms": float(np.percentile(gaps, 99)) / 1e6,
        }


__all__ = ["KnownServer", "compiled"]
