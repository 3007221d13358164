"""The one table of what findings and notes say, by id; ``model/sentences.py`` fills it."""

from __future__ import annotations

from typing import NamedTuple


class Sentence(NamedTuple):
    text: str
    advice: str = ""
    """What to do, or what it means; follows where a finding is not ok."""
    unit: str = ""
    """Unit of the value and the limit of a finding."""
    voids: bool = False
    """Whether a finding that is not ok makes the run invalid, unless the check says otherwise."""
