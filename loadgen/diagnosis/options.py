"""An option of the server's that helps in one mode only: what it changed in each, and where it had a load to act on."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadgen.diagnosis.finding import Finding, Run
from loadgen.stats import interval
from loadgen.waterfall import FIGURES, UNITS, figure_of

# Of each option SGLang's arguments that turn it off.
SWITCHES: dict[str, dict[str, Any]] = {
    "chunked_prefill": {"chunked_prefill_size": -1},
    "prefix_caching": {"disable_radix_cache": True},
}
LITTLE = 0.01  # of the prompt tokens: less out of the cache is chance, and nothing to act on
# The figures that are looked at, and whether more of it is better.
LOOKED_AT = {"throughput": True, "TTFT p50": False, "TTFT p95": False, "TPOT mean": False, "ITL p95": False}

Repeats = Sequence[Mapping[str, Any]]  # the record.json of each repeat


def option(name: str, on: Mapping[str, Repeats], off: Mapping[str, Repeats]) -> Finding:
    """What an option did in each mode, from runs with it on and off, paired by repeat."""
    evidence, helped = [], {}
    for mode in on:
        with_it = Run(mode, on[mode][0])
        evidence.append(with_it.says(*_acted_on(name, with_it)))
        changes = list(_changes(on[mode], off[mode]))
        helped[mode] = any(better for _, better in changes)
        evidence += [with_it.says(text, "with it on against off") for text, _ in changes]
        if not changes:
            evidence.append(with_it.says("no difference seen between on and off", "with it on against off"))
    helps = [mode for mode, better in helped.items() if better]
    where = f"helps in {' and '.join(helps)}" if helps else "is not seen to help in any mode"
    only = " only" if len(helps) == 1 and len(helped) > 1 else ""
    action = "judge the option in the mode that it is for, under a load that it can act on"
    return Finding("an option that helps in one mode only", f"{name} {where}{only}", evidence, action)


def _acted_on(name: str, run: Run) -> tuple[str, str]:
    """Whether there was anything for the option to act on, and where that stands."""
    data = run.data
    if name == "prefix_caching":
        cache = data["prompts"]["cache"]
        text = f"{cache['cached_tokens']:,} of {cache['prompt_tokens']:,} prompt tokens came from the cache"
        hit = cache["cached_tokens"] >= LITTLE * cache["prompt_tokens"] > 0
        return (text if hit else f"nothing to act on: {text}"), "prompts.cache"
    chunk, lengths = data["target"]["server"].get("chunked_prefill_size"), data.get("lengths") or {}
    longest = (lengths.get("input_len") or {}).get("max")
    step, running = run.log.get("prefill_tokens") or {}, run.log.get("running") or {}
    facts = f"chunks of {chunk}, prompts of at most {longest}, prefill steps of at most {step.get('max')} new tokens"
    busy = step.get("max") is not None and chunk is not None and 0 < chunk <= step["max"] and running.get("peak")
    return (facts if busy else f"nothing to act on: {facts}"), "lengths, telemetry.log.prefill_tokens"


def _changes(on: Repeats, off: Repeats) -> Iterator[tuple[str, bool]]:
    """Figures that differ between on and off: their text, and whether on is better. Those whose interval holds 0 are
    left out; of one repeat all are told, and none is called better."""
    for figure in FIGURES:
        if figure.name not in LOOKED_AT:
            continue
        pairs = [(figure_of(figure, a), figure_of(figure, b)) for a, b in zip(on, off, strict=True)]
        known = [(a, b) for a, b in pairs if not isinstance(a, str) and not isinstance(b, str)]
        if not known:
            continue
        found = interval([a - b for a, b in known])
        scale = UNITS[figure.unit]
        mean = sum(a - b for a, b in known) / len(known)
        told = f"{figure.name} {mean * scale:+,.2f} {figure.unit}"
        if found is None:
            yield f"{told}, one repeat: no interval", False
        elif not found.holds_zero and figure.tells(mean, max(max(pair) for pair in known)):
            yield (
                f"{told} [{found.low * scale:+,.2f}, {found.high * scale:+,.2f}]",
                (mean > 0) is LOOKED_AT[figure.name],
            )
