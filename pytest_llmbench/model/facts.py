"""The manifest: declared, detected and measured facts about a run, each with its origin; and the vocabulary
of it.

A fact is read and written by its constant here (``facts.value(WorkloadFact.SEED)``), which has the type of
its value and says what it states: a wrong key is no name, and a wrong use of its value an error of types.
Constants are named by their keys. A key is the text that reports and SUT files show; what the audit reads
stands in ``compliance/requirements.yaml`` too, there with a leading ``manifest.``. A key that is absent is
"no evidence".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")
_Value_co = TypeVar("_Value_co", covariant=True)
_ALIKE: Mapping[type, tuple[type, ...]] = {float: (int, float), list: (list, tuple), dict: (Mapping,)}


class Key(str, Generic[_Value_co]):
    """The key of a fact, a text, with the type of its value; ``object`` where there may be several."""

    __slots__ = ("kind",)
    kind: type[_Value_co]

    def __new__(cls, name: str, kind: type[_Value_co]) -> Key[_Value_co]:
        key = super().__new__(cls, name)
        key.kind = kind
        return key

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """A plain text for other processes."""
        return str, (str(self),)

    def admits(self, value: object) -> bool:
        """Whether a value, which a file may state, is of this type. True and False are no numbers."""
        if isinstance(value, bool):
            return self.kind in (bool, object)
        return isinstance(value, _ALIKE.get(self.kind, self.kind))


class SUTFact:
    """The system under test: its boundary and what lies inside."""

    # model_engine, application_gateway, compound_system; or custom with sut.components
    BOUNDARY = Key("sut.boundary", str)
    COMPONENTS = Key("sut.components", list)  # list of what lies inside the boundary; needed for a custom one
    MODEL_NAME = Key("sut.model.name", str)  # model identifier
    # what the endpoint calls the model, where that is another name
    MODEL_SERVED_AS = Key("sut.model.served_as", str)
    MODEL_VERSION = Key("sut.model.version", str)  # version or revision of the model
    # quantization scheme, `none` for an unquantised model
    MODEL_QUANTIZATION = Key("sut.model.quantization", str)
    # false where the operator does not say what the SUT runs on (AMB-27)
    HARDWARE_DISCLOSED = Key("sut.hardware.disclosed", bool)
    # such as `NVIDIA H100 SXM`; `cpu`, `none`, `undisclosed`
    ACCELERATOR_TYPE = Key("sut.hardware.accelerator_type", str)
    # number of accelerators, 0 only with type cpu or none
    ACCELERATOR_COUNT = Key("sut.hardware.accelerator_count", int)
    # memory of one accelerator in GiB
    ACCELERATOR_MEMORY_GIB = Key("sut.hardware.accelerator_memory_gib", float)
    ACCELERATORS = (ACCELERATOR_TYPE, ACCELERATOR_COUNT, ACCELERATOR_MEMORY_GIB)
    """The facts that make hardware comparable (AMB-48)."""
    SOFTWARE_ENGINE = Key("sut.software.engine", str)  # serving software
    SOFTWARE_VERSION = Key("sut.software.version", str)  # its version
    PREFIX_CACHING = Key("sut.prefix_caching", str)  # enabled or disabled
    # replay where the embedded engine ran in virtual time and nothing was sent
    SIMULATED = Key("sut.simulated", str)
    # longest context that the model accepts, output included
    CONTEXT_LIMIT_TOKENS = Key("sut.context_limit_tokens", int)
    REPLICAS = Key("sut.replicas", int)  # engines behind the router of the embedded engine
    ROUTER = Key("sut.router", str)  # policy of that router


class IsolationFact:
    """How an overload harms nobody else."""

    # true when nobody else uses the SUT during an overload
    ISOLATED_SYSTEM = Key("isolation.isolated_system", bool)
    RECOVERY_PLAN = Key("isolation.recovery_plan", str)  # how the SUT is brought back, in words
    # how failures that spread to other components are watched for
    FAILURE_MONITORING = Key("isolation.failure_monitoring", str)
    # the probes with which a test looks after the SUT by itself
    HEALTH_PROBE = Key("isolation.health_probe", str)


class GuardrailFact:
    """Safety systems (section 4.8)."""

    INPUT_FILTER = Key("guardrails.input_filter", str)  # enabled, disabled or absent
    OUTPUT_FILTER = Key("guardrails.output_filter", str)  # enabled, disabled or absent
    FILTERS: Mapping[str, Key[str]] = {"input": INPUT_FILTER, "output": OUTPUT_FILTER}
    SYSTEMS: Key[Any] = Key("guardrails.systems", object)  # list of names, or `not known`
    REFUSALS = Key("guardrails.refusals", int)  # number of refused requests, 0 included
    # true when the results are to stand for production
    PRODUCTION_CLAIM = Key("guardrails.production_claim", bool)
    DEFAULT_CONFIG = Key("guardrails.default_config", bool)  # true when the safety systems run as delivered
    # text of the note about safety systems that were switched off
    DISABLED_NOTE = Key("guardrails.disabled_note", str)
    IMPOSSIBLE = Key("guardrails.impossible", str)  # why configurations with a single filter cannot be run
    # true when content of the tester's own asks for nothing that is refused
    BENIGN_CONTENT = Key("guardrails.benign_content", bool)
    COMPARATIVE_RUN = Key("guardrails.comparative_run", str)  # reference of the run with the opposite state
    CONFIGURATIONS = Key("guardrails.configurations", list)  # the configurations that were compared
    # mapping: configuration → refused requests
    REFUSALS_BY_CONFIGURATION = Key("guardrails.refusals_by_configuration", dict)


class EndpointFact:
    """What the endpoint says of itself and how it is reached."""

    INSTANCE = Key("endpoint.instance", int)  # the n-th system at this endpoint in the session, from 2 on
    MODELS = Key("endpoint.models", list)  # the names that the endpoint gives the model that was asked for
    ANSWERED_BY = Key("endpoint.answered_by", str)  # the model that the answer of the preflight names
    API = Key("endpoint.api", str)  # name of the dialect that is spoken
    # false where the server's certificate is not checked
    CERTIFICATE_CHECKED = Key("endpoint.certificate_checked", bool)
    # true where the key goes to another machine without TLS
    KEY_IN_CLEAR = Key("endpoint.key_in_clear", bool)
    MODEL = Key("endpoint.model", str)  # name of the model in the requests
    # how long the server says that it loaded the model for the preflight
    MODEL_LOAD_MS = Key("endpoint.model_load_ms", float)
    PROXY = Key("endpoint.proxy", str)  # the proxy on the way, or none
    SERVER = Key("endpoint.server", str)  # the server's header of that name
    STARTUP_S = Key("endpoint.startup_s", float)  # time from the start of a launched server until healthy
    TRANSPORT = Key("endpoint.transport", str)  # what carries calls in process
    URL = Key("endpoint.url", str)  # base URL, without query


class RequestFact:
    """What every request has beside its workload."""

    # fields of every request body beside those of the workload, with their values
    EXTRA_BODY = Key("request.extra_body", dict)
    VARIANT_BODY = Key("request.variant_body", dict)  # fields of the request bodies of one variant


class WireFact:
    """What was spoken with the endpoint."""

    DIALECT = Key("wire.dialect", str)  # name of the dialect that was spoken
    HTTP_VERSION = Key("wire.http_version", str)  # known for HTTP/2 alone
    MESSAGES = Key("wire.messages", str)  # roles, or one_text where the API has none
    PROMPT_FORM = Key("wire.prompt_form", str)  # text or token_ids
    # header that tells a server the session of a request, or none
    SESSION_HEADER = Key("wire.session_header", str)
    STRUCTURED_OUTPUT = Key("wire.structured_output", str)  # fields, or prompt_words where the API has none


class WorkloadFact:
    """The requests (section 4.3)."""

    NAME = Key("workload.name", str)  # name as in section 4.3.2, or that of a custom workload
    STANDARD = Key("workload.standard", bool)  # true for a reference workload
    SEED = Key("workload.seed", int)  # seed of the request sequence, an integer
    N_REQUESTS = Key("workload.n_requests", int)  # requests that were to be measured, over all runs
    INPUT_LENGTH = Key("workload.input_length", dict)  # mapping: type, params, unit, tokenizer
    # mapping: type, params, unit, tokenizer, control (max_tokens, stop or both)
    OUTPUT_LENGTH = Key("workload.output_length", dict)
    # mapping: domain, language, system_prompt {present, typical_tokens}; question_tokens for long-context
    CONTENT = Key("workload.content", dict)
    # mapping: fraction, length; where prefixes are shared also realised_fraction, contexts (lengths in
    # tokens) and realised_by_rank (requests per context); of a data set distinct_prompts and
    # alike_fraction (share of the entries that begin like another one)
    PREFIX_SHARING = Key("workload.prefix_sharing", dict)
    TEMPERATURE = Key("workload.temperature", float)  # sampling temperature
    STOP = Key("workload.stop", list)  # list of stop sequences, empty for none
    # mapping: name, version, file_sha256, subset, subset_method, preprocessing (list)
    DATASET = Key("workload.dataset", dict)
    # the length of the requests in each part of workload.slices (long context)
    TARGETS = Key("workload.targets", list)
    # list of mappings: name, input [low, high], output [low, high], share
    CLASSES = Key("workload.classes", list)
    CLASS_MIX = Key("workload.class_mix", dict)  # mapping: class → share of the requests
    # live | live-compared: answers in the history of sessions; without it recorded ones
    ANSWERS = Key("workload.answers", str)
    # list of declared changes to a reference workload: what, instead_of, rule
    DEVIATIONS = Key("workload.deviations", list)
    # mapping: share of the requests that users cut, after {type, params, unit}, from (submission),
    # figures (what they are left out of); absent where all users wait
    CUTS = Key("workload.cuts", dict)
    SLICES = Key("workload.slices", list)  # list of [first, count]: the parts of the sequence that were sent
    # list of [name, seed], one for each of workload.slices: the part of the measurement that it was drawn
    # for; the seed follows from workload.seed and the name
    PARTS = Key("workload.parts", list)
    # digest of the planned requests in the format of appendix A.1.4
    SEQUENCE_SHA256 = Key("workload.sequence_sha256", str)
    # `sequence` (written as an artifact) or `generator` (code, seed and parameters)
    PUBLISHED = Key("workload.published", str)
    PROFILES = Key("workload.profiles", list)  # the workload profiles that the workload is made of
    PROMPTS = Key("workload.prompts", str)  # prompts of the session that make those of the workload others
    # mapping: class → share of the requests that were sent
    REALISED_CLASS_MIX = Key("workload.realised_class_mix", dict)
    RUNS = Key("workload.runs", int)  # loads that were planned
    SEQUENCE_FILES = Key("workload.sequence_files", object)  # files that hold the published sequence


class LoadFact:
    """When requests are sent (section 4.2)."""

    MODEL = Key("load.model", str)  # open or closed
    ARRIVAL = Key("load.arrival", str)  # poisson, uniform or bursty (open loop)
    RATE_RPS = Key("load.rate_rps", float)  # requests per second (open loop)
    BURSTINESS = Key("load.burstiness", float)  # shape of the gamma gaps (bursty arrivals)
    CONCURRENCY = Key("load.concurrency", int)  # requests in flight (closed loop)
    RATE_RANGE = Key("load.rate_range", list)  # lowest rate, highest rate, step of a search
    # lowest (capacity: first) and highest concurrency, step of a search
    CONCURRENCY_RANGE = Key("load.concurrency_range", list)
    # of a level, ramp-up included; of a search the level that is reported
    DURATION_S = Key("load.duration_s", float)
    SLO = Key("load.slo", dict)  # mapping: ttft_p99_ms, tpot_p99_ms, min_completion; absent without limits
    LEVELS_PERCENT = Key("load.levels_percent", list)  # list of the levels in percent of capacity
    # capacity that the percentages refer to, requests per second
    CAPACITY_RPS = Key("load.capacity_rps", float)
    # capacity that the percentages refer to, requests in flight
    CAPACITY_CONCURRENCY = Key("load.capacity_concurrency", int)
    # whether the test found that capacity by a search of its own; else it is declared
    CAPACITY_FOUND = Key("load.capacity_found", bool)
    # what is taken for an out-of-memory error, in words
    OUT_OF_MEMORY_RULE = Key("load.out_of_memory_rule", str)
    CAPACITY_SOURCE = Key("load.capacity_source", str)  # where the capacity is from, in words
    # limit of TTFT P99 under which the capacity was searched for
    CAPACITY_TTFT_P99_MS = Key("load.capacity_ttft_p99_ms", float)
    DECIDED = Key("load.decided", bool)  # whether a look decided the limits
    DECIDED_AFTER = Key("load.decided_after", int)  # requests seen by the look that decided
    EVENT_AT_S = Key("load.event_at_s", float)  # from the start of the load to the event that happened in it
    FIRST_WAVE = Key("load.first_wave", str)  # how the first jobs of a closed load begin
    LOOKS = Key("load.looks", int)  # looks at the load while it ran
    MAX_REQUESTS = Key("load.max_requests", int)  # requests that were sent at most
    OUT_OF_MEMORY_ERRORS = Key("load.out_of_memory_errors", list)  # errors taken for out of memory, per level
    OUTPUT_TOKENS = Key("load.output_tokens", int)  # output tokens of the requests of a capacity search
    # what a batch sends at its start: last_byte (the rest of each request is there before) or whole_request
    RELEASE = Key("load.release", str)
    REQUESTS_SAVED = Key("load.requests_saved", int)  # requests that an early end spared
    SESSION_LEVELS = Key("load.session_levels", list)  # sessions at once, per level
    SESSION_RATE = Key("load.session_rate", float)  # sessions per second (open loop)
    SESSIONS = Key("load.sessions", int)  # sessions at once (closed loop)
    # first and highest number of sessions at once, step of a search
    SESSIONS_RANGE = Key("load.sessions_range", list)


class TokenizerFact:
    """What tokens are counted by (section 4.4)."""

    NAME = Key("tokenizer.name", str)  # tokenizer that the counts refer to
    VERSION = Key("tokenizer.version", str)  # its version
    VOCAB_SIZE = Key("tokenizer.vocab_size", int)  # number of ids
    SOURCE = Key("tokenizer.source", str)  # model-hub id, tiktoken name or `custom`
    COUNTING_OPTION = Key("tokenizer.counting_option", str)  # A native or B reference (section 4.4)
    REFERENCE = Key("tokenizer.reference", str)  # name of the common tokenizer, with option B
    # how many times the tokens of cl100k_base the tokenizer's file makes
    TOKENS_PER_REFERENCE = Key("tokenizer.tokens_per_reference", float)
    SPECIAL_BOS_EOS = Key("tokenizer.special.bos_eos", str)  # included or excluded
    SPECIAL_SYSTEM_PROMPT = Key("tokenizer.special.system_prompt", str)  # separate, included or none
    SPECIAL_TOOL_FORMAT = Key("tokenizer.special.tool_format", str)  # included, excluded or not_used
    # how prompts counted by the server compare with the tokenizer file
    AGREEMENT = Key("tokenizer.agreement", dict)
    SHA256 = Key("tokenizer.sha256", str)  # digest of the tokenizer file
    # mapping: name → special token of the tokenizer file
    SPECIAL_TOKENS = Key("tokenizer.special.tokens", dict)


class StreamingFact:
    """Chunks and their instants (section 4.6)."""

    PROTOCOL = Key("streaming.protocol", str)  # sse, websocket or grpc; in_process: none; json: one document
    CHUNKING = Key("streaming.chunking", str)  # single (every chunk is one token) or multi
    # share of content chunks of one token, where chunk tokens are known
    SINGLE_TOKEN_SHARE = Key("streaming.single_token_share", float)
    # what becomes of chunks with several tokens, in words
    CHUNK_HANDLING = Key("streaming.chunk_handling", str)
    ITL_OPTION = Key("streaming.itl_option", str)  # direct, A, B or C (section 4.6)
    # label of the level whose streams chose it, or `marker`: the author did
    ITL_OPTION_FROM = Key("streaming.itl_option_from", str)
    # true when the server gives the instant of every token
    SERVER_TIMESTAMPS_AVAILABLE = Key("streaming.server_timestamps_available", bool)
    # mapping: chunks, mean, p50, p99, max tokens per content chunk
    CHUNK_SIZES = Key("streaming.chunk_sizes", dict)
    ITL_OPTION_REASON = Key("streaming.itl_option_reason", str)  # why that option was chosen, in words


class ClockFact:
    """Whose clocks are compared."""

    TOPOLOGY = Key("clock.topology", str)  # single_machine or distributed
    METHOD = Key("clock.method", str)  # ntp, ptp or other (distributed)
    ACCURACY_MS = Key("clock.accuracy_ms", float)  # estimated accuracy of the synchronisation in ms
    SUB_MS_REQUIRED = Key("clock.sub_ms_required", bool)  # true when instants of two machines are subtracted
    OFFSET_MS = Key("clock.offset_ms", float)  # measured offset to the time server in ms
    NTP_SERVER = Key("clock.ntp_server", str)  # time server that both machines use
    STEPPED_MS = Key("clock.stepped_ms", float)  # by how much the wall clock was set during a load
    WORKERS = Key("clock.workers", list)  # what each worker told of its clock against that of the session


class NetworkFact:
    """The way between load generator and system."""

    SIGNIFICANT = Key("network.significant", bool)  # true when network time matters beside TTFT
    RTT_MS = Key("network.rtt_ms", dict)  # mapping: p50, n (samples of a connection-level probe)
    TTFT_ADJUSTMENT = Key("network.ttft_adjustment", dict)  # mapping: applied, amount_ms, method


class WarmupFact:
    """What was sent before measuring."""

    PERFORMED = Key("warmup.performed", bool)  # whether there was a warm-up
    REQUESTS_OK = Key("warmup.requests_ok", int)  # successful warm-up requests
    OUTPUT_TOKENS = Key("warmup.output_tokens", int)  # output tokens of the warm-up
    # true when the model was completely in accelerator memory before measuring
    MODEL_LOADED = Key("warmup.model_loaded", bool)
    DRAINED = Key("warmup.drained", bool)  # whether every warm-up request had ended before measuring
    PROBE_BEFORE_MS = Key("warmup.probe_before_ms", float)  # latency of the probe before the warm-up
    # latencies of the probes after the warm-up, null for one that failed
    PROBES_AFTER_MS = Key("warmup.probes_after_ms", list)
    # number of shared prefixes sent before measuring; false for none, true for all of them
    PREFIXES_POPULATED: Key[Any] = Key("warmup.prefixes_populated", object)
    COUNT = Key("warmup.count", int)  # number of warm-ups, where each configuration has its own
    LONGEST_INPUT_TOKENS = Key("warmup.longest_input_tokens", int)  # longest prompt of the warm-up
    DESCRIPTION = Key("warmup.description", str)  # the warm-up in words
    # monotonic instant at which the last warm-up request had ended
    LAST_FINISHED_NS = Key("warmup.last_finished_ns", int)


class TimingFact:
    """Where instants are taken."""

    # last_request_byte, message_sent for gRPC, call in process
    SUBMIT_POINT = Key("timing.submit_point", str)
    FIRST_POINT = Key("timing.first_point", str)  # parsed_data_event, or first_token_message for gRPC
    FIRST_TOKEN_KIND = Key("timing.first_token_kind", str)  # content, or any
    # of the monotonic clock: as reported, or the smallest step seen if larger
    CLOCK_RESOLUTION_NS = Key("timing.clock_resolution_ns", int)
    # format of exported timestamps: iso8601_ms or epoch_ms
    TIMESTAMP_FORMAT = Key("timing.timestamp_format", str)
    # share of requests with non-content output ahead of the first content token
    NONCONTENT_SHARE = Key("timing.noncontent_share", float)
    # list of server-side quantities collected, such as queue_wait and prefill
    SERVER_SIDE = Key("timing.server_side", list)
    STAMP_UNIT = Key("timing.stamp_unit", str)  # what one time stamp of a chunk stands for


class ManifestFact:
    """The manifest about itself."""

    # mapping: key of a fact → declared, observed, where these contradict
    CONTRADICTED = Key("manifest.contradicted", dict)
    FROZEN_NS = Key("manifest.frozen_ns", int)  # monotonic instant at which the manifest was frozen
    SHA256 = Key("manifest.sha256", str)  # its digest at that instant


class PublicationFact:
    """What is meant to become of the results."""

    INTENDED = Key("publication.intended", bool)  # true when the results are to be published
    CONSIDERED = Key("publication.considered", str)  # note that publishing capacity figures was weighed


class ResultFact:
    """What single tests found or settled."""

    # output tokens per second of the whole duration, ramp-up included
    THROUGHPUT_RAW_OUTPUT_TOK_S = Key("throughput.raw_output_tok_s", float)
    # list of mappings, one per level: level, excluded, zero_gaps, modality, tail_class, p99_over_p50 …
    ITL_LEVELS = Key("itl.levels", list)
    # what a class alone has in common with the mix: tokens or requests (per second)
    FAIRNESS_EQUAL_LOAD = Key("fairness.equal_load", str)
    # what Jain's index is taken of, in words
    FAIRNESS_JAIN_NORMALISATION = Key("fairness.jain_normalisation", str)
    FAIRNESS_JAIN_N = Key("fairness.jain_n", int)  # number of requests in it
    # what a wait is for the starvation rate: server queue wait, or TTFT
    FAIRNESS_WAIT_SOURCE = Key("fairness.wait_source", str)
    # list of mappings, one per length: length, concurrency, ms_per_1k_tokens, output_tok_s, input_tok_s …
    LONG_CONTEXT_LENGTHS = Key("long_context.lengths", list)
    LONG_CONTEXT_REFUSED = Key("long_context.refused", list)  # lengths that the server turned down
    # lengths that were not tried since they do not fit
    LONG_CONTEXT_OMITTED = Key("long_context.omitted", list)
    # mapping: power {k, r2}, linear {slope_us_per_token, intercept_ms, r2}
    LONG_CONTEXT_FIT = Key("long_context.fit", dict)
    LONG_CONTEXT_BEST_FIT = Key("long_context.best_fit", str)  # the line of the report about the better fit
    FAIRNESS_CLASSES = Key("fairness.classes", list)  # list of mappings: figures of each class of requests
    # what a class alone has in common with the mix, in words
    FAIRNESS_LOAD_RULE = Key("fairness.load_rule", str)
    # list of mappings: figures of each class of sessions
    FAIRNESS_SESSION_CLASSES = Key("fairness.session_classes", list)
    LONG_CONTEXT_TRUNCATED = Key("long_context.truncated", list)  # lengths that the server cut
    # finish reasons with which a reply ends by itself
    REASONING_NATURAL_END_REASONS = Key("reasoning.natural_end_reasons", list)


class ComparisonFact:
    """Several systems beside each other."""

    # false where several systems are shown without a claim which is better
    CLAIM = Key("comparison.claim", bool)
    # mapping: system → {sequence_sha256, seed, schedule_sha256}
    SEQUENCES = Key("comparison.sequences", dict)
    BOUNDARIES = Key("comparison.boundaries", dict)  # mapping: system → {boundary, components}
    # mapping: system → {accelerator_type, accelerator_count, accelerator_memory_gib}
    HARDWARE = Key("comparison.hardware", dict)
    LOADS = Key("comparison.loads", dict)  # mapping: system → the facts load.* of it
    TOKENIZERS = Key("comparison.tokenizers", dict)  # mapping: system → the facts tokenizer.* of it
    # how results from different hardware are put on one scale, in words
    NORMALISATION = Key("comparison.normalisation", str)
    # mapping: system → output tokens per second and accelerator
    TOKENS_PER_GPU_SECOND = Key("comparison.tokens_per_gpu_second", dict)
    # mapping: system → {value, dollars_per_hour, date}
    TOKENS_PER_DOLLAR_HOUR = Key("comparison.tokens_per_dollar_hour", dict)
    METRICS = Key("comparison.metrics", list)  # list of the metrics that are compared
    # mapping: system → number of independent runs, each with its own warm-up
    RUNS = Key("comparison.runs", dict)
    # list of mappings: metric, name, statistic, p_value or interval of the difference
    TESTS = Key("comparison.tests", list)
    # mapping: workload, duration, warmup, success_criteria, same_time, production_configuration,
    # differences → answer
    CHECKLIST = Key("comparison.checklist", dict)


class GeneratorFact:
    """The load generator, and the engine's metrics that it reads."""

    # where the engine's own metrics are from, or why there are none
    ENGINE_METRICS = Key("engine.metrics", str)
    # summary of the certificate of the load generator, or why there is none
    GENERATOR_SELFTEST = Key("generator.selftest", object)
    GENERATOR_WORKERS = Key("generator.workers", int)  # processes that shared the load


