"""What plugs in beside the core: transports and dialects, executors, schedules, readers, metrics, reports.

An extra is a value that names its parts as ``module:attribute``: what nobody asks for is not imported. Those
that come with this package are folders of ``pytest_llmbench/extras``, each with ``EXTRA`` in its
``__init__``; any of them may be missing. Others are found by the entry points of the group
``pytest_llmbench.extras``, in every process that measures, and looked for only when a name is not known yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal

from pytest_llmbench.errors import SuiteError

GROUP: Final = "pytest_llmbench.extras"


@dataclass(frozen=True)
class Transport:
    """A way to carry requests that is not HTTP/1.1."""

    name: str
    """The name in reports, such as ``websocket``."""
    title: str
    """The name in messages, such as ``WebSocket``."""
    carry: str
    """Function of target, dialect, path of the dialect and name of the session header (empty: none) that
    gives the form of requests and a function which makes the transport of a clock and whether to use the
    kernel's stamps."""
    schemes: tuple[str, ...] = ()
    """Schemes of the URLs that it is asked for by, without TLS and with it; none: by an option."""
    dialects: Mapping[str, str] = field(default_factory=dict)
    """Name of a dialect that is spoken over it alone or in a form of its own → its class; ``auto`` takes the
    first."""
    ask: str = ""
    """Function that asks one request which is not measured: of URL, dialect, encoded body, id of the request,
    and by keyword ``headers``, ``access`` and ``tls``. It gives status, headers, body and whether that is
    all."""
    preflight: Mapping[str, str] = field(default_factory=dict)
    """Further functions of the preflight, by its names for them."""
    note: str = ""
    """The id of the note on what is measured over it; none: there is nothing to say."""
    faces: Mapping[str, str] = field(default_factory=dict)
    """The sides of servers of ours that speak it, by the server's name for them."""


@dataclass(frozen=True)
class Extra:
    """What one folder or distribution adds."""

    home: str = ""
    """The package that its modules are in."""
    transports: tuple[Transport, ...] = ()
    dialects: Mapping[str, str] = field(default_factory=dict)
    """Name of a dialect of HTTP → its class, called without arguments."""
    decoders: Mapping[str, str] = field(default_factory=dict)
    """Framing of replies → the class of its decoder, called with the most bytes of an event."""
    executors: Mapping[str, str] = field(default_factory=dict)
    """Name of a place where workers run → the class of a load generator whose workers run there. It takes
    what ``DistributedLoadGenerator`` takes, with ``cluster`` in the place of ``workers`` and ``cpus``."""
    comparisons: Mapping[str, str] = field(default_factory=dict)
    """Name of what ``--llm-compare`` may name beside a baseline → function of its path and the waivers. It
    gives a ``harness.comparison.baselines.Compares``, or None for a file of another kind."""
    result_formats: Mapping[str, str] = field(default_factory=dict)
    """Name of another load generator → the ``extras.foreign.comparing.ResultFormat`` of its result files."""
    test_lists: Mapping[str, str] = field(default_factory=dict)
    """Name of a form of lists of tests → function of pytest's configuration and the path of
    ``--llm-import``, which has the tests of the list collected."""
    document_dialects: Mapping[str, str] = field(default_factory=dict)
    """Name of a dialect of HTTP whose replies are documents and generate nothing → its class, a
    ``wire.dialect.NonGenerativeDialect`` called without arguments. ``auto`` takes none."""
    tests: Mapping[str, str] = field(default_factory=dict)
    """Name of a test beyond the draft, and of its marker → its ``methodology.procedure.TestDefinition``."""
    cells: Mapping[str, str] = field(default_factory=dict)
    """Name of such a test whose marker stands for several → function of the marker's keywords that gives the
    id and the keywords of each, a test item each."""
    main_metrics: Mapping[str, str] = field(default_factory=dict)
    """Name of such a test → the names of its main metrics, the most telling first."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Name of a metric → its ``metrics.definitions.MetricDefinition``."""
    machine: Mapping[str, str] = field(default_factory=dict)
    """What samples the machine of a system during its loads, by name: ``figures``, function of a test's
    parameters, its setting and its result that gives the result with what the machine told; ``accelerator``,
    function of a ``harness.sut.endpoint.SampledMachine`` that gives the model of its accelerators;
    ``sampled``, function of a load generator and such a machine that gives one whose Observations carry the
    telemetry; ``sampler``, class of the process that samples; ``file``, class called
    with a path, which writes the readings of each load there."""
    arrivals: Mapping[str, str] = field(default_factory=dict)
    """Name of an arrival process, for ``arrival=`` of markers → its ``arrivals.ArrivalProcess``."""
    trace_formats: Mapping[str, str] = field(default_factory=dict)
    """Name of a format of recorded requests → its ``store.traces.reading.TraceReader``."""
    stores: Mapping[str, str] = field(default_factory=dict)
    """Name of a place where baselines are kept, for ``--llm-storage=NAME:WHERE`` → function of WHERE that
    gives a ``store.elsewhere.BaselineStore``."""
    receivers: Mapping[str, str] = field(default_factory=dict)
    """Name of what takes the figures of a session, for ``--llm-send=NAME:WHERE`` → function of WHERE. It
    gives a function of the entries of the report, which returns the number of points that were sent."""
    reports: Mapping[str, str] = field(default_factory=dict)
    """Name of a file in the directory of the report → function of the report in plain JSON types (the schema
    of ``report.json``) that gives its text. An extra with tests makes them of reports with one of these."""
    engine_apis: Mapping[str, str] = field(default_factory=dict)
    """Name of an API → the class that serves it in the embedded engine over HTTP, called with its generation
    and its driver: a ``simulator.serving.app.EngineApi``."""
    deployments: Mapping[str, str] = field(default_factory=dict)
    """Name of an option of the embedded engine's scenarios → the ``simulator.engine.deployment.Deployment``
    that has it as a field: how many engines there are, and the loop that gives them requests."""
    sentences: Mapping[str, str] = field(default_factory=dict)
    """Name of a table of findings and notes → the table: sentences (``model.wording.Sentence``) by ids that
    the core does not have."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Name of a command of ``pytest-llmbench`` → function of its arguments that gives the exit status. The
    first line of its docstring is what the usage says of it."""
    packages: tuple[str, ...] = ()
    """Packages that it imports and that may not be installed."""
    install: str = ""
    """What ``pip install`` is to be given then."""


