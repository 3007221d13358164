"""``pytest-llmbench trace describe FILE``: the shape of a trace or of workloads, as text and as a picture:
lengths, arrivals, what prompts share, turns and pauses."""

from __future__ import annotations

import argparse
import html
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.history.sessions import width
from pytest_llmbench.harness.workloads.files import catalogue_workload, read_workload_file
from pytest_llmbench.input_files import SMALL_BYTES, parse_json, read_bytes
from pytest_llmbench.model.numbers import number, percentage, quantity, rough_duration
from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.registry import names
from pytest_llmbench.reports.plots import render
from pytest_llmbench.reports.terminal import text_table
from pytest_llmbench.store.files import write_text
from pytest_llmbench.store.perf_catalogue import is_catalogue, read_catalogue
from pytest_llmbench.store.traces.reading import FORMATS, read_trace
from pytest_llmbench.store.traces.request import Trace, TraceRequest
from pytest_llmbench.store.traces.sources import UNIT_MS, Meaning
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.profiles import PREFIX, told_of
from pytest_llmbench.workloads.stream import streamed
from pytest_llmbench.workloads.trace import TraceWorkload, shared_blocks
from pytest_llmbench.workloads.trace_sessions import TraceSessionWorkload

Floats = npt.NDArray[np.float64]
PERCENTILES = (5, 50, 95, 99)
BUSY_S = 60.0
"""Length in seconds of the stretches of which the busiest is reported."""


