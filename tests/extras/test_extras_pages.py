"""The Python blocks of the documentation that need an extra run too."""

from __future__ import annotations

import pytest
from documented import BLOCK, OVER_HTTP2, PAGES, ROUTERS, of_extras, run_blocks
from http2_server import hypercorn

pytestmark = pytest.mark.usefixtures("however_late")


def test_over_http2(pytester: pytest.Pytester) -> None:
    with hypercorn() as url:
        run_blocks(pytester, BLOCK.findall(OVER_HTTP2.read_text("utf-8")), url, "--llm-http=2")


@pytest.mark.slow
def test_with_routers(pytester: pytest.Pytester) -> None:
    """Large engines are compared in many runs."""
    baseline = "replay:h100-70b-tp4?prefix_caching=on&replicas=4&router=round_robin"
    blocks = BLOCK.findall(ROUTERS.read_text("utf-8"))
    run_blocks(pytester, blocks, "replay", f"--llm-baseline-endpoint={baseline}")


def of_others(without_tokens: bool) -> list[str]:
    """The blocks of the other pages that need an extra, by whether they generate tokens."""
    found = [
        block
        for page in PAGES
        if page not in (OVER_HTTP2, ROUTERS)
        for block in BLOCK.findall(page.read_text("utf-8"))
        if of_extras(page, block) and ("llmbench.non_generative" in block) is without_tokens
    ]
    assert len(found) > 1
    return found


def test_without_tokens(pytester: pytest.Pytester) -> None:
    run_blocks(pytester, of_others(without_tokens=True), "replay", "--llm-api=openai-embeddings")


def test_accuracy_and_other_transports(pytester: pytest.Pytester) -> None:
    run_blocks(pytester, of_others(without_tokens=False), "replay")
