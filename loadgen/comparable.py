"""Whether records may be compared: what must be equal between them, checked before any figure is.

Four groups are checked: the *requests*, *concurrency* and caps, *sampling* and budget, and *where* it was measured.
Compared is what was reached, not what was asked for, where a server says both: a pool may hold max_running_requests
down. The cap of the server and that of the client are two things and are never compared with each other.

Each difference is named once, by its cause: where only the asked output lengths differ, the fingerprint of the workload
that differs with them is not named too. What one side does not know is no difference; `unknown` lists it. What a rung
lacks by its design, as the scheduler on `static`, is neither; `by_design` states it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Records = Mapping[str, Mapping[str, Any]]  # rung → record.json

UNCAPPED = ("static", "oneshot", "http")  # the rungs without a client cap, by design
POOL_SHARE = 0.01  # pools within this share are equal: free memory, from which they are sized, moves between starts

_SCHEDULER = """
    chunked_prefill_size max_prefill_tokens schedule_policy schedule_conservativeness enable_mixed_chunk
    disable_overlap_schedule num_continuous_decode_steps stream_interval
""".split()
_MODEL = """
    dtype quantization kv_cache_dtype speculative_algorithm attention_backend page_size disable_cuda_graph device
    tp_size dp_size pp_size
""".split()
_NULL_IS_NONE = ("quantization", "speculative_algorithm")  # a server's null says that there is none


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs: its group, what it is, and its values by rung."""

    group: str
    what: str
    values: dict[str, Any]

    @property
    def text(self) -> str:
        rungs: dict[str, list[str]] = {}
        for rung, value in self.values.items():
            rungs.setdefault(str(value), []).append(rung)
        return f"{self.what}: " + "; ".join(f"{value} on {', '.join(names)}" for value, names in rungs.items())

    def as_dict(self) -> dict[str, Any]:
        return {"group": self.group, "what": self.what, "values": self.values, "text": self.text}


@dataclass(frozen=True, slots=True)
class _Row:
    """A thing that must be equal, by rung: null where it is not known, no entry where a rung has none by design.

    `shown` is what a reader is told instead, where the values themselves say nothing, as fingerprints do.
    """

    group: str
    what: str
    values: Mapping[str, Any]
    shown: Mapping[str, Any] | None = None

    @property
    def differs(self) -> bool:
        return _differ(self.values)

    def difference(self) -> Difference:
        known = [rung for rung, value in self.values.items() if value is not None]
        shown = self.shown or self.values
        told = {rung: shown[rung] for rung in known}
        if len({str(told[rung]) for rung in known}) < len({str(self.values[rung]) for rung in known}):
            told = {rung: f"{told[rung]} ({self.values[rung]})" for rung in known}
        return Difference(self.group, self.what, told)


def differences(records: Records) -> list[Difference]:
    """All that keeps these records from being compared, rung by rung; empty where they are comparable."""
    rows = list(_where(records))
    if rows[0].differs:  # one is simulated: all that their servers say differs with that
        return [rows[0].difference()]
    return [row.difference() for row in (*_rows(records), *rows) if row.differs]


def unknown(records: Records) -> list[str]:
    """What could not be checked, as "not known on …" with the things that are not known there."""
    things: dict[tuple[str, ...], list[str]] = {}
    for row in (*_rows(records), *_where(records)):
        if rungs := tuple(rung for rung, value in row.values.items() if value is None):
            everywhere = len(rungs) == len(row.values)
            things.setdefault(("any rung",) if everywhere else rungs, []).append(row.what)
    return [f"not known on {', '.join(rungs)}: {', '.join(whats)}" for rungs, whats in things.items()]


def by_design(records: Records) -> list[str]:
    """What the rungs do not have in common because that is what they are, in a line each."""
    lines = []
    reached = {rung: _reached(data) for rung, data in records.items() if not _static(data)}
    caps = "; ".join(f"{cap} on {', '.join(rungs)}" for cap, rungs in _grouped(reached))
    for rung, data in records.items():
        if _static(data):
            batch = data.get("static", {}).get("batch_size")
            lines.append(
                f"{rung} has no scheduler and no prefix cache: fixed batches of {'?' if batch is None else batch}"
                + (f", where max_running_requests is {caps}" if caps else "")
            )
    uncapped = [rung for rung, data in records.items() if not _capped(rung, data)]
    if uncapped and (capped := {rung: _cap(data) for rung, data in records.items() if _capped(rung, data)}):
        own = "; ".join(f"{cap} on {', '.join(rungs)}" for cap, rungs in _grouped(capped))
        lines.append(f"no client cap on {', '.join(uncapped)}; limits.max_concurrency is {own}")
    return lines


