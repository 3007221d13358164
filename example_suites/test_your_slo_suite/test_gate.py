"""The gate itself, against the endpoint that it guards."""

from gate import GATE

from pytest_llmbench import llmbench


@llmbench.ttft(**GATE)
def test_chat_is_quick() -> None:
    """Every limit of the gate, on the whole interval."""
