"""Why the same model gives numbers that contradict each other: one rule a symptom.

A rule looks at the runs of a pair and gives a finding, or None where its symptom is not there or cannot be seen: it
never guesses. A figure of one mode is never offered as a statement on another.
"""

from collections.abc import Mapping

from loadgen.diagnosis.finding import Finding, Run
from loadgen.verdict import carries, fits

Runs = Mapping[str, Run]

REACHED = 0.95  # of the one-shot throughput, above which the service has reached it
BUSY = 0.9  # of the one-shot throughput, which a load asks for; and of what it asks for, which it gets
CAPPED = 0.05  # share of the time at the client's cap, above which the cap held the load
TWICE = 2.0  # figures of two modes this far apart answer two questions
TAIL, NORMAL = 2.0, 1.5  # the tail over the median, and the mean over the median, of gaps
FULL = 0.9  # share of the pool in use, above which it is the pool that holds
WINDOW = 0.01  # hit rates this far apart differ
LARGER = 1.2  # peak memory, one mode's to another's


def throughput_not_reached(runs: Runs) -> Finding | None:
    """Offline throughput is not reached online."""
    once, service = runs.get("oneshot"), runs.get("serving")
    if not once or not service or not (once.valid and service.valid):
        return None
    key = "output_tokens_per_s"
    offline, online = (run.data["throughput"][key] for run in (once, service))
    if not offline or not online or online >= REACHED * offline:
        return None
    where = f"throughput.{key}"
    evidence = [
        once.says(f"{offline:,.0f} output tokens/s", where),
        service.says(f"{online:,.0f} output tokens/s", where),
    ]
    rate, lengths = service.data["offered"]["scheduled_per_s"], service.data.get("lengths")
    asked = rate * lengths["output_len"]["mean"] if rate and lengths and not service.data["answers_decide"] else None
    if asked is not None:
        evidence.append(service.says(f"the arrivals ask for {asked:,.0f} output tokens/s", "offered, lengths"))
    queued = (service.log.get("queued") or {}).get("mean")
    if queued is not None:
        evidence.append(service.says(f"{queued:.2f} requests queued on average", "telemetry.log.queued"))
    share = service.data["concurrency"]["share_at_cap"]
    if share > CAPPED:
        title = "the service stays below the offline throughput: the client's cap held requests back"
        action = "raise limits.max_concurrency until the time at the cap is near 0, and run the pair again"
        evidence.append(service.says(f"{share:.0%} of the time at the cap", "concurrency.share_at_cap"))
    elif asked is not None and asked < BUSY * offline and online >= BUSY * asked:
        title = "the service stays below the offline throughput: its load asks for no more"
        action = "this is no capacity: raise arrivals.rate until requests queue at the server, and compare then"
    elif asked is None:
        title = "the service stays below the offline throughput, and its own answers decide what it is asked for"
        action = "more users, or shorter think times, ask for more: raise them until requests queue, and compare then"
    else:
        title = "the service stays below the offline throughput under a load that asks for it"
        action = "look at the steps: batches are smaller, or prefills interrupt them; see the waterfall's http rung"
    return Finding("offline throughput is not reached online", title, evidence, action)


def memory(runs: Runs) -> Finding | None:
    """The service is fine, and the one-shot or the fixed batch fails on memory."""
    service, fixed, once = runs.get("serving"), runs.get("static"), runs.get("oneshot")
    symptom = "service fine but the one-shot fails on peak memory"
    if fixed and not fits(fixed.data):
        evidence = [fixed.says(fixed.data["verdict"]["reasons"][0], "static")]
        if service and (peak := (service.log.get("usage") or {}).get("peak")) is not None:
            evidence.append(service.says(f"{peak:.0%} of the pool in use at most", "telemetry.log.usage"))
        action = "the scheduler keeps what does not fit waiting, a fixed batch cannot: take the batch size that fits"
        return Finding(symptom, "the fixed batch does not fit where the service runs", evidence, action)
    if not once or not service or service.data["target"]["simulated"]:  # a simulator's memory says nothing
        return None
    peaks = [run.data["memory"]["peak_bytes"] for run in (once, service) if run.data.get("memory")]
    if len(peaks) < 2 or not all(peaks) or peaks[0] <= LARGER * peaks[1]:
        return None
    evidence = [
        run.says(f"peak memory {peak / 1e9:.2f} GB", "memory.peak_bytes")
        for run, peak in zip((once, service), peaks, strict=True)
    ]
    action = "size memory by the one-shot where one-shots are run; the service's peak says nothing of it"
    return Finding(symptom, "the one-shot needs more memory than the service", evidence, action)


