"""What a test is compared with: the session that is named, or all that were saved under its name.

From three stored sessions on the session is the unit of replication, since runs of one session know nothing
of other days. Below that runs are compared, and days are taken to be alike, which is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pytest_llmbench.compare.identity import Waiver, made_otherwise, matched
from pytest_llmbench.compare.limits import ByRun, RegressionLimit, comparisons
from pytest_llmbench.harness.comparison.ab import paired_runs
from pytest_llmbench.harness.comparison.identity import LENGTHS, SHARED
from pytest_llmbench.model.estimate import COUNTED_BY
from pytest_llmbench.model.judgement import FEWEST_SESSIONS, MOST_SESSIONS, Comparison, GateVerdict
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.store.baselines import BaselineTest


@dataclass(frozen=True)
class Reference:
    """The saved results of one test that another is compared with."""

    named: BaselineTest
    """The result of the session that was named."""
    identity: Mapping[str, Any]
    """The identity of what is compared with it."""
    alike: tuple[BaselineTest, ...]
    """The sessions that count, the oldest first."""
    waivers: tuple[Waiver, ...] = ()

    @classmethod
    def of(
        cls, saved: Sequence[BaselineTest], identity: Mapping[str, Any], waivers: Sequence[Waiver] = ()
    ) -> Reference:
        """The reference out of the results that were saved under a name, the oldest first; the last is that
        of the session that was named. Those count that are of the same thing, and did not fail."""
        kept = (test for test in saved if test.gate is not GateVerdict.FAIL)
        alike = [test for test in kept if not matched(test.identity, identity, waivers).mismatches]
        return cls(saved[-1], identity, tuple(alike[-MOST_SESSIONS:]), tuple(waivers))

    @property
    def sessions(self) -> tuple[BaselineTest, ...]:
        """The sessions by whose spread is judged; empty where they are too few, and runs are compared."""
        return self.alike if len(self.alike) >= FEWEST_SESSIONS else ()

    def compared(
        self, by_run: ByRun, limits: Sequence[RegressionLimit], names: tuple[str, str]
    ) -> tuple[Comparison, ...]:
        """The comparisons of a session with these values."""
        before: ByRun = self.named.by_run
        paired = self._same_runs
        if paired and not self.sessions:
            before, by_run = paired_runs(before, by_run)
        return comparisons(
            before,
            by_run,
            limits,
            names=names,
            paired=paired,
            sessions=[self._made_alike(test) for test in self.sessions],
            unlike=partial(self._unlike, self.named),
        )

    def _unlike(self, saved: BaselineTest, metric: str) -> str | None:
        return made_otherwise(metric, saved.identity, self.identity, self.waivers)

    def _made_alike(self, saved: BaselineTest) -> ByRun:
        """The values of a session in the metrics that it made as they are made now."""
        return {name: own for name, own in saved.by_run.items() if self._unlike(saved, name) is None}

    def notes(self, name: str) -> list[Note]:
        """What the comparison takes for granted. ``name``: of the baseline."""
        count = len(self.alike)
        if self.sessions:
            return [Note.of("compared_with_sessions", count=count, baseline=repr(name))]
        said = []
        if COUNTED_BY in self.identity and COUNTED_BY not in self.named.identity:
            said.append(Note.of("made_unknown"))
        if self.identity.get(LENGTHS) != self.named.identity.get(LENGTHS):
            said.append(Note.of("other_lengths"))
        if "host.machine" in self.identity:  # not in virtual time, whose days are alike
            more = FEWEST_SESSIONS - count
            said.append(Note.of("days_assumed_alike", more=more, baseline=repr(name)))
        return said

    @property
    def _same_runs(self) -> bool:
        """Whether run i of all sessions has requests of the same lengths, which are not those of run k."""
        saved = self.sessions or (self.named,)
        lists = {str(known.get(LENGTHS)) for known in (self.identity, *(test.identity for test in saved))}
        return len(lists) == 1 and lists.pop().startswith(SHARED)
