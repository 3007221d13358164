"""The sentences of findings, by id: the name of the check, with the case behind a dot where it has several.

``{value}`` and ``{limit}`` are the numbers of the finding itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.model.wording import Sentence

_NOT_AS_ASKED = "so the lengths are not those that were asked for"
_BEHIND = "the generator could not keep its schedule; lower the rate or free the CPU"
_LATE = (
    "[{late} of the chunks were read late, together with later ones]"
    "[loop?reads are stamped when they are read, and the measuring loop was late]"
)
_NEAR = (
    "[stands?no limit of the test is that near, so it is judged, and the figures say how far they are off]"
)
_ENOUGH = "[beyond!about][beyond?more than] {enough} requests"
_FAILURES = "[ ({kinds})][; the first error is: {first_error}]"

_LOADS = {
    "all_requests_recorded": Sentence(
        "[may_be_more!{value} of {limit} planned requests have a record]"
        "[may_be_more?{value} requests have a record, at least {limit} were planned]"
        "[, {unsent} were never sent since their session was cut off]",
        voids=True,
    ),
    "complete": Sentence(
        "the run was cut short ({cause}) after {recorded} of [may_be_more?at least ]{planned} requests",
        voids=True,
    ),
    "send_lag": Sentence("sends were late by {value} at P99 (limit {limit})", _BEHIND, "ms", voids=True),
    "send_lag_growth": Sentence(
        "the median send lag is {first} in the first tenth, {value} in the last", _BEHIND, "ms", voids=True
    ),
    "achieved_rate": Sentence(
        "requests left at {value} of the scheduled rate (limit {limit})", unit="ratio", voids=True
    ),
    "loop_lag": Sentence(
        "the measuring loop was late by {value} at P99",
        "something else held it; time stamps may be late by as much",
        "ms",
    ),
    "drained": Sentence("{value} requests are still in flight after the drain"),
    "client_cpu": Sentence("the measuring process used {value} of a core", unit="ratio"),
    "late_reads": Sentence(
        "TTFT {statistic} of {seen} may be {value} too [high?high][high!low] (limit {limit}): " + _LATE,
        _NEAR + "[{remedy}]",
        "ms",
        voids=True,
    ),
    "late_gaps": Sentence(
        "the time between chunks {statistic} of {seen} may be {value} too [high?high][high!low] "
        "(limit {limit}): " + _LATE,
        _NEAR + "[{remedy}]",
        "ms",
        voids=True,
    ),
    "empty_slots": Sentence(
        "slots stood empty for {value} of their time[, refilled {refilled} late at P99] (limit {limit})",
        "fewer requests were in flight than asked for; {remedy}",
        "ratio",
        voids=True,
    ),
    "not_offered": Sentence(
        "the generator fell behind in {value} of {alike} loads[on_schedule? on schedule]: they are left out, "
        "neither held nor saturated ({levels})",
        "free the CPU of other work",
    ),
    "host_limits": Sentence(
        "the load generator's machine was held to looser limits than the usual ({limits:;})",
        "what it did to the figures voids nothing",
    ),
    "overload": Sentence("{limit} were offered, {value} served: the queue grew throughout", unit="req/s"),
    "overload.ahead": Sentence(
        "{limit} were offered, {value} are served with all slots at work: the queue of a longer run grows "
        "throughout",
        unit="req/s",
    ),
    "run_length": Sentence(
        "{requests} requests span about {value} relaxation times of the queue (work for {busy} of {slots} "
        "slots)",
        "too few to tell it from one that grows without end, so upper ends of means are open; "
        + _ENOUGH
        + "[beyond! would do if it is as it seems, or lower the rate]"
        "[beyond? would be needed, or a lower rate]",
    ),
    "run_length.slowed": Sentence(
        "{requests} requests span about {value} relaxation times of the queue: with {slots} requests under "
        "way the server is {busy} busy at this rate",
        f"upper ends of percentiles beyond the median are open; {_ENOUGH} would do, or a lower rate",
    ),
    "run_length.overloaded": Sentence(
        "with {slots} requests under way the server is {busy} busy at this rate",
        "nothing tells how far its queue grows, so upper ends are open; lower the rate",
    ),
    "equal_lengths": Sentence(
        "all replies have {tokens} tokens, so requests go in waves and reach no steady state",
        "vary their lengths, or judge the job: leave out steady, give a number of requests",
    ),
    "first_wave": Sentence(
        "{near} is near the end of the first wave ({slots} of {requests} requests), where TTFT jumps",
        "choose another number of requests than {requests}",
        "ratio",
    ),
    "measured": Sentence(
        "nothing was measured: no load was found that the system sustains: see the notes", voids=True
    ),
    "measured.failed": Sentence(
        "nothing was measured: no load was found that the system sustains: {failed} of {sent} requests "
        "failed" + _FAILURES,
        voids=True,
    ),
    "measured.error": Sentence("nothing was measured: {error}", voids=True),
    "further_runs": Sentence("run {run} of {runs}: {why}", voids=True),
}

_REQUESTS = {
    "prompt_lengths": Sentence(
        "{value} of {prompts} prompts missed their exact length, by up to {most} tokens",
        "the server counts otherwise than when it was asked",
        voids=True,
    ),
    "prompt_length_drift": Sentence(
        "the [by_file?tokenizer file][by_file!server] counts {counted} input tokens a prompt where {asked} "
        "were asked for ({value})",
        "it has another vocabulary or chat template than the workload[cut? or reads only a part of the "
        f"prompts], {_NOT_AS_ASKED}",
        "ratio",
    ),
    "tokenizer_agreement": Sentence(
        "the server counts {least} to {most} tokens beyond those of the tokenizer file in prompts of "
        "{tokens} ({prompts} prompts)",
        "it has another vocabulary than tokenizer.file of the SUT file, or it changes prompts, so counts by "
        "that tokenizer are not native ones",
    ),
    "beyond_context": Sentence(
        "{value} of {requests} requests were refused as longer than the model's context, and count as "
        "failures",
        "use a workload with shorter prompts, or start the server with a longer context",
    ),
    "prefix_cache_hits": Sentence(
        "[by_page?by its metrics page ]the server took {value} of the input tokens from its prefix cache",
        unit="ratio",
    ),
    "prompts_sent_before": Sentence(
        "{value} of the measured prompts had been sent to this server before in this session",
        "a prefix cache may have held them: the workload has no others, the same load was sent again, or the "
        "server counts tokens only of prompts that it runs, and not word by word",
        "ratio",
    ),
    "prompts_of_others": Sentence(
        "earlier sessions with {option} may have sent the same prompts to this server, and its prefix cache, "
        "or one of whole replies, may hold them",
        "leave that option out",
    ),
    "others_served": Sentence(
        "by its metrics page the server finished {finished} requests while {sent} were sent from here",
        "somebody else used it (another session, another client), and their load is in every figure",
        "ratio",
    ),
    "model_loaded": Sentence(
        "{value} of {requests} requests waited for the server to load the model, {longest} at most",
        "these are cold starts, and their times are those of loading; keep the model in memory (keep_alive "
        "of Ollama), and see that no other model takes its place",
    ),
    "taken_late": Sentence(
        "{count} of {requests} requests waited until their last byte had left, for a new connection (TCP, "
        "TLS) or for the server to take them: {median} in the median, {most} at most",
        "TTFT and E2E begin after that; ttft_scheduled and e2e_scheduled have it",
        "ratio",
    ),
    "sent_again": Sentence(
        "{value} of {requests} requests were sent again on a new connection",
        "the server had closed the kept one before a byte of them arrived; their times count from the second "
        "sending",
    ),
    "clock_stepped": Sentence(
        "the wall clock of this machine was set by {value} while load was running",
        "no latency goes by it, but the instants of the report do, beside a server's log: let the clock be "
        "slewed, or set it before a session",
        "ms",
    ),
    "planned_cuts": Sentence(
        "users were to cut {cut} of {requests} requests, which count neither as completed nor as failed and "
        "are in no latency: {left} were cut, {silent} of them before their first token, and {complete} "
        "replies were complete before that[; {failed} had failed before that][ ({kinds})]",
        unit="ratio",
    ),
    "error_budget": Sentence(
        "{failed} of {requests} requests failed, the budget is {limit}"
        + _FAILURES
        + "[; {timeouts} were given up by the load generator's own deadlines, which --llm-timeout or "
        "timeout_s extends]"
        "[none_good?; without one good request nothing was measured, whatever the budget]",
        unit="ratio",
        voids=True,
    ),
    "raised_error_budget": Sentence(
        "the error budget was raised to {value} of the requests, usually {limit}: {failed} of {requests} "
        "failed, and no latency is of them",
        unit="ratio",
    ),
    "given_up": Sentence(
        "{gone} of {requests} requests were given up on[, {at_deadline} at a deadline of ours]"
        "[, {with_load} with the load]",
        "they took longer than was waited, so percentiles above {known} and means have no upper end",
        "ratio",
    ),
    "sessions_cut_off": Sentence(
        "{cut} of {sessions} sessions were cut off by a turn that did not end well, and {unsent} turns never "
        "sent; the budget is {limit}",
        unit="ratio",
        voids=True,
    ),
}

_REPLIES = {
    **{
        f"{kind}_answers": Sentence(
            f"the server counts {{counted}} tokens that a turn adds with the {kind} answer before it, where "
            "{asked} were asked for ({value})",
            "it has another vocabulary or chat template than the workload, or leaves answers out of the "
            "history, so contexts grow otherwise than those that were asked for",
            "ratio",
        )
        for kind in ("live", "recorded")
    },
    "output_limits": Sentence(
        "{told:;}",
        f"the server ignores it, {_NOT_AS_ASKED}[miscounts?; or it counts more than it generates, and "
        "nothing per token is judged beyond 1 % of them]",
    ),
    "unshown_tokens": Sentence(
        "{value} at least of the output tokens that the server counts have no byte of text in the replies",
        "throughput and time per token are of tokens that nobody received. Hidden reasoning that is not "
        "counted apart, ends that were ignored (ignore_eos), or a count that is wrong",
        "ratio",
    ),
    "sent_ahead": Sentence(
        "{value} of the replies pause behind their piece of text number {piece}, for {pause} in the median "
        "where later ones follow in {pace}",
        "what comes before is sent ahead of the generation (a preamble, a prefill elsewhere), so TTFT does "
        "not tell when a user can begin to read",
        "ratio",
    ),
    "stream_fidelity": Sentence(
        "{value} of the replies arrived all at once",
        "something between here and the engine buffers the stream; switch it off",
        "ratio",
        voids=True,
    ),
    "stream_fidelity.late": Sentence(
        "{value} of the replies arrived all at once",
        "this machine read them late, so whether anything buffers them is not known; run again when idle",
        "ratio",
        voids=True,
    ),
    "stream_fidelity.filtered": Sentence(
        "{value} of the replies arrived all at once",
        "an output filter is on, which reads replies first",
        "ratio",
    ),
    "gathered_chunks": Sentence(
        "{value} of the chunks were sent together with an earlier one",
        "the server writes several at once, or something between here and the engine gathers them (the "
        "buffer of a proxy). TTFT is when the first lot came, and there is no time between the chunks of a "
        "lot",
        "ratio",
    ),
    "coalesced_chunks": Sentence(
        "at {level} {value} of the chunks shared a read with an earlier one",
        "they have no spacing of their own, and the short gaps are not to be trusted",
        "ratio",
    ),
    "ended_early": Sentence(
        "replies ended by themselves after {got} output tokens in the mean where {asked} were asked for "
        "({value})",
        "end-to-end latency and load are those of short replies; request.ignore_eos in the SUT file has a "
        "server go on to the end",
        "ratio",
    ),
    "counted_differently": Sentence(
        "the server counts the output tokens of {counted} of {replies} replies, and not of the others",
        "figures per token are of two kinds of token, or of these replies alone. Something in between drops "
        "usage, or servers of several kinds answer",
        "ratio",
    ),
    "server_counts": Sentence(
        "the server counts the output tokens of no reply: they were counted here, [by_text?by the reference "
        "tokenizer, which is not the model's: 10 to 20 % more or fewer are usual. A reply that ended at its "
        "limit counts as max_tokens][by_text!as chunks with text, which may hold several tokens]",
        "let it send usage (stream_options.include_usage), or name the model's tokenizer (tokenizer.file of "
        "the SUT file)",
    ),
    "contradicted_counts": Sentence(
        "the server's token counts cannot be in {wrong} of {replies} replies, by the replies themselves "
        "(such as: {example})",
        "a part larger than its whole is in no figure, and output that it miscounts is counted here",
        "ratio",
    ),
    "scorer_failed": Sentence(
        "the scorer failed on {value} of {questions} answers ({example})",
        "how many are right is not known; it is called with the reply and the answer, both texts, and gives "
        "True or False",
        voids=True,
    ),
    "no_answer": Sentence(
        "the scorer finds no answer in {value} of the replies",
        "they count as not right; see whether the scorer fits what the model writes",
        "ratio",
    ),
    "answers_cut": Sentence(
        "{value} of the replies ended at their limit before the answer",
        "they count as not right; raise max_tokens",
        "ratio",
    ),
    "unknown_finish": Sentence(
        "replies end with a finish reason that is not known here ({words})",
        "they count as complete, and not as ended by their limit",
        "ratio",
    ),
    "adapter_calls_failed": Sentence(
        "{value} of {calls} calls that unload and load adapters failed: {problems:;}[further?, …]",
        "the engine did not do what the test is about[absent?; afterwards it has no {absent}]",
    ),
    "adapter_calls_behind": Sentence(
        "{value} adapters were unloaded and loaded again, of {limit} that were due",
        "a call takes longer than the rate allows: the figures are of as many as there were",
    ),
    "other_models": Sentence(
        "all replies name another model than the one that was asked for ({models}[further?, …])", unit="ratio"
    ),
    "other_models.mixed": Sentence(
        "replies name several models ({models}[further?, …])",
        "a gateway fell back to another one or deals requests to several, and every figure is of the mixture",
        "ratio",
    ),
    "server_times": Sentence(
        "{wrong} of {requests} requests took longer inside the server, as it says, than until their first "
        "output came[, by up to {most}]",
        "something before the engine answers from a cache of replies, or the server's clock is wrong; its "
        "queue wait and prefill are not to be believed",
        "ratio",
    ),
    "replies_without_tpot": Sentence(
        "{short} of {replies} replies have fewer than two tokens",
        "tpot_ms asks nothing of them, and they count as good; see why they end so early",
        "ratio",
    ),
    "itl_samples": Sentence("there are gaps at every level by method {option}", voids=True),
    "itl_samples.no_instants": Sentence(
        "there is no gap at {levels} by method {option}",
        "the server gives no instants of its tokens: switch them on, or leave method out",
        voids=True,
    ),
    "itl_samples.no_counts": Sentence(
        "there is no gap at {levels} by method {option}",
        "the tokens of its chunks are not known: leave method out",
        voids=True,
    ),
    "itl_samples.one_chunk": Sentence(
        "there is no gap at {levels} by method {option}", "its replies come in one chunk each", voids=True
    ),
    "itl_short_replies": Sentence(
        "at {level} {value} of the replies ended before 50 output tokens and are left out (limit {limit})",
        unit="ratio",
    ),
    "itl_requested_tokens": Sentence(
        "the shortest output asked for is {value} (5.4.2: at least {limit})", unit="tokens"
    ),
    "server_clock": Sentence(
        "{level}: by the server's instants {value} of the replies took less time than their chunks took to "
        "come, or longer than they were waited for",
        "these are not believed, [option!leave method out][option?gaps are by method {option}]",
        "ratio",
    ),
}

_SYSTEMS = {
    "declared_otherwise": Sentence("{declarations:;}", "what was observed counts, so mend the declaration"),
    "certificate_checked": Sentence(
        "the server's certificate was not checked (--llm-insecure, or insecure in the SUT file)",
        "what answered may not be the server that was meant, and the API key went to whatever did",
    ),
    "key_encrypted": Sentence(
        "the key went to a public address without encryption (http, ws or grpc)",
        "whoever stands in between can read it; use https, wss or grpcs, and another key from now on",
    ),
    "measured_through_proxy": Sentence(
        "requests went through the proxy {proxy} (--llm-proxy)",
        "its time, and what it holds back, is in every figure",
    ),
    "files_on_disk": Sentence("{error}"),
    "beyond_certified_range": Sentence(
        "the run needed {value}, more than the generator's selftest of {date} covers "
        "([held?it held up to {limit}][held!nothing held there])",
        "latencies may hold delays of the generator; [whole!run a whole selftest, which looks further than a "
        "quick one][whole?load from a faster or less busy host, or test this one again when it is quiet] "
        "({command})",
    ),
    "beyond_certified_range.other_workers": Sentence(
        "{sent_by} sent the load, the selftest of {date} is of {certified}",
        "its figures do not hold for this run; [run {command}][command!there is no selftest of a cluster]",
    ),
    "cache_disabled": Sentence(
        "with the cache off the server took {value} of the input from it",
        "the cache is not off; check how the variant switches it",
        "ratio",
        voids=True,
    ),
    "cache_cold": Sentence(
        "{hits} of {prefixes} prefixes were in the cache before their first request",
        "it was not empty; check the reset call or the restart",
        "ratio",
        voids=True,
    ),
    "cache_warm": Sentence(
        "with the cache filled the server took {value} of the input from it",
        "the cache is not on, or evicts what it holds before it is used",
        "ratio",
        voids=True,
    ),
    **{
        f"cache_{state}.untold": Sentence(
            f"cache {state}: the server does not say what it takes from its cache; its state is as declared"
        )
        for state in ("disabled", "cold", "warm")
    },
    "equal_work": Sentence(
        "{configuration} at {level}: {value} of its input came from a prefix cache",
        "switch prefix caching off, reset the cache between configurations, or take a workload whose prompts "
        "are drawn: each configuration gets its own",
        "ratio",
        voids=True,
    ),
    "equal_work.untold": Sentence(
        "neither replies nor a metrics page tell what came from a prefix cache, and every configuration is "
        "sent the same prompts",
        "behind one engine with its cache on the later ones look faster than they are. Switch it off, and "
        "declare prefix_caching disabled in the SUT file",
    ),
    "same_system": Sentence(
        "{difference}",
        "the variants are not one system, compare those that differ in the switch alone",
        "ratio",
    ),
    "context_truncated": Sentence("the server processed every length whole", voids=True),
    "context_truncated.cut": Sentence(
        "the server cut prompts of {lengths} tokens short", "raise its limit, or leave them out", voids=True
    ),
    "memory_pressure.found": Sentence("memory was short: {levels:;}", unit="ratio", voids=True),
    "memory_pressure.none": Sentence(
        "no level put pressure on memory ({levels:;})",
        "[levels_percent=(100, {percent}) would, or longer prompts]"
        "[percent!raise levels_percent, or take longer prompts]",
        "ratio",
        voids=True,
    ),
    "memory_pressure.batch_full": Sentence(
        "no level put pressure on memory ({levels:;})",
        "the engine takes {batch} requests at once, which do not fill it: take longer prompts",
        "ratio",
        voids=True,
    ),
    "memory_pressure.no_sessions": Sentence(
        "no number of sessions put pressure on memory ({levels:;})",
        "raise sessions, take longer contexts, or begin with fewer where little is found at once",
        "ratio",
        voids=True,
    ),
    "memory_pressure.unknown": Sentence(
        "whether memory was short is not known: the engine reports neither preemptions nor requests that "
        "wait for its KV cache",
        "make its metrics page reachable",
        "ratio",
    ),
    "memory_pressure.sessions_unknown": Sentence(
        "whether memory was short is not known: the server tells neither cached tokens nor a preemption",
        "make its usage tell cached_tokens",
        "ratio",
    ),
}

_COMPARISONS = {
    "baseline_valid": Sentence(
        "the baseline was not measured validly, so nothing is compared with it: {causes:;}"
    ),
    "systems_valid": Sentence("{system}, run {run}: {why}", voids=True),
    "waived": Sentence("{difference}"),
    "made_otherwise": Sentence(
        "another thing was measured: {difference}; not compared: {metrics}", voids=True
    ),
    "calibration": Sentence("{error}"),
    "limit_within_noise": Sentence(
        "{objective} is tighter than the noise of this system: about {value} of its runs lie beyond, though "
        "nothing has changed (noise {noise} between {runs} calibrated runs)",
        "a limit of {proposed} would not be",
        "ratio",
    ),
    "limit_within_noise.margin": Sentence(
        "a change of {metric} by {limit} is within the noise of this system: equal builds may come out at up "
        "to ±{value} with {runs} runs each, which is inconclusive",
        "allow more, or measure more runs",
        "ratio",
    ),
    "nothing_compared": Sentence(
        "[{why}][the test has no {lacking}]: {limits} decides nothing here, however much slower the system "
        "got"
    ),
    "output_lengths": Sentence(
        "{candidate} output tokens per request against {baseline} of the baseline (a change of {change}, "
        "Cliff's delta {value}, p {p})",
        "the arms do not answer alike, so throughput and times per request mislead",
    ),
    "cache_of_arms": Sentence(
        "{candidate} of the input came from a prefix cache, {baseline} in the baseline",
        "one arm profits from a cache that the other does not have, or filled for it",
        "ratio",
    ),
    "cache_of_arms.one_known": Sentence(
        "{value} of the input of the [of_baseline?baseline][of_baseline!candidate] came from a prefix cache, "
        "and of the other arm it is not known",
        "where both addresses lead to one engine, each arm finds what the other left; switch the cache off",
        "ratio",
    ),
    **{
        check: Sentence(
            f"{what}: [same?the same on all systems][other on each: {{differing:;}}]"
            "[both?; ][not known of every system: {unknown}]"
        )
        for check, what in (
            ("same_requests", "requests, seeds and arrivals"),
            ("same_load", "load model and parameters"),
            ("same_boundary", "boundary of the system"),
            ("same_hardware", "accelerators"),
            ("same_tokenizer", "tokenizer"),
        )
    },
}

FINDINGS: Mapping[str, Sentence] = MappingProxyType(
    {**_LOADS, **_REQUESTS, **_REPLIES, **_SYSTEMS, **_COMPARISONS}
)
