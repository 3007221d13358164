"""The sentences of findings, by id: the name of the check, with the case behind a dot where it has several.

``{value}`` and ``{limit}`` are the numbers of the finding itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.model.wording import Sentence

_NOT_AS_ASKED = "so the lengths differ from those requested"
_BEHIND = "the generator could not keep its schedule; lower the rate or free the CPU"
_LATE = (
    "[{late} of the chunks were read late, together with later ones]"
    "[loop?the measuring loop was late, and chunks are stamped when it reads them]"
)
_NEAR = "[stands?no limit of the test is that close, so it is judged, and the figures show their error]"
_ENOUGH = "[beyond!about][beyond?more than] {enough} requests"
_FAILURES = "[ ({kinds})][; the first error is: {first_error}]"

_LOADS = {
    "all_requests_recorded": Sentence(
        "[may_be_more!{value} of {limit} planned requests have a record][may_be_more?{value} requests have "
        "a record, at least {limit} were planned][, {unsent} were never sent because their session was cut "
        "off]",
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
        "something else blocked it; time stamps may be late by as much",
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
        "slots were empty for {value} of the time[, and refilled {refilled} late at P99] (limit {limit})",
        "fewer requests were in flight than the test asks for; {remedy}",
        "ratio",
        voids=True,
    ),
    "not_offered": Sentence(
        "the generator fell behind in {value} of {alike} loads[on_schedule? on schedule]: they are left "
        "out and count as neither held nor saturated ({levels})",
        "free the CPU of other work",
    ),
    "host_limits": Sentence(
        "the limits for the load generator's machine were looser than usual ({limits:;})",
        "its effect on the figures does not void the run",
    ),
    "overload": Sentence("{limit} were offered, {value} served: the queue grew throughout", unit="req/s"),
    "overload.ahead": Sentence(
        "{limit} were offered, the server handles {value} with all slots busy: in a longer run the queue "
        "keeps growing",
        unit="req/s",
    ),
    "run_length": Sentence(
        "{requests} requests span about {value} relaxation times of the queue (work for {busy} of {slots} "
        "slots)",
        "too few to tell a stable queue from one that keeps growing, so upper ends of means are open; "
        + _ENOUGH
        + "[beyond! would do if the queue is stable, or lower the rate]"
        "[beyond? would be needed, or a lower rate]",
    ),
    "run_length.slowed": Sentence(
        "{requests} requests span about {value} relaxation times of the queue: with {slots} requests in "
        "flight the server is {busy} busy at this rate",
        f"upper ends of percentiles beyond the median are open; {_ENOUGH} would do, or a lower rate",
    ),
    "run_length.overloaded": Sentence(
        "with {slots} requests in flight the server is {busy} busy at this rate",
        "it is unknown how far its queue grows, so upper ends are open; lower the rate",
    ),
    "equal_lengths": Sentence(
        "all replies have {tokens} tokens, so requests run in waves and never reach a steady state",
        "vary the lengths, or judge the whole job: omit steady and set a number of requests",
    ),
    "first_wave": Sentence(
        "{near} is near the end of the first wave ({slots} of {requests} requests), where TTFT jumps",
        "choose a number of requests other than {requests}",
        "ratio",
    ),
    "measured": Sentence(
        "nothing was measured: the search found no load that the system sustains (see the notes)", voids=True
    ),
    "measured.failed": Sentence(
        "nothing was measured: the search found no load that the system sustains: {failed} of {sent} "
        "requests failed" + _FAILURES,
        voids=True,
    ),
    "measured.error": Sentence("nothing was measured: {error}", voids=True),
    "further_runs": Sentence("run {run} of {runs}: {why}", voids=True),
}

_REQUESTS = {
    "prompt_lengths": Sentence(
        "{value} of {prompts} prompts missed their exact length, by up to {most} tokens",
        "the server counts differently now than when the prompts were made",
        voids=True,
    ),
    "prompt_length_drift": Sentence(
        "the [by_file?tokenizer file][by_file!server] counts {counted} input tokens per prompt, "
        "{asked} were requested ({value})",
        "its vocabulary or chat template differs from the workload's[cut?, or it reads only a part of the "
        f"prompts], {_NOT_AS_ASKED}",
        "ratio",
    ),
    "tokenizer_agreement": Sentence(
        "the server counts {least} to {most} tokens more than the tokenizer file in prompts of {tokens} "
        "({prompts} prompts)",
        "its vocabulary differs from tokenizer.file of the SUT file, or it changes prompts, so counts by "
        "that tokenizer are not native ones",
    ),
    "beyond_context": Sentence(
        "{value} of {requests} requests exceed the model's context: the server refused them, and they "
        "count as failures",
        "use a workload with shorter prompts, or start the server with a longer context",
    ),
    "prefix_cache_hits": Sentence(
        "[by_page?its metrics page says that ]the server took {value} of the input tokens from its prefix "
        "cache",
        unit="ratio",
    ),
    "prompts_sent_before": Sentence(
        "this session had already sent {value} of the measured prompts to this server",
        "a prefix cache may have held them: the workload has no other prompts, the same load was sent "
        "again, or the server counts tokens only of prompts that it runs, and not word by word",
        "ratio",
    ),
    "prompts_of_others": Sentence(
        "earlier sessions with {option} may have sent the same prompts to this server; its prefix cache or "
        "reply cache may hold them",
        "omit that option",
    ),
    "others_served": Sentence(
        "the server's metrics page counts {finished} finished requests, this session sent {sent}",
        "another client or session used the server, and its load affects every figure",
        "ratio",
    ),
    "model_loaded": Sentence(
        "{value} of {requests} requests waited for the server to load the model, {longest} at most",
        "these are cold starts, and their times include loading; keep the model in memory (keep_alive of "
        "Ollama), and let no other model replace it",
    ),
    "taken_late": Sentence(
        "{count} of {requests} requests waited before their last byte left, for a new connection (TCP, "
        "TLS) or for the server to accept them: {median} in the median, {most} at most",
        "TTFT and E2E begin after this wait; ttft_scheduled and e2e_scheduled include it",
        "ratio",
    ),
    "sent_again": Sentence(
        "{value} of {requests} requests were sent again on a new connection",
        "the server had closed the kept-alive connection before any of their bytes arrived; times count "
        "from the second send",
    ),
    "clock_stepped": Sentence(
        "the wall clock of this machine jumped by {value} while a load ran",
        "no latency uses the wall clock, but the report's times of day do, and may not match a server's "
        "log: slew the clock, or set it before a session",
        "ms",
    ),
    "planned_cuts": Sentence(
        "the plan cuts {cut} of {requests} requests; they count as neither completed nor failed, and no "
        "latency includes them: {left} were cut, {silent} of them before their first token, and {complete} "
        "replies were complete before the cut[; {failed} had failed before it][ ({kinds})]",
        unit="ratio",
    ),
    "error_budget": Sentence(
        "{failed} of {requests} requests failed, the budget is {limit}"
        + _FAILURES
        + "[; the load generator gave up {timeouts} at its own deadlines, which --llm-timeout or timeout_s "
        "extends]"
        "[none_good?; no request succeeded, so nothing was measured, whatever the budget]",
        unit="ratio",
        voids=True,
    ),
    "raised_error_budget": Sentence(
        "the error budget was raised to {value} of the requests, usually {limit}: {failed} of {requests} "
        "failed, and no latency includes them",
        unit="ratio",
    ),
    "given_up": Sentence(
        "the load generator gave up {gone} of {requests} requests[, {at_deadline} at its own deadline][, "
        "{with_load} with the load]",
        "they take longer than it waited, so percentiles above {known} and means have no upper end",
        "ratio",
    ),
    "sessions_cut_off": Sentence(
        "{cut} of {sessions} sessions were cut off by a turn that did not complete, and {unsent} turns "
        "were never sent; the budget is {limit}",
        unit="ratio",
        voids=True,
    ),
}

_REPLIES = {
    **{
        f"{kind}_answers": Sentence(
            f"with the {kind} answer before it, a turn adds {{counted}} tokens by the server's count, "
            "{asked} were requested ({value})",
            "its vocabulary or chat template differs from the workload's, or it leaves answers out of the "
            "history, so contexts do not grow as requested",
            "ratio",
        )
        for kind in ("live", "recorded")
    },
    "output_limits": Sentence(
        "{told:;}",
        f"the server ignores it, {_NOT_AS_ASKED}[miscounts?; or it counts more than it generates, and "
        "beyond 1 % of the replies no figure per token is judged]",
    ),
    "unshown_tokens": Sentence(
        "at least {value} of the output tokens that the server counts have no text in the replies",
        "throughput and time per token include tokens that nobody received. Possible causes: hidden "
        "reasoning that is not counted separately, ignored end tokens (ignore_eos), or a wrong count",
        "ratio",
    ),
    "sent_ahead": Sentence(
        "{value} of the replies pause after piece {piece} of their text, for {pause} in the median; later "
        "pieces follow in {pace}",
        "the server sends what comes before the pause ahead of the generation (a preamble, a prefill "
        "elsewhere), so TTFT does not show when a user can begin to read",
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
        "this machine read them late, so it is unknown whether anything buffers them; run again when the "
        "machine is idle",
        "ratio",
        voids=True,
    ),
    "stream_fidelity.filtered": Sentence(
        "{value} of the replies arrived all at once",
        "an output filter is on, and it reads replies first",
        "ratio",
    ),
    "gathered_chunks": Sentence(
        "{value} of the chunks were sent together with an earlier one",
        "the server writes several at once, or something between here and the engine gathers them (a "
        "proxy's buffer). TTFT is when the first group arrived, and the times between the chunks of a "
        "group are unknown",
        "ratio",
    ),
    "coalesced_chunks": Sentence(
        "at {level}, {value} of the chunks shared a read with an earlier one",
        "their own spacing is unknown; do not trust the short gaps",
        "ratio",
    ),
    "ended_early": Sentence(
        "replies ended on their own after {got} output tokens in the mean, {asked} were requested ({value})",
        "end-to-end latency and load are those of short replies; with request.ignore_eos in the SUT file a "
        "server generates up to the limit",
        "ratio",
    ),
    "counted_differently": Sentence(
        "the server counts the output tokens of {counted} of {replies} replies, but not of the others",
        "figures per token mix two kinds of token, or cover these replies alone. Something in between "
        "drops usage, or several kinds of server answer",
        "ratio",
    ),
    "server_counts": Sentence(
        "the server sends no usable count of output tokens, so they were counted here, [by_text?by the "
        "reference tokenizer, which is not the model's: 10 to 20 % more or fewer are usual. A reply that "
        "ended at its limit counts as max_tokens]"
        "[by_text!as chunks with text, which may hold several tokens]",
        "make it send usage with whole numbers (stream_options.include_usage), or name the model's tokenizer "
        "(tokenizer.file of the SUT file)",
    ),
    "contradicted_counts": Sentence(
        "the server's token counts are impossible in {wrong} of {replies} replies (such as: {example})",
        "no figure uses a part that is larger than its whole, and output that the server miscounts is "
        "counted here",
        "ratio",
    ),
    "scorer_failed": Sentence(
        "the scorer failed on {value} of {questions} answers ({example})",
        "the number of right answers is unknown; the scorer gets the reply and the answer, both texts, and "
        "must return True or False",
        voids=True,
    ),
    "no_answer": Sentence(
        "the scorer finds no answer in {value} of the replies",
        "they count as wrong; check whether the scorer fits what the model writes",
        "ratio",
    ),
    "answers_cut": Sentence(
        "{value} of the replies ended at their limit before the answer",
        "they count as wrong; raise max_tokens",
        "ratio",
    ),
    "unknown_finish": Sentence(
        "replies end with an unknown finish reason ({words})",
        "they count as complete, not as ended by their limit",
        "ratio",
    ),
    "adapter_calls_failed": Sentence(
        "{value} of {calls} calls that unload and load adapters failed: {problems:;}[further?, …]",
        "the engine did not do what the test measures[absent?; afterwards it has no {absent}]",
    ),
    "adapter_calls_behind": Sentence(
        "{value} of {limit} planned adapter reloads took place",
        "a call takes longer than the rate allows; the figures cover the reloads that took place",
    ),
    "other_models": Sentence(
        "all replies name a model other than the requested one ({models}[further?, …])", unit="ratio"
    ),
    "other_models.mixed": Sentence(
        "replies name several models ({models}[further?, …])",
        "a gateway fell back to another model or spreads requests over several, and every figure mixes them",
        "ratio",
    ),
    "server_times": Sentence(
        "by the server's own times, {wrong} of {requests} requests took longer inside it than until their "
        "first output arrived[, by up to {most}]",
        "a reply cache in front of the engine answers, or the server's clock is wrong; do not trust its "
        "queue wait and prefill",
        "ratio",
    ),
    "replies_without_tpot": Sentence(
        "{short} of {replies} replies have fewer than two tokens",
        "tpot_ms does not apply to them, and they count as good; find out why they end so early",
        "ratio",
    ),
    "itl_samples": Sentence("method {option} finds gaps at every level", voids=True),
    "itl_samples.no_instants": Sentence(
        "method {option} finds no gap at {levels}",
        "the server sends no time stamps of its tokens: switch them on, or omit method",
        voids=True,
    ),
    "itl_samples.no_counts": Sentence(
        "method {option} finds no gap at {levels}",
        "the number of tokens in its chunks is unknown: omit method",
        voids=True,
    ),
    "itl_samples.one_chunk": Sentence(
        "method {option} finds no gap at {levels}", "each reply comes in one chunk", voids=True
    ),
    "itl_short_replies": Sentence(
        "at {level} {value} of the replies ended before 50 output tokens and are left out (limit {limit})",
        unit="ratio",
    ),
    "itl_requested_tokens": Sentence(
        "the shortest requested output is {value} (5.4.2: at least {limit})", unit="tokens"
    ),
    "server_clock": Sentence(
        "{level}: by the server's time stamps, {value} of the replies took less time than their chunks "
        "took to arrive, or longer than the client waited",
        "these time stamps are not used, [option!omit method][option?gaps are by method {option}]",
        "ratio",
    ),
}

_SYSTEMS = {
    "declared_otherwise": Sentence("{declarations:;}", "the observation counts, so correct the declaration"),
    "certificate_checked": Sentence(
        "the server's certificate was not checked (--llm-insecure, or insecure in the SUT file)",
        "another server may have answered, and it received the API key",
    ),
    "key_encrypted": Sentence(
        "the API key was sent to a public address without encryption (http, ws or grpc)",
        "anyone on the path can read it; use https, wss or grpcs, and replace the key",
    ),
    "measured_through_proxy": Sentence(
        "requests went through the proxy {proxy} (--llm-proxy)",
        "every figure includes its delay and its buffering",
    ),
    "files_on_disk": Sentence("{error}"),
    "beyond_certified_range": Sentence(
        "the run needed {value}, more than the generator's selftest of {date} covers "
        "([held?it held up to {limit}][held!nothing held there])",
        "latencies may include delays of the generator; [whole!run a full selftest, which covers more than "
        "a quick one][whole?send from a faster or less busy host, or test this one again when it is idle] "
        "({command})",
    ),
    "beyond_certified_range.other_workers": Sentence(
        "{sent_by} sent the load, the selftest of {date} covers {certified}",
        "its figures do not hold for this run; [run {command}][command!a cluster has no selftest]",
    ),
    "cache_disabled": Sentence(
        "with the cache off the server took {value} of the input from it",
        "the cache is not off; check how the variant switches it",
        "ratio",
        voids=True,
    ),
    "cache_cold": Sentence(
        "{hits} of {prefixes} prefixes were in the cache before their first request",
        "the cache was not empty; check the reset call or the restart",
        "ratio",
        voids=True,
    ),
    "cache_warm": Sentence(
        "with the cache filled the server took {value} of the input from it",
        "the cache is off, or evicts entries before they are used",
        "ratio",
        voids=True,
    ),
    **{
        f"cache_{state}.untold": Sentence(
            f"cache {state}: the server does not report cache hits, so the declared state counts"
        )
        for state in ("disabled", "cold", "warm")
    },
    "equal_work": Sentence(
        "{configuration} at {level}: {value} of its input came from a prefix cache",
        "switch prefix caching off, reset the cache between configurations, or use a workload that draws "
        "its prompts: each configuration gets its own",
        "ratio",
        voids=True,
    ),
    "equal_work.untold": Sentence(
        "neither replies nor a metrics page report prefix cache hits, and every configuration gets the "
        "same prompts",
        "if one engine with its cache on serves them, later configurations look faster than they are. "
        "Switch the cache off, and declare prefix_caching disabled in the SUT file",
    ),
    "same_system": Sentence(
        "{difference}",
        "the variants are different systems; compare variants that differ only in the switch",
        "ratio",
    ),
    "context_truncated": Sentence("the server processed all lengths in full", voids=True),
    "context_truncated.cut": Sentence(
        "the server cut prompts of {lengths} tokens short",
        "raise its limit, or leave these lengths out",
        voids=True,
    ),
    "memory_pressure.found": Sentence("memory was short: {levels:;}", unit="ratio", voids=True),
    "memory_pressure.none": Sentence(
        "no level put pressure on memory ({levels:;})",
        "[levels_percent=(100, {percent}) would, or longer prompts][percent!raise levels_percent, or use "
        "longer prompts]",
        "ratio",
        voids=True,
    ),
    "memory_pressure.batch_full": Sentence(
        "no level put pressure on memory ({levels:;})",
        "the engine runs {batch} requests at once, which do not fill its memory: use longer prompts",
        "ratio",
        voids=True,
    ),
    "memory_pressure.no_sessions": Sentence(
        "no number of sessions put pressure on memory ({levels:;})",
        "raise sessions, use longer contexts, or begin with fewer if even the first level finds little",
        "ratio",
        voids=True,
    ),
    "memory_pressure.unknown": Sentence(
        "it is unknown whether memory was short: the engine reports neither preemptions nor requests that "
        "wait for its KV cache",
        "make its metrics page reachable",
        "ratio",
    ),
    "memory_pressure.sessions_unknown": Sentence(
        "it is unknown whether memory was short: the server reports neither cached tokens nor preemptions",
        "make its usage report cached_tokens",
        "ratio",
    ),
}

_COMPARISONS = {
    "baseline_valid": Sentence("the baseline is void, so nothing is compared with it: {causes:;}"),
    "systems_valid": Sentence("{system}, run {run}: {why}", voids=True),
    "waived": Sentence("{difference}"),
    "made_otherwise": Sentence(
        "something else was measured: {difference}; not compared: {metrics}", voids=True
    ),
    "calibration": Sentence("{error}"),
    "limit_within_noise": Sentence(
        "{objective} is tighter than the noise of this system: about {value} of its runs miss it although "
        "nothing has changed (noise {noise} between {runs} calibrated runs)",
        "a limit of {proposed} is outside the noise",
        "ratio",
    ),
    "limit_within_noise.margin": Sentence(
        "a change of {metric} by {limit} is within the noise of this system: equal builds may differ by up "
        "to ±{value} with {runs} runs each, which is inconclusive",
        "allow more, or measure more runs",
        "ratio",
    ),
    "nothing_compared": Sentence(
        "[{why}][the test has no {lacking}]: {limits} decides nothing here, however much slower the system "
        "got"
    ),
    "output_lengths": Sentence(
        "{candidate} output tokens per request, {baseline} in the baseline (a change of {change}, Cliff's "
        "delta {value}, p {p})",
        "the arms answer differently, so throughput and times per request mislead",
    ),
    "cache_of_arms": Sentence(
        "{candidate} of the input came from a prefix cache, {baseline} in the baseline",
        "one arm profits from a cache that the other does not have, or that the other filled",
        "ratio",
    ),
    "cache_of_arms.one_known": Sentence(
        "{value} of the input of the [of_baseline?baseline][of_baseline!candidate] came from a prefix "
        "cache; for the other arm it is unknown",
        "if both addresses lead to one engine, each arm finds what the other left in the cache; switch the "
        "cache off",
        "ratio",
    ),
    **{
        check: Sentence(
            f"{what}: [same?the same on all systems][other on each: {{differing:;}}]"
            "[both?; ][unknown for some systems: {unknown}]"
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