def figures_of_two_modes(runs: Runs) -> Finding | None:
    """Metrics of one mode are far from the other's: they answer different questions."""
    once, service = runs.get("oneshot"), runs.get("serving")
    if not once or not service or not (once.valid and service.valid):
        return None
    evidence = []
    for metric, statistic, questions in (
        ("ttft", "p50", ("how long its place in a queue of all prompts takes", "what a user waits for")),
        ("tpot", "mean", ("decoding in the fullest batch", "decoding in the batches that the arrivals make")),
        ("itl", "p95", ("pauses while the rest of the queue is prefilled", "pauses that a user sees")),
    ):
        figures = [run.data["metrics"][metric] for run in (once, service)]
        if any(not own["count"] or (statistic != "mean" and not carries(own, statistic)) for own in figures):
            continue
        values = [own[statistic] for own in figures]
        if max(values) >= TWICE * min(values):
            where = f"metrics.{metric}.{statistic}"
            evidence += [
                run.says(f"{metric} {statistic} {value * 1e3:,.1f} ms: {question}", where)
                for run, value, question in zip((once, service), values, questions, strict=True)
            ]
    if not evidence:
        return None
    action = "quote each figure with its mode; take the serving ones for an SLO and the one-shot ones for a batch job"
    title = "latencies of the one-shot and of the service are two answers to two questions"
    return Finding("metrics of one mode used as the other's", title, evidence, action)


def tail(runs: Runs) -> Finding | None:
    """The tail of the gaps is raised while their mean is normal."""
    run = runs.get("serving")
    if not run or not run.valid or not run.gaps:
        return None
    itl, gaps = run.data["metrics"]["itl"], run.gaps
    highest = next((quantile for quantile in ("p99", "p95") if itl["count"] and carries(itl, quantile)), None)
    if highest is None or not gaps.long:
        return None
    if itl[highest] < TAIL * itl["p50"] or itl["mean"] > NORMAL * itl["p50"]:
        return None
    where = "metrics.itl"
    figures = ", ".join(f"{name} {itl[name] * 1e3:.1f} ms" for name in ("p50", "mean", highest, "max"))
    evidence = [run.says(f"ITL {figures}", where)]
    of = "chunks.f64, steps.jsonl"
    evidence.append(
        run.says(
            f"{gaps.long:,} of {gaps.gaps:,} gaps are over {gaps.threshold * 1e3:.1f} ms, three times the median", of
        )
    )
    for cause, own in sorted(gaps.causes.items(), key=lambda item: -item[1]["excess_share"]):
        text = f"{cause}: {own['share']:.0%} of them, {own['excess_share']:.0%} of their time over the median"
        evidence.append(run.says(f"{text}; median {own['median'] * 1e3:.1f} ms, longest {own['max'] * 1e3:.1f} ms", of))
    if gaps.prefill:
        text = f"the prefills in a gap have {gaps.prefill['tokens_p50']:,.0f} new tokens at the median, "
        text += f"{gaps.prefill['tokens_max']:,.0f} at most"
        if gaps.prefill["s_per_1000_tokens"] is not None:
            text += f"; 1,000 more make it {gaps.prefill['s_per_1000_tokens'] * 1e3:.1f} ms longer"
        evidence.append(run.says(text, of))
    cause = max(gaps.causes, key=lambda name: gaps.causes[name]["excess_share"])
    return Finding("tail raised while the mean is normal", f"the ITL tail is mostly {cause}", evidence, _AGAINST[cause])


_AGAINST = {
    "retraction": "the pool is over-committed: raise max_total_tokens or schedule_conservativeness, or lower the cap",
    "cold start": "send more warm-up requests: measure.warmup",
    "prefill": "make prefill steps shorter: a smaller chunked_prefill_size, or enable_mixed_chunk; or spread arrivals",
    "graph fall-back": "capture graphs for the batches that occur: cuda_graph_max_bs_decode",
    "queueing": "requests wait for a place: raise max_running_requests or the pool, or add servers",
    "nothing seen": "the server's log has no step that explains it: look at the network, the client's lag and the host",
    "no log": "say where the server writes its log: target.server_log, with decode_log_interval 1",
}