COLD_START = Key("cold_start", bool)  # true when model load time or cold-start latency is what is measured
# reference of a check against samples of production traffic
PRODUCTION_SAMPLE_CHECK = Key("production_sample_check", str)


Default = TypeVar("Default")


class Origin(StrEnum):
    DECLARED = "declared"
    """Stated by the tester: SUT file, marker, option, fixture."""
    DETECTED = "detected"
    """Read from the endpoint or from this host."""
    MEASURED = "measured"
    """Computed from this run's records."""
    GENERATOR = "generator"
    """A property of this plugin, such as where it takes its time stamps."""
    SIMULATED = "simulated"
    """Stated by the embedded engine about itself."""


@dataclass(frozen=True, slots=True)
class Fact:
    value: Any
    """A JSON value."""
    origin: Origin
    source: str = ""
    """Where exactly the value is from: a file, a URL, a header."""


class Facts(Mapping[str, Fact]):
    """An immutable mapping of dotted names to facts. Later ones win when merged."""

    __slots__ = ("_facts",)

    def __init__(self, facts: Mapping[str, Fact] | None = None) -> None:
        self._facts: Mapping[str, Fact] = MappingProxyType(dict(facts or {}))

    @classmethod
    def of(
        cls, origin: Origin, values: Mapping[Key[Any], Any] | Mapping[str, Any], source: str = ""
    ) -> Facts:
        """Facts from plain values; ``None`` values are left out, since they state nothing."""
        stated = ((str(key), value) for key, value in values.items() if value is not None)
        return cls({key: Fact(value, origin, source) for key, value in stated})

    def __getitem__(self, key: str) -> Fact:
        return self._facts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def __or__(self, other: Mapping[str, Fact]) -> Facts:
        return Facts({**self._facts, **other})

    def __repr__(self) -> str:
        return f"Facts({dict(self._facts)!r})"

    @overload
    def value(self, key: Key[Value]) -> Value | None: ...
    @overload
    def value(self, key: Key[Value], default: Default) -> Value | Default: ...
    def value(self, key: Key[Any], default: Any = None) -> Any:
        """The value under ``key``, or ``default`` when nothing is known."""
        fact = self._facts.get(key)
        return default if fact is None else fact.value

    def under(self, prefix: str) -> Facts:
        """The facts whose key starts with ``prefix.``, with their full keys."""
        return Facts({key: fact for key, fact in self._facts.items() if key.startswith(prefix + ".")})

    def sha256(self) -> str:
        """Digest of keys and values in canonical JSON; frozen before the first measured request."""
        content = {key: fact.value for key, fact in self._facts.items()}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(text.encode()).hexdigest()


