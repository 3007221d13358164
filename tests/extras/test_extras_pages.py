"""The Python blocks of the documentation that need an extra run too."""

from __future__ import annotations

import pytest
from documented import BLOCK, OVER_HTTP2, PAGES, of_extras, run_blocks
from http2_server import hypercorn

pytestmark = pytest.mark.usefixtures("however_late")


def test_over_http2(pytester: pytest.Pytester) -> None:
    with hypercorn() as url:
        run_blocks(pytester, BLOCK.findall(OVER_HTTP2.read_text("utf-8")), url, "--llm-http=2")


def test_without_tokens(pytester: pytest.Pytester) -> None:
    pages = [page for page in PAGES if page != OVER_HTTP2]
    found = [
        block for page in pages for block in BLOCK.findall(page.read_text("utf-8")) if of_extras(page, block)
    ]
    assert len(found) > 1
    run_blocks(pytester, found, "replay", "--llm-api=openai-embeddings")
