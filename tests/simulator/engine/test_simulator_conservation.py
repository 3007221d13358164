"""What holds in every scenario: nothing is lost, given twice or kept for ever, whatever is switched on.

Prompts are cut from a few texts, so that they share prefixes; memory is short, so that sequences are
preempted.
"""

from __future__ import annotations

from engine_runs import Run, config, drive
from hypothesis import event, given, settings
from hypothesis import strategies as st

from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.scheduling import StepResult
from pytest_llmbench.simulator.engine.sequence import EngineSequence

CONTEXT = 64
TEXTS = [range(100), range(1000, 1100), [*range(20), *range(2000, 2080)]]

options = st.fixed_dictionaries(
    {
        "kv_block_tokens": st.integers(1, 9),
        "prefix_caching": st.sampled_from(["on", "off"]),
        "preemption_victim": st.sampled_from(["latest", "lowest_priority", "largest", "smallest"]),
        "max_num_seqs": st.integers(2, 12),
        "eos_mean_tokens": st.sampled_from(["none", "none", 1, 9]),
        "chunked_prefill": st.sampled_from(["on", "off"]),
        "seed": st.integers(0, 5),
    },
    optional={
        "think_mean_tokens": st.integers(1, 30),
        "attention_ns_per_pair": st.just(3),
    },
)
schedulers = st.one_of(
    st.fixed_dictionaries({"scheduler": st.sampled_from(["fcfs", "priority", "shortest"])}),
    st.fixed_dictionaries(
        {
            "scheduler": st.just("phase"),
            "max_think_seqs": st.integers(1, 4),
            "output_kv_share": st.sampled_from([0, 0.2, 0.4]),
        }
    ),
)
filters = st.sampled_from([{}, {"output_filter": "enabled", "output_refusal_share": 0.5}])
loads = st.lists(
    st.tuples(
        st.integers(0, 8_000_000),
        st.integers(1, 40),
        st.integers(1, 24),
        st.integers(0, 2),
        st.integers(0, 3),
        st.booleans(),
    ),
    min_size=6,
    max_size=24,
)
spare_blocks = st.integers(0, 12)
budgets = st.integers(0, 40)