_OBSERVED_ALONE = "endpoint."
_OF_THE_ENGINE = (SUTFact.CONTEXT_LIMIT_TOKENS, NetworkFact.RTT_MS, SUTFact.SIMULATED)
"""Facts that nobody declares of the embedded engine; the others it only proposes."""
_NAMED_OTHERWISE = frozenset({SUTFact.MODEL_NAME, ClockFact.TOPOLOGY})
"""Detected facts that a tester knows better: the name behind an alias, the machine behind a tunnel."""


def declared_beside(observed: Facts, declared: Facts) -> Facts:
    """The facts of both. What was observed stands over what was declared, and a contradiction is told by
    ``manifest.contradicted``; what an endpoint says of itself nobody else can declare.

    A context limit below the one that the engine states is kept, since requests have to fit into it, and is a
    contradiction all the same.
    """
    found, contradicted = dict(observed), {}
    for key, fact in declared.items():
        seen = observed.get(key)
        if _may_be_declared(key, seen, fact):
            found[key] = fact
            continue
        contradicted[key] = {"declared": fact.value, "observed": None if seen is None else seen.value}
        both = (fact.value, None if seen is None else seen.value)
        numbers = all(isinstance(each, int) and not isinstance(each, bool) for each in both)
        if key == SUTFact.CONTEXT_LIMIT_TOKENS and numbers and both[0] < both[1]:
            found[key] = fact
    told = {ManifestFact.CONTRADICTED: contradicted or None}
    return Facts(found) | Facts.of(Origin.GENERATOR, told, "declarations beside what was observed")


def _may_be_declared(key: str, seen: Fact | None, fact: Fact) -> bool:
    if seen is None:
        return not key.startswith(_OBSERVED_ALONE)
    if seen.value == fact.value or key in _NAMED_OTHERWISE or seen.origin is Origin.DECLARED:
        return True
    if seen.origin is Origin.SIMULATED and not key.startswith(_OBSERVED_ALONE) and key not in _OF_THE_ENGINE:
        return True
    texts = isinstance(seen.value, str) and isinstance(fact.value, str)
    return texts and not key.startswith(_OBSERVED_ALONE) and seen.value.lower() in fact.value.lower()
