"""Made by ``python -m pytest_llmbench.marks.stub`` of the definitions of the metrics: change those."""

from collections.abc import Mapping

from pytest_llmbench.model.estimate import Estimate, ReadEstimate

class MetricView:
    def __init__(self, metrics: Mapping[str, Estimate], prefix: str) -> None: ...
    @property
    def p50(self) -> ReadEstimate: ...
    @property
    def p90(self) -> ReadEstimate: ...
    @property
    def p95(self) -> ReadEstimate: ...
    @property
    def p99(self) -> ReadEstimate: ...
    @property
    def p99_9(self) -> ReadEstimate: ...
    @property
    def mean(self) -> ReadEstimate: ...
    @property
    def min(self) -> ReadEstimate: ...
    @property
    def max(self) -> ReadEstimate: ...
    @property
    def std(self) -> ReadEstimate: ...

class NamedMetrics:
    @property
    def acceptance_at(self) -> ReadEstimate:
        """Acceptance at a place in the draft."""
    @property
    def acceptance_length(self) -> ReadEstimate:
        """Acceptance length."""
    @property
    def acceptance_rate(self) -> ReadEstimate:
        """Acceptance rate."""
    @property
    def accuracy(self) -> ReadEstimate:
        """Accuracy."""
    @property
    def accuracy_of_set(self) -> ReadEstimate:
        """Accuracy of the set."""
    @property
    def adapter_call_failures(self) -> ReadEstimate:
        """Failed calls of adapters."""
    @property
    def adapter_load(self) -> MetricView:
        """Load of an adapter."""
    @property
    def adapter_unload(self) -> MetricView:
        """Unload of an adapter."""
    @property
    def batch_utilisation(self) -> ReadEstimate:
        """Batch utilisation."""
    @property
    def budget_force_rate(self) -> ReadEstimate:
        """Budget-force rate."""
    @property
    def cache_hit_rate(self) -> ReadEstimate:
        """Cache hit rate."""
    @property
    def cached_input_share(self) -> ReadEstimate:
        """Cached share of the input."""
    @property
    def canned_first_tokens(self) -> ReadEstimate:
        """Canned first tokens."""
    @property
    def changed_under_load(self) -> ReadEstimate:
        """Replies changed by load."""
    @property
    def class_jain_index(self) -> ReadEstimate:
        """Class-level fairness index."""
    @property
    def common_generation_rate(self) -> ReadEstimate:
        """Generation rate while all generate."""
    @property
    def completion_rate(self) -> ReadEstimate:
        """Completion rate."""
    @property
    def constrained_output_token_throughput(self) -> ReadEstimate:
        """Output throughput under the objectives."""
    @property
    def critical_evictions(self) -> ReadEstimate:
        """Critical evictions."""
    @property
    def cut_begun_share(self) -> ReadEstimate:
        """Begun before the cut."""
    @property
    def cut_share(self) -> ReadEstimate:
        """Cut by users."""
    @property
    def e2e(self) -> MetricView:
        """End-to-end latency."""
    @property
    def e2e_scheduled(self) -> MetricView:
        """End-to-end latency from the schedule."""
    @property
    def energy_per_output_token(self) -> ReadEstimate:
        """Energy per output token."""
    @property
    def energy_per_request(self) -> ReadEstimate:
        """Energy per request."""
    @property
    def fail_rate(self) -> ReadEstimate:
        """Fail rate."""
    @property
    def fastest_rate_times_prompts(self) -> ReadEstimate:
        """Rate of the fastest request × requests."""
    @property
    def goodput(self) -> ReadEstimate:
        """Goodput."""
    @property
    def goodput_share(self) -> ReadEstimate:
        """SLO attainment rate."""
    @property
    def gpu_utilisation(self) -> ReadEstimate:
        """GPU utilisation."""
    @property
    def guardrail_overhead(self) -> MetricView:
        """Total guardrail overhead."""
    @property
    def input_filter_overhead(self) -> MetricView:
        """Input filter overhead."""
    @property
    def input_token_throughput(self) -> ReadEstimate:
        """Input token throughput."""
    @property
    def itl(self) -> MetricView:
        """Inter-token latency."""
    @property
    def itl_modes(self) -> ReadEstimate:
        """Modes of ITL."""
    @property
    def itl_tail_ratio(self) -> ReadEstimate:
        """P99/P50 ratio."""
    @property
    def itl_tail_variation(self) -> ReadEstimate:
        """Tail variation."""
    @property
    def jain_index(self) -> ReadEstimate:
        """Jain's fairness index."""
    @property
    def jitter(self) -> MetricView:
        """Jitter."""
    @property
    def job_generator_wait(self) -> MetricView:
        """Wait of a job in the generator."""
    @property
    def job_llm_slowdown(self) -> MetricView:
        """Slowdown of the LLM time of a job."""
    @property
    def job_llm_time(self) -> MetricView:
        """LLM time of a job."""
    @property
    def job_pause_time(self) -> MetricView:
        """Pauses of a job."""
    @property
    def job_slowdown(self) -> MetricView:
        """Slowdown of a job."""
    @property
    def job_time(self) -> MetricView:
        """Job completion time."""
    @property
    def jobs_per_hour(self) -> ReadEstimate:
        """Jobs per hour within the limits."""
    @property
    def knee_rate(self) -> ReadEstimate:
        """Knee point."""
    @property
    def latency(self) -> MetricView:
        """Latency."""
    @property
    def latency_scheduled(self) -> MetricView:
        """Latency from the schedule."""
    @property
    def length_ratio_under_load(self) -> ReadEstimate:
        """Length of replies under load."""
    @property
    def longest_pause(self) -> MetricView:
        """Longest pause."""
    @property
    def makespan(self) -> ReadEstimate:
        """Makespan."""
    @property
    def max_concurrency(self) -> ReadEstimate:
        """Maximum concurrent requests."""
    @property
    def max_input_token_throughput(self) -> ReadEstimate:
        """Input throughput at the maximum."""
    @property
    def max_output_token_throughput(self) -> ReadEstimate:
        """Max output throughput."""
    @property
    def max_request_throughput(self) -> ReadEstimate:
        """Request throughput at the maximum."""
    @property
    def max_sessions(self) -> ReadEstimate:
        """Maximum sessions at once."""
    @property
    def mean_power(self) -> ReadEstimate:
        """Mean power."""
    @property
    def operating_point_rate(self) -> ReadEstimate:
        """Operating point."""
    @property
    def operating_point_throughput(self) -> ReadEstimate:
        """Throughput at the operating point."""
    @property
    def output_itl(self) -> MetricView:
        """Inter-token latency of the output phase."""
    @property
    def output_token_goodput(self) -> ReadEstimate:
        """Output token goodput."""
    @property
    def output_token_throughput(self) -> ReadEstimate:
        """Output token throughput."""
    @property
    def output_tokens_per_gpu_second(self) -> ReadEstimate:
        """Tokens per GPU-second."""
    @property
    def output_tokens_per_user_second(self) -> ReadEstimate:
        """Output tokens per second of a user."""
    @property
    def peak_memory(self) -> ReadEstimate:
        """Peak memory."""
    @property
    def preemption_loss(self) -> ReadEstimate:
        """Preemption loss."""
    @property
    def preemption_rate(self) -> ReadEstimate:
        """Preemption rate."""
    @property
    def preemption_recovery_rate(self) -> ReadEstimate:
        """Preemption recovery rate."""
    @property
    def preemptions_per_request(self) -> ReadEstimate:
        """Preemptions per request."""
    @property
    def prefill_exponent(self) -> ReadEstimate:
        """Scaling exponent."""
    @property
    def prefill_exponent_fit(self) -> ReadEstimate:
        """Fit of the power law."""
    @property
    def prefill_linear_fit(self) -> ReadEstimate:
        """Fit of the straight line."""
    @property
    def prefill_slope(self) -> ReadEstimate:
        """TTFT per input token."""
    @property
    def pressed_levels(self) -> ReadEstimate:
        """Pressed levels."""
    @property
    def published_tpot_ratio(self) -> ReadEstimate:
        """TPOT of published prompts."""
    @property
    def published_ttft_ratio(self) -> ReadEstimate:
        """TTFT of published prompts."""
    @property
    def recovery_time(self) -> ReadEstimate:
        """Recovery time."""
    @property
    def repeated_tpot_ratio(self) -> ReadEstimate:
        """TPOT of repeated prompts."""
    @property
    def repeated_ttft_ratio(self) -> ReadEstimate:
        """TTFT of repeated prompts."""
    @property
    def request_throughput(self) -> ReadEstimate:
        """Request throughput."""
    @property
    def saturation_rate(self) -> ReadEstimate:
        """Saturation point."""
    @property
    def schema_violation_rate(self) -> ReadEstimate:
        """Schema violation rate."""
    @property
    def send_spread(self) -> ReadEstimate:
        """Spread of the sends."""
    @property
    def server_generation_rate(self) -> MetricView:
        """Generation rate of a request by the server."""
    @property
    def server_prefill_rate(self) -> MetricView:
        """Prefill rate of a request by the server."""
    @property
    def session_completion_rate(self) -> ReadEstimate:
        """Session completion rate."""
    @property
    def session_goodput(self) -> ReadEstimate:
        """Session goodput."""
    @property
    def speedup(self) -> ReadEstimate:
        """Speedup by speculation."""
    @property
    def startup_time(self) -> ReadEstimate:
        """Startup."""
    @property
    def starvation_rate(self) -> ReadEstimate:
        """Starvation rate."""
    @property
    def sustainable_concurrency(self) -> ReadEstimate:
        """Sustainable load."""
    @property
    def sustainable_rate(self) -> ReadEstimate:
        """Sustainable load."""
    @property
    def tenfold_output_token_throughput(self) -> ReadEstimate:
        """Output throughput by the ten-fold rule."""
    @property
    def think_share(self) -> ReadEstimate:
        """Think share."""
    @property
    def think_tokens(self) -> MetricView:
        """Think tokens."""
    @property
    def throughput_improvement(self) -> ReadEstimate:
        """Throughput improvement."""
    @property
    def throughput_reduction(self) -> ReadEstimate:
        """Throughput reduction."""
    @property
    def throughput_reduction_at_equal_load(self) -> ReadEstimate:
        """Throughput reduction at equal load."""
    @property
    def time_to_recovery(self) -> ReadEstimate:
        """Time to recovery."""
    @property
    def tokens_in_flight(self) -> ReadEstimate:
        """Tokens in flight."""
    @property
    def tokens_per_dollar(self) -> ReadEstimate:
        """Output tokens per dollar."""
    @property
    def tokens_per_event(self) -> ReadEstimate:
        """Tokens of an event of the stream."""
    @property
    def tokens_per_joule(self) -> ReadEstimate:
        """Output tokens per joule."""
    @property
    def tokens_per_step(self) -> ReadEstimate:
        """Tokens of a step."""
    @property
    def total_token_throughput(self) -> ReadEstimate:
        """Total token throughput."""
    @property
    def tpot(self) -> MetricView:
        """Time per output token."""
    @property
    def ttfo(self) -> MetricView:
        """Time to first output token."""
    @property
    def ttft(self) -> MetricView:
        """Time to first token."""
    @property
    def ttft_adjusted(self) -> MetricView:
        """Time to first token without network time."""
    @property
    def ttft_any(self) -> MetricView:
        """Time to first output of any kind."""
    @property
    def ttft_first_event(self) -> MetricView:
        """Time to first event."""
    @property
    def ttft_inflation(self) -> MetricView:
        """Latency inflation."""
    @property
    def ttft_outside(self) -> MetricView:
        """Time to the first output outside the engine."""
    @property
    def ttft_prefill(self) -> MetricView:
        """Prefill latency."""
    @property
    def ttft_queue_wait(self) -> MetricView:
        """Queue wait."""
    @property
    def ttft_reasoning(self) -> MetricView:
        """Time to first reasoning."""
    @property
    def ttft_reduction(self) -> MetricView:
        """TTFT reduction."""
    @property
    def ttft_scheduled(self) -> MetricView:
        """Time to first token from the schedule."""
    @property
    def ttot(self) -> MetricView:
        """Time to output token."""
    @property
    def turn_cache_hit_rate(self) -> ReadEstimate:
        """Cache hit rate by turn."""
    @property
    def turn_cacheable_share(self) -> ReadEstimate:
        """Cacheable share of the input by turn."""
    @property
    def turn_cached_share(self) -> ReadEstimate:
        """Cached share of the input by turn."""
    @property
    def turn_tpot(self) -> MetricView:
        """Time per output token by turn."""
    @property
    def turn_ttft(self) -> MetricView:
        """Time to first token by turn."""
    @property
    def turn_ttft_reduction(self) -> MetricView:
        """TTFT reduction by turn."""