def log_lines(runs: Runs) -> Finding | None:
    """Log lines are missing in one mode."""
    evidence = []
    missing = False
    for run in runs.values():
        log, data = run.log, run.data
        where = "telemetry.log, counts"
        if "static" in data:
            evidence.append(run.says("no batch lines: there is no scheduler that writes them", where))
            continue
        if not log or not (log["prefill_steps"] or log["decode_lines"]):
            missing = True
            why = ((data.get("telemetry") or {}).get("log") or {}).get("absent") or "log_level hides them"
            evidence.append(run.says(f"no batch lines: {why}", where))
            continue
        counted = sum(log[key] for key in ("new_tokens", "cached_tokens"))
        sent = data["prompts"]["lengths"]["server_tokens"]
        every = log["decode_log_interval"]
        missing |= every != 1 or counted < sent
        evidence.append(
            run.says(
                f"{log['prefill_steps']:,} prefill lines with {counted:,} prompt tokens where {sent:,} were answered; "
                f"{log['decode_lines']:,} decode lines, one in {every or '?'} steps",
                where,
            )
        )
    if not missing:
        return None
    action = 'give every mode decode_log_interval = 1 and log_level = "info", and target.server_log where you attach'
    return Finding("log lines missing in one mode", "the modes' logs do not say the same things", evidence, action)


def prefix_window(runs: Runs) -> Finding | None:
    """The prefix cache finds other things in one mode than in the other."""
    once, service = runs.get("oneshot"), runs.get("serving")
    if not once or not service:
        return None
    caches = [run.data["prompts"]["cache"] for run in (once, service)]
    rates = [cache["hit_rate"] for cache in caches]
    if None in rates or abs(rates[0] - rates[1]) < WINDOW or not caches[1]["shared_tokens"]:
        return None
    evidence = [
        run.says(
            f"{cache['hit_rate']:.1%} of the prompt tokens came from the cache, where {cache['shared_tokens']:,} of "
            f"{cache['prompt_tokens']:,} had been sent before",
            "prompts.cache",
        )
        for run, cache in zip((once, service), caches, strict=True)
    ]
    lower = "one-shot" if rates[0] < rates[1] else "service"
    action = (
        "all at once, prompts of one prefix are admitted before one of them is cached: compare rates within a mode"
        if lower == "one-shot"
        else "look at what is evicted between arrivals: the pool's turnover and its size against what prompts share"
    )
    return Finding(
        "prefix-cache window differs between modes", f"the {lower} finds less in its cache", evidence, action
    )


def running_held_down(runs: Runs) -> Finding | None:
    """max_running_requests is not what was asked for, or is never reached, for want of pool."""
    for run in runs.values():
        server, log = run.data["target"]["server"], run.log
        asked, effective = server.get("max_running_requests"), server.get("effective_max_running_requests")
        pool, lengths = server.get("max_total_num_tokens"), run.data.get("lengths")
        if "static" in run.data or not log or not asked or not pool or not lengths or not lengths["input_len"]:
            continue
        peak, full = log["running"]["peak"], log["usage"]["peak"] or 0.0
        limit = effective or asked
        held = log["queued"]["peak"] and full >= FULL and peak is not None and peak < limit
        if limit >= asked and not held:
            continue
        each = lengths["input_len"]["mean"] + lengths["output_len"]["mean"]
        evidence = [
            run.says(f"max_running_requests: {asked} asked for, {limit} allowed", "target.server"),
            run.says(
                f"{peak} ran at most, while up to {log['queued']['peak']} waited and {full:.0%} of the pool was in use",
                "telemetry.log",
            ),
            run.says(
                f"a request comes to {each:,.0f} tokens, {asked} of them to {asked * each:,.0f}; the pool has {pool:,}",
                "lengths, target.server.max_total_num_tokens",
            ),
        ]
        action = f"for {asked} at once give the pool {asked * each:,.0f} tokens (mem_fraction_static, max_total_tokens)"
        return Finding("max_running_requests held down by the pool", "the pool holds the batch down", evidence, action)
    return None


RULES = (throughput_not_reached, memory, figures_of_two_modes, tail, log_lines, prefix_window, running_held_down)


def diagnose(runs: Runs) -> list[Finding]:
    """What the rules find in the runs of a pair, by rung."""
    return [finding for rule in RULES if (finding := rule(runs))]