def scenario(figures: dict[str, object], spare: int, budget: int, **rest: object) -> EngineConfig:
    block = figures["kv_block_tokens"]
    assert isinstance(block, int)
    needed = -(-CONTEXT // block)
    share = rest.get("output_kv_share", 0)
    assert isinstance(share, int | float)
    blocks = int((needed + 1) / (1 - share)) + 1 + spare
    least = CONTEXT if figures["chunked_prefill"] == "off" else 12
    return config(
        **figures,
        kv_blocks=blocks,
        context_limit_tokens=CONTEXT,
        max_num_batched_tokens=least + budget,
        **rest,
    )


Load = list[tuple[int, int, int, int, int, bool]]


def arrivals_of(load: Load) -> list[tuple[int, EngineSequence]]:
    arrivals = []
    for number, (at_ns, prompt, output, priority, text, thinks) in enumerate(sorted(load)):
        known = TEXTS[text][:prompt] if text < len(TEXTS) else None
        sequence = EngineSequence(
            str(number), prompt, output, priority=priority, thinks=thinks, token_ids=known
        )
        arrivals.append((at_ns, sequence))
    return arrivals


def check_tokens(run: Run, sequences: list[EngineSequence]) -> None:
    """Each sequence gives its tokens once, in order, in the steps that its spans say."""
    ends = {step.index: ns for step, ns in zip(run.steps, run.step_ends_ns, strict=True)}
    for sequence in sequences:
        times = run.token_ns[sequence]
        assert times == [ends[step] for span in sequence.spans for step in span]
        assert times == sorted(set(times))
        assert len(times) <= sequence.output_tokens <= sequence.max_tokens


def check_blocks_free(engine: Engine) -> None:
    """Nothing is held, no reference is left, and one sequence that fills the context finds all its blocks."""
    assert engine.idle
    assert engine.kv_usage == 0
    before = engine.totals.preemptions, engine.totals.failed
    probe = EngineSequence("probe", CONTEXT - 8, 8, ignore_eos=True)
    run = drive(engine, [(0, probe)])
    assert run.finished == [probe]
    assert (engine.totals.preemptions, engine.totals.failed) == before
    assert engine.kv_usage == 0


@given(figures=options, order=schedulers, spare=spare_blocks, budget=budgets, load=loads, swap=st.booleans())
@settings(max_examples=200)
def test_with_preemption_every_sequence_gives_all_its_tokens(
    figures: dict[str, object],
    order: dict[str, object],
    spare: int,
    budget: int,
    load: Load,
    swap: bool,
) -> None:
    engine = Engine(scenario(figures, spare, budget, preemption="swap" if swap else "recompute", **order))
    arrivals = arrivals_of(load)
    sequences = [sequence for _, sequence in arrivals]
    run = drive(engine, arrivals)

    event("preempted" if run.preempted else "not preempted")
    assert sorted(run.finished, key=id) == sorted(sequences, key=id)
    assert all(len(run.token_ns[sequence]) == sequence.output_tokens for sequence in sequences)
    check_tokens(run, sequences)
    assert not any(step.preempted and (step.admitted or step.resumed) for step in run.steps)
    for sequence in sequences:
        events = [each for each in run.preempted if each.sequence is sequence]
        assert sequence.preemptions == len(events)
        assert sequence.lost_tokens == sum(each.lost_tokens for each in events)
        assert 0 <= sequence.cached_tokens < sequence.prompt_tokens
    check_work(engine, run, sequences, swap)
    check_answers(run, sequences)
    check_blocks_free(engine)


@given(figures=options, order=schedulers, spare=spare_blocks, load=loads, stage=filters)
@settings(max_examples=40)
def test_the_same_submissions_give_the_same_steps(
    figures: dict[str, object], order: dict[str, object], spare: int, load: Load, stage: dict[str, object]
) -> None:
    def steps() -> list[tuple[int, int, list[str], list[str]]]:
        run = drive(Engine(scenario(figures, spare, 20, **order, **stage)), arrivals_of(load))
        return [
            (
                step.duration_ns,
                step.kv_tokens,
                [sequence.request_id for sequence in step.first_tokens + step.decoded],
                [each.sequence.request_id for each in step.preempted],
            )
            for step in run.steps
        ]

    assert steps() == steps()


def check_work(engine: Engine, run: Run, sequences: list[EngineSequence], swap: bool) -> None:
    """Tokens computed = tokens that came in and were not cached + tokens lost and not found again.

    One that is recomputed takes the step of its next token as prefill: one token more per further span.
    """
    came_in = sum(sequence.prompt_tokens - sequence.cached_tokens for sequence in sequences)
    lost = sum(sequence.lost_tokens for sequence in sequences) - engine.totals.resume_hit_tokens
    taken_over = 0 if swap else sum(len(sequence.spans) - 1 for sequence in sequences)
    assert sum(step.prefill_tokens for step in run.steps) == came_in + lost + taken_over
    assert engine.totals.lost_tokens == sum(sequence.lost_tokens for sequence in sequences)


def check_answers(run: Run, sequences: list[EngineSequence]) -> None:
    """Each sequence that gets past its thoughts announces its answer once, in the step of that token."""
    announced = {sequence: [] for sequence in sequences}
    for step in run.steps:
        for sequence in step.answering:
            announced[sequence].append(step.index)
    for sequence in sequences:
        steps = [step for span in sequence.spans for step in span]
        assert announced[sequence] == steps[sequence.think_tokens : sequence.think_tokens + 1]


@given(
    figures=options,
    order=schedulers,
    spare=spare_blocks,
    budget=budgets,
    load=loads,
    fails=st.sampled_from(["sequence", "engine"]),
    stage=filters,
)
@settings(max_examples=120)
def test_without_preemption_every_sequence_ends_or_fails(
    figures: dict[str, object],
    order: dict[str, object],
    spare: int,
    budget: int,
    load: Load,
    fails: str,
    stage: dict[str, object],
) -> None:
    engine = Engine(scenario(figures, spare, budget, preemption="off", out_of_memory=fails, **order, **stage))
    arrivals = arrivals_of(load)
    sequences = [sequence for _, sequence in arrivals]
    run = drive(engine, arrivals)

    event("failed" if run.failed else "not failed")
    assert sorted(run.finished + run.failed, key=id) == sorted(sequences, key=id)
    assert all(sequence.finish_reason == "error" for sequence in run.failed)
    assert all(len(run.token_ns[sequence]) == sequence.output_tokens for sequence in run.finished)
    assert all(len(run.token_ns[sequence]) < sequence.output_tokens for sequence in run.failed)
    check_tokens(run, sequences)
    check_blocks_free(engine)


@given(
    figures=options,
    order=schedulers,
    spare=spare_blocks,
    budget=budgets,
    load=loads,
    swap=st.booleans(),
    cuts=st.lists(st.integers(0, 29), max_size=20),
)
@settings(max_examples=120)
def test_blocks_are_counted_rightly_at_every_step_and_whoever_gives_up(
    figures: dict[str, object],
    order: dict[str, object],
    spare: int,
    budget: int,
    load: Load,
    swap: bool,
    cuts: list[int],
) -> None:
    """Without a prefix cache the blocks held are the sum of what each sequence of the batch needs."""
    engine = Engine(
        scenario(
            {**figures, "prefix_caching": "off"},
            spare,
            budget,
            preemption="swap" if swap else "recompute",
            **order,
        )
    )
    sequences = [sequence for _, sequence in arrivals_of(load)]
    for sequence in sequences:
        engine.submit(sequence)
    batch: dict[EngineSequence, None] = {}
    while not engine.idle:
        step = engine.step()
        follow(batch, step)
        assert len(batch) == engine.running <= engine.config.max_num_seqs
        assert round(engine.kv_usage * engine.config.kv_blocks) == blocks_needed(engine, batch)
        if cuts:
            victim = sequences[cuts.pop() % len(sequences)]
            engine.abort(victim)
            batch.pop(victim, None)
    check_blocks_free(engine)


def follow(batch: dict[EngineSequence, None], step: StepResult) -> None:
    for each in step.preempted:
        del batch[each.sequence]
    batch.update(dict.fromkeys([*step.admitted, *step.resumed]))
    for sequence in step.finished:
        del batch[sequence]


def blocks_needed(engine: Engine, batch: dict[EngineSequence, None]) -> int:
    block, total = engine.config.kv_block_tokens, 0
    for sequence in batch:
        if sequence.span_start < 0:
            tokens = sequence.prompt_tokens + sequence.given_before
        else:
            given = engine.next_step - sequence.span_start + sequence.given_before
            tokens = sequence.prompt_tokens + given - 1
        total += -(-tokens // block)
    return total
