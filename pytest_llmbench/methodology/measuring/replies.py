"""How replies came: whether their chunks came one at a time, and whether the server counted all tokens."""

from __future__ import annotations

import numpy as np

from pytest_llmbench.metrics.chunking import Runs, gathered_share
from pytest_llmbench.metrics.server_side import BY_SERVER
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.records import Records

MOST_GATHERED = 0.5
"""The share of chunks sent together with an earlier one beyond which that is how streams come, rather than
what happens now and then."""
MOST_UNCOUNTED = 0.01
"""The share of replies without a count of the server, beside others that have one, that is an exception."""


def gathered(records: Runs) -> Finding | None:
    """The finding on chunks that are sent several at a time; None where most come alone."""
    share = gathered_share(records)
    if share is None or share <= MOST_GATHERED:
        return None
    return Finding(
        "gathered_chunks",
        ok=False,
        voids=False,
        message=f"{share:.1%} of the chunks were sent together with an earlier one: the server writes "
        "several at once, or something between here and the engine gathers them (the buffer of a proxy). "
        "TTFT is when the first lot came, and there is no time between the chunks of a lot",
        value=share,
        limit=MOST_GATHERED,
        unit="ratio",
    )


def counted_differently(records: Records) -> Finding | None:
    """The finding on replies without the server's count of output tokens where others have one; None where
    all, or hardly any, lack it."""
    total = int(records.ok.sum())
    other = total - int((records.ok & np.isin(records.token_source, BY_SERVER)).sum())
    if other == total or other <= MOST_UNCOUNTED * total:
        return None
    return Finding(
        "counted_differently",
        ok=False,
        voids=False,
        message=f"the server counts the output tokens of {total - other} of {total} replies, and not of the "
        "others: figures per token are of two kinds of token, or of these replies alone. Something in "
        "between drops usage, or servers of several kinds answer",
        value=other / total,
        limit=MOST_UNCOUNTED,
        unit="ratio",
    )
