"""Blocks that are in order in themselves become Records that are in order as a whole, a block at a time.

The blocks are gone through by their first keys. What a block holds is kept back until no later block can
begin before it; so memory follows the overlap of the blocks, which is what was in flight at once, not their
number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytest_llmbench.columns.block import CODED, Block, Vocabulary, joined
from pytest_llmbench.columns.block_file import BlockFile
from pytest_llmbench.columns.stored import StoredRecords, StoredWriter


def merged(files: Sequence[BlockFile]) -> StoredRecords:
    """All requests of several files, in order of submission as ``Records.from_rows`` orders them."""
    vocabulary = Vocabulary()
    recodings = [vocabulary.recoding(file.vocabulary.texts) for file in files]
    places = [(place, number) for number, file in enumerate(files) for place in file.places]
    places.sort(key=lambda entry: entry[0].first_key)
    writer = StoredWriter([place for place, _ in places], one_vocabulary=len(files) == 1)
    try:
        waiting: Block | None = None
        for position, (place, number) in enumerate(places):
            block = files[number].read(place)
            if len(files) > 1:
                block = _recoded(block, recodings[number])
            waiting = block if waiting is None else joined([waiting, block]).in_order()
            if position + 1 < len(places):
                waiting = _passed_on(waiting, places[position + 1][0].first_key, writer)
        if waiting is not None:
            writer.append(waiting)
        return writer.records(vocabulary.texts)
    finally:
        writer.close()


def _passed_on(waiting: Block, next_key: int, writer: StoredWriter) -> Block | None:
    """Hands on what comes before all that follows; returns the rest."""
    ready = int(np.searchsorted(waiting.keys(), next_key, side="left"))
    if ready == len(waiting):
        writer.append(waiting)
        return None
    places = np.arange(len(waiting), dtype=np.int64)
    if ready:
        writer.append(waiting.taken(places[:ready]))
        return waiting.taken(places[ready:])
    return waiting


def _recoded(block: Block, codes: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Block:
    return Block(dict(block.columns) | {name: codes[block.columns[name]] for name in CODED}, block.entries)
