"""How a plan is dealt to workers: exactly, with nothing drawn twice, and as the declared process."""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planned_load import TextWorkload
from scipy import stats

from pytest_llmbench.arrivals import arrival_seed, schedule_ns, sessions_of, turn_of
from pytest_llmbench.errors import GeneratorError, StoreError, SuiteError
from pytest_llmbench.generator.records.supply import DealtWorkload, Supply
from pytest_llmbench.generator.workers.protocol import Requests
from pytest_llmbench.generator.workers.sharding import BLOCK_BYTES, Deal, active_workers, packed, split
from pytest_llmbench.model.messages import Message, MessageArray, Piece
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop, SessionSlots, SessionStarts
from pytest_llmbench.model.reply_checks import ExpectedAnswer, StructuredOutput
from pytest_llmbench.model.request import PlannedRequest, Turn
from pytest_llmbench.workloads.dataset import DatasetIdentity
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.sequence import AT_ONCE
from pytest_llmbench.workloads.sessions import SessionWorkload, turns_of
from pytest_llmbench.workloads.stream import StreamedWorkload
from pytest_llmbench.workloads.trace_sessions import TracedSession, TracedTurn, TraceSessionWorkload

DealTo = Callable[..., list[LoadPlan]]


@pytest.fixture
def deal(tmp_path: Path) -> Iterator[DealTo]:
    """Deals as the coordinator does, and gives the plans as the workers have them."""
    supplies: list[Supply] = []

    def dealt(whole: LoadPlan, workers: int, **options: Any) -> list[LoadPlan]:
        made = Deal(whole, workers, **options)
        own = [Supply(tmp_path, memory_bytes=1000) for _ in range(made.workers)]
        for number, block in made.blocks():
            own[number].add(block.frames, block.instants)
        supplies.extend(own)
        plans = []
        for shard, supply in zip(made.plans(), own, strict=True):
            assert isinstance(shard.workload, DealtWorkload)
            plans.append(shard.with_(workload=shard.workload.stocked(supply)))
        return plans

    yield dealt
    for supply in supplies:
        supply.close()


def instants_ns(shard: LoadPlan) -> list[int]:
    assert isinstance(shard.workload, DealtWorkload)
    return list(shard.workload.instants_ns(shard.requests))


def indices(shards: list[LoadPlan]) -> list[list[int]]:
    return [
        [request.index for request in shard.workload.requests(shard.most_requests, shard.seed)]
        for shard in shards
    ]


@pytest.mark.parametrize(("total", "parts", "expected"), [(7, 3, [3, 2, 2]), (6, 3, [2, 2, 2]), (1, 1, [1])])
def test_a_split_is_exact(total, parts, expected):
    assert split(total, parts) == expected


@pytest.mark.parametrize("first", [0, 17])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_an_open_loop_is_one_schedule_dealt_by_position(plan, deal, workers, first):
    load = OpenLoop(50.0)
    whole = plan(100, load=load, first=first, seed=5)
    shards = deal(whole, workers)
    assert len(shards) == workers
    assert indices(shards) == [list(range(first + own, first + 100, workers)) for own in range(workers)]
    drawn = schedule_ns(load, first + 100, arrival_seed(5))
    expected = drawn[first:] - (drawn[first - 1] if first else 0)
    together = np.empty(100, dtype=np.int64)
    for own, shard in enumerate(shards):
        assert shard.load == OpenLoop(50.0 / workers, arrival="trace")
        together[own::workers] = instants_ns(shard)
    assert together.tolist() == expected.tolist()


def test_the_superposition_is_poisson(plan, deal):
    """KS test of the merged gaps, index of dispersion of the merged counts; each share of 4 is Erlang."""
    shards = deal(plan(4000, load=OpenLoop(100.0), seed=11), 4)
    instants = np.sort(np.concatenate([instants_ns(shard) for shard in shards])) / 1e9
    gaps = np.diff(instants, prepend=0.0)
    assert stats.kstest(gaps, stats.expon(scale=0.01).cdf).pvalue > 0.01
    counts = np.histogram(instants, bins=np.arange(0.0, instants[-1], 0.5))[0]
    dispersion = counts.var(ddof=1) / counts.mean()
    low, high = stats.chi2.ppf([0.005, 0.995], len(counts) - 1) / (len(counts) - 1)
    assert low < dispersion < high
    one = np.diff(instants_ns(shards[0])) / 1e9
    assert stats.kstest(one, stats.gamma(4, scale=0.01).cdf).pvalue > 0.01
    assert stats.kstest(one, stats.expon(scale=0.04).cdf).pvalue < 1e-6


