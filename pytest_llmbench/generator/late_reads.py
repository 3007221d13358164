"""What a reply loses by being read late: which of its chunks have no instant of their own, and by how much.

A read has the stamp of its last packet. What came before that in the same read has it too, and came at some
instant after everything that had arrived had been read. Of a read in time that is no more than a wake-up of
the loop, and chunks that share it were sent together; of a late one it is our own doing, and is noted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from pytest_llmbench.generator.http.transport import Exchange
from pytest_llmbench.model.record import RequestRecord


def note_late_reads(record: RequestRecord, exchange: Exchange) -> None:
    """Fills ``unresolved_chunks`` and ``first_content_early_ns``.

    The last chunk of a read has its own instant: what a server sends behind its last content (the finish, the
    usage) it sends at once. Of a read that was shared with other replies it may have that of theirs.
    """
    stamps, instants = exchange.stamps, record.chunk_ns
    own = [(place, since_ns, 1) for place, since_ns in exchange.late_reads]
    shared = [(place, since_ns, 0) for place, since_ns in exchange.shared_reads]
    for place, since_ns, with_own_instant in own + shared:
        stamp_ns = stamps[place]
        first = bisect_left(instants, stamp_ns)
        together = bisect_right(instants, stamp_ns, first) - first - with_own_instant
        if together < 1:
            continue
        record.unresolved_chunks += together
        if record.first_content_ns == stamp_ns:
            before_ns = stamps[place - 1] if place else exchange.submitted_ns
            record.first_content_early_ns = max(0, stamp_ns - max(since_ns, before_ns or 0))
