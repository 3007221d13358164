"""The sentences of notes, and of parts of sentences, by id."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.model.wording import Sentence

_LOOKED = (
    " (look {look}; limits are judged on the first {judged} requests[ after the first wave of {slots}] at "
    "{level}, the level of this look, so that all looks together are wrong no more often than one interval "
    "of {usual}; the other figures use all {figures_of} requests[ after the first wave of {slots}])"
)

_OF_LOADS = {
    "beyond_generator": Sentence(
        "{level} is beyond this generator, so it says nothing about the system: {causes:;}"
    ),
    "measured_again": Sentence(
        "{level}: attempt {attempt} was void because of this machine, and was measured again ({causes:;})"
    ),
    "shared_levels": Sentence("{count} of {levels} levels were measured by {tests} and are used here too"),
    "cut_short": Sentence("cut short: what was measured until then is kept in the records"),
    "without_looks": Sentence(
        "requests='auto' does not end a load early here: it does at --llm-scale=standard, in a single run; "
        "compared runs have equal lengths"
    ),
    "failures_over_limit": Sentence(
        "limits count failed requests as slower than the limit; the other figures leave them out"
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
        "verdict uses them[; files: {files}][ and {more} more][; no file matches {pattern} "
        "(profile.files)]"
    ),
    "not_profiled": Sentence("not profiled: {why}"),
    "profiler_left_on": Sentence("the profiler may still be on: {why}"),
    "no_figure_per_token": Sentence("no figures per token: {why}"),
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
        "[quick?a quick run stops there][quick!raise maximum to find the limit]"
    ),
    "lowest_does_not_hold": Sentence("even the lowest level ({level}) does not hold, so the search ends"),
    "too_few_to_say": Sentence("too few requests were measured to decide whether any level holds"),
    "range_ended": Sentence(
        "the range ended before saturation, so the result is a lower bound: the highest level ({level}) "
        "still [gains?gains][gains!holds]; raise the maximum, or omit it"
    ),
    "generator_limit": Sentence("the generator cannot offer {rate}: the rate found is a lower bound"),
    "none_held": Sentence(
        "no level held for {duration} in {runs} runs, each lower than the one before: nothing is reported"
    ),
    "did_not_hold": Sentence(
        "{level} did not hold for {duration} ([{reasons:;}][unsteady?throughput not level across the window]"
        "[missed?an objective was not met])"
    ),
    "did_not_hold_again": Sentence("run {run} of {runs} at {at} did not hold, although the first one did"),
    "no_lower_level": Sentence("no lower level to compare with"),
    "lowest_without_ttft": Sentence("the lowest level has no TTFT"),
    "tenfold_off": Sentence(
        "the ten-fold rule is off: at the lowest level TTFT P99 is already {times} times P50"
    ),
    "no_jobs": Sentence("even {lowest} jobs per hour miss the limits: {reasons:;}"),
    "more_jobs_may": Sentence("{passed} jobs per hour keep the limits, and more may: {why}"),
}

_OF_TESTS = {
    "machine_of_replay": Sentence(
        "a replay has no machine, so the table telemetry of the SUT file has no effect: with idle_w the "
        "replay reports the power of its model"
    ),
    "outside_draft": Sentence("{test} is not part of the draft, so no clause applies"),
    "held_back": Sentence(
        "At most {cap} were in flight: {held} of {sent} requests waited for a slot, the longest for "
        "{longest}. Latencies start at the send"
    ),
    "most_requests": Sentence("Maximum concurrent requests meeting criteria: [{most}][most!none]"),
    "most_sessions": Sentence("Maximum sessions at once meeting criteria: [{most}][most!none]"),
    "capacity_of_sessions": Sentence(
        "the workload has sessions: a level is a number of concurrent sessions, turns pause, and their "
        "recorded answers set the output limits; the draft's test uses requests"
    ),
    "no_threshold": Sentence(
        "no TTFT threshold was chosen: completion and out-of-memory errors alone decide. The draft "
        "requires one (ttft_p99_ms)"
    ),
    "realised_lengths": Sentence(
        "output tokens of the replies: P5 {low}, P95 {high}; the limit of every request is {asked}"
    ),
    "without_job_time": Sentence(
        "{cut} of {sessions} sessions were cut off: they have no job time, and do not count as good"
    ),
    "no_cold_run": Sentence(
        "no cold run: the cache of variant {variant} cannot be emptied; declare a reset call or a launch "
        "command for it"
    ),
    "no_cold_run.sessions": Sentence(
        "no cold run: the sessions share no prefix, so nothing can fill the cache before them, and the "
        "warm run begins with an empty cache"
    ),
    "cache_filled": Sentence("the cache was filled with {prefixes} shared prefixes before the warm run"),
    "prefix_cache_of_sessions": Sentence(
        "the workload has sessions: turns wait for one another, so send times differ between runs, and a "
        "turn shares its own history; the draft's test uses requests"
    ),
    "memory_of_idle_sessions": Sentence(
        "the workload has sessions: a level is a number of concurrent sessions, and the cache keeps or "
        "drops their contexts while turns pause; the draft's test uses requests in flight"
    ),
    "stopped_after": Sentence("the test stopped after {level}: {why}"),
    "no_capacity_to_exceed": Sentence("no concurrency met the criteria, so there is no capacity to exceed"),
    "criterion_of_search": Sentence(
        "criterion of the search: TTFT P99 at most {threshold}, {times_p50} times the P50 ({p50}) or "
        "{times_p99} times the P99 ({p99}) of one request at a time; choose another with ttft_p99_ms"
    ),
    "level_out_of_memory": Sentence("{level}: {errors} out-of-memory errors"),
    "level_timeouts": Sentence(
        "{level}: the load generator gave up {count} requests at its own deadline, which says nothing "
        "about memory"
    ),
    "level_stopped": Sentence("{level}: ended early, {why}"),
    "engine_restarted": Sentence("{level}: the engine's counters fell: it was restarted"),
    "no_sustained_load.levels": Sentence(
        "the search found no load that the SUT sustains, so no level can be a percentage of it"
    ),
    "no_sustained_load.mix": Sentence(
        "the search found no load that the SUT sustains, so the mix has no rate"
    ),
    "percentages_of": Sentence("levels are percentages of {rate}, {source}"),
    "short_replies_left_out": Sentence(
        "at {level}: {excluded} of {replies} replies ended before 50 output tokens and are left out"
    ),
    "saturated_at": Sentence("the SUT was saturated at {level}: {reasons:;}"),
    "zero_gaps_left_out": Sentence("at {level}: {gaps} gaps of zero length are left out of the shape"),
    "itl_method": Sentence("tokens are timed by method {option} ({reason}): {handling}"),
    "figures_between_chunks": Sentence("every figure is a {figure}"),
    "several_tokens": Sentence(
        "up to {share} of the chunks hold several tokens, which are timed as in option B"
    ),
    "other_method": Sentence("the streams at {level} alone would need method {option}"),
    "no_capacity_for_levels": Sentence("no capacity was found, so no level can be a share of it"),
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
    "no_components": Sentence(
        "queue wait and prefill latency are not measurable: the server reports neither"
    ),
    "components_of_page": Sentence(
        "components of TTFT: the replies do not state them, so there are no percentiles; the means are from "
        "the engine's metrics page, which counts every request that it served meanwhile"
    ),
    "reasoning_tokens": Sentence(
        "{share} of the output tokens are reasoning, which TTFT does not count as content"
    ),
    "no_content_token": Sentence("no request produced a content token, so the test has no TTFT"),
    "unfair": Sentence("Jain's index {index} is below {limit}: significant unfairness (5.6.4)"),
    "mix_at": Sentence("the mix is at {percent} of {rate}, {source}"),
    "classes_alone": Sentence("each class alone: {rule}"),
    "starved": Sentence(
        "a request is starved if it waits longer than five times the median wait of its class; the wait is "
        "the {wait}[by_ttft?, since the server does not report its queue]"
    ),
    "fairness_of_sessions": Sentence(
        "the workload has sessions: {at_once} at once, in the mix and for each class alone; the draft's "
        "test uses requests"
    ),
    "starved_session": Sentence(
        "a session is starved if one of its turns waits longer than five times the median wait of its "
        "class; the wait is the {wait}"
    ),
    "ended_as_void": Sentence("the test ended there, since no further load could make it valid: {why}"),
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
        "no reply shows an end of thinking, so TTOT is not measurable. The model may not reason, the "
        "server may not stream its reasoning, or tags enclose it that replies do not begin with: declare "
        "them as reasoning.tags in the SUT file"
    ),
    "merged_end_of_thinking": Sentence(
        "in {replies} replies one chunk or one read brought the last thought and the first visible "
        "content: their TTOT counts from the output before it, and is an upper bound"
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
        "budget of {time}: in 90 of 100 sessions the test finds a worsening of {found}[, noise between "
        "runs assumed to be {assumed}]"
    ),
    "nothing_saved_yet": Sentence("nothing to compare with yet: this session saves the baseline"),
    "a_and_b": Sentence(
        "A/B: {runs} runs of each arm in randomised pairs, baseline {baseline}[; its records are in "
        "{records}]"
    ),
    "not_split": Sentence("the parts of the change are unknown: {why}"),
    "arms_apart.own_words": Sentence(
        "both arms use one server: each gets its own words, of the same lengths"
    ),
    "arms_apart.salted": Sentence("both arms use one server: every prompt begins with a salt of its arm"),
    "arms_not_apart": Sentence(
        "both arms use one server, and its prompts could not be salted, since the workload {why}: switch "
        "prefix caching off, or the later arm finds what the earlier one left in the cache"
    ),
    "first_of_runs": Sentence(
        "metrics, tables and limits are those of the first of {runs} runs; comparisons use all of them"
    ),
    "systems_compared": Sentence(
        "{count} systems ({systems}), {runs} runs of each, each with its own warm-up, in random order"
    ),
    "real_differences": Sentence(
        "the 95 % intervals of {real} of {differences} differences exclude zero; by chance alone about one "
        "in twenty would. The verdict says whether a difference matters"
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
        "a proposed limit allows for the noise between runs; one run of this load is a sample, and its "
        "interval may be wider: more requests decide it"
    ),
    "calibration_of_another": Sentence(
        "the calibration of {saved} measured something else: {differences:;} ({path})"
    ),
    "calibrated": Sentence("calibrated on {saved} with {runs} runs ({path})"),
    "no_results_of_test": Sentence("{file} has no results of this test: nothing is compared"),
    "compared_with_baseline": Sentence("compared with the baseline {baseline}, {runs} runs"),
    "no_such_metric": Sentence("{limit}: this test has no metric {metric}"),
    "beside_baseline": Sentence("differs from the baseline: {difference}"),
    "compared_with_sessions": Sentence(
        "compared with the last {count} sessions of {baseline}, by the spread between sessions"
    ),
    "sessions_left_out": Sentence("{count} sessions of {baseline} are left out of the comparison: {why}"),
    "level_accepted": Sentence("a new level was accepted: {reason}"),
    "fewer_sessions": Sentence(
        "{metric} is compared with {count} of them: its level changed earlier, or the others are outliers"
    ),
    "made_unknown": Sentence(
        "the baseline does not record how its metrics were measured (warm-up, ITL method, who counted "
        "tokens), so the comparison assumes the same way: save it again"
    ),
    "other_lengths": Sentence(
        "the baseline had other prompt and reply lengths, whose noise widens the interval: save it again "
        "for a narrower one"
    ),
    "days_assumed_alike": Sentence(
        "the comparison assumes that days are alike, since the runs of one session show no difference "
        "between days: save {more} more under {baseline} and compare with that name, or compare both "
        "builds in one session (--llm-baseline-endpoint)"
    ),
    "model_not_listed": Sentence("the endpoint does not list the model {model}, but answers for it"),
    "fields_refused": Sentence(
        "the endpoint refuses {fields}, so requests go without[, and with {sent} as the "
        "limit][temperature?; the model's default temperature applies]"
    ),
    "api_found": Sentence("requests use {api}, which --llm-api=auto found; --llm-api=NAME chooses another"),
    "workers_of_replay": Sentence("--llm-workers {workers} has no effect on a replay, which sends nothing"),
    "workers_none": Sentence(
        "the load was measured in pytest's own process (--llm-workers 0): its plugins, coverage, the "
        "suite's threads and garbage collection share a core with the measuring loop"
    ),
    "workers_share_cores": Sentence(
        "{workers} worker processes share {cores} core[several?s]: they delay one another and everything "
        "else on this host, see send lag and loop lag in the self-check"
    ),
    "in_process": Sentence(
        "called in pytest's own process: the measurement includes no network and no server, and the "
        "callable shares an interpreter, an event loop and a core with the load generator"
    ),
    "replay": Sentence(
        "replay: preset {preset}[, {behind},] in virtual time. Nothing was sent and no time passed; client "
        "and network are constants ({there} to the engine, {back} back)"
    ),
    "slow_disk": Sentence(
        "the disk under {file} could not keep up with the records, and the collector waited {waited} for "
        "it; no record is lost"
    ),
}

_PARTS = {
    "as_told": Sentence("{text}"),
    "contradicted": Sentence(
        "{fact} is declared to be {declared}, but [observed!nothing][{observed}] was observed"
    ),
    "counted": Sentence("[name!the requested one, or none][{name}]: {count}"),
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
        "{count} of {replies} replies ended before max_tokens, although ignore_eos was set"
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