@pytest.mark.parametrize(
    ("concurrency", "workers", "slots"), [(5, 2, [3, 2]), (8, 3, [3, 3, 2]), (2, 4, [1, 1])]
)
def test_a_closed_loop_is_dealt_in_proportion_to_slots(plan, deal, concurrency, workers, slots):
    shards = deal(plan(concurrency * 10, load=ClosedLoop(concurrency)), workers)
    assert [shard.load for shard in shards] == [ClosedLoop(own) for own in slots]
    assert [shard.requests for shard in shards] == [10 * own for own in slots]
    assert [shard.max_requests for shard in shards] == [None] * len(slots)
    assert sorted(chain(*indices(shards))) == list(range(concurrency * 10))


def test_requests_and_ceiling_of_a_timed_closed_loop_are_split_exactly(plan, deal):
    whole = plan(11, load=ClosedLoop(5), duration_s=2.0, max_requests=101, first=3)
    shards = deal(whole, 3)
    assert sum(shard.requests for shard in shards) == 11
    assert sum(shard.ceiling for shard in shards) == 101
    assert all(shard.duration_s == 2.0 and shard.first == 0 for shard in shards)
    assert sorted(chain(*indices(shards))) == list(range(3, 104))
    # At least 11 are sent: those of the lowest numbers, whoever has them.
    assert sorted(
        chain(*(own[: shard.requests] for own, shard in zip(indices(shards), shards, strict=True)))
    ) == [*range(3, 14)]


@pytest.mark.parametrize(
    ("load", "requests", "expected"),
    [
        (OpenLoop(5.0), 100, 4),
        (OpenLoop(5.0), 3, 3),
        (OpenLoop(5.0), 0, 1),
        (OpenLoop(5.0, most_in_flight=3), 100, 3),
        (ClosedLoop(2), 100, 2),
        (ClosedLoop(9), 1, 1),
    ],
)
def test_there_are_no_workers_without_work(plan, deal, load, requests, expected):
    whole = plan(requests, load=load)
    shards = deal(whole, 4)
    assert active_workers(whole, 4) == expected == len(shards)
    assert all(own for own in indices(shards)) == bool(requests)
    if load.most_in_flight is not None:
        assert [shard.load.most_in_flight for shard in shards] == [1, 1, 1]


def test_what_is_dealt_is_remembered_by_nobody(plan, deal):
    with pytest.raises(TypeError, match="unhashable"):
        hash(deal(plan(3), 1)[0].workload)


