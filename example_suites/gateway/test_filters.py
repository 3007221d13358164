"""What do the filters cost, each alone and together?

pytest example_suites/gateway/test_filters.py --llm-endpoint=https://gateway/v1 --llm-sut=gateway.toml
"""

from pytest_llmbench import llmbench


@llmbench.guardrail(
    capacity_rps=6,
    levels_percent=(50,),
    duration_s=20,
    max_input_overhead_ms=50,
    max_overhead_ms=200,
)
def test_filters() -> None:
    """The same requests in four configurations, at half of what the engine can do."""
