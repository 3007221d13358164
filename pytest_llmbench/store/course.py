"""The course of a session's tests, event by event: in memory while it runs, and from its journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]


def selected(nodeids: list[str]) -> Event:
    """The load tests that are going to run."""
    return {"event": "selected", "nodeids": nodeids}


def begun(nodeid: str) -> Event:
    return {"event": "begun", "nodeid": nodeid}


def ended(nodeid: str) -> Event:
    return {"event": "ended", "nodeid": nodeid}


def judged(entry: Mapping[str, Any]) -> Event:
    """``entry``: that of ``report.json``, in plain JSON types."""
    return {"event": "judged", "entry": entry}


def reaudited(changes: list[Mapping[str, Any]]) -> Event:
    """``changes``: ``nodeid``, ``duration_s`` and the new ``compliance`` of each result."""
    return {"event": "reaudited", "changes": changes}


def finished(exit_status: int) -> Event:
    """The session has come to its end."""
    return {"event": "finished", "exit_status": exit_status}


@dataclass
class Course:
    """The state after the events so far."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    """The entries of ``report.json``, in the order in which they were judged."""
    waiting: dict[str, None] = field(default_factory=dict)
    """Node ids of tests that have not begun, in their order."""
    unfinished: dict[str, None] = field(default_factory=dict)
    """Node ids of tests that have begun, and that have neither ended nor a result."""
    exit_status: int | None = None
    """pytest's; None until the end."""
    _known: set[str] = field(default_factory=set)

    def apply(self, event: Event) -> None:
        """Apply an event. Raises KeyError, TypeError or ValueError for what is no event."""
        known: dict[str, Callable[[Event], None]] = {
            "selected": self._selected,
            "begun": self._begun,
            "ended": self._ended,
            "judged": self._judged,
            "reaudited": self._reaudited,
            "finished": self._finished,
        }
        known[event["event"]](event)

    def follows(self, nodeid: str) -> bool:
        """Whether it is one of the tests that were selected."""
        return nodeid in self._known

    def _selected(self, event: Event) -> None:
        new = dict.fromkeys(nodeid for nodeid in event["nodeids"] if nodeid not in self._known)
        self._known.update(new)
        self.waiting.update(new)

    def _begun(self, event: Event) -> None:
        self.waiting.pop(event["nodeid"], None)
        self.unfinished[event["nodeid"]] = None

    def _ended(self, event: Event) -> None:
        self.unfinished.pop(event["nodeid"], None)

    def _judged(self, event: Event) -> None:
        entry = event["entry"]
        self.unfinished.pop(entry["nodeid"], None)
        self.entries.append(dict(entry))

    def _reaudited(self, event: Event) -> None:
        # The duration tells the attempts of one test apart.
        changed = {(again["nodeid"], again["duration_s"]): again["compliance"] for again in event["changes"]}
        for entry in self.entries:
            key = (entry["nodeid"], entry["duration_s"])
            if key in changed:
                entry["compliance"] = changed[key]

    def _finished(self, event: Event) -> None:
        self.exit_status = int(event["exit_status"])