@cache
def _own() -> tuple[Extra, ...]:
    folder = Path(__file__).with_name("extras")
    names = sorted(path.parent.name for path in folder.glob("*/__init__.py"))
    return tuple(import_module(f"pytest_llmbench.extras.{name}").EXTRA for name in names)


@cache
def _of_others() -> tuple[Extra, ...]:
    found = []
    for point in entry_points(group=GROUP):
        extra = point.load()
        if not isinstance(extra, Extra):
            raise SuiteError(
                f"the entry point {point.name} gives {type(extra).__name__}, not an Extra",
                where=f"entry points {GROUP}",
                remedy=f"correct {point.value}, or uninstall its distribution",
            )
        found.append(extra)
    return tuple(found)


def extras() -> Iterator[Extra]:
    """All extras, those of this package first."""
    yield from _own()
    yield from _of_others()


def transport_for(scheme: str) -> Transport | None:
    """The transport for URLs of this scheme; None: there is none."""
    return next((each for extra in extras() for each in extra.transports if scheme in each.schemes), None)


def transport_called(name: str) -> Transport | None:
    """The transport of that name; None: it is left out of this installation."""
    return next((each for extra in extras() for each in extra.transports if each.name == name), None)


def transport_speaking(dialect: str) -> Transport | None:
    """A transport with a form of that dialect; None: there is none."""
    return next((each for extra in extras() for each in extra.transports if dialect in each.dialects), None)


Kind = Literal[
    "dialects", "document_dialects", "decoders", "executors", "comparisons", "result_formats", "test_lists",
    "tests", "cells", "main_metrics", "metrics", "machine", "arrivals", "trace_formats", "stores",
    "receivers", "reports", "engine_apis", "deployments", "sentences", "commands",
]  # fmt: skip
"""A field of :class:`Extra` that names parts."""

_OF_SUITE: Final[dict[Kind, Mapping[str, Any]]] = {}
"""Parts of the suite that is being run, by kind and name; they are there already."""


def give(kind: Kind, parts: Mapping[str, Any]) -> None:
    """Have the parts of that kind that the suite brings, in place of those given before."""
    _OF_SUITE[kind] = parts


def named(kind: Kind, name: str) -> Any | None:
    """The part of that kind and name; None: neither the suite nor an extra has one."""
    if name in (own := _OF_SUITE.get(kind, {})):
        return own[name]
    found = next((parts[name] for parts in _parts(kind) if name in parts), None)
    return None if found is None else load(found)


def names(kind: Kind) -> tuple[str, ...]:
    """The names of all parts of that kind, those of the suite first; none of them is imported."""
    return (*_OF_SUITE.get(kind, ()), *(name for parts in _parts(kind) for name in parts))


def every(kind: Kind) -> Mapping[str, Any]:
    """All parts of that kind by name."""
    found = {name: load(part) for parts in _parts(kind) for name, part in parts.items()}
    return {**found, **_OF_SUITE.get(kind, {})}


def _parts(kind: Kind) -> Iterator[Mapping[str, str]]:
    for extra in extras():
        yield getattr(extra, kind)


def required(name: str, where: str) -> Transport:
    """The transport of that name, whose packages are installed.

    :raises SuiteError: the extra or a package is missing. ``where``: the option that asks for it.
    """
    spec = transport_called(name)
    if spec is None:
        raise SuiteError(
            f"{name} needs an extra that is not installed",
            where=where,
            remedy=f"leave out {where}, or install the package with its extras",
        )
    load(spec.carry)
    return spec


def face(transport: str, server: str) -> Any | None:
    """The side of one of our servers that speaks this transport; None where either is left out."""
    spec = transport_called(transport)
    return None if spec is None or server not in spec.faces else load(spec.faces[server])


@cache
def load(part: str) -> Any:
    """A part of an extra by its ``module:attribute``.

    :raises SuiteError: a package that the extra needs is not installed.
    """
    module, _, name = part.partition(":")
    try:
        return attrgetter(name)(import_module(module))
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        home = module.rpartition(".")[0]
        extra = next((each for each in extras() if each.home == home and missing in each.packages), None)
        if extra is None:
            raise
        raise SuiteError(
            f"{module.split('.')[-2]} needs a package that is not installed: {missing}",
            remedy=f'pip install "{extra.install}"',
        ) from error
