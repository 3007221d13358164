"""The sentences of notes, and of parts of sentences, by id."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.model.wording import Sentence

_LOOKED = (
    " (look {look}; limits are judged on the first {judged} requests[ behind the first wave of {slots}] at "
    "the level of this look, {level}, so that all looks together are wrong no more often than one interval "
    "of {usual}; the other figures are of all {figures_of} requests[ behind the first wave of {slots}])"
)

_OF_LOADS = {
    "beyond_generator": Sentence(
        "{level} is beyond this generator, so it says nothing about the system: {causes:;}"
    ),
    "measured_again": Sentence(
        "{level}: attempt {attempt} was void for a cause on this machine, and was measured again ({causes:;})"
    ),
    "shared_levels": Sentence("{count} of {levels} levels were measured by {tests} and are used here too"),
    "cut_short": Sentence("cut short: what was measured until then is kept in the records"),
    "without_looks": Sentence(
        "requests='auto' does not end a load early here: it does at --llm-scale=standard, in a single run; "
        "runs that are compared are of one length"
    ),
    "failures_over_limit": Sentence(
        "failed requests count as slower than the limit in what is judged, and not in the other figures"
    ),
    "looked.budget_spent": Sentence(
        "ended after {sent} of at most {most} requests: the error budget is spent" + _LOOKED
    ),
    "looked.decided": Sentence("decided after {judged} of at most {most} requests: {saved} saved" + _LOOKED),
    "looked.whole": Sentence(
        "[decided!not ]decided by the whole load of {sent} requests, of at most {most}" + _LOOKED
    ),
    "profiled": Sentence(
        "profiled under {requests} further requests like those of {load}, {duration}: no figure and no "
        "verdict rests on them[; files: {files}][ and {more} more][; no file matches {pattern} "
        "(profile.files)]"
    ),
    "not_profiled": Sentence("not profiled: {why}"),
    "profiler_left_on": Sentence("the profiler may still be on: {why}"),
    "no_figure_per_token": Sentence("there is no figure per token: {why}"),
    "spoiled_probes": Sentence(
        "this machine spoiled the probes of {spoiled} of {runs} runs: they are left out"
    ),
    "probes_cut_off": Sentence("{cut} of {probes} probes were cut off: they have no slowdown"),
}

_OF_SEARCHES = {
    "not_even_one": Sentence(
        "not even one [sessions?session][sessions!request] at a time meets the criteria"
    ),
    "bound_reached": Sentence(
        "bound reached: {passed} [sessions?sessions][sessions!requests in flight] meet the criteria; "
        "[quick?a quick run goes no further][quick!raise maximum to find the limit]"
    ),
    "lowest_does_not_hold": Sentence(
        "already the lowest level ({level}) does not hold: there is nothing to search"
    ),
    "too_few_to_say": Sentence("too few requests were measured to say of any level whether it holds"),
    "range_ended": Sentence(
        "the range ended before saturation, what was found is a lower bound: the highest level ({level}) "
        "still [gains?gains][gains!holds]: raise the maximum, or leave it out"
    ),
    "generator_limit": Sentence("the generator cannot offer {rate}: the rate found is a lower bound"),
    "none_held": Sentence(
        "no level held for {duration} in {runs} runs, lower each time: nothing is reported"
    ),
    "did_not_hold": Sentence(
        "{level} did not hold for {duration} ([{reasons:;}][unsteady?throughput not level across the window]"
        "[missed?an objective was not met])"
    ),
    "did_not_hold_again": Sentence("run {run} of {runs} at {at} did not hold as the first one did"),
    "no_lower_level": Sentence("no lower level to compare with"),
    "lowest_without_ttft": Sentence("the lowest level has no TTFT"),
    "tenfold_off": Sentence(
        "the ten-fold rule is off: at the lowest level TTFT P99 is already {times} times P50"
    ),
    "no_jobs": Sentence("not even {lowest} jobs per hour keep the limits: {reasons:;}"),
    "more_jobs_may": Sentence("{passed} jobs per hour keep the limits, and more may: {why}"),
}

_OF_TESTS = {
    "machine_of_replay": Sentence(
        "a replay has no machine, so the table telemetry of the SUT file has no effect: with idle_w it tells "
        "that of its model"
    ),
    "outside_draft": Sentence("{test} is not part of the draft: there are no clauses to comply with"),
    "held_back": Sentence(
        "At most {cap} were in flight: {held} of {sent} requests waited for a place, the longest for "
        "{longest}. Latencies run from the send"
    ),
    "most_requests": Sentence("Maximum concurrent requests meeting criteria: [{most}][most!none]"),
    "most_sessions": Sentence("Maximum sessions at once meeting criteria: [{most}][most!none]"),
    "capacity_of_sessions": Sentence(
        "the workload is of sessions: a level keeps sessions going at once, turns pause, and their recorded "
        "answers settle the output limits; the draft's test is of requests"
    ),
    "no_threshold": Sentence(
        "no TTFT threshold was chosen: completion and out-of-memory errors alone decide. The draft wants one "
        "(ttft_p99_ms)"
    ),
    "realised_lengths": Sentence(
        "output tokens of the replies: P5 {low}, P95 {high}; the limit of every request is {asked}"
    ),
    "without_job_time": Sentence(
        "{cut} of {sessions} sessions were cut off: they have no job time, and are not good"
    ),
    "no_cold_run": Sentence(
        "no cold run: the cache of variant {variant} cannot be emptied; declare a reset call or a launch "
        "command for it"
    ),
    "no_cold_run.sessions": Sentence(
        "no cold run: the sessions share no beginning, so there is nothing to fill the cache with ahead of "
        "them, and the warm run is the one that begins with an empty cache"
    ),
    "cache_filled": Sentence("the cache was filled with {prefixes} shared prefixes before the warm run"),
    "prefix_cache_of_sessions": Sentence(
        "the workload is of sessions: turns wait for one another, so each run has instants of its own, and "
        "what a turn shares is its own history; the draft's test is of requests"
    ),
    "memory_of_idle_sessions": Sentence(
        "the workload is of sessions: a level keeps so many going at once, and their contexts stay or go "
        "while turns pause; the draft's test is of requests in flight"
    ),
    "stopped_after": Sentence("the test stopped after {level}: {why}"),
    "no_capacity_to_exceed": Sentence("no concurrency met the criteria, so there is no capacity to exceed"),
    "criterion_of_search": Sentence(
        "criterion of the search: TTFT P99 at most {threshold}, {times_p50} times the P50 ({p50}) or "
        "{times_p99} times the P99 ({p99}) of one request at a time; choose another with ttft_p99_ms"
    ),
    "level_out_of_memory": Sentence("{level}: {errors} out-of-memory errors"),
    "level_timeouts": Sentence(
        "{level}: {count} requests were given up by the load generator's own deadline, which says nothing of "
        "the memory"
    ),
    "level_stopped": Sentence("{level}: ended early, {why}"),
    "engine_restarted": Sentence("{level}: the engine's counters fell: it was restarted"),
    "no_sustained_load.levels": Sentence(
        "no load was found that the SUT sustains: there is no level to take a percentage of"
    ),
    "no_sustained_load.mix": Sentence("no load was found that the SUT sustains: there is nothing to mix at"),
    "percentages_of": Sentence("levels are percentages of {rate}, {source}"),
    "short_replies_left_out": Sentence(
        "at {level}: {excluded} of {replies} replies ended before 50 output tokens and are left out"
    ),
    "saturated_at": Sentence("the SUT was saturated at {level}: {reasons:;}"),
    "zero_gaps_left_out": Sentence("at {level}: {gaps} gaps of no length are left out of the shape"),
    "itl_method": Sentence("tokens are timed by method {option} ({reason}): {handling}"),
    "figures_between_chunks": Sentence("every figure is a {figure}"),
    "several_tokens": Sentence("up to {share} of the chunks hold several tokens, taken as by option B"),
    "other_method": Sentence("the streams at {level} would by themselves have called for method {option}"),
    "no_capacity_for_levels": Sentence("no capacity was found, so there are no levels to take a share of it"),
    "levels_added": Sentence("nothing was saturated up to {highest}: levels were added up to {last}"),
    "nothing_saturated": Sentence(
        "no level was saturated: [generator?the generator offers no more]"
        "[generator!the capacity was estimated too low]"
    ),
    "noncontent_first": Sentence(
        "{share} of the requests sent non-content output before the first content token; TTFT runs to the "
        "first content token, ttft_any to the first output of any kind"
    ),
    "waited_in_generator": Sentence(
        "from the scheduled arrival TTFT P99 is {scheduled}, {more} more than from submission: requests "
        "waited in the generator"
    ),
    "no_components": Sentence("queue wait and prefill latency: not measurable, the server reports neither"),
    "components_of_page": Sentence(
        "components of TTFT: the replies do not state them, so there are no percentiles; the means are from "
        "the engine's metrics page, which counts every request that it served meanwhile"
    ),
    "reasoning_tokens": Sentence("{share} of the output tokens are reasoning, which is no content for TTFT"),
    "no_content_token": Sentence("no request produced a content token: there is no TTFT to report"),
    "unfair": Sentence("Jain's index {index} is below {limit}: significant unfairness (5.6.4)"),
    "mix_at": Sentence("the mix is at {percent} of {rate}, {source}"),
    "classes_alone": Sentence("each class alone: {rule}"),
    "starved": Sentence(
        "starved is who waits longer than five times the median wait of the class; the wait is the {wait}"
        "[by_ttft?, since the server does not tell its queue]"
    ),
    "fairness_of_sessions": Sentence(
        "the workload is of sessions: {at_once} at once, in the mix and of each class alone; the draft's "
        "test is of requests"
    ),
    "starved_session": Sentence(
        "starved is a session one of whose turns waits longer than five times the median wait of its class; "
        "the wait is the {wait}"
    ),
    "ended_as_void": Sentence("the test ended there, as nothing that comes could make it valid: {why}"),
    "no_capacity_of_baseline": Sentence(
        "the capacity of the baseline was not found, so no level could be set"
    ),
    "no_single_filters": Sentence("the single filters were not run: {why}"),
    "refused": Sentence("{configuration} at {level}: {count} requests were refused ({share})"),
    "tenfold_off_for_all": Sentence(
        "the ten-fold rule is off in the throughput searches of all configurations, and queue and "
        "completions decide: a filter breaks it at its lowest load ({why:;})"
    ),
    "maximum_is_bound": Sentence("the maximum throughput of {configuration} is a lower bound: {why}"),
    "best_fit": Sentence("best fit: {fit}"),
    "context_not_known": Sentence(
        "the model's context limit is not known (sut.context_limit_tokens): lengths were tried in ascending "
        "order until one was refused"
    ),
    "lengths_left_out": Sentence(
        "left out, since they do not fit a context of {context} tokens with the output: {lengths}"
    ),
    "length_refused": Sentence(
        "the server refused prompts of {length} tokens ([{error}][error!no reason given])"
        "[; not tried: {untried}]"
    ),
    "no_fit": Sentence("no fit: fewer than {fewest} lengths were measured"),
    "maximum_by_objectives": Sentence(
        "the maximum is what the objectives allow, {allowed}; by the ten-fold rule (TTFT P99 at most ten "
        "times the P50 of the lowest level) it would be [{tenfold}][tenfold!no load]"
    ),
    "no_end_of_thinking": Sentence(
        "no reply had an end of thinking: TTOT is not measurable. The model may not reason, the server may "
        "not stream it, or it stands between tags that the replies do not begin with: reasoning.tags in the "
        "SUT file declares them"
    ),
    "merged_end_of_thinking": Sentence(
        "in {replies} replies one chunk or one read brought the last thought and the first visible content: "
        "their TTOT counts from the output before it, the longest it can have been"
    ),
    "reasoning_alone": Sentence(
        "{replies} replies held reasoning and no visible content: they failed. Larger output limits leave "
        "room for an answer"
    ),
    "output_gaps_between_chunks": Sentence(
        "chunks hold several tokens or unknown numbers: output-phase gaps are between chunks"
    ),
    "undefined_metric": Sentence("{metric}: {why}"),
}

_OF_SESSIONS = {
    "budget_of_limits": Sentence("budget of {time}: the test ends when its limits are decided"),
    "budget_of_changes": Sentence(
        "budget of {time}: the test finds in 90 of 100 sessions a worsening of {found}"
        "[, noise between runs assumed to be {assumed}]"
    ),
    "nothing_saved_yet": Sentence("nothing to compare with yet: this session saves the baseline"),
    "a_and_b": Sentence(
        "A/B: {runs} runs of each arm in randomised pairs, baseline {baseline}[; its records are in "
        "{records}]"
    ),
    "not_split": Sentence("what the change is made of is not known: {why}"),
    "arms_apart.own_words": Sentence(
        "the arms are one server: each has words of its own, of the same lengths"
    ),
    "arms_apart.salted": Sentence("the arms are one server: every prompt begins with a salt of its arm"),
    "arms_not_apart": Sentence(
        "the arms are one server and its prompts could not be salted, since the workload {why}: switch "
        "prefix caching off, or the later arm finds what the earlier one left"
    ),
    "first_of_runs": Sentence(
        "metrics, tables and limits are those of the first of {runs} runs; comparisons rest on all of them"
    ),
    "systems_compared": Sentence(
        "{count} systems ({systems}), {runs} runs of each with a warm-up of its own, in drawn order"
    ),
    "real_differences": Sentence(
        "the intervals of {real} of {differences} differences exclude zero, at 95 % each; by chance alone "
        "about one in twenty would. Whether a difference matters is its verdict"
    ),
    "calibration_saved": Sentence("calibration of {runs} runs saved: {path}"),
    "calibration_not_saved": Sentence(
        "[runs!no calibration is saved][calibration of {runs} runs NOT saved: {error}]"
    ),
    "limits_written": Sentence(
        "limits written to {path}: {metrics}[left?; none for {left}: it was 0 or unknown in these runs]"
    ),
    "limits_not_written": Sentence("limits NOT written to {path}: {error}"),
    "limits_not_judged": Sentence("limits are not judged while calibrating"),
    "proposed_of_samples": Sentence(
        "a proposed limit allows for the noise between runs; one run of this load is a sample, whose "
        "interval may be wider: more requests decide it"
    ),
    "calibration_of_another": Sentence(
        "the calibration of {saved} is of another thing: {differences:;} ({path})"
    ),
    "calibrated": Sentence("calibrated on {saved} with {runs} runs ({path})"),
    "no_results_of_test": Sentence("{file} has no results of this test: nothing is compared"),
    "compared_with_baseline": Sentence("compared with the baseline {baseline}, {runs} runs"),
    "no_such_metric": Sentence("{limit}: {metric} is no metric of this test"),
    "beside_baseline": Sentence("beside the baseline: {difference}"),
    "compared_with_sessions": Sentence(
        "compared with the last {count} sessions of {baseline}, by the spread between sessions"
    ),
    "sessions_left_out": Sentence(
        "{count} sessions of {baseline} are no part of what is compared with: {why}"
    ),
    "level_accepted": Sentence("the level was accepted anew: {reason}"),
    "fewer_sessions": Sentence(
        "{metric} is compared with {count} of them: its level changed before, or the others are far from all"
    ),
    "made_unknown": Sentence(
        "the baseline does not tell how its metrics were made (warm-up, method of ITL, who counted tokens), "
        "so it is taken to be alike: save it again"
    ),
    "other_lengths": Sentence(
        "the baseline had other lengths of prompts and replies, whose noise is in the interval: save it "
        "again, and it will be narrower"
    ),
    "days_assumed_alike": Sentence(
        "days are assumed to be alike, as runs of one session know nothing of others: save {more} more under "
        "{baseline} and compare with that name, or compare both builds in one session "
        "(--llm-baseline-endpoint)"
    ),
    "model_not_listed": Sentence(
        "the endpoint's list of models does not hold {model}, which answers all the same"
    ),
    "fields_refused": Sentence(
        "the endpoint refuses {fields}, so requests go without[, and with {sent} as the limit]"
        "[temperature?; the temperature is the model's own]"
    ),
    "api_found": Sentence(
        "the endpoint is asked by {api}, which --llm-api=auto found; --llm-api=NAME chooses another"
    ),
    "workers_of_replay": Sentence(
        "--llm-workers {workers} has no effect on a replay: in virtual time nothing is sent"
    ),
    "workers_none": Sentence(
        "the load was measured within pytest's own process (--llm-workers 0): its plugins, coverage, the "
        "suite's threads and garbage share a core with the measuring loop"
    ),
    "workers_share_cores": Sentence(
        "{workers} worker processes share {cores} core[several?s]: they delay one another and what else runs "
        "on this host, see send lag and loop lag in the self-check"
    ),
    "in_process": Sentence(
        "called within pytest's own process: no network and no server are part of what was measured, and "
        "what the callable computes shares an interpreter, an event loop and a core with the load generator"
    ),
    "replay": Sentence(
        "replay: preset {preset}[, {behind},] in virtual time. Nothing was sent and no time passed; client "
        "and network are constants ({there} to the engine, {back} back)"
    ),
    "slow_disk": Sentence(
        "the disk under {file} could not keep up with the records, and what collects them waited {waited} "
        "for it; none is lost"
    ),
}

_PARTS = {
    "as_told": Sentence("{text}"),
    "contradicted": Sentence(
        "{fact} is declared to be {declared}, and [observed!nothing][{observed}] was observed"
    ),
    "counted": Sentence("[name!the one asked for, or none][{name}]: {count}"),
    "counted_length": Sentence("{length} (counted {counted})"),
    "differing": Sentence("{fact} is {values}"),
    "faster_with_more": Sentence("end-to-end latency at P50 changes by {change} with {variant}"),
    "free_cpu": Sentence("free its CPU"),
    "gained_throughput": Sentence("{metric} is {reduction}"),
    "kv_use": Sentence("KV cache use up to {most}"),
    "named_reasons": Sentence("{name}: {reasons:;}"),
    "has_no_results": Sentence("{file} has no results of this test"),
    "lower_load": Sentence("lower the load or give more --llm-workers"),
    "memory_at": Sentence("{level}: {signs}"),
    "memory_of_sessions": Sentence("{sessions}: hit rate of returning turns {hit_rate}[, {signs}]"),
    "out_of_memory": Sentence("{count} out-of-memory errors"),
    "outcome": Sentence("{count} {name}"),
    "not_decided_in_time": Sentence("{metric} is not decided in this time"),
    "output_beyond": Sentence("{count} of {replies} replies are longer than max_tokens"),
    "output_limited": Sentence("{count} of {replies} replies ended at a limit below max_tokens"),
    "output_short": Sentence(
        "{count} of {replies} replies ended before max_tokens, although ignore_eos was asked for"
    ),
    "preemptions": Sentence("{count} preemptions"),
    "queued": Sentence("requests waited for it in {count} of {readings} readings"),
    "unlike_gaps": Sentence("the usual gap between chunks of full is {times} times that of baseline"),
    "unlike_prefill": Sentence(
        "prompts that {variant} did not help have {times} times the TTFT that they have without it"
    ),
    "unlike_steps": Sentence("a decoding step of {variant} takes {times} times as long as without it"),
    "worsening_of": Sentence("{share} in {metric}"),
}

NOTES: Mapping[str, Sentence] = MappingProxyType(
    {**_OF_LOADS, **_OF_SEARCHES, **_OF_TESTS, **_OF_SESSIONS, **_PARTS}
)
