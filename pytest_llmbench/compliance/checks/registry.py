"""The registry of predicates, and ready-made ones: for what has to be stated, counted or proved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pytest_llmbench.compliance.evidence import Answer, EvidenceView
from pytest_llmbench.model.facts import Key
from pytest_llmbench.model.numbers import counted

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


def stated(*keys: Key[Any]) -> Predicate:
    """A predicate that is met when every one of these facts is stated."""

    def predicate(view: EvidenceView) -> Answer:
        values = view.need_all(*keys)
        return view.met(", ".join(f"{key} is {value}" for key, value in zip(keys, values, strict=True)))

    return predicate


def stated_fields(key: Key[dict[str, Any]], *names: str) -> Predicate:
    """A predicate that is met when the fact, a mapping, states every one of these fields."""

    def predicate(view: EvidenceView) -> Answer:
        values = view.need_fields(key, *names)
        return view.met(", ".join(f"{name} is {value}" for name, value in zip(names, values, strict=True)))

    return predicate


def capable(met: str, *capabilities: str) -> Predicate:
    """A predicate that is met when the generator has these capabilities, which tests prove."""

    def predicate(view: EvidenceView) -> Answer:
        for name in capabilities:
            view.capability(name)
        return view.met(met)

    return predicate


Labels = Callable[[EvidenceView], Iterable[object]]
"""The labels of the parts of a run: its levels, lengths, classes, states."""


def figures(
    *names: str, of_every: Labels = lambda _: ("",), proved: str = "", defined: bool = True
) -> Predicate:
    """A predicate that is met when every one of these metrics is defined. ``{}`` in a name stands for every
    label in turn. ``proved``: the capability by which they are computed. Not ``defined``: it is enough that
    they say why they are undefined."""

    def predicate(view: EvidenceView) -> Answer:
        if proved:
            view.capability(proved)
        every = [name.format(label) for label in of_every(view) for name in names]
        if defined:
            view.need_metrics(every)
        for name in () if defined else every:
            view.measured(name)
        return view.met(f"reported: {counted(len(every), 'figure')}")

    return predicate


def at_least(least: int, what: str, counts: Callable[[EvidenceView], Mapping[Any, int]]) -> Predicate:
    """A predicate that is met when each part of a run, by its label, counts at least so many. The run as a
    whole has the label ``""``."""

    def predicate(view: EvidenceView) -> Answer:
        parts = counts(view)
        told = ", ".join(f"{count} ({label})" for label, count in parts.items())
        told = f"{parts['']} {what}" if "" in parts else f"{what}: {told}"
        return view.answer(min(parts.values()) >= least, told, f"{told}; at least {least} are needed")

    return predicate


def tables(*ids: str) -> Predicate:
    """A predicate that is met when every one of these tables has rows."""

    def predicate(view: EvidenceView) -> Answer:
        for table_id in ids:
            view.table(table_id)
        return view.met(f"tables {', '.join(ids)}")

    return predicate


def declared(key: Key[bool], yes: str, no: str) -> Predicate:
    """A predicate that is met when the fact is true. ``yes``, ``no``: what it states then, and otherwise."""

    def predicate(view: EvidenceView) -> Answer:
        return view.answer(view.need(key), yes, f"{no} ({key})")

    return predicate


def one_of(key: Key[Any], *allowed: object) -> Predicate:
    """A predicate that is met when the fact has one of the allowed values."""

    def predicate(view: EvidenceView) -> Answer:
        value = view.need(key)
        choices = " or ".join(str(choice) for choice in allowed)
        return view.answer(value in allowed, f"{key} is {value}", f"{key} is {value!r}, not {choices}")

    return predicate