@dataclass(frozen=True)
class Arrivals:
    """The arrivals of a trace or workload. ``at_s``: seconds from the first, ascending, at least two and not
    all at once."""

    at_s: Floats
    what: str = "requests"
    """What arrives: ``requests``, or ``sessions`` whose later requests follow by cause."""

    @property
    def rate(self) -> float:
        """Arrivals per second: the number of gaps / their total length."""
        return float((len(self.at_s) - 1) / self.at_s[-1])

    @property
    def variation(self) -> float:
        """Coefficient of variation of the gaps: 1 for a Poisson process, 0 for a clock, more where bursty."""
        gaps = np.diff(self.at_s)
        return float(np.std(gaps) / np.mean(gaps))

    @property
    def burstiness(self) -> float | None:
        """Shape of the gamma distribution with that variation, 1/CV², as ``arrival="gamma"`` takes it. None
        for constant gaps."""
        return 1 / self.variation**2 if self.variation > 1e-9 else None

    @property
    def busiest(self) -> float | None:
        """Arrivals per second in the busiest minute, with minutes counted from the first arrival; None if
        they span less than two minutes."""
        minutes = np.bincount((self.at_s // BUSY_S).astype(np.int64))
        return float(minutes.max() / BUSY_S) if len(minutes) > 1 else None


@dataclass(frozen=True)
class Shape:
    """The shape of a trace or workload. Vectors have an entry for each request, in order; only ``turns`` (one
    for each session) and ``pauses_s`` do not."""

    title: str
    input_tokens: Floats
    output_tokens: Floats
    shared_tokens: Floats
    """Input tokens of each request that an earlier one began with: what a prefix cache without bounds would
    have."""
    sharing_known: bool = True
    """Whether shared prefixes are known; False where the format does not say what prompts are made of."""
    left_out: int = 0
    arrivals: Arrivals | None = None
    turns: Floats | None = None
    """Number of requests in each session; None where there are no sessions."""
    pauses_s: Floats | None = None
    growth_tokens: Floats | None = None
    """How many input tokens a turn has more than the one before it in its session; None where there are no
    sessions."""

    @property
    def cacheable(self) -> float:
        """Share of all input tokens that an earlier request began with."""
        return float(self.shared_tokens.sum() / self.input_tokens.sum())

    @property
    def sharers(self) -> float:
        """Share of the requests that share a prefix with an earlier one."""
        return float(np.mean(self.shared_tokens > 0))


def shape_of_trace(trace: Trace, title: str) -> Shape:
    """The shape of all requests of a trace."""
    seen: set[int] = set()
    lengths = [
        (
            each.input_tokens,
            each.output_tokens,
            min(shared_blocks(each.hash_ids, seen) * trace.block_tokens, each.input_tokens),
        )
        for each in trace.requests
    ]
    by_session: dict[str, list[TraceRequest]] = {}
    for each in trace.requests:
        if each.session:
            by_session.setdefault(each.session, []).append(each)
    sessions = by_session.values()
    offsets = [each.offset_ms / 1000 for each in trace.requests if each.offset_ms is not None]
    return _shape(
        f"{title}: {trace.format}",
        lengths,
        sharing_known=bool(seen),
        left_out=trace.left_out,
        arrivals=_arrivals(offsets) if trace.is_timed else None,
        turns=_floats(map(len, sessions)),
        pauses_s=_floats(each.pause_ms / 1000 for each in trace.requests if each.pause_ms is not None),
        growth_tokens=_floats(
            after.input_tokens - before.input_tokens for own in sessions for before, after in pairwise(own)
        ),
    )


def shape_of_workload(workload: Workload, title: str, count: int, seed: int) -> Shape:
    """The shape of the first ``count`` requests of ``seed``; a trace is gone through once at most. Sessions
    of a trace are included whole."""
    if isinstance(workload, TraceSessionWorkload):
        return _shape_of_sessions(workload, title)
    offsets: Sequence[int] = ()
    trace = isinstance(workload, TraceWorkload)
    if isinstance(workload, TraceWorkload):
        count = min(count, len(workload.entries))
        offsets = workload.offsets_ns[:count]
    seen: set[int | None] = set()
    lengths = [
        (request.input_tokens, request.max_tokens, _shared(request, seen, known=trace))
        for request in islice(streamed(workload).stream(seed), count)
    ]
    arrivals = _arrivals([offset / 1e9 for offset in offsets])
    return _shape(f"{title}{workload.name} (drawn with seed {seed})", lengths, arrivals=arrivals)


def _shape_of_sessions(workload: TraceSessionWorkload, title: str) -> Shape:
    every = [turn for session in workload.sessions for turn in session.turns]
    requests = islice(streamed(workload).stream(0), len(every))
    return _shape(
        f"{title}{workload.name} (sessions of a trace)",
        [
            (turn.input_tokens, turn.output_tokens, request.shared_prefix_tokens)
            for turn, request in zip(every, requests, strict=True)
        ],
        arrivals=_arrivals([offset / 1e9 for offset in workload.offsets_ns], "sessions"),
        turns=_floats(len(session.turns) for session in workload.sessions),
        pauses_s=_floats(turn.pause_ms / 1000 for turn in every if turn.wait_for),
    )


def _shape(title: str, lengths: Sequence[tuple[int, int, int]], **about: Any) -> Shape:
    """A shape of requests with these numbers of input, output and shared tokens."""
    return Shape(title, *np.array(lengths, dtype=np.float64).reshape(-1, 3).T, **about)


def _shared(request: PlannedRequest, seen: set[int | None], *, known: bool) -> int:
    """How many tokens of a prompt an earlier request began with. A trace states this number. In other
    workloads the first request with a prefix shares it with nobody yet."""
    before = known or request.prefix_id in seen
    seen.add(request.prefix_id)
    return request.shared_prefix_tokens if before and request.prefix_id is not None else 0


def _arrivals(at_s: Sequence[float], what: str = "requests") -> Arrivals | None:
    return Arrivals(np.array(at_s), what) if len(at_s) > 1 and at_s[-1] > 0 else None


def _floats(values: Iterable[float]) -> Floats | None:
    """The values as a vector; None without any."""
    found = np.array(list(values), dtype=np.float64)
    return found if len(found) else None


_PIXELS = (720, 380)
_BINS = 120
_POINTS = 1_000


def described(shape: Shape, columns: int) -> list[str]:
    """The lines that describe a shape. What the format does not say is reported as unknown."""
    left = f" (rows without tokens left out: {shape.left_out:,})" if shape.left_out else ""
    lines = [f"{shape.title}, {len(shape.input_tokens):,} requests{left}", ""]
    known = (
        ("input tokens", shape.input_tokens),
        ("output tokens", shape.output_tokens),
        ("requests a session", shape.turns),
        ("growth of input a turn", shape.growth_tokens),
        ("pause (s)", shape.pauses_s),
    )
    rows = [
        (
            name,
            *map(number, (np.mean(values), *np.percentile(values, PERCENTILES), np.max(values))),
            f"{len(values):,}",
        )
        for name, values in known
        if values is not None
    ]
    head = ("", "mean", *(f"P{each}" for each in PERCENTILES), "max", "n")
    lines += [*text_table(head, rows, width=columns), ""]
    sharing = "sharing: unknown, since the format does not say what prompts contain"
    if shape.sharing_known:
        sharing = (
            f"sharing: {percentage(shape.sharers)} of the requests begin like an earlier one, with "
            f"{percentage(shape.cacheable)} of the input tokens: what an unlimited prefix cache would hold"
        )
    told = [_arrivals_line(shape), sharing]
    if (turns := shape.turns) is not None:
        alone, of_them = percentage(float(np.mean(turns == 1))), int(turns.sum())
        told.append(f"sessions: {len(turns):,} with {of_them:,} requests, {alone} of them with one")
    return lines + [line for each in told for line in textwrap.wrap(each, columns, subsequent_indent="  ")]


def _arrivals_line(shape: Shape) -> str:
    found = shape.arrivals
    if found is None:
        return "arrivals: no instants"
    unit = "req/s" if found.what == "requests" else f"{found.what}/s"
    busiest = "" if found.busiest is None else f", {quantity(found.busiest, unit)} in the busiest minute"
    shaped = "as even as a clock"
    if found.burstiness is not None:
        shaped = (
            f"coefficient of variation of the gaps {number(found.variation)} (Poisson: 1), as "
            f"arrival='gamma' with burstiness={number(found.burstiness)}"
        )
    rate, lasted = quantity(found.rate, unit), rough_duration(float(found.at_s[-1]))
    return f"arrivals: {rate} over {lasted}{busiest}; {shaped}"


def drawn(shape: Shape) -> str:
    """An SVG with the distributions and the arrivals, one below the other."""
    lengths = {"input": shape.input_tokens, "output": shape.output_tokens}
    plots = [_cumulated("Lengths", "tokens", "requests", lengths)]
    if (found := shape.arrivals) is not None:
        at_s, one = found.at_s, found.what.removesuffix("s")
        counts, edges = np.histogram(at_s, bins=min(_BINS, max(2, len(at_s) // 2)))
        rates = (counts / np.diff(edges)).tolist()
        plots.append({
            "title": "Arrivals",
            "x_label": f"seconds from the first {one}",
            "y_label": f"{found.what} per second",
            "series": {"arrivals": {"x": edges.tolist(), "y": [*rates, rates[-1]]}},
            "marks": {},
            "step": True,
        })  # fmt: skip
    if shape.turns is not None:
        plots.append(_cumulated("Sessions", "requests a session", "sessions", {"all": shape.turns}))
    wide, high = _PIXELS
    placed = [
        render(plot, "shape", salt=f"{at}").replace(
            "<svg ", f'<svg y="{at * high}" width="{wide}" height="{high}" ', 1
        )
        for at, plot in enumerate(plots)
    ]
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head = f'<svg {names} width="{wide}" height="{high * len(plots)}" font-family="sans-serif">'
    return "\n".join([head, f"<title>{html.escape(shape.title)}</title>", *placed, "</svg>"]) + "\n"


def _cumulated(title: str, label: str, what: str, values: Mapping[str, Floats]) -> dict[str, Any]:
    """A plot of cumulative distributions: the share of ``what`` that has at most a given value."""
    series = {}
    for name, own in values.items():
        ordered = np.sort(own)
        chosen = np.unique(np.linspace(0, len(own) - 1, min(len(own), _POINTS)).astype(np.int64))
        series[name] = {"x": ordered[chosen].tolist(), "y": ((chosen + 1) / len(own)).tolist()}
    shared = f"share of {what}"
    told = {"title": title, "x_label": label, "y_label": shared, "series": series, "marks": {}}
    return told | {"step": True, "x_log": True}


def main(arguments: Sequence[str]) -> int:
    """Run the command. Raises LLMBenchError, with every mistake, for a file that cannot be read."""
    parser = argparse.ArgumentParser(
        prog="pytest-llmbench trace",
        description="Describe a trace or a workload: lengths, arrivals, sharing, turns and pauses.",
        epilog="Exit status: 0 described; 2 the file cannot be read, with every mistake in it.",
    )
    parser.add_argument("what", choices=["describe"])
    parser.add_argument(
        "file", help="a trace (JSON, JSON Lines, CSV, Parquet, gzipped too), a TOML file of workloads, or "
        f"the name of a workload such as {PREFIX}CHAT",
    )  # fmt: skip
    parser.add_argument(
        "--trace-format",
        choices=(*FORMATS, *names("trace_formats")),
        help="format of the trace (default: recognised by its first row)",
    )
    parser.add_argument("--block-tokens", type=int, metavar="N", help="tokens per block of a hash id")
    parser.add_argument("--time-unit", choices=UNIT_MS, help="unit of the trace's timestamps")
    parser.add_argument("--workload", metavar="NAME", help="only this one of a file of workloads")
    parser.add_argument(
        "--requests",
        type=int,
        default=1_000,
        metavar="N",
        help="number of requests drawn from a workload (default: 1000)",
    )
    parser.add_argument(
        "--seed", type=int, default=42, metavar="N", help="seed of the drawn requests (default: 42)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="also draw it")
    given = parser.parse_args(list(arguments))
    shapes = _shapes(given)
    for shape in shapes:
        print("\n".join(described(shape, width())))
    if given.plot is not None:
        write_text(given.plot, drawn(shapes[0]))
        print(f"{given.plot}: {shapes[0].title}")
    return 0


def _shapes(given: argparse.Namespace) -> list[Shape]:
    path = Path(given.file)
    if given.requests < 1:
        raise SuiteError(f"--requests {given.requests}: give at least 1")
    if path.suffix == ".toml":
        named = read_workload_file(path)
        if given.workload is not None and given.workload not in named:
            raise SuiteError(f"no workload {given.workload!r}; there are: {', '.join(named) or 'none'}")
        chosen = {name: each for name, each in named.items() if given.workload in (None, name)}
        if not chosen:
            raise SuiteError("holds no workloads", where=str(path))
        where = f"{path.name}: "
        return [shape_of_workload(each, where, given.requests, given.seed) for each in chosen.values()]
    if not path.exists() and not path.suffix and "/" not in given.file:
        made = workload(given.file)
        for told in told_of(made.specification().get("profiles", ())):
            print(told)
        return [shape_of_workload(made, "", given.requests, given.seed)]
    if path.suffix == ".json" and given.trace_format is None:
        content = None
        with suppress(OSError, ValueError):  # told by whoever reads it as a trace
            content = parse_json(read_bytes(path, SMALL_BYTES))
        if is_catalogue(content):
            entry = read_catalogue(path)
            print("\n".join(entry.told))
            made = catalogue_workload(path.parent.name or path.stem, entry)
            return [shape_of_workload(made, f"{path.name}: ", given.requests, given.seed)]
    if given.block_tokens is not None and given.block_tokens < 1:
        raise SuiteError(f"--block-tokens {given.block_tokens}: give at least 1")
    meaning = Meaning(given.block_tokens, given.time_unit)
    return [shape_of_trace(read_trace(path, None, given.trace_format, meaning), path.name)]
