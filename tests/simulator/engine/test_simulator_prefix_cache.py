"""The prefix cache: hits counted by hand, eviction order, and how hits show in time."""

from __future__ import annotations

from engine_runs import A, B, D, config, drive_at_once, small_memory, us

from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.kv_cache import PrefixCache, chained_hashes
from pytest_llmbench.simulator.engine.sequence import EngineSequence


def prompt(tokens: list[int], output: int = 1) -> EngineSequence:
    return EngineSequence("r", len(tokens), output, token_ids=tokens)


def cached(engine: Engine, tokens: list[int]) -> int:
    sequence = prompt(tokens)
    drive_at_once(engine, [sequence])
    return sequence.cached_tokens


def test_hashes_are_chained() -> None:
    plain = chained_hashes([1, 2, 3, 4, 5, 6, 7], 3)
    assert len(plain) == 2  # the seventh token fills no block
    assert chained_hashes([1, 2, 3, 9, 9, 9], 3)[0] == plain[0]
    assert chained_hashes([9, 2, 3, 4, 5, 6], 3)[1] != plain[1]
    assert chained_hashes([4, 5, 6], 3)[0] != plain[1]


def test_hits_equal_the_hand_count() -> None:
    engine = Engine(config(prefix_caching="on", kv_block_tokens=4))
    first = list(range(10))
    assert cached(engine, first) == 0
    assert cached(engine, [*range(8), 77, 78, 79]) == 8  # two full blocks in common
    assert cached(engine, [*range(6), 66, 67, 68]) == 4  # the second differs
    assert cached(engine, list(range(8))) == 4  # the last token must be computed, and with it its block
    assert cached(engine, [50, *range(1, 10)]) == 0  # a prefix begins at the beginning
    assert (engine.totals.prefix_query_tokens, engine.totals.prefix_hit_tokens) == (10 + 11 + 9 + 8 + 10, 16)


def test_hits_save_their_prefill_and_are_read_as_cached_tokens() -> None:
    engine = Engine(config(prefix_caching="on", attention_ns_per_pair=10))
    tokens = list(range(1000))
    cold = drive_at_once(engine, [prompt(tokens)])
    warm = drive_at_once(engine, [prompt(tokens)])
    assert cold.end_ns == us(A + B * 1000 + 0.01 * 1000 * 1001 / 2)
    left = 1000 - 992
    assert warm.end_ns == us(A + B * left + D * 992 + 0.01 * (left * 992 + left * (left + 1) / 2))


def test_prompts_of_one_step_do_not_yet_share() -> None:
    engine = Engine(config(prefix_caching="on", kv_block_tokens=4))
    pair = [prompt(list(range(9)), 3) for _ in range(2)]
    run = drive_at_once(engine, pair)
    assert [sequence.cached_tokens for sequence in pair] == [0, 0]
    assert run.steps[0].prefill_tokens == 18
    assert cached(engine, list(range(9))) == 8


def test_running_sequences_share_blocks() -> None:
    engine = Engine(config(prefix_caching="on", kv_block_tokens=4, kv_blocks=100, context_limit_tokens=400))
    tokens = list(range(41))
    engine.submit(prompt(tokens, 9))
    engine.step()
    assert engine.kv_usage == 11 / 100
    engine.submit(prompt(tokens, 9))
    engine.step()
    assert engine.kv_usage == 12 / 100  # ten shared, one each
    while not engine.idle:
        engine.step()
    assert engine.kv_usage == 0


def test_off_and_unknown_tokens_share_nothing() -> None:
    off = Engine(config())
    assert [cached(off, list(range(100))) for _ in range(2)] == [0, 0]
    assert off.totals.prefix_query_tokens == 0
    unknown = Engine(config(prefix_caching="on"))
    pair = [EngineSequence("r", 100, 1) for _ in range(2)]
    for sequence in pair:
        drive_at_once(unknown, [sequence])
    assert [sequence.cached_tokens for sequence in pair] == [0, 0]


def test_hashes_do_as_well_as_tokens() -> None:
    engine = Engine(config(prefix_caching="on"))
    hashes = chained_hashes(range(64), 16)
    for expected in (0, 64):
        sequence = EngineSequence("r", 100, 1, prefix_hashes=hashes)
        drive_at_once(engine, [sequence])
        assert sequence.cached_tokens == expected


def test_the_longest_unused_block_goes_first_and_beginnings_last() -> None:
    engine = Engine(
        config(prefix_caching="on", kv_block_tokens=4, kv_blocks=4, context_limit_tokens=16, max_num_seqs=1)
    )
    one, two = list(range(9)), list(range(100, 109))
    assert cached(engine, one) == 0  # keeps 1a 1b
    assert cached(engine, two) == 0  # needs three of four blocks: 1b goes; keeps 1a 2a 2b
    assert cached(engine, one) == 4  # 1a is left; 2b goes for the rest
    assert cached(engine, two) == 4


def test_references_are_counted_per_user() -> None:
    cache = PrefixCache()
    cache.acquire([7])
    cache.acquire([7])
    cache.release([7])
    assert cache.used == 1
    cache.release([7])
    assert (cache.used, len(cache)) == (0, 1)
    assert cache.hits([7, 8], 2) == 1
    cache.evict(1)
    assert 7 not in cache


def test_a_preempted_prompt_finds_its_own_blocks_again() -> None:
    engine = Engine(small_memory(prefix_caching="on"))
    early, late = (EngineSequence(name, 7, 10, token_ids=[ord(name)] * 7) for name in "el")
    run = drive_at_once(engine, [early, late])
    assert [event.sequence for event in run.preempted] == [late]
    assert engine.totals.resume_hit_tokens == 4
    assert run.steps[10].prefill_tokens == 7 + 2 - 4
    assert late.cached_tokens == 0


def test_a_forgotten_cache_is_found_by_nobody_and_loses_no_block() -> None:
    engine = Engine(config(prefix_caching="on", kv_block_tokens=4, kv_blocks=100, context_limit_tokens=400))
    one, two = list(range(41)), list(range(100, 141))
    assert cached(engine, two) == 0  # kept, and in use by nobody
    running = prompt(one, 30)
    engine.submit(running)
    engine.step()
    engine.reset_prefix_cache()
    assert engine.kv_usage == 11 / 100
    late = prompt(one, 30)
    engine.submit(late)
    engine.step()
    assert late.cached_tokens == 0
    # It computed ten blocks anew, which from now on count once for both, and may be found again.
    after = prompt(one, 2)
    engine.submit(after)
    while not engine.idle:
        engine.step()
    assert after.cached_tokens == 40
    assert engine.kv_usage == 0
    assert [cached(engine, two), cached(engine, one)] == [0, 40]


def test_forgotten_blocks_are_gone_with_their_last_user() -> None:
    cache = PrefixCache()
    cache.acquire([1, 2, 2])
    cache.release([1])
    cache.forget()
    assert (1 in cache, 2 in cache, cache.hits([2], 1), cache.used) == (False, True, 0, 1)
    cache.release([2])
    cache.release([2])
    assert len(cache) == 0
    cache.acquire([2])
    assert cache.hits([2], 1) == 1


def test_forgetting_twice_and_without_a_cache() -> None:
    engine = Engine(config(prefix_caching="on", kv_block_tokens=4, kv_blocks=100, context_limit_tokens=400))
    engine.submit(prompt(list(range(41)), 5))
    engine.step()
    for _ in range(2):
        engine.reset_prefix_cache()
    while not engine.idle:
        engine.step()
    assert engine.kv_usage == 0
    assert cached(engine, list(range(41))) == 0
    Engine(config()).reset_prefix_cache()
