"""The figures of the draft, each once: procedures, metrics, the audit and reports read them here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SAMPLES_REQUIRED: Mapping[str, int] = MappingProxyType({"p99": 1_000, "p99_9": 10_000})
"""Fewest samples of which a percentile is reported (section 5.1.4.3)."""
WARMUP_REQUESTS, WARMUP_OUTPUT_TOKENS = 100, 10_000
"""The amounts of a warm-up; both are reached (section 4.5.1, AMB-02)."""
STEADY_PROBES = 3
"""How many probes in a row may hardly vary when a warm-up ends (section 4.5.2)."""
SHORTEST_LEVEL_S, ADVISED_LEVEL_S = 60.0, 300.0
"""Shortest duration of a load level, and the advised one of the level that is reported (5.2.2.1)."""
TAIL_FACTOR = 10.0
"""A level is saturated where TTFT P99 is above so many times the P50 of the lowest level (5.2.3.1)."""
LEVELS_OF_A_SWEEP = 10
"""Fewest load levels of a tradeoff (5.3.2)."""
KNEE_FACTOR = 2.0
"""The knee is where TTFT P99 is above so many times its minimum (5.3.4)."""
FEWEST_TOKENS = 50
"""Fewest output tokens of a request whose inter-token latencies count (5.4.2)."""
ITL_PERCENTS = (25.0, 50.0, 75.0, 90.0)
"""Load levels of inter-token latency, in percent of saturation (5.4.2)."""
ITL_REQUESTS, ITL_SAMPLES = 100, 5_000
"""Fewest requests and gaps of each of them (5.4.2, AMB-12)."""
MOST_EXCLUDED = 0.05
"""Largest share of requests that may be left out for being shorter (5.4.2)."""
SINGLE_TOKEN_SHARE = 0.9
"""Share of single-token chunks above which inter-token latency is measured directly (4.6.3, AMB-13)."""
LEAST_COMPLETION = 0.99
"""Completion rate of a concurrency that is within the capacity (5.5.2)."""
COMPLETIONS_OF_A_SLOT = 100
"""Fewest completions of a level of the capacity, for each request in flight (5.5.3)."""
GAP_SHARE = 0.05
"""Widest gap between what passes and what fails when a search for the capacity ends (5.5.3)."""
CLASS_REQUESTS, MIX_S = 500, 300.0
"""Fewest requests of each class in a mix, and its shortest duration (5.6.2, 5.6.3)."""
UNFAIR_BELOW = 0.9
"""Jain's index below which a scheduler is called unfair (5.6.4)."""
STARVATION_FACTOR = 5.0
"""Who waits longer than so many median waits is starved (5.6.4, AMB-10)."""
MOST_WHEN_OFF = 0.01
"""Largest share of the input that a cache which is off may seem to serve: a system prompt of the server's
own."""
MOST_FIRST_HITS = 0.1
"""Largest share of the prefixes that may be in a cold cache at their first request."""
PRESSURE_S = 120.0
"""Shortest duration of a level of memory pressure (5.8.3)."""
CONTEXT_LENGTHS = tuple(2**power for power in range(10, 18))
"""Lengths of the scaling test, in tokens (5.9.2)."""
FEWEST_LENGTHS, REQUESTS_PER_LENGTH = 3, 20
"""Fewest lengths of a fit, since two points fit any line, and requests of each (5.9.2)."""
CONTEXT_OUTPUT_TOKENS, MOST_IN_FLIGHT = 256, 4
"""Output limit and largest concurrency of the scaling test (5.9.2)."""
GUARDRAIL_PERCENTS = (25.0, 50.0, 75.0)
"""Load levels of the guardrail test, in percent of capacity (5.10.2)."""
FEWEST_RUNS = 3
"""Fewest independent runs that a comparison rests on (6.3)."""
CONTEXTS, ZIPF_EXPONENT = 10, 1.5
"""Repository contexts of Code Completion, and the law by which requests share them (A.4)."""
