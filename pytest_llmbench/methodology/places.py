"""Numbers that differ from place to place: ``p99_ms={"h100": 500, "mi300": 700}``.

A place is a name of the session (``--llm-place=nightly``) or the accelerator that the SUT file names, or its
telemetry.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.errors import shown


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session measures."""

    names: tuple[str, ...] = ()
    """Its names by ``--llm-place``. They stand before the accelerator."""
    accelerator: str | None = None
    """The accelerator by the SUT file or its telemetry, such as ``NVIDIA H100 SXM``; None: not known."""

    def key_of(self, values: Mapping[str, Any]) -> str | None:
        """The key of ``values`` that is meant here; None: none, or more than one name.

        Of an accelerator the longest key that it contains as words: ``h100 sxm`` stands before ``h100``, and
        ``a100`` is not in ``A1000``.
        """
        named = [key for key in values if _words(key) in map(_words, self.names)]
        if named:
            return named[0] if len(named) == 1 else None
        text = _words(self.accelerator or "")
        fits = [key for key in values if re.search(rf"(?<!\w){re.escape(_words(key))}(?!(?<=\d)\d)", text)]
        return max(fits, key=lambda key: len(_words(key)), default=None)

    def __str__(self) -> str:
        named = f"--llm-place={','.join(self.names)}" if self.names else "--llm-place is not given"
        seen = f"names {self.accelerator}" if self.accelerator else "and its telemetry name no accelerator"
        return f"{named}, the SUT file {seen}"


def here(
    given: Mapping[str, Any], takes: Callable[[str], bool], place: Callable[[], Place | None]
) -> tuple[dict[str, Any], list[str]]:
    """Keywords with the value for this place where a mapping of places is given, and what is wrong with such
    mappings.

    :param takes: whether a keyword is a number.
    :param place: asked only if there is such a mapping; None where nothing is measured, and any entry does.
    """
    chosen, mistakes = dict(given), []
    elsewhere: dict[str, list[str]] = defaultdict(list)
    for name, values in given.items():
        if not (isinstance(values, Mapping) and takes(name)):
            continue
        if not values or not all(isinstance(key, str) and _words(key) for key in values):
            mistakes.append(f"{name} must map names of places to numbers, got {shown(values)}")
            continue
        at = place()
        key = next(iter(values)) if at is None else at.key_of(values)
        if key is None:
            elsewhere[", ".join(values)].append(name)
        else:
            chosen[name] = values[key]
    for places, names in elsewhere.items():
        at = place()
        remedy = "" if at is not None and at.names else "name the place with --llm-place, or "
        mistakes.append(
            f"{', '.join(names)}: numbers for {places}, but not exactly one for this place ({at}): "
            f"{remedy}add a number, by hand or with --llm-calibrate"
        )
    return chosen, mistakes


def _words(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))
