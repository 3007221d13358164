"""Marker of the test of sessions, which is beyond the ten of the draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pytest_llmbench.marks.builder import builder

if TYPE_CHECKING:
    from pytest_llmbench.model.objective import Objective
    from pytest_llmbench.model.request import Workload


class SessionMarks:
    """Marker of the test of sessions."""

    @staticmethod
    @builder
    def sessions(
        *,
        job_p50_s: float | None = None,
        job_p95_s: float | None = None,
        ttft_p95_ms: float | None = None,
        ttft_p99_ms: float | None = None,
        turn_ttft_p95_ms: Mapping[int | str, float] | None = None,
        ttft_ms: float | None = None,
        tpot_ms: float | None = None,
        e2e_ms: float | None = None,
        job_s: float | None = None,
        min_session_goodput: float | None = None,
        max_slowdown: float | None = None,
        max_llm_slowdown: float | None = None,
        probe_sessions: int | None = None,
        find: Literal["jobs_per_hour"] | None = None,
        min_jobs_per_hour: float | None = None,
        initial: int | None = None,
        maximum: int | None = None,
        duration_s: float | None = None,
        rate: float | None = None,
        arrival: Literal["poisson", "uniform", "gamma", "trace"] | None = None,
        speedup: float | None = None,
        burstiness: float | None = None,
        sessions: int | None = None,
        total_sessions: int | None = None,
        workload: str | Workload | Mapping[str, Any] = "session:chat",
        seed: int | None = None,
        runs: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        max_error_share: float = 0.01,
        timeout_s: float | None = None,
    ) -> None:
        """Sessions: conversations and agents, whose turns wait for one another. No test of the draft.

        :param job_p50_s: median time of a job: from its first turn due to the end of its last, with pauses.
        :param job_p95_s: its 95th percentile.
        :param ttft_p95_ms: TTFT of all turns; ``ttft_p99_ms`` its 99th percentile.
        :param turn_ttft_p95_ms: TTFT by number of the turn, ``{1: 500, "2+": 300}``.
        :param ttft_ms: what makes a session good: every turn keeps ``ttft_ms``, ``tpot_ms`` and ``e2e_ms``,
            and the job ``job_s``, as far as they are given.
        :param min_session_goodput: least share of good sessions among all.
        :param max_slowdown: median of job time under load / job time of the same job alone, with pauses.
        :param max_llm_slowdown: the same of its LLM time, without pauses.
        :param probe_sessions: sessions of each run sent alone before the load, one at a time, to compare with
            (default 40 where a limit is on the slowdown, else 0: it is not measured).
        :param find: ``jobs_per_hour``: search for the highest rate of session starts at which all limits of
            the marker are kept, in place of one load; ``min_jobs_per_hour``, a limit on it, says so too.
        :param initial: of that search: jobs per hour of its first level (default 200); ``maximum`` the upper
            bound (default 6,400).
        :param duration_s: of that search: sessions of a level start for so long (default 300, and five times
            the pauses of a session if that is longer); ``total_sessions`` its fewest sessions (default 100).
        :param rate: open loop, sessions that start per second; with ``arrival`` (default ``poisson``).
        :param arrival: ``trace``: without ``rate``, when the sessions of the workload's trace started.
        :param speedup: of ``arrival="trace"``: so many times as fast; pauses stay as they are.
        :param burstiness: shape of ``arrival="gamma"``; coefficient of variation 1/√burstiness.
        :param sessions: closed loop, sessions at once (default 8 if ``rate`` is not given).
        :param total_sessions: measured sessions (default 500; with ``arrival="trace"`` all of the trace).
        :param workload: ``session:chat``, ``session:deep-research``, ``{"sessions": {…}}``, the name of a
            trace with ``sessions = true`` or an object.
        :param runs: repetitions of the measured load.
        :param fresh: measure anew, even where another test of the session has run the same load.
        :param compliance: not for this test.
        :param slo: further objectives, ``[tpot.p99 <= 50 * ms]``.
        :param max_error_share: error budget, of turns that fail and of sessions that are cut off.
        :param timeout_s: longest wait for the first byte of a reply and between its chunks.
        """
