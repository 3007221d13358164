"""Stored selftests: what they say about this host, and whether a run stayed within them.

A selftest is of one host, kernel, package version, Python and event loop, of a transport, and of a number of
processes that send the load. It lies under a name that is made of them, so that one of other circumstances is
not found rather than believed; one of another number of processes is cited, and the run flagged.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pytest_llmbench.errors import StoreError
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.http_client import is_grpc, is_websocket
from pytest_llmbench.input_files import SMALL_BYTES, parse_json, read_bytes
from pytest_llmbench.model.facts import Facts, GeneratorFact, Origin
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.probes.host import environment

STATE_DIR_VARIABLE = "PYTEST_LLMBENCH_STATE_DIR"
NOT_RUN = "not run on this host"
TRANSPORTS = ("http/1.1", "http/2", "websocket", "grpc")
IN_PROCESS = "in process"
"""Name for the transport to a callable within this process, which has no socket and no selftest."""
_ROUNDING = 1.001
"""Factor by which a rate may exceed the certified one: a rate of a search may differ in its last digit."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The figures of a stored selftest that results are compared with. None: no level held."""

    date: str
    extent: str
    trusted: bool
    highest_rate_rps: float | None
    highest_streams: int | None
    ttft_error_p50_us: float | None
    ttft_error_p99_us: float | None
    """The P99 of the TTFT error in microseconds, at the same gentle rate as the one above."""
    worst_ttft_error_p99_us: float | None
    """The largest P99 of the TTFT error over all levels that held, in microseconds."""
    itl_error_p99_us: float | None
    path: str = ""
    workers: int = 1
    """How many processes sent its loads; 0: the process of the test itself."""
    over: str = TRANSPORTS[0]
    """The transport that carried them."""

    @classmethod
    def of(cls, plain: Mapping[str, Any], path: str = "") -> Certificate:
        """Read a certificate from the JSON of a selftest.

        :raises KeyError, TypeError, ValueError: the JSON is not that of a selftest.
        """
        ttft, itl = (plain["gentle"][name] for name in ("ttft_error", "itl_error"))
        errors = {"ttft_error_p50_us": ttft["p50"], "ttft_error_p99_us": ttft["p99"]}
        known = {each.name: plain[each.name] for each in fields(cls) if each.name in plain}
        return TypeAdapter(cls).validate_python(
            known | errors | {"itl_error_p99_us": itl["p99"], "path": path}
        )

    def summary(self) -> dict[str, Any]:
        """The fact ``generator.selftest``: measurement uncertainty, and the range in which it was found."""
        return {name: value for name, value in asdict(self).items() if name not in ("trusted", "path")}


@cache
def host_identity() -> dict[str, Any]:
    """The circumstances that a selftest holds for."""
    seen = environment()
    packages = seen["packages"]
    loop = f"uvloop {packages['uvloop']}" if "uvloop" in packages else "asyncio"
    return {
        "hostname": platform.node(),
        "cpu": seen.get("cpu"),
        "cpus_usable": seen.get("cpus_usable"),
        "kernel": f"{platform.system()} {platform.release()}",
        "version": packages.get("pytest-llmbench"),
        "python": seen["python"],
        "loop": loop,
    }


def state_dir() -> Path:
    """The directory for selftests: that of the environment variable, else the user's state directory."""
    if chosen := os.environ.get(STATE_DIR_VARIABLE):
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "pytest-llmbench"


def transport_to(url: str, *, http2: bool) -> str:
    """The transport that a load on ``url`` uses; ``IN_PROCESS`` where there is none."""
    if url.startswith("python:"):
        return IN_PROCESS
    if is_grpc(url):
        return "grpc"
    if is_websocket(url):
        return "websocket"
    return "http/2" if http2 else "http/1.1"


