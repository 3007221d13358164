"""Made by ``python -m pytest_llmbench.marks.stub`` of the parameters of the tests: change those."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest

from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.plan import Churn
from pytest_llmbench.model.request import Workload
from pytest_llmbench.workloads.mixture import RequestClass

class LLMBench:
    """The markers by name: ``@llmbench.ttft(p99_ms=500)``. ``dir(llmbench)`` lists them, and
    ``help(llmbench.ttft)`` shows the keywords of one.
    """

    @staticmethod
    def accuracy(
        *,
        dataset: str | None = None,
        scorer: str | None = None,
        prompt_field: str | None = None,
        answer_field: str | None = None,
        max_tokens: int | Mapping[str, int] | None = None,
        questions: int | Mapping[str, int] | None = None,
        concurrency: int | Mapping[str, int] = 8,
        min_share: float | Mapping[str, float] | None = None,
        golden: float | str | Mapping[str, float] | None = None,
        min_of_golden: float | Mapping[str, float] = 0.99,
        workload: str | Workload | Mapping[str, Any] = "arithmetic",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Accuracy (not part of the draft).

        Questions with known answers, in a closed loop; how many are answered rightly.

        A question whose request fails is not answered rightly.

        :param dataset: file of questions (JSON, JSONL, CSV, Parquet) instead of ``workload``.
        :param scorer: how answers of ``dataset`` are scored: ``exact`` (default), ``number``, ``choice``,
            ``contains``, ``regex:PATTERN`` or ``python:MODULE:FUNCTION``.
        :param prompt_field: field of ``dataset`` with the prompt; default: the usual names.
        :param answer_field: field of ``dataset`` with the answer; default: the usual names.
        :param max_tokens: output limit of each question of ``dataset`` (default 256).
        :param questions: number of questions; default: the whole data set, at most 1000.
        :param concurrency: questions in flight.
        :param min_share: least share of right answers to questions like these, judged on the whole confidence
            interval.
        :param golden: share of right answers that a trusted system gave to exactly these questions; or the
            file that holds it: ``report.json`` of a session, or a JSON object that maps workload names to
            shares.
        :param min_of_golden: least share of right answers, as a fraction of ``golden``.
        :param workload: a workload whose requests have an expected answer: ``arithmetic`` (sums drawn from
            the seed), or one of ``--llm-workloads`` with a ``scorer``. Otherwise give ``dataset``.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def batch(
        *,
        max_send_spread_ms: float | Mapping[str, float] | None = None,
        budget: float | str | None = None,
        beside: Churn | None = None,
        prompts: int | Mapping[str, int] = 32,
        ttft_mean_ms: float | Mapping[str, float] | None = None,
        ttft_p50_ms: float | Mapping[str, float] | None = None,
        ttft_p99_ms: float | Mapping[str, float] | None = None,
        tpot_mean_ms: float | Mapping[str, float] | None = None,
        tpot_p50_ms: float | Mapping[str, float] | None = None,
        tpot_p99_ms: float | Mapping[str, float] | None = None,
        itl_mean_ms: float | Mapping[str, float] | None = None,
        itl_p50_ms: float | Mapping[str, float] | None = None,
        itl_p99_ms: float | Mapping[str, float] | None = None,
        e2e_mean_ms: float | Mapping[str, float] | None = None,
        e2e_p50_ms: float | Mapping[str, float] | None = None,
        e2e_p99_ms: float | Mapping[str, float] | None = None,
        max_makespan_s: float | Mapping[str, float] | None = None,
        min_requests_per_s: float | Mapping[str, float] | None = None,
        min_output_tok_s: float | Mapping[str, float] | None = None,
        min_total_tok_s: float | Mapping[str, float] | None = None,
        workload: str | Workload | Mapping[str, Any] = "synthetic-uniform",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        runs: int | Literal["auto"] | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Batch (not part of the draft).

        A number of prompts that all leave at one instant.

        Every connection is open and every request on it but for its last byte; then the last bytes of all are
        sent.

        :param max_send_spread_ms: longest time between the first request sent and the last.
        :param budget: time that the test may take, ``"5m"`` or seconds. The test spends it on as many runs or
            requests as its limits and comparisons need; overrides ``--llm-budget``.
        :param beside: adapters that the engine unloads and loads during the load, by its own calls:
            ``churn({"sql": "/adapters/sql"}, rate=0.5)``.
        :param prompts: requests in the batch.
        :param max_makespan_s: longest time from the start of the job to the end of its last reply.
        :param min_total_tok_s: least input and output tokens per second.
        :param workload: name of a workload, a workload object, or weights by name.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param runs: repetitions of the measured load; a job also takes ``"auto"``: one run, and four more if
            it does not decide the limits.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def capacity(
        *,
        ttft_p99_ms: float | Mapping[str, float] | None = None,
        min_completion: float | Mapping[str, float] = 0.99,
        initial: int | Mapping[str, int] = 8,
        maximum: int | Mapping[str, int] = 512,
        output_tokens: int | Mapping[str, int] = 256,
        duration_s: float | Mapping[str, float] | None = None,
        min_concurrency: int | Mapping[str, int] | None = None,
        min_output_tok_s: float | Mapping[str, float] | None = None,
        turn_ttft_p95_ms: Mapping[int | str, float] | None = None,
        sessions_per_slot: int | Mapping[str, int] | None = None,
        min_sessions: int | Mapping[str, int] | None = None,
        workload: str | Workload | Mapping[str, Any] = "synthetic-uniform",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Concurrent Request Capacity (section 5.5 of the draft).

        Double, then bisect, the requests in flight: the most that meet the criteria. With a workload of
        sessions, the sessions at once.

        :param ttft_p99_ms: criterion: a level passes only if TTFT P99 is at most this. The draft requires a
            choice.
        :param min_completion: criterion: least share of requests that complete.
        :param initial: requests in flight at the first level.
        :param maximum: upper bound of the search; a quick run stops at 64.
        :param output_tokens: output limit of every request, instead of the workload's own (AMB-11).
        :param duration_s: shortest duration of a level. Default by scale: 3 / 20 / 60.
        :param turn_ttft_p95_ms: with sessions: criterion on TTFT P95 by turn number, ``{1: 500, "2+": 300}``.
        :param sessions_per_slot: with sessions: sessions that a level sends per session in flight. Default by
            scale: 2 / 4 / 10.
        :param min_sessions: with sessions: least capacity in sessions, as ``min_concurrency`` is in requests.
        :param workload: name of a workload, a workload object, or weights by name.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def compare(
        *,
        metrics: Sequence[str] | None = None,
        margin: float = 0.05,
        claim: bool = True,
        normalisation: str | None = None,
        production_configuration: str | None = None,
        same_time: str | None = None,
        differences: str | None = None,
    ) -> pytest.MarkDecorator:
        """Compare several systems (section 6 of the draft). Use it next to a marker that measures::

            @llmbench.ttft(rate=20)
            @llmbench.compare(metrics=["ttft.p50", "output_token_throughput"])
            def test_side_by_side(): ...

        The systems are those of ``--llm-endpoint NAME=URL``, given once for each. Without this marker such a
        session compares all the same, with these defaults. Differences are shown and fail nothing.

        :param metrics: metrics to compare; default: middle and tail of the test's latencies, and its rates.
        :param margin: largest change, as a share, at which systems count as equivalent.
        :param claim: False: the report shows the systems and does not say which one is better.
        :param normalisation: how different hardware was normalised, if not per accelerator and per price.
        :param production_configuration: checklist of section 6.4: how the configurations relate to
            production.
        :param same_time: checklist: when the systems were measured; default: in turns, in one session.
        :param differences: checklist: how the systems differ; default: what was declared and detected.
        """

    @staticmethod
    def fairness(
        *,
        classes: Sequence[RequestClass] | None = None,
        load_percent: float | Mapping[str, float] = 80,
        capacity_rps: float | Mapping[str, float] | None = None,
        requests_per_class: int | Mapping[str, int] | None = None,
        duration_s: float | Mapping[str, float] | None = None,
        equal_load: Literal["tokens", "requests"] = "tokens",
        min_jain: float | Mapping[str, float] | None = None,
        min_class_jain: float | Mapping[str, float] | None = None,
        max_starvation: float | Mapping[str, float] | None = None,
        max_inflation: float | Mapping[str, float] | None = None,
        ttft_p99_ms: float | Mapping[str, float] | None = None,
        sessions: int | Mapping[str, int] | None = None,
        sessions_per_class: int | Mapping[str, int] | None = None,
        workload: str | Workload | Mapping[str, Any] = "synthetic-skewed",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Scheduling Fairness (section 5.6 of the draft).

        A mix of request classes against each class alone at equal load. With a mix of workloads of sessions,
        classes of sessions.

        :param classes: request classes; default: the draft's short and long requests, mixed 80 to 20.
        :param load_percent: load in percent of the saturation rate of the mix; the draft advises 70 to 90.
        :param capacity_rps: known saturation rate of the mix in requests per second; it replaces the search.
        :param requests_per_class: fewest requests of a class, in the mix and alone; the rarest class
            determines the length of the load. Default by scale: 10 / 500 / 500.
        :param duration_s: shortest duration of the mix. Default by scale: 6 / 60 / 300.
        :param equal_load: what a class sends alone at the same rate as the mix: ``tokens`` per second, or
            ``requests`` per second.
        :param max_starvation: largest share of starved requests, for all classes or by class.
        :param max_inflation: largest ratio of the median TTFT, mix over alone; for all classes or by class.
        :param ttft_p99_ms: limit on TTFT P99 in the mix, for all classes or by class.
        :param sessions: with sessions: sessions at once, in the mix and for each class alone; default 8.
        :param sessions_per_class: with sessions: fewest sessions of a class, in the mix and alone. Default by
            scale: 5 / 100 / 500.
        :param workload: ``synthetic-skewed``, a synthetic workload, a ``ClassMix``; or sessions, ``{"chat":
            ("session:chat", 0.8), "agent": ({"sessions": {…}}, 0.2)}``.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def goodput(
        *,
        ttft_ms: float | Mapping[str, float] | None = None,
        tpot_ms: float | Mapping[str, float] | None = None,
        e2e_ms: float | Mapping[str, float] | None = None,
        min_share: float | Mapping[str, float] = 0.99,
        max_schema_violation_rate: float | Mapping[str, float] | None = None,
        rate: float | Mapping[str, float] | None = None,
        arrival: Literal["poisson", "uniform", "gamma", "trace"] | str | Sequence[Any] | None = None,
        burstiness: float | Mapping[str, float] | None = None,
        concurrency: int | Mapping[str, int] | None = None,
        requests: int | Literal["auto"] | Mapping[str, int] | None = None,
        max_requests: int | Mapping[str, int] | None = None,
        max_seconds: float | Mapping[str, float] | None = None,
        budget: float | str | None = None,
        failures: Literal["left_out", "over_limit"] = "left_out",
        beside: Churn | None = None,
        steady: bool = False,
        workload: str | Workload | Mapping[str, Any] = "synthetic-uniform",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        runs: int | Literal["auto"] | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 1,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Goodput (not part of the draft).

        The requests that meet every limit at once.

        A request is good when it ends well and keeps ``ttft_ms``, ``tpot_ms`` and ``e2e_ms``, as far as they
        are given.

        :param min_share: least share of good requests, judged on the whole confidence interval.
        :param max_schema_violation_rate: largest share of replies that break the requested schema (tool
            calls, JSON), among replies with one.
        :param rate: open loop: requests per second; see ``arrival`` (default ``poisson``).
        :param arrival: open loop: ``poisson`` (default), ``uniform``, ``gamma`` or a process of an extra;
            ``trace``: without ``rate``, when the trace of the workload says; ``[(0, 5), (60, 50), (90, 0)]``,
            ``ramp``, ``steps`` or ``spike``: stages, without ``rate``, each of a second and the rate from
            then on.
        :param burstiness: shape of gamma arrivals: 1 is Poisson, smaller is burstier.
        :param concurrency: closed loop: requests in flight (default 8 if ``rate`` is not given).
        :param requests: measured requests (default 1000), or ``"auto"``: until the limits are decided.
        :param max_requests: most requests with ``requests="auto"`` (default 5000).
        :param max_seconds: longest load in seconds with ``requests="auto"``, without the drain.
        :param budget: time that the test may take, ``"5m"`` or seconds. The test spends it on as many runs or
            requests as its limits and comparisons need; overrides ``--llm-budget``.
        :param failures: ``"over_limit"``: a failed request counts as slower than the limit; otherwise it is
            left out.
        :param beside: adapters that the engine unloads and loads during the load, by its own calls:
            ``churn({"sql": "/adapters/sql"}, rate=0.5)``.
        :param steady: closed loop: the limits apply to the steady state, without the first wave and the
            drain; otherwise they apply to exactly these requests, as a finite job.
        :param workload: name of a workload, a workload object, or weights by name.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param runs: repetitions of the measured load; a job also takes ``"auto"``: one run, and four more if
            it does not decide the limits.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run. By default no
            share does: a failed request is not good, so the limit counts it.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def grid(
        *,
        input_tokens: int | Sequence[int] | Mapping[str, int] = 512,
        output_tokens: int | Sequence[int] | Mapping[str, int] = 128,
        exact: bool = False,
        min_tok_s_per_user: float | Mapping[str, float] | None = None,
        min_tok_s_per_gpu: float | Mapping[str, float] | None = None,
        concurrency: int | Sequence[int] | Mapping[str, int] = 8,
        budget: float | str | None = None,
        beside: Churn | None = None,
        prompts: int | Mapping[str, int] | None = None,
        ttft_mean_ms: float | Mapping[str, float] | None = None,
        ttft_p50_ms: float | Mapping[str, float] | None = None,
        ttft_p99_ms: float | Mapping[str, float] | None = None,
        tpot_mean_ms: float | Mapping[str, float] | None = None,
        tpot_p50_ms: float | Mapping[str, float] | None = None,
        tpot_p99_ms: float | Mapping[str, float] | None = None,
        itl_mean_ms: float | Mapping[str, float] | None = None,
        itl_p50_ms: float | Mapping[str, float] | None = None,
        itl_p99_ms: float | Mapping[str, float] | None = None,
        e2e_mean_ms: float | Mapping[str, float] | None = None,
        e2e_p50_ms: float | Mapping[str, float] | None = None,
        e2e_p99_ms: float | Mapping[str, float] | None = None,
        max_makespan_s: float | Mapping[str, float] | None = None,
        min_requests_per_s: float | Mapping[str, float] | None = None,
        min_output_tok_s: float | Mapping[str, float] | None = None,
        min_total_tok_s: float | Mapping[str, float] | None = None,
        workload: str | Workload | Mapping[str, Any] = "grid",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        runs: int | Literal["auto"] | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Grid Cell (not part of the draft).

        Jobs of each combination of ``input_tokens``, ``output_tokens`` and ``concurrency``, a test item each.

        Limits hold in every cell.

        :param input_tokens: length of every prompt in tokens, or a list of lengths.
        :param output_tokens: length of every reply in tokens, or a list of lengths.
        :param exact: prompts have exactly this length by the server's own count, chat template included.
        :param min_tok_s_per_user: least 1000 / mean TPOT in ms.
        :param min_tok_s_per_gpu: least output tokens per second / number of accelerators in the SUT file.
        :param concurrency: requests in flight, or a list of such numbers.
        :param budget: time that the test may take, ``"5m"`` or seconds. The test spends it on as many runs or
            requests as its limits and comparisons need; overrides ``--llm-budget``.
        :param beside: adapters that the engine unloads and loads during the load, by its own calls:
            ``churn({"sql": "/adapters/sql"}, rate=0.5)``.
        :param prompts: requests in each cell (default: 10 per request in flight, at least 32).
        :param max_makespan_s: longest time from the start of the job to the end of its last reply.
        :param min_total_tok_s: least input and output tokens per second.
        :param workload: leave it out: the lengths define the workload.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param runs: repetitions of the measured load; a job also takes ``"auto"``: one run, and four more if
            it does not decide the limits.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def guardrail(
        *,
        baseline: str = "guardrails_baseline",
        input_filter: str | None = "guardrails_input",
        output_filter: str | None = "guardrails_output",
        full: str = "guardrails_full",
        without: str | None = None,
        capacity_rps: float | Mapping[str, float] | None = None,
        levels_percent: Sequence[float] = (25, 50, 75),
        duration_s: float | Mapping[str, float] | None = None,
        max_overhead_ms: float | Mapping[str, float] | None = None,
        max_overhead_p95_ms: float | Mapping[str, float] | None = None,
        max_input_overhead_ms: float | Mapping[str, float] | None = None,
        max_throughput_loss: float | Mapping[str, float] | None = None,
        workload: str | Workload | Mapping[str, Any] = "synthetic-uniform",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Guardrail Overhead (section 5.10 of the draft).

        The same requests without guardrails, with each filter and with all: four SUT variants. Limits are
        ceilings, at every load level.

        :param baseline: SUT variant with all guardrails off; the other three name variants too.
        :param without: why the single-filter configurations cannot be run; they are then left out (AMB-20).
        :param capacity_rps: known capacity of the baseline in requests per second; otherwise a search finds
            it.
        :param levels_percent: loads in percent of that capacity.
        :param duration_s: duration of a level. Default by scale: 4 / 30 / 60.
        :param max_overhead_ms: largest total overhead: E2E P50 with all guardrails minus that of the
            baseline.
        :param max_input_overhead_ms: largest overhead of the input filter: TTFT P50 with it minus that of the
            baseline.
        :param max_throughput_loss: largest share of maximum output throughput that is lost with all
            guardrails.
        :param workload: name of a workload, a workload object, or weights by name.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def integrity(
        *,
        prompts: int | Mapping[str, int] | None = None,
        concurrency: int | Mapping[str, int] = 8,
        margin: float | Mapping[str, float] = 0.1,
        single_stream_margin: float | Mapping[str, float] = 0.2,
        text_margin: float | Mapping[str, float] = 0.2,
        workload: str | Workload | Mapping[str, Any] = "synthetic-uniform",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Integrity (not part of the draft).

        Repeated against new prompts, published against new ones, replies under load against replies alone.

        Fails on a difference beyond its margin; undecided is inconclusive.

        :param prompts: new prompts (default 64); each is asked three times.
        :param concurrency: requests in flight under load.
        :param margin: largest difference in the length of replies under load; also the largest share of
            canned first tokens.
        :param single_stream_margin: how much faster repeated and published prompts may be, sent one at a
            time.
        :param text_margin: largest share of prompts whose first eight words of the reply change under load,
            less the share that changes without load.
        :param workload: name of a workload, a workload object, or weights by name.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def itl(
        *,
        levels_percent: Sequence[float] = (25, 50, 75, 90),
        capacity_rps: float | Mapping[str, float] | None = None,
        method: Literal["direct", "A", "B", "C"] | None = None,
        requests: int | Mapping[str, int] | None = None,
        duration_s: float | Mapping[str, float] | None = None,
        p50_ms: float | Mapping[str, float] | None = None,
        p90_ms: float | Mapping[str, float] | None = None,
        p95_ms: float | Mapping[str, float] | None = None,
        p99_ms: float | Mapping[str, float] | None = None,
        p99_9_ms: float | Mapping[str, float] | None = None,
        jitter_p99_ms: float | Mapping[str, float] | None = None,
        longest_pause_p99_ms: float | Mapping[str, float] | None = None,
        max_tail_ratio: float | Mapping[str, float] | None = None,
        workload: str | Workload | Mapping[str, Any] = "synthetic-uniform",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Inter-Token Latency Distribution (section 5.4 of the draft).

        Inter-token latency, jitter and pauses at shares of the saturation rate. Ceilings hold at every level.

        :param levels_percent: loads, in percent of the saturation rate.
        :param capacity_rps: known saturation rate in requests per second; it replaces the search.
        :param method: how tokens are timed (section 4.6.3): ``direct``: one token per chunk; ``A``: gaps
            between chunks; ``B``: tokens arrive with their chunk; ``C``: the server's instants. Default:
            chosen from the stream (AMB-13).
        :param requests: replies with at least 50 tokens per level; they determine the length of the load
            (default 100; a quick run takes as many as it gets).
        :param duration_s: shortest duration of a level. Default by scale: 4 / 30 / 60.
        :param max_tail_ratio: largest P99 / P50.
        :param workload: name of a workload, a workload object, or weights by name.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def job(
        *,
        prompts: int | Mapping[str, int] = 1000,
        ttft_mean_ms: float | Mapping[str, float] | None = None,
        ttft_p50_ms: float | Mapping[str, float] | None = None,
        ttft_p99_ms: float | Mapping[str, float] | None = None,
        tpot_mean_ms: float | Mapping[str, float] | None = None,
        tpot_p50_ms: float | Mapping[str, float] | None = None,
        tpot_p99_ms: float | Mapping[str, float] | None = None,
        itl_mean_ms: float | Mapping[str, float] | None = None,
        itl_p50_ms: float | Mapping[str, float] | None = None,
        itl_p99_ms: float | Mapping[str, float] | None = None,
        e2e_mean_ms: float | Mapping[str, float] | None = None,
        e2e_p50_ms: float | Mapping[str, float] | None = None,
        e2e_p99_ms: float | Mapping[str, float] | None = None,
        max_makespan_s: float | Mapping[str, float] | None = None,
        min_requests_per_s: float | Mapping[str, float] | None = None,
        min_output_tok_s: float | Mapping[str, float] | None = None,
        min_total_tok_s: float | Mapping[str, float] | None = None,
        rate: float | Mapping[str, float] | None = None,
        arrival: Literal["poisson", "uniform", "gamma", "trace"] | str | Sequence[Any] | None = None,
        burstiness: float | Mapping[str, float] | None = None,
        concurrency: int | Mapping[str, int] | None = None,
        budget: float | str | None = None,
        beside: Churn | None = None,
        workload: str | Workload | Mapping[str, Any] = "synthetic-uniform",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        runs: int | Literal["auto"] | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Job (not part of the draft).

        A number of prompts, all at once unless ``concurrency`` or ``rate`` says otherwise.

        Limits are on these prompts. One run decides a limit that is far enough away; where it does not, the
        job is run four more times (``runs="auto"``, the default).

        :param prompts: requests in the job.
        :param max_makespan_s: longest time from the start of the job to the end of its last reply.
        :param min_total_tok_s: least input and output tokens per second.
        :param rate: open loop: requests per second; see ``arrival`` (default ``poisson``).
        :param arrival: open loop: ``poisson`` (default), ``uniform``, ``gamma`` or a process of an extra;
            ``trace``: without ``rate``, when the trace of the workload says; ``[(0, 5), (60, 50), (90, 0)]``,
            ``ramp``, ``steps`` or ``spike``: stages, without ``rate``, each of a second and the rate from
            then on.
        :param burstiness: shape of gamma arrivals: 1 is Poisson, smaller is burstier.
        :param concurrency: most requests in flight, also with ``rate``; default: all.
        :param budget: time that the test may take, ``"5m"`` or seconds. The test spends it on as many runs or
            requests as its limits and comparisons need; overrides ``--llm-budget``.
        :param beside: adapters that the engine unloads and loads during the load, by its own calls:
            ``churn({"sql": "/adapters/sql"}, rate=0.5)``.
        :param workload: name of a workload, a workload object, or weights by name.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param runs: repetitions of the measured load; a job also takes ``"auto"``: one run, and four more if
            it does not decide the limits.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def long_context(
        *,
        lengths: Sequence[int] | None = None,
        concurrency: int | Mapping[str, int] = 1,
        requests: int | Mapping[str, int] | None = None,
        output_tokens: int | Mapping[str, int] = 256,
        max_exponent: float | Mapping[str, float] | None = None,
        max_slope_us: float | Mapping[str, float] | None = None,
        ttft_p95_ms: Mapping[int, float] | None = None,
        workload: str | Workload | Mapping[str, Any] = "long-context",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Long Context Scaling (section 5.9 of the draft).

        TTFT against input length: scaling exponent and straight line.

        :param lengths: input lengths in tokens, at least three. Default: the powers of two from 1024 to
            131072 (to 8192 in a quick run; 512 and 256 are added where fewer than three fit). Lengths that
            exceed the model's context together with the output are left out.
        :param concurrency: requests in flight, 1 to 4.
        :param requests: requests per length; a limit on P95 needs about 80. Default by scale: 3 / 20 / 20.
        :param output_tokens: output limit; any value but the default makes it a custom workload.
        :param max_exponent: largest k in TTFT ∝ length^k.
        :param max_slope_us: largest slope of the straight line, in µs per input token.
        :param ttft_p95_ms: limits on TTFT P95 by length: ``{8192: 1500}``.
        :param workload: name of a workload, a workload object, or weights by name.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def memory_pressure(
        *,
        capacity: int | Mapping[str, int] | None = None,
        ttft_p99_ms: float | Mapping[str, float] | None = None,
        levels_percent: Sequence[float] = (100, 110, 125, 150),
        duration_s: float | Mapping[str, float] | None = None,
        min_completion: float | Mapping[str, float] | None = None,
        max_preemption_rate: float | Mapping[str, float] | None = None,
        max_recovery_s: float | Mapping[str, float] | None = None,
        sessions: Sequence[int] = (4, 8, 16, 32, 64),
        sessions_per_slot: int | Mapping[str, int] | None = None,
        turn_ttft_p95_ms: Mapping[int | str, float] | None = None,
        min_turn_hit_rate: Mapping[int | str, float] | None = None,
        min_sessions: int | Mapping[str, int] | None = None,
        workload: str | Workload | Mapping[str, Any] = "long-context",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Memory Pressure Behavior (section 5.8 of the draft).

        Levels beyond capacity, up to failure: needs ``--llm-allow-overload`` and an isolated system. Limits
        hold at every level beyond 100 %. With a workload of sessions, ever more sessions at once, whose
        contexts wait for their next turn.

        :param capacity: requests in flight that count as 100 %, if known; otherwise the search of test 5.5
            finds the number.
        :param ttft_p99_ms: criterion of the capacity search (default: derived from the TTFT of one request at
            a time); with sessions: criterion of every level.
        :param levels_percent: loads in percent of capacity; 100 is the base.
        :param duration_s: duration of a level. Default by scale: 5 / 30 / 120.
        :param min_completion: with sessions: least share that completes, a criterion of every level; default
            0.99.
        :param sessions: with sessions: levels, in sessions at once.
        :param sessions_per_slot: with sessions: sessions that a level sends per session in flight. Default by
            scale: 2 / 4 / 10.
        :param turn_ttft_p95_ms: with sessions: criterion on TTFT P95 by turn number, ``{"2+": 300}``.
        :param min_turn_hit_rate: with sessions: criterion on the cached share of cacheable tokens, by turn
            number: ``{"2+": 0.9}``.
        :param min_sessions: with sessions: every level up to this one must meet the criteria.
        :param workload: name of a workload, a workload object, or weights by name.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def no_regression(
        metric: str,
        *,
        max_slowdown: float | Mapping[str, float] = 0.0,
    ) -> pytest.MarkDecorator:
        """Fail when a metric got worse than a baseline; stands on a test beside a marker that measures::

            @llmbench.ttft(rate=20, runs=3)
            @llmbench.no_regression("ttft.p99", max_slowdown=0.05)
            def test_no_slower_than_main(): ...

        The baseline is a saved one (``--llm-compare``), or another system in the same session
        (``--llm-baseline-endpoint``). Judged on the whole interval of the change between runs, at least three
        of each side.

        :param metric: full name, ``ttft.p99``, ``itl[90%].p99``, ``output_token_throughput``.
        :param max_slowdown: worsening that is allowed, as a share of the baseline: 0.05 is 5 % more of a
            latency, 5 % less of a throughput. By place: ``{"pre-merge": 0.10, "post-merge": 0.05}``.
        """

    @staticmethod
    def non_generative(
        *,
        latency_p50_ms: float | Mapping[str, float] | None = None,
        latency_p95_ms: float | Mapping[str, float] | None = None,
        latency_p99_ms: float | Mapping[str, float] | None = None,
        latency_mean_ms: float | Mapping[str, float] | None = None,
        min_requests_per_s: float | Mapping[str, float] | None = None,
        min_input_tokens_per_s: float | Mapping[str, float] | None = None,
        rate: float | Mapping[str, float] | None = None,
        arrival: Literal["poisson", "uniform", "gamma", "trace"] | str | Sequence[Any] | None = None,
        burstiness: float | Mapping[str, float] | None = None,
        concurrency: int | Mapping[str, int] | None = None,
        requests: int | Literal["auto"] | Mapping[str, int] | None = None,
        max_requests: int | Mapping[str, int] | None = None,
        max_seconds: float | Mapping[str, float] | None = None,
        budget: float | str | None = None,
        failures: Literal["left_out", "over_limit"] = "left_out",
        beside: Churn | None = None,
        steady: bool = False,
        workload: str | Workload | Mapping[str, Any] = "profile:EMBED",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        runs: int | Literal["auto"] | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Non-generative Requests (not part of the draft).

        How long a document takes, and how many there are: embeddings, reranking, scores, log-probabilities.

        It needs ``--llm-api=openai-embeddings``, ``rerank``, ``score`` or ``logprobs``. Nothing is generated,
        so there is no TTFT, no ITL and no output token. Limits are judged on the whole confidence interval.

        :param latency_p95_ms: limit on P95 of the time from the last byte of the request to the last byte of
            the reply.
        :param min_requests_per_s: least rate of successful requests.
        :param min_input_tokens_per_s: least rate of input tokens of successful requests.
        :param rate: open loop: requests per second; see ``arrival`` (default ``poisson``).
        :param arrival: open loop: ``poisson`` (default), ``uniform``, ``gamma`` or a process of an extra;
            ``trace``: without ``rate``, when the trace of the workload says; ``[(0, 5), (60, 50), (90, 0)]``,
            ``ramp``, ``steps`` or ``spike``: stages, without ``rate``, each of a second and the rate from
            then on.
        :param burstiness: shape of gamma arrivals: 1 is Poisson, smaller is burstier.
        :param concurrency: closed loop: requests in flight (default 8 if ``rate`` is not given).
        :param requests: measured requests (default 1000), or ``"auto"``: until the limits are decided.
        :param max_requests: most requests with ``requests="auto"`` (default 5000).
        :param max_seconds: longest load in seconds with ``requests="auto"``, without the drain.
        :param budget: time that the test may take, ``"5m"`` or seconds. The test spends it on as many runs or
            requests as its limits and comparisons need; overrides ``--llm-budget``.
        :param failures: ``"over_limit"``: a failed request counts as slower than the limit; otherwise it is
            left out.
        :param beside: adapters that the engine unloads and loads during the load, by its own calls:
            ``churn({"sql": "/adapters/sql"}, rate=0.5)``.
        :param steady: closed loop: the limits apply to the steady state, without the first wave and the
            drain; otherwise they apply to exactly these requests, as a finite job.
        :param workload: name of a workload, a workload object, or weights by name; where a workload asks for
            outputs, only its inputs are sent.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param runs: repetitions of the measured load; a job also takes ``"auto"``: one run, and four more if
            it does not decide the limits.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further objectives, ``[metric("latency_scheduled.p99", "ms") <= 300 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def prefix_cache(
        *,
        disabled: str = "cache_disabled",
        enabled: str = "cache_enabled",
        min_ttft_reduction: float | Mapping[str, float] | None = None,
        min_ttft_reduction_p95: float | Mapping[str, float] | None = None,
        min_ttft_reduction_p99: float | Mapping[str, float] | None = None,
        min_hit_rate: float | Mapping[str, float] | None = None,
        min_throughput_improvement: float | Mapping[str, float] | None = None,
        sessions: int | Mapping[str, int] | None = None,
        total_sessions: int | Mapping[str, int] | None = None,
        min_turn_hit_rate: Mapping[int | str, float] | None = None,
        min_turn_ttft_reduction: Mapping[int | str, float] | None = None,
        rate: float | Mapping[str, float] | None = None,
        arrival: Literal["poisson", "uniform", "gamma", "trace"] | str | None = None,
        burstiness: float | Mapping[str, float] | None = None,
        concurrency: int | Mapping[str, int] | None = None,
        requests: int | Mapping[str, int] | None = None,
        workload: str | Workload | Mapping[str, Any] | None = None,
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Prefix Cache Effectiveness (section 5.7 of the draft).

        The identical requests with the prefix cache off, on and empty, on and filled: three SUT variants.
        With a workload of sessions, the identical sessions, with figures by turn.

        Limits are floors on the filled one, shares between 0 and 1.

        :param disabled: SUT variant with the prefix cache switched off.
        :param enabled: SUT variant with the prefix cache switched on.
        :param min_ttft_reduction: least reduction of TTFT P50.
        :param min_throughput_improvement: least improvement of throughput; closed loop only.
        :param sessions: with sessions: sessions at once (default 8); leave it out with ``rate``, which is
            then the rate of session starts.
        :param total_sessions: with sessions: measured sessions per run. Default by scale: 10 / 200 / 500.
        :param min_turn_hit_rate: with sessions: least cached share of cacheable tokens, by turn number:
            ``{"2+": 0.9}``.
        :param min_turn_ttft_reduction: with sessions: least reduction of TTFT P50, by turn number.
        :param rate: open loop: requests per second; see ``arrival`` (default ``poisson``).
        :param arrival: open loop: ``poisson`` (default), ``uniform``, ``gamma``, or a process of an extra;
            ``trace``: the instants of the workload's trace, without ``rate``.
        :param burstiness: shape of gamma arrivals: 1 is Poisson, smaller is burstier.
        :param concurrency: closed loop: requests in flight (default 8 if ``rate`` is not given).
        :param requests: measured requests.
        :param workload: name of a workload, a workload object, or weights by name.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def reasoning(
        *,
        ttot_p50_ms: float | Mapping[str, float] | None = None,
        ttot_p95_ms: float | Mapping[str, float] | None = None,
        ttot_p99_ms: float | Mapping[str, float] | None = None,
        ttfo_p50_ms: float | Mapping[str, float] | None = None,
        ttfo_p95_ms: float | Mapping[str, float] | None = None,
        ttfo_p99_ms: float | Mapping[str, float] | None = None,
        output_itl_p50_ms: float | Mapping[str, float] | None = None,
        output_itl_p95_ms: float | Mapping[str, float] | None = None,
        output_itl_p99_ms: float | Mapping[str, float] | None = None,
        max_think_tokens_mean: float | Mapping[str, float] | None = None,
        max_think_tokens_p95: float | Mapping[str, float] | None = None,
        max_think_share: float | Mapping[str, float] | None = None,
        max_budget_force_rate: float | Mapping[str, float] | None = None,
        max_critical_evictions: int | Mapping[str, int] | None = None,
        rate: float | Mapping[str, float] | None = None,
        arrival: Literal["poisson", "uniform", "gamma", "trace"] | str | Sequence[Any] | None = None,
        burstiness: float | Mapping[str, float] | None = None,
        concurrency: int | Mapping[str, int] | None = None,
        requests: int | Literal["auto"] | Mapping[str, int] | None = None,
        max_requests: int | Mapping[str, int] | None = None,
        max_seconds: float | Mapping[str, float] | None = None,
        budget: float | str | None = None,
        failures: Literal["left_out", "over_limit"] = "left_out",
        beside: Churn | None = None,
        steady: bool = False,
        workload: str | Workload | Mapping[str, Any] = "chat-and-reasoning",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        runs: int | Literal["auto"] | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Reasoning (not part of the draft).

        What a user of a model that thinks first waits for, and why.

        Limits (``*_ms``, ``max_*``) are ceilings, judged on the whole confidence interval.

        :param ttot_p95_ms: limit on P95 of the time from the end of thinking to the first visible content.
        :param ttfo_p95_ms: limit on P95 of the time from submission to the first visible content.
        :param output_itl_p99_ms: limit on P99 of the gaps between tokens, starting at the first visible
            content.
        :param max_think_tokens_mean: largest mean number of reasoning tokens, over replies that reasoned.
        :param max_think_share: largest share of reasoning tokens among all output tokens.
        :param max_budget_force_rate: largest share of replies whose reasoning the server ended.
        :param max_critical_evictions: most evictions of requests in their output phase, as the server counts
            them; 0 allows none.
        :param rate: open loop: requests per second (default 1); see ``arrival`` (default ``poisson``).
        :param arrival: open loop: ``poisson`` (default), ``uniform``, ``gamma`` or a process of an extra;
            ``trace``: without ``rate``, when the trace of the workload says; ``[(0, 5), (60, 50), (90, 0)]``,
            ``ramp``, ``steps`` or ``spike``: stages, without ``rate``, each of a second and the rate from
            then on.
        :param burstiness: shape of gamma arrivals: 1 is Poisson, smaller is burstier.
        :param concurrency: closed loop: requests in flight, instead of ``rate``.
        :param requests: measured requests (default 1000), or ``"auto"``: until the limits are decided.
        :param max_requests: most requests with ``requests="auto"`` (default 5000).
        :param max_seconds: longest load in seconds with ``requests="auto"``, without the drain.
        :param budget: time that the test may take, ``"5m"`` or seconds. The test spends it on as many runs or
            requests as its limits and comparisons need; overrides ``--llm-budget``.
        :param failures: ``"over_limit"``: a failed request counts as slower than the limit; otherwise it is
            left out.
        :param beside: adapters that the engine unloads and loads during the load, by its own calls:
            ``churn({"sql": "/adapters/sql"}, rate=0.5)``.
        :param steady: closed loop: the limits apply to the steady state, without the first wave and the
            drain; otherwise they apply to exactly these requests, as a finite job.
        :param workload: name of a workload, or a workload object; limits on one class of a mix go into
            ``slo``.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param runs: repetitions of the measured load; a job also takes ``"auto"``: one run, and four more if
            it does not decide the limits.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further objectives, ``[metric("ttot[chat].p95", "ms") <= 300 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def recovery(
        *,
        holds: Sequence[Objective] = (),
        max_recovery_s: float | Mapping[str, float] | None = None,
        window_s: float | Mapping[str, float] = 10,
        after: str | None = None,
        event: str | None = None,
        event_at_s: float | Mapping[str, float] = 10,
        rate: float | Mapping[str, float] | None = None,
        arrival: Literal["poisson", "uniform", "gamma", "trace"] | str | Sequence[Any] | None = None,
        burstiness: float | Mapping[str, float] | None = None,
        budget: float | str | None = None,
        beside: Churn | None = None,
        prompts: int | Mapping[str, int] | None = None,
        ttft_mean_ms: float | Mapping[str, float] | None = None,
        ttft_p50_ms: float | Mapping[str, float] | None = None,
        ttft_p99_ms: float | Mapping[str, float] | None = None,
        tpot_mean_ms: float | Mapping[str, float] | None = None,
        tpot_p50_ms: float | Mapping[str, float] | None = None,
        tpot_p99_ms: float | Mapping[str, float] | None = None,
        itl_mean_ms: float | Mapping[str, float] | None = None,
        itl_p50_ms: float | Mapping[str, float] | None = None,
        itl_p99_ms: float | Mapping[str, float] | None = None,
        e2e_mean_ms: float | Mapping[str, float] | None = None,
        e2e_p50_ms: float | Mapping[str, float] | None = None,
        e2e_p99_ms: float | Mapping[str, float] | None = None,
        max_makespan_s: float | Mapping[str, float] | None = None,
        min_requests_per_s: float | Mapping[str, float] | None = None,
        min_output_tok_s: float | Mapping[str, float] | None = None,
        min_total_tok_s: float | Mapping[str, float] | None = None,
        workload: str | Workload | Mapping[str, Any] = "synthetic-uniform",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        runs: int | Literal["auto"] | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 1,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Recovery (not part of the draft).

        A load that is disturbed, and the time until limits hold again.

        The disturbance is a stage of the load, ``arrival=spike(…)``, or what happens to the system while load
        of one ``rate`` is running.

        :param holds: limits that must hold again: ceilings on latency percentiles, ``[ttft.p95 <= 1000 *
            ms]`` (default).
        :param max_recovery_s: longest time until the limits hold again.
        :param window_s: length of a time window; the limits are checked in each window.
        :param after: stage whose start begins the recovery time (default: the last one); without stages it
            begins with the first request that breaks the limits.
        :param event: shell command that runs during the load: a restart, a fail-over.
        :param event_at_s: time from the start of the load to ``event``, which then begins the recovery time.
        :param rate: open loop: requests per second; see ``arrival`` (default ``poisson``).
        :param arrival: open loop: ``poisson`` (default), ``uniform``, ``gamma`` or a process of an extra;
            ``trace``: without ``rate``, when the trace of the workload says; ``[(0, 5), (60, 50), (90, 0)]``,
            ``ramp``, ``steps`` or ``spike``: stages, without ``rate``, each of a second and the rate from
            then on.
        :param burstiness: shape of gamma arrivals: 1 is Poisson, smaller is burstier.
        :param budget: time that the test may take, ``"5m"`` or seconds. The test spends it on as many runs or
            requests as its limits and comparisons need; overrides ``--llm-budget``.
        :param beside: adapters that the engine unloads and loads during the load, by its own calls:
            ``churn({"sql": "/adapters/sql"}, rate=0.5)``.
        :param prompts: requests of a load that has no end of its own (default 1000).
        :param max_makespan_s: longest time from the start of the job to the end of its last reply.
        :param min_total_tok_s: least input and output tokens per second.
        :param workload: name of a workload, a workload object, or weights by name.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param runs: repetitions of the measured load; a job also takes ``"auto"``: one run, and four more if
            it does not decide the limits.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: largest share of failed requests; the default allows any, because failures are
            part of the result.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def sessions(
        *,
        job_p50_s: float | Mapping[str, float] | None = None,
        job_p95_s: float | Mapping[str, float] | None = None,
        ttft_p95_ms: float | Mapping[str, float] | None = None,
        ttft_p99_ms: float | Mapping[str, float] | None = None,
        turn_ttft_p95_ms: Mapping[int | str, float] | None = None,
        ttft_ms: float | Mapping[str, float] | None = None,
        tpot_ms: float | Mapping[str, float] | None = None,
        e2e_ms: float | Mapping[str, float] | None = None,
        job_s: float | Mapping[str, float] | None = None,
        min_session_goodput: float | Mapping[str, float] | None = None,
        max_slowdown: float | Mapping[str, float] | None = None,
        max_llm_slowdown: float | Mapping[str, float] | None = None,
        probe_sessions: int | Mapping[str, int] | None = None,
        find: Literal["jobs_per_hour"] | None = None,
        min_jobs_per_hour: float | Mapping[str, float] | None = None,
        initial: int | Mapping[str, int] | None = None,
        maximum: int | Mapping[str, int] | None = None,
        duration_s: float | Mapping[str, float] | None = None,
        rate: float | Mapping[str, float] | None = None,
        arrival: Literal["poisson", "uniform", "gamma", "trace"] | str | None = None,
        speedup: float | Mapping[str, float] | None = None,
        burstiness: float | Mapping[str, float] | None = None,
        sessions: int | Mapping[str, int] | None = None,
        total_sessions: int | Mapping[str, int] | None = None,
        steady: bool = False,
        workload: str | Workload | Mapping[str, Any] = "session:chat",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        runs: int | Literal["auto"] | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Sessions (not part of the draft).

        Conversations and agents, whose turns wait for one another.

        :param job_p50_s: limit on the median job time: from the instant at which the first turn is due to the
            last end.
        :param job_p95_s: limit on P95 of the job time.
        :param ttft_p95_ms: limit on TTFT P95 of all turns.
        :param turn_ttft_p95_ms: limit on TTFT P95 by turn number, ``{1: 500, "2+": 300}``.
        :param ttft_ms: limit of a good session: every turn keeps ``ttft_ms``, ``tpot_ms`` and ``e2e_ms``, and
            the job keeps ``job_s``, where given.
        :param min_session_goodput: least share of good sessions among all sessions.
        :param max_slowdown: largest median ratio of job time, under load / alone.
        :param max_llm_slowdown: largest median ratio of LLM time (job time without pauses), under load /
            alone.
        :param probe_sessions: sessions that each run sends alone before the load, one at a time, for
            comparison (default 40 if the slowdown has a limit, else 0: not measured).
        :param find: ``jobs_per_hour``: search for the highest rate of session starts that keeps all limits of
            the marker, instead of one load; ``min_jobs_per_hour`` implies the search.
        :param initial: search: jobs per hour at the first level (default 200).
        :param maximum: search: upper bound in jobs per hour (default 6,400).
        :param duration_s: search: time in which the sessions of a level start, or five times the pauses of a
            session if that is longer; ``total_sessions`` is the fewest sessions of a level (10 / 100 / 500).
            Default by scale: 30 / 300 / 900.
        :param rate: open loop: session starts per second.
        :param arrival: ``trace``: sessions start at the instants of the workload's trace, without ``rate``.
        :param speedup: with a trace: factor by which sessions start faster; pauses stay as they are.
        :param burstiness: shape of gamma arrivals: 1 is Poisson, smaller is burstier.
        :param sessions: closed loop: sessions at once (default 8).
        :param total_sessions: measured sessions (default 500, quick 10; with a trace all).
        :param steady: closed loop: the sessions are a sample of a steady state with this many at once;
            otherwise they are a job that is exact in each run.
        :param workload: ``session:chat``, ``session:deep-research``, ``{"sessions": {…}}``, the name of a
            trace with ``sessions = true`` or an object.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param runs: repetitions of the measured load; a job also takes ``"auto"``: one run, and four more if
            it does not decide the limits.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget for turns and cut-off sessions.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def speculative(
        *,
        prompts: int | Mapping[str, int] | None = None,
        concurrency: int | Mapping[str, int] = 8,
        without: str = "speculation_disabled",
        min_acceptance_length: float | Mapping[str, float] | None = None,
        min_acceptance_rate: float | Mapping[str, float] | None = None,
        min_speedup: float | Mapping[str, float] | None = None,
        workload: str | Workload | Mapping[str, Any] = "synthetic-uniform",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Speculative Decoding (not part of the draft).

        How many guessed tokens are accepted; with ``min_speedup``, the same requests with speculation off.

        Limits are judged on the whole confidence interval.

        :param prompts: requests in the load. Default by scale: 32 / 128 / 512.
        :param concurrency: requests in flight.
        :param without: SUT variant with speculation off, for ``min_speedup``.
        :param min_acceptance_length: least tokens per request and step.
        :param min_acceptance_rate: least share of guessed tokens that are accepted.
        :param min_speedup: least TPOT with speculation off / on; both get the same load.
        :param workload: name of a workload, a workload object, or weights by name.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def throughput(
        *,
        load_model: Literal["open", "closed"] | None = None,
        min_rate: float | Mapping[str, float] | None = None,
        max_rate: float | Mapping[str, float] | None = None,
        rate_step: float | Mapping[str, float] | None = None,
        arrival: Literal["poisson", "uniform", "gamma"] | str | None = None,
        burstiness: float | Mapping[str, float] | None = None,
        min_concurrency: int | Mapping[str, int] | None = None,
        max_concurrency: int | Mapping[str, int] | None = None,
        concurrency_step: int | Mapping[str, int] | None = None,
        duration_s: float | Mapping[str, float] | None = None,
        probe_s: float | Mapping[str, float] | None = None,
        ttft_p99_ms: float | Mapping[str, float] | None = None,
        tpot_p99_ms: float | Mapping[str, float] | None = None,
        min_output_tok_s: float | Mapping[str, float] | None = None,
        min_request_s: float | Mapping[str, float] | None = None,
        min_input_tok_s: float | Mapping[str, float] | None = None,
        min_constrained_tok_s: float | Mapping[str, float] | None = None,
        min_tokens_per_gpu_s: float | Mapping[str, float] | None = None,
        workload: str | Workload | Mapping[str, Any] = "synthetic-uniform",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        runs: int | Literal["auto"] | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Output Token Throughput (section 5.2 of the draft).

        Search for the highest sustainable load, open loop unless a concurrency range is given; then measure
        there.

        Without a range it is found by short bursts; a range without a maximum goes on upwards until it
        saturates.

        :param load_model: ``open`` (default), or ``closed``; a concurrency range makes it closed.
        :param rate_step: open loop, requests per second: the search between ``min_rate`` and ``max_rate``
            ends when its bracket is this narrow.
        :param arrival: open loop: arrival process, as for ``ttft``.
        :param burstiness: shape of gamma arrivals: 1 is Poisson, smaller is burstier.
        :param concurrency_step: closed loop, requests in flight: the search between ``min_concurrency`` and
            ``max_concurrency`` ends when its bracket is this narrow.
        :param duration_s: duration of the reported level, ramp-up included. Default by scale: 6 / 60 / 300.
        :param probe_s: duration of a level of the search; longer if fewer than 20 requests would arrive.
            Default by scale: 4 / 20 / 60.
        :param tpot_p99_ms: with ``ttft_p99_ms``: limits on latency; the constrained throughput is the highest
            that meets them.
        :param workload: name of a workload, a workload object, or weights by name.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param runs: repetitions of the measured load; a job also takes ``"auto"``: one run, and four more if
            it does not decide the limits.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def tradeoff(
        *,
        capacity_rps: float | Mapping[str, float] | None = None,
        levels_percent: Sequence[float] = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120),
        duration_s: float | Mapping[str, float] | None = None,
        ttft_p99_ms: float | Mapping[str, float] | None = None,
        tpot_p99_ms: float | Mapping[str, float] | None = None,
        min_knee_rate: float | Mapping[str, float] | None = None,
        min_saturation_rate: float | Mapping[str, float] | None = None,
        min_operating_tok_s: float | Mapping[str, float] | None = None,
        workload: str | Workload | Mapping[str, Any] = "synthetic-uniform",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Throughput-Latency Tradeoff (section 5.3 of the draft).

        Levels from 10 to 120 % of capacity, and on until saturation: knee, saturation and operating point.

        The load is open: a closed loop shows nothing beyond capacity.

        :param capacity_rps: capacity in requests per second, from published figures or an earlier test;
            otherwise a search finds it.
        :param levels_percent: loads in percent of capacity; ``quick`` takes five of them, ``full`` adds the
            default ones.
        :param duration_s: duration of a level, ramp-up included. Default by scale: 4 / 30 / 60.
        :param tpot_p99_ms: with ``ttft_p99_ms``: limits on latency that the operating point must meet.
        :param workload: name of a workload, a workload object, or weights by name.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

    @staticmethod
    def ttft(
        *,
        mean_ms: float | Mapping[str, float] | None = None,
        p50_ms: float | Mapping[str, float] | None = None,
        p90_ms: float | Mapping[str, float] | None = None,
        p95_ms: float | Mapping[str, float] | None = None,
        p99_ms: float | Mapping[str, float] | None = None,
        p99_9_ms: float | Mapping[str, float] | None = None,
        bucket_limits: Mapping[str, Mapping[str, float]] | None = None,
        rate: float | Mapping[str, float] | None = None,
        arrival: Literal["poisson", "uniform", "gamma", "trace"] | str | Sequence[Any] | None = None,
        burstiness: float | Mapping[str, float] | None = None,
        concurrency: int | Mapping[str, int] | None = None,
        requests: int | Literal["auto"] | Mapping[str, int] | None = None,
        max_requests: int | Mapping[str, int] | None = None,
        max_seconds: float | Mapping[str, float] | None = None,
        budget: float | str | None = None,
        failures: Literal["left_out", "over_limit"] = "left_out",
        beside: Churn | None = None,
        steady: bool = False,
        workload: str | Workload | Mapping[str, Any] = "synthetic-uniform",
        adapters: Mapping[str, float] | Sequence[str] | None = None,
        seed: int | None = None,
        runs: int | Literal["auto"] | None = None,
        fresh: bool = False,
        compliance: Literal["conditional", "unconditional"] | None = None,
        slo: Sequence[Objective] = (),
        advisory: Sequence[Objective] = (),
        limits_file: str | None = None,
        max_error_share: float | Mapping[str, float] = 0.01,
        timeout_s: float | Mapping[str, float] | None = None,
    ) -> pytest.MarkDecorator:
        """Time to First Token (section 5.1 of the draft).

        Limits (``*_ms``) are ceilings in milliseconds, judged on the whole confidence interval.

        :param bucket_limits: limits per input-length bucket, ``{"0-256": {"p95_ms": 300}}``.
        :param rate: open loop: requests per second; see ``arrival`` (default ``poisson``).
        :param arrival: open loop: ``poisson`` (default), ``uniform``, ``gamma`` or a process of an extra;
            ``trace``: without ``rate``, when the trace of the workload says; ``[(0, 5), (60, 50), (90, 0)]``,
            ``ramp``, ``steps`` or ``spike``: stages, without ``rate``, each of a second and the rate from
            then on.
        :param burstiness: shape of gamma arrivals: 1 is Poisson, smaller is burstier.
        :param concurrency: closed loop: requests in flight (default 8 if ``rate`` is not given).
        :param requests: measured requests (default 1000), or ``"auto"``: until the limits are decided.
        :param max_requests: most requests with ``requests="auto"`` (default 5000).
        :param max_seconds: longest load in seconds with ``requests="auto"``, without the drain.
        :param budget: time that the test may take, ``"5m"`` or seconds. The test spends it on as many runs or
            requests as its limits and comparisons need; overrides ``--llm-budget``.
        :param failures: ``"over_limit"``: a failed request counts as slower than the limit; otherwise it is
            left out.
        :param beside: adapters that the engine unloads and loads during the load, by its own calls:
            ``churn({"sql": "/adapters/sql"}, rate=0.5)``.
        :param steady: closed loop: the limits apply to the steady state, without the first wave and the
            drain; otherwise they apply to exactly these requests, as a finite job.
        :param workload: name of a workload, a workload object, or weights by name.
        :param adapters: LoRA adapters that requests name as their model: shares by name (the rest goes to the
            base model), or a list of names used in turn; figures are given per adapter.
        :param seed: seed of requests and arrivals; overrides ``--llm-seed``.
        :param runs: repetitions of the measured load; a job also takes ``"auto"``: one run, and four more if
            it does not decide the limits.
        :param fresh: measure again, even if another test of the session already ran the same load.
        :param compliance: fail the test unless the run is at least this compliant; only for tests of the
            draft.
        :param slo: further limits, ``[tpot.p99 <= 50 * ms]``.
        :param advisory: limits that are judged and reported, but never fail the test.
        :param limits_file: file with this test's limits, relative to the test file; ``--llm-calibrate``
            writes it.
        :param max_error_share: error budget; a larger share of failed requests voids the run.
        :param timeout_s: longest wait for the first byte of a reply, and between its chunks; overrides
            ``--llm-timeout``.
        """

llmbench: LLMBench
