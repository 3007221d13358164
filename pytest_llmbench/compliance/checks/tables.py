"""Whether a table has the rows and columns that the draft shows, each with something in it."""

from __future__ import annotations

from pytest_llmbench.compliance.evidence_view import EvidenceView
from pytest_llmbench.model.result import Table


def lacking_rows(table: Table, *wanted: str) -> list[str]:
    """Row titles (their beginnings) that the table has not, or not with a value."""
    return [
        title
        for title in wanted
        if not any(row and row[0].startswith(title) and len(row) > 1 and row[1].strip() for row in table.rows)
    ]


def lacking_columns(table: Table, *wanted: str) -> list[str]:
    """Column titles (their beginnings) that the table has not; ``rows`` where it is empty."""
    lacking = [title for title in wanted if not any(column.startswith(title) for column in table.columns)]
    return lacking if table.rows else [*lacking, "rows"]


def tables_called(view: EvidenceView, table_id: str) -> tuple[Table, ...]:
    """All tables with this id: some come once per level."""
    found = tuple(table for table in view.result.tables if table.id == table_id)
    view.note(f"tables {table_id}", len(found))
    return found