def certificate_path(
    directory: Path | None = None,
    identity: Mapping[str, Any] | None = None,
    workers: int = 1,
    over: str = TRANSPORTS[0],
) -> Path:
    text = json.dumps(dict(identity or host_identity()), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    transport = "" if over == TRANSPORTS[0] else f"-{over.replace('/', '')}"
    return (directory or state_dir()) / f"selftest-{digest}-w{workers}{transport}.json"


def store(plain: Mapping[str, Any], directory: Path | None = None) -> Path | None:
    """Store a selftest; returns its path. A quick one never replaces a full one: then None.

    :raises StoreError: it cannot be written.
    """
    given = Certificate.of(plain)
    path = certificate_path(directory, plain["host"], given.workers, given.over)
    known = read(path)
    if known is not None and known.extent == "full" and plain["extent"] != "full":
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: another session may be reading.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            file.write(json.dumps(dict(plain), indent=1))
        Path(file.name).replace(path)
    except OSError as error:
        raise StoreError(
            f"the selftest cannot be stored: {error}",
            where=str(path),
            remedy=f"name a directory with --out, or with the variable {STATE_DIR_VARIABLE}",
        ) from error
    return path


def read(path: Path) -> Certificate | None:
    """The certificate at ``path``; None where there is none that can be read."""
    try:
        return Certificate.of(parse_json(read_bytes(path, SMALL_BYTES)), str(path))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find(workers: int | str = 1, over: str = TRANSPORTS[0]) -> Certificate | None:
    """The stored selftest of this host for this transport under the present circumstances; None where there
    is none.

    It is one with so many workers, else with the nearest number there is one of (``Certificate.workers``).
    Text, such as ``ray``, is no number of workers.
    """
    try:
        path = certificate_path(workers=workers if isinstance(workers, int) else 1, over=over)
    except RuntimeError:  # a user without a home directory
        return None
    exact = read(path)
    if exact is not None:
        return exact
    wanted = workers if isinstance(workers, int) else 1
    of_this_host = path.name[: path.name.index("-w")]
    found = [read(each) for each in sorted(path.parent.glob(f"{of_this_host}-w*.json"))]
    others = [each for each in found if each is not None and each.over == over]
    return min(others, key=lambda each: abs(each.workers - wanted), default=None)


def find_for(url: str, settings: Settings) -> tuple[Certificate | None, str]:
    """The selftest that is cited for a load on ``url``, and the transport of that."""
    over = transport_to(url, http2=settings.http == "2")
    return find(settings.workers, over), over


def facts_of(certificate: Certificate | None, over: str = TRANSPORTS[0]) -> Facts:
    told: dict[str, Any] | str
    if certificate is not None:
        told, source = certificate.summary(), certificate.path
    elif over == IN_PROCESS:
        told, source = "there is no selftest for endpoints in process", ""
    else:
        told, source = NOT_RUN if over == TRANSPORTS[0] else f"{NOT_RUN} over {over}", _command(over)
    return Facts.of(Origin.GENERATOR, {GeneratorFact.GENERATOR_SELFTEST: told}, source)


def beyond(
    seen: Sequence[Observation], certificate: Certificate | None, workers: int | str = 1
) -> tuple[Finding, ...]:
    """A warning if the generator was asked for more than its selftest found to hold, or if the selftest is
    for another number of processes."""
    if certificate is None or not seen:
        return ()
    command = _command(certificate.over)
    if certificate.workers != workers:
        found = Finding.of(
            "beyond_certified_range.other_workers",
            sent_by=_spoken(workers),
            date=certificate.date[:10],
            certified=_spoken(certificate.workers),
            command=f"{command} --workers {workers}" if isinstance(workers, int) else None,
        )
        return (found,)
    rate = max((run.plan.load.request_rate or 0.0 for run in seen), default=0.0)
    streams = max(run.selfcheck.peak_in_flight for run in seen)
    checks = (
        (rate, certificate.highest_rate_rps, "req/s"),
        (float(streams), certificate.highest_streams, "requests in flight"),
    )
    about: dict[str, Any] = {
        "date": certificate.date[:10],
        "whole": certificate.extent == "full",
        "command": command,
    }
    for value, limit, unit in checks:
        if value > (limit or 0) * _ROUNDING:
            held = limit is not None
            found = Finding.of(
                "beyond_certified_range", value=value, limit=limit, unit=unit, held=held, **about
            )
            return (found,)
    return ()


def _command(over: str) -> str:
    return "pytest-llmbench selftest" + ("" if over == TRANSPORTS[0] else f" --over {over}")


def _spoken(workers: int | str) -> str:
    if isinstance(workers, str):
        return f"workers of a cluster ({workers})"
    if workers == 0:
        return "pytest's own process"
    return "1 worker process" if workers == 1 else f"{workers} worker processes"
