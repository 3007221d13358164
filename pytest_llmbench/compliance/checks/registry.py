"""The registry of predicates, and ready-made ones: for facts that have to be stated, and for tables of the
draft with something in each of their rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView
from pytest_llmbench.model.result import Table


def lacking_rows(table: Table, *wanted: str) -> list[str]:
    """Beginnings of row titles that the table lacks, or has without a value."""
    return [
        title
        for title in wanted
        if not any(row and row[0].startswith(title) and len(row) > 1 and row[1].strip() for row in table.rows)
    ]


def lacking_columns(table: Table, *wanted: str) -> list[str]:
    """Beginnings of column titles that the table lacks; ``rows`` where it is empty."""
    lacking = [title for title in wanted if not any(column.startswith(title) for column in table.columns)]
    return lacking if table.rows else [*lacking, "rows"]


def tables_called(view: EvidenceView, table_id: str) -> tuple[Table, ...]:
    """All tables with this id: some come once per level."""
    found = tuple(table for table in view.result.tables if table.id == table_id)
    view.note(f"tables {table_id}", len(found))
    return found


Predicate = Callable[[EvidenceView], Answer]


class Checks(dict[str, Predicate]):
    """Predicates by entry id, for one area. Used as a decorator: ``@check("M-4.4.1-vocab-size")``.

    A predicate may raise ``NoEvidenceError``, which makes the entry unmet.
    """

    def __call__(self, requirement_id: str) -> Callable[[Predicate], Predicate]:
        if requirement_id in self:
            raise ValueError(f"{requirement_id} has two predicates")

        def enter(predicate: Predicate) -> Predicate:
            self[requirement_id] = predicate
            return predicate

        return enter


def merged(*areas: Checks) -> Mapping[str, Predicate]:
    """One table of all areas. Raises ValueError when two of them answer for the same entry."""
    table: dict[str, Predicate] = {}
    for area in areas:
        twice = table.keys() & area.keys()
        if twice:
            raise ValueError(f"two areas answer for {', '.join(sorted(twice))}")
        table |= area
    return table


def stated(*keys: str) -> Predicate:
    """A predicate that is met when every one of these facts is stated."""

    def predicate(view: EvidenceView) -> Answer:
        values = view.need_all(*keys)
        return view.met(", ".join(f"{key} is {value}" for key, value in zip(keys, values, strict=True)))

    return predicate


def one_of(key: str, *allowed: object) -> Predicate:
    """A predicate that is met when the fact has one of the allowed values."""

    def predicate(view: EvidenceView) -> Answer:
        value = view.need(key)
        choices = ", ".join(str(choice) for choice in allowed)
        return view.answer(value in allowed, f"{key} is {value}", f"{key} is {value!r}, not one of {choices}")

    return predicate