def _rows(records: Records) -> Iterator[_Row]:
    yield from _requests(records)
    yield from _concurrency(records)
    yield from _sampling(records)


def _requests(records: Records) -> Iterator[_Row]:
    number = _Row("requests", "number of requests", {rung: _number(data) for rung, data in records.items()})
    yield number
    if number.differs:  # other prompts and lengths follow from it, except where each is of one length
        for group, what, key in ("requests", "input_len", "input_len"), ("sampling", "max_tokens", "output_len"):
            constant = {rung: _constant(data, key) for rung, data in records.items()}
            if None not in constant.values():
                yield _Row(group, what, constant)
        return
    if all({"prompts", "output_len"} <= data.get("fingerprints", {}).keys() for data in records.values()):
        prompts = _of_content(records, "requests", "request set", "prompts", "input_len")
        yield prompts
        yield _of_content(records, "sampling", "max_tokens", "output_len", "output_len")
        if not prompts.differs:  # the same prompts may still become others at the server: a chat template
            yield _Row("requests", "prompt tokens by the server's count", _each(records, _counted))
    else:
        yield from _older_requests(records)


def _of_content(records: Records, group: str, what: str, fingerprint: str, length: str) -> _Row:
    """Compared by fingerprint, told by the lengths where these differ."""
    prints = {rung: data["fingerprints"][fingerprint] for rung, data in records.items()}
    lengths = {rung: _described(data, length) for rung, data in records.items()}
    return _Row(group, what, prints, lengths if _differ(lengths) and None not in lengths.values() else None)


def _older_requests(records: Records) -> Iterator[_Row]:
    """Of records with one fingerprint for prompts and output lengths: which of them it was, by what was asked for."""
    prints = _Row(
        "requests",
        "request set",
        {rung: data.get("fingerprints", {}).get("workload") for rung, data in records.items()},
    )
    asked = {rung: data.get("card", {}).get("workload", {}) for rung, data in records.items()}
    lengths = _Row("sampling", "max_tokens", {rung: own.get("output_len") for rung, own in asked.items()})
    others = {rung: (own.get("input_len"), records[rung].get("seed")) for rung, own in asked.items()}
    yield lengths
    if not lengths.differs or _differ(others):
        yield prints


def _concurrency(records: Records) -> Iterator[_Row]:
    scheduled = {rung: data for rung, data in records.items() if not _static(data)}
    asked = _server(scheduled, "max_running_requests")
    reached = _server(scheduled, "effective_max_running_requests")
    shown = {rung: n if asked[rung] in (None, n) else f"{n} (asked for: {asked[rung]})" for rung, n in reached.items()}
    allowed = _Row("concurrency", "max_running_requests", reached, shown)
    if None in reached.values() and not allowed.differs:  # then what was asked for has to do
        yield _Row("concurrency", "max_running_requests asked for", asked)
    yield allowed
    for key in _SCHEDULER:
        yield _Row("concurrency", key, _server(scheduled, key))
    capped = {rung: data for rung, data in records.items() if _capped(rung, data)}
    yield _Row("concurrency", "limits.max_concurrency", _each(capped, _cap))
    waits = {rung: data["scenario"]["limits"].get("overflow") for rung, data in capped.items() if _cap(data) != "none"}
    yield _Row("concurrency", "limits.overflow", waits)


def _sampling(records: Records) -> Iterator[_Row]:
    for key in "temperature", "top_p", "ignore_eos":
        yield _Row("sampling", key, {rung: _chosen(data, key) for rung, data in records.items()})
    pools = _each(records, _pool)
    reached = _Row("sampling", "max_total_num_tokens", _levelled(pools), pools)
    yield reached
    if None in pools.values() and not reached.differs:  # then the budget that was asked for has to do
        for key in "mem_fraction_static", "max_total_tokens":
            yield _Row("sampling", key, _server(records, key))
    scheduled = {rung: data for rung, data in records.items() if not _static(data)}
    cache = {True: "off", False: "on", None: None}
    yield _Row(
        "sampling",
        "prefix cache",
        {rung: cache[off] for rung, off in _server(scheduled, "disable_radix_cache").items()},
    )
    paths = {rung: path and str(path).rstrip("/") for rung, path in _server(records, "model_path").items()}
    known = None not in paths.values()
    yield _Row(
        "sampling", "model", paths if known else {rung: data["target"]["model"] for rung, data in records.items()}
    )
    for key in _MODEL:
        yield _Row("sampling", key, _server(records, key))


