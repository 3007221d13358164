"""The markers as pytest knows them: what ``--markers`` lists, and the names by which ``-m`` selects;
and parametrized names that are keywords of a marker: their values go into the marker."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.marks import COMPARE, MARK, NO_REGRESSION, llmbench
from pytest_llmbench.marks.builder import Builder


def register(config: pytest.Config) -> None:
    """Register the marks with pytest; for ``--markers`` an entry for each builder with its keywords and
    defaults.

    Those are made of the parameters of all tests, which a session that measures nothing does not import.
    """
    if config.option.markers:
        names = [name for name in dir(llmbench) if not name.startswith("_")]
        entries = []
        for name in names:
            build: Builder = getattr(llmbench, name)
            keywords = [
                each.name if each.default is each.empty else f"{each.name}={each.default!r}"
                for each in inspect.signature(build).parameters.values()
            ]
            # pytest ends the mark at the first colon, and writes a space behind it: no default may stand
            # before it.
            mark = f"{build.mark}(test={name!r})" if build.mark == MARK else build.mark
            what = build.documentation.split("\n")[0].rstrip(".:")
            written = f"@llmbench.{name}({', '.join(keywords)})"
            entries.append(f"{mark}: {what}. Write {written}; select with -m {name}.")
    else:
        entries = [f"{mark}(...): see --markers" for mark in (MARK, COMPARE, NO_REGRESSION)]
    for entry in entries:
        config.addinivalue_line("markers", entry)


def all_marks(item: pytest.Item) -> tuple[pytest.Mark, ...]:
    """Every mark of ours on the item, its classes, module and packages."""
    return tuple(mark for mark in item.iter_markers() if mark.name in (MARK, COMPARE, NO_REGRESSION))


def closest(item: pytest.Item, name: str) -> pytest.Mark | None:
    """The mark of that name that counts, which is the nearest one: of ``pytest.param``, the function, its
    class, a base of that, the module, a package. None without one.

    Raises SuiteError for two in one place, of which pytest takes the first.
    """
    for where, marks in _places(item):
        found = [mark for mark in marks if mark.name == name]
        if len(found) > 1:
            tests = ", ".join(str(mark.kwargs["test"]) for mark in found if "test" in mark.kwargs)
            listed = f" ({tests})" if tests else ""
            raise SuiteError(
                f"has {len(found)} {name} markers{listed}: one test measures one thing", where=where
            )
        if found:
            return found[0]
    return None


def _places(item: pytest.Item) -> Iterator[tuple[str, Sequence[pytest.Mark]]]:
    """The places of marks, the nearest first, each with its name. pytest lists those of a class behind those
    of its bases, in one list."""
    of_param = list(getattr(getattr(item, "callspec", None), "marks", ()))
    yield place_of(item), of_param
    for node in reversed(item.listchain()):
        where = place_of(item) if node is item else node.nodeid
        of_bases = [_written_on(base) for base in node.obj.__mro__] if isinstance(node, pytest.Class) else []
        told = {id(mark) for marks in (of_param, *of_bases) for mark in marks}
        yield where, [mark for mark in node.own_markers if id(mark) not in told]
        yield from ((where, marks) for marks in of_bases)


def _written_on(base: type) -> list[pytest.Mark]:
    given = vars(base).get("pytestmark", [])
    every: list[pytest.Mark | pytest.MarkDecorator] = (
        list(given) if isinstance(given, list | tuple) else [given]
    )
    return [mark.mark if isinstance(mark, pytest.MarkDecorator) else mark for mark in every]


def place_of(item: pytest.Item) -> str:
    path, line, _ = item.location
    name = getattr(item, "originalname", None) or item.name
    return f"{path}:{(line or 0) + 1}: @llmbench on {name}"


def let_select(config: pytest.Config, named: Mapping[pytest.Item, Sequence[str]]) -> None:
    """Let ``-m NAME`` select each item, by each of its names.

    The names are made known only now that every file has been imported: ``@pytest.mark.ttft(p99_ms=500)`` in
    one, which measures nothing, is an unknown mark there as before, under ``--strict-markers`` an error.
    """
    known = {line.partition(":")[0].partition("(")[0].strip() for line in config.getini("markers")}
    for name in dict.fromkeys(name for names in named.values() for name in names):
        if name not in known:
            config.addinivalue_line("markers", f"{name}: measured by @llmbench.{name}(...)")
    for item, names in named.items():
        for name in names:
            item.add_marker(name)


def fed(item: pytest.Item, keywords: Collection[str]) -> dict[str, Any]:
    """The parameters of an item that are keywords of its marker.

    Direct, indirect and fixture parameters are treated alike: each as it was written, which is what is known
    before anything runs.
    """
    params = getattr(getattr(item, "callspec", None), "params", {})
    return {name: value for name, value in params.items() if name in keywords}


def given_twice(item: pytest.Item, mark: pytest.Mark, parameters: Mapping[str, Any]) -> list[str]:
    """The keywords to which the mark of a ``pytest.param`` and the parameters give two different values."""
    if all(mark is not own for own in getattr(getattr(item, "callspec", None), "marks", ())):
        return []
    return [
        f"{name} is {value!r} by parametrize and {mark.kwargs[name]!r} by the mark of a pytest.param: "
        "give it once"
        for name, value in parameters.items()
        if name in mark.kwargs and mark.kwargs[name] != value
    ]


def not_as_measured(parameters: Mapping[str, Any], seen_by_test: Callable[[str], Any]) -> list[str]:
    """The parameters for which a fixture gives the test another value than the marker got.

    A fixture that makes None of a parameter gives the test no value.
    """
    found = []
    for name, value in parameters.items():
        made = seen_by_test(name)
        if made is not None and made is not value and made != value:
            found.append(
                f"the fixture {name!r} makes {made!r} of the parameter {value!r}, and the marker gets the "
                "parameter: return it as it is, or give the fixture a name that is no keyword"
            )
    return found