class _Counted(Sequence[int]):
    """Token ids of a type that no worker could load."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: Any) -> Any:
        return range(3)[place]


@dataclass(frozen=True)
class _OfCounted(TextWorkload):
    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        made = super().requests(count, seed)
        return [replace(each, text=None, token_ids=_Counted(), input_tokens=3) for each in made]


def test_requests_can_be_loaded_by_a_process_without_the_suite(plan, deal):
    (shard,) = deal(plan(2, workload=_OfCounted()), 1)
    assert [request.token_ids for request in shard.workload.requests(2, 1)] == [[0, 1, 2]] * 2


def test_a_plan_that_cannot_be_dealt_is_told_in_words(plan):
    assert len(plan(-1, load=ClosedLoop(0), duration_s=0.0).mistakes()) == 3
    with pytest.raises(SuiteError, match="positive number of requests per second"):
        Deal(plan(3, load=OpenLoop(-1.0), workload=TextWorkload()), 2)


FORM = StructuredOutput("[]", "{}")
SAID = MessageArray((Message("user", "hello"),))
FULL = PlannedRequest(
    7, 8, 9, [1, 2], "text", 0.5, "label", 3, 4, Turn(5, 2, 6, (1,), 9, 3), FORM, SAID, 10**9,
    ExpectedAnswer("42", "number"), (Piece("image", 1, 64, 64),), "adapter",
)  # fmt: skip


def test_a_request_arrives_as_it_was(tmp_path):
    """All fields: none has the value that it would have if it were forgotten."""
    given = [
        FULL,
        replace(FULL, token_ids=array("I", [5, 6])),
        replace(FULL, token_ids=None),
        replace(FULL, text=None, prefix_id=None),
    ]
    supply = Supply(tmp_path)
    for each in given:
        supply.add(packed(each), b"")
    assert list(supply.requests(4)) == given
    supply.close()
    plain = PlannedRequest(0, 1, 1)
    assert all(getattr(FULL, field.name) != getattr(plain, field.name) for field in fields(PlannedRequest))


def test_prompts_go_as_text_where_that_is_asked_for(plan, deal):
    @dataclass(frozen=True)
    class OfIds(TextWorkload):
        def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
            return [PlannedRequest(index, 8, 1, token_ids=[9906]) for index in range(count)]

    (shard,) = deal(plan(2, workload=OfIds()), 1, as_text=True)
    assert [(one.text, one.token_ids) for one in shard.workload.requests(2, 1)] == [("Hello", ())] * 2


@dataclass(frozen=True)
class _Long(TextWorkload):
    """Prompts from nothing to several blocks."""

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        return [PlannedRequest(n, n % 5, 1, text="x" * (n * 7919 % 200_000)) for n in range(count)]


@pytest.mark.parametrize("load", [OpenLoop(50.0), ClosedLoop(7)])
def test_requests_go_in_blocks_that_follow_each_other(plan, deal, load):
    whole = plan(60, load=load, workload=_Long(), first=2)
    made = Deal(whole, 3)
    told: list[list[Requests]] = [[], [], []]
    for number, block in made.blocks():
        assert 0 < len(block.frames) <= BLOCK_BYTES
        told[number].append(block)
    for own in told:
        sizes = [len(block.frames) for block in own]
        assert [block.at for block in own] == [0, *np.cumsum(sizes)[:-1].tolist()]
        assert all(size == BLOCK_BYTES for size in sizes[:-1])
        assert len(own) > 20
    assert made.mean_tokens == np.mean([n % 5 for n in range(2, 62)])
    shards = deal(whole, 3)
    found = [request for shard in shards for request in shard.workload.requests(shard.requests, 0)]
    assert sorted(found, key=lambda each: each.index) == _Long().requests(62, 1)[2:]


def test_many_workers_have_smaller_blocks(plan):
    made = Deal(plan(200, load=ClosedLoop(20), workload=_Long()), 20, all_blocks_bytes=60_000)
    assert max(len(block.frames) for _, block in made.blocks()) == 3000


def test_dealing_ends_when_it_is_no_longer_wanted(plan):
    asked = iter([True, True, False])
    assert list(Deal(plan(10**6, workload=_Endless()), 1).blocks(lambda: next(asked))) == []


class _Endless(StreamedWorkload):
    """Requests of a kibibyte that are drawn one after the other, and counted."""

    name = "endless"

    def __init__(self) -> None:
        self.drawn = 0

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        for index in count():
            self.drawn += 1
            yield PlannedRequest(index, 8, 1, text="y" * 1024)

    def specification(self) -> dict[str, Any]:
        return {}


def test_no_more_is_drawn_than_is_handed_out(plan):
    workload = _Endless()
    blocks = Deal(plan(10**6, workload=workload), 1).blocks()
    for number in range(1, 40):
        next(blocks)
        assert workload.drawn <= 64 * number + AT_ONCE


def test_a_sequence_that_ends_too_early_is_told(plan):
    @dataclass(frozen=True)
    class Short(TextWorkload):
        def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
            return super().requests(min(count, 5), seed)

    with pytest.raises(SuiteError, match=r"workload 'texts': gives 5 requests where 9 are wanted"):
        list(Deal(plan(9, workload=Short()), 2).blocks())


def test_a_share_that_has_not_arrived_whole_is_refused(plan, tmp_path):
    made = Deal(plan(9), 1)
    ((_, block),) = made.blocks()
    workload = made.plans()[0].workload
    assert isinstance(workload, DealtWorkload)
    supply = Supply(tmp_path)
    supply.add(block.frames[:-1], block.instants)
    with pytest.raises(
        GeneratorError, match=f"of {workload.size} bytes of requests {workload.size - 1} have"
    ):
        workload.stocked(supply)
    supply.close()


def test_a_share_beyond_memory_lies_in_a_file_without_a_name(tmp_path):
    supply = Supply(tmp_path, memory_bytes=10_000)
    given = _Long().requests(20, 1)
    for each in given:
        supply.add(packed(each), array("q", [each.index]).tobytes())
    assert supply._frames._rolled  # type: ignore[attr-defined]
    assert not supply._instants._rolled  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        assert list(supply.requests(20)) == given
        assert list(supply.instants_ns(20)) == list(range(20))
    supply.close()


def test_a_disk_that_is_full_is_told_before_the_load(tmp_path):
    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None: ...

    supply = Supply(tmp_path)
    supply._frames.close()
    supply._frames = Full()  # type: ignore[assignment]
    supply.add(b"12345", b"")
    supply.add(b"12345", b"")
    with pytest.raises(StoreError, match=r"(?s)No space left.*TMPDIR"):
        supply.check(10)
    supply.close()


SESSIONS = SessionWorkload("talks", Uniform(1, 6), Fixed(9), Fixed(4), Uniform(10, 90), system_tokens=5)


@pytest.mark.parametrize("load", [SessionStarts(3.0), SessionSlots(4)], ids=["open", "closed"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_session_stays_on_its_worker(deal, plan, load, workers):
    first, count = turns_of(SESSIONS, 2, 7), turns_of(SESSIONS, 20, 7, first=2)
    whole = plan(count, workload=SESSIONS, load=load, seed=7, first=first)
    shards = deal(whole, workers)
    starts = schedule_ns(OpenLoop(3.0), 22, arrival_seed(7))
    seen: dict[int, int] = {}
    for number, shard in enumerate(shards):
        assert isinstance(shard.workload, DealtWorkload)
        requests = list(shard.workload.stream(shard.requests))
        assert len(requests) == shard.requests
        sessions = list(sessions_of(requests))
        numbers = [turn_of(session[0]).session for session in sessions]
        assert all(len(session) == turn_of(session[0]).turns for session in sessions)
        assert not set(numbers) & set(seen)
        seen |= dict.fromkeys(numbers, number)
        if isinstance(load, OpenLoop) and load.of_sessions:
            assert instants_ns(shard) == [int(starts[session] - starts[1]) for session in numbers]
            assert shard.load == SessionStarts(3.0 / workers, "trace")
        else:
            assert shard.load == SessionSlots(split(4, workers)[number])
            assert {(session - 2) % 4 % workers for session in numbers} <= {number}
    assert sorted(seen) == list(range(2, 22))
    assert sum(shard.requests for shard in shards) == count


@pytest.mark.parametrize("workers", [1, 3])
def test_sessions_of_a_trace_are_dealt_with_their_own_instants(deal, plan, workers):
    turns = (TracedTurn(9, 4, hash_ids=(1,)), TracedTurn(9, 4, (1,), 3.5, (1,)))
    workload = TraceSessionWorkload(
        "recorded",
        tuple(TracedSession(turns[: 1 + number % 2], 10.0 * number**2) for number in range(8)),
        DatasetIdentity("made up", "1", "all"),
    )
    load = SessionStarts(20.0, "trace", offsets_ns=workload.offsets_ns)
    shards = deal(plan(turns_of(workload, 8, 7), workload=workload, load=load, seed=7), workers)
    dealt: dict[int, tuple[int, int]] = {}
    for shard in shards:
        assert isinstance(shard.workload, DealtWorkload)
        assert shard.load == SessionStarts(20.0 / workers, "trace")
        sessions = list(sessions_of(shard.workload.stream(shard.requests)))
        for session, start_ns in zip(sessions, instants_ns(shard), strict=True):
            dealt[turn_of(session[0]).session] = start_ns, turn_of(session[-1]).pause_ns
    assert dealt == {n: (10_000_000 * n**2, 3_500_000 * (n % 2)) for n in range(8)}


def test_a_session_is_dealt_with_its_turns_and_its_whole_context(deal, plan):
    (shard,) = deal(plan(12, workload=SESSIONS, load=SessionSlots(2), seed=7), 1)
    assert isinstance(shard.workload, DealtWorkload)
    for dealt, drawn in zip(shard.workload.stream(12), SESSIONS.requests(12, 7), strict=True):
        assert replace(dealt, token_ids=()) == replace(drawn, token_ids=())
        assert list(dealt.token_ids or ()) == list(drawn.token_ids or ())