def _where(records: Records) -> Iterator[_Row]:
    hosts = {rung: data.get("environment", {}) for rung, data in records.items()}
    yield _Row("where", "simulated", {rung: data["target"].get("simulated") for rung, data in records.items()})
    yield _Row("where", "stand-ins", {rung: data["target"].get("stand_ins") for rung, data in records.items()})
    for what in "cpu", "cores", "loadgen":
        yield _Row("where", what, {rung: host.get(what) for rung, host in hosts.items()})
    yield _Row("where", "server's version", _server(records, "version"))
    rules = {rung: data["scenario"].get("measure", {}).get("itl_rule") for rung, data in records.items()}
    yield _Row("where", "measure.itl_rule", rules)


def _differ(values: Mapping[str, Any]) -> bool:
    known = [value for value in values.values() if value is not None]
    return any(value != known[0] for value in known)


def _grouped(values: Mapping[str, Any]) -> Iterable[tuple[Any, list[str]]]:
    rungs: dict[Any, list[str]] = {}
    for rung, value in values.items():
        rungs.setdefault("not known" if value is None else value, []).append(rung)
    return rungs.items()


# ── what a record says ───────────────────────────────────────────────────────────────────────────────────────────────


def _static(data: Mapping[str, Any]) -> bool:
    return bool(data["mode"] == "static")


def _capped(rung: str, data: Mapping[str, Any]) -> bool:
    """Whether a client cap is a thing of this rung at all."""
    return data["mode"] == "serving" and rung.partition(" ")[0] not in UNCAPPED


def _cap(data: Mapping[str, Any]) -> Any:
    cap = data["scenario"]["limits"]["max_concurrency"]
    return "none" if cap is None else cap


def _each(records: Records, read: Callable[[Mapping[str, Any]], Any]) -> dict[str, Any]:
    return {rung: read(data) for rung, data in records.items()}


def _server(records: Records, key: str) -> dict[str, Any]:
    """What each server said of this argument; its null means none where there may be none."""
    values = {rung: data["target"]["server"].get(key) for rung, data in records.items()}
    if key in _NULL_IS_NONE:
        known = {rung: key in data["target"]["server"] for rung, data in records.items()}
        values = {rung: "none" if value is None and known[rung] else value for rung, value in values.items()}
    return values


def _reached(data: Mapping[str, Any]) -> Any:
    server = data["target"]["server"]
    return server.get("effective_max_running_requests") or server.get("max_running_requests")


def _pool(data: Mapping[str, Any]) -> int | None:
    pool: int | None = data["static"]["pool_tokens"] if "static" in data else None
    return pool or data["target"]["server"].get("max_total_num_tokens")


def _levelled(pools: Mapping[str, int | None]) -> dict[str, int | None]:
    """Pools that are near enough to each other, as one."""
    known = [pool for pool in pools.values() if pool is not None]
    if known and max(known) <= min(known) * (1.0 + POOL_SHARE):
        return {rung: None if pool is None else min(known) for rung, pool in pools.items()}
    return dict(pools)


def _chosen(data: Mapping[str, Any], key: str) -> Any:
    """How tokens were chosen, of each class of traffic where they differ."""
    scenario = data["scenario"]
    own = [(one.get("sampling") or scenario["sampling"])[key] for one in scenario.get("traffic") or [{}]]
    return own[0] if len(set(own)) == 1 else str(own)


def _counted(data: Mapping[str, Any]) -> int | None:
    """The prompts' tokens by the server's count, where it counted all of them."""
    counted = data.get("prompts", {}).get("lengths", {})
    whole = counted.get("requests") is not None and counted["requests"] == _number(data)
    return counted["server_tokens"] if whole else None


def _number(data: Mapping[str, Any]) -> Any:
    return data["lengths"]["requests"] if "lengths" in data else data["counts"]["scheduled"]


def _constant(data: Mapping[str, Any], key: str) -> int | None:
    """The length of all requests, where they have one."""
    lengths = data.get("lengths", {}).get(key)
    return lengths["max"] if lengths and lengths["mean"] == lengths["max"] else None


def _described(data: Mapping[str, Any], key: str) -> Any:
    lengths = data.get("lengths", {}).get(key)
    if lengths is None:
        return None
    return _constant(data, key) or f"mean {lengths['mean']:g}, {lengths['total']:,} in all"
