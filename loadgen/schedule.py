"""The schedule: who leaves when, with what. It is data, made before the clock starts.

Each concern draws from a stream of its own, named under the one seed, so that the arrivals do not move when the
workload changes, nor either of them when a warm-up or another class of traffic is added. Whatever deals a schedule to
workers deals this one: no worker draws arrivals. The fingerprints say whether two runs had the same offsets and the
same requests.
"""

import heapq
import itertools
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf
from operator import itemgetter
from typing import Any

import numpy as np

from loadgen import fingerprint, flow, workload
from loadgen.driver import Follow
from loadgen.exchange import Request
from loadgen.flow import Flow
from loadgen.scenario import Scenario, Traffic
from loadgen.scenario.arrivals import ClosedArrivals, OneshotArrivals, ReplayArrivals, SessionsArrivals
from loadgen.traces import DataError
from loadgen.wire.apis import conversation

MOST = 500_000_000  # tokens of a schedule, of four bytes each: it is held in memory
EACH = 100  # tokens' worth that a request takes besides


def stream(seed: int, name: str) -> np.random.Generator:
    """The random stream that this seed has for this name."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=tuple(name.encode()))))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Requests and their offsets in seconds from the start, pairwise, and what follows on each that ends.

    `known` has all requests that are known beforehand, those that follow on others included. `warmup` goes out before
    the start. `totals` has for each class how many requests come due in all, None where the answers decide. `turns` is
    how many turns the conversations have that begin, None where there are none.
    """

    offsets: "array[float]"
    requests: list[Request]
    known: list[Request]
    follow: Follow
    totals: dict[str, int | None]
    turns: int | None
    warmup: list[Request]
    fingerprints: dict[str, str]

    @property
    def total(self) -> int | None:
        """How many requests come due in all, None where the answers decide."""
        known = [total for total in self.totals.values() if total is not None]
        return sum(known) if len(known) == len(self.totals) else None

    @property
    def of_ids(self) -> bool:
        """Whether all prompts are token ids, which a model runner takes."""
        return not any(isinstance(request.prompt, str | tuple) for request in (*self.known, *self.warmup))

    @property
    def lengths(self) -> dict[str, Any]:
        """How many requests are known, and the distribution of their lengths in tokens; null where nobody counted."""
        inputs = [request.input_len for request in self.known]
        return {
            "requests": len(self.known),
            "input_len": None if None in inputs else _distribution([n for n in inputs if n is not None]),
            "output_len": _distribution([request.output_len for request in self.known]),
        }


def _distribution(lengths: list[int]) -> dict[str, float]:
    values = np.array(lengths)
    p50, p95 = np.quantile(values, [0.5, 0.95], method="inverted_cdf")
    return {
        "total": int(values.sum()),
        "mean": round(float(values.mean()), 3),
        "p50": int(p50),
        "p95": int(p95),
        "max": int(values.max()),
    }


def at_once(scenario: Scenario, schedule: Schedule) -> tuple[Scenario, Schedule]:
    """The same requests, all due at the start and under no cap of the client's, and the scenario that says so.

    Its SLO goes with its arrivals: it was asked of the service. Raises DataError where what is sent depends on answers.
    """
    classes = []
    for one in scenario.classes:
        if isinstance(one.arrivals, SessionsArrivals):
            why = "a turn's prompt holds the answers before it, so that not all can be sent at once"
            raise DataError([f"{_key(one, 'arrivals.kind')} = sessions: {why}"])
        if (total := schedule.totals[one.name] or one.workload.num_prompts) is None:
            why = "say how many there are, to send all at once: else the answers decide it"
            raise DataError([f"{_key(one, 'workload.num_prompts')}: {why}"])
        workload = one.workload.model_copy(update={"num_prompts": total})
        changed: dict[str, Any] = {
            "workload": workload,
            "arrivals": OneshotArrivals(kind="oneshot"),
            "slo": {},
            "begin": 0.0,
        }
        classes.append(one.model_copy(update=changed))
    if scenario.traffic:
        tables: dict[str, Any] = {"traffic": classes, "interference": None}
    else:
        tables = {"workload": classes[0].workload, "arrivals": classes[0].arrivals}
    tables |= {
        "slo": {},
        # All at once, a place in the server's queue is what is measured, and no fault.
        "limits": scenario.limits.model_copy(
            update={"max_concurrency": None, "timeout_first_token": scenario.limits.timeout_total}
        ),
        "measure": scenario.measure.model_copy(update={"duration": None}),
    }
    scenario = scenario.model_copy(update=tables)
    offsets = array("d", [0.0]) * len(schedule.known)
    fingerprints = {"schedule": fingerprint.of_offsets(offsets), "concurrency": _of_limits(scenario)}
    requests = Schedule(
        offsets,
        schedule.known,
        schedule.known,
        lambda _: None,
        schedule.totals,
        None,
        schedule.warmup,
        schedule.fingerprints | fingerprints,
    )
    return scenario, requests


def plan(scenario: Scenario, seed: int) -> Schedule:
    """The schedule that a scenario has under a seed; the same on every machine.

    Raises DataError where a file that it needs cannot be used, or has less than was asked for.
    """
    classes = scenario.classes
    if faults := [fault for one in classes for fault in _faults(one)]:
        raise DataError(list(dict.fromkeys(faults)))
    flows = {one.name: _flow(one, scenario, seed) for one in classes}
    merged = list(
        heapq.merge(*(zip(own.offsets, own.requests, strict=True) for own in flows.values()), key=itemgetter(0))
    )
    warmup = _in_turn(_requests(one, scenario, stream(seed, _named(one, "warmup"))) for one in classes)
    turns = [len(own.known) for own in flows.values() if own.known and own.known[0].session is not None]
    later = [request for own in flows.values() for request in own.known[len(own.requests) :]]
    if turns:  # a conversation's first turns are no head of what is known
        later = []
    requests = [request for _, request in merged]
    sampling = [(one.sampling or scenario.sampling).model_dump_json() for one in classes]
    return Schedule(
        array("d", (offset for offset, _ in merged)),
        requests,
        requests + later,
        lambda exchange: flows[exchange.request.traffic].follow(exchange),
        {name: own.total for name, own in flows.items()},
        sum(turns) if turns else None,
        list(itertools.islice(warmup, scenario.measure.warmup)),
        {
            "schedule": fingerprint.joined(_fingerprint_of_flow(own) for own in flows.values()),
            "workload": fingerprint.joined(fingerprint.of_requests(own.known) for own in flows.values()),
            "concurrency": _of_limits(scenario),
            "sampling": fingerprint.of_bytes("".join(sampling).encode()),
            "prompts": fingerprint.joined(fingerprint.of_prompts(own.known) for own in flows.values()),
            "output_len": fingerprint.joined(fingerprint.of_lengths(own.known) for own in flows.values()),
        },
    )


def _of_limits(scenario: Scenario) -> str:
    return fingerprint.of_bytes(scenario.limits.model_dump_json(include={"max_concurrency", "overflow"}).encode())


def _faults(one: Traffic) -> Iterator[str]:
    """What is wrong with the files that a class needs, each on its own."""
    for opened in (one.process, one.workload.prompts, one.workload.tokens):
        try:
            opened()
        except DataError as error:
            yield from error.faults
        except workload.TokenizerError as error:
            yield str(error)


def due(one: Traffic, scenario: Scenario, seed: int) -> Iterator[float]:
    """The instants before the end of the run at which this class's requests are due, or its users and conversations
    begin; without end where neither the process nor a duration ends them. Raises DataError."""
    end = inf if scenario.measure.duration is None else scenario.measure.duration
    offsets = one.process().offsets(stream(seed, _named(one, "arrivals")))
    return itertools.takewhile(lambda offset: offset < end, (one.begin + offset for offset in offsets))


def instants(one: Traffic, scenario: Scenario, seed: int) -> "tuple[array[float], bool]":
    """The instants of `due` that a run has, and whether these are all that there are before its end: a count or the
    workload's end may cut them. Raises DataError."""
    if isinstance(one.arrivals, SessionsArrivals):  # their turns, not they, are counted
        made = _flow(one, scenario, seed)
        return made.offsets, one.workload.num_prompts is None
    rng = stream(seed, _named(one, "workload"))
    most = min((n for n in (one.workload.num_prompts, one.workload.size(rng)) if n is not None), default=None)
    starts = due(one, scenario, seed)
    offsets = array("d", itertools.islice(starts, most))
    return offsets, most is None or next(starts, None) is None


def _flow(one: Traffic, scenario: Scenario, seed: int) -> Flow:
    """How this class comes; the requests have its name and its sampling on them."""
    table, count, duration = one.arrivals, one.workload.num_prompts, scenario.measure.duration
    starts = due(one, scenario, seed)
    requests = _requests(one, scenario, stream(seed, _named(one, "workload")))
    thinking = stream(seed, _named(one, "think"))
    if isinstance(table, ClosedArrivals):
        made = flow.closed_loop(starts, requests, table.think_time.distribution(), thinking, count)
    elif isinstance(table, SessionsArrivals):
        turns, think = table.turns.distribution(), table.think_time.distribution()
        follow_ups = _follow_ups(one, scenario, seed) or requests
        made = flow.sessions(starts, requests, follow_ups, turns, think, thinking, count)
        _of_one_form(one, made.known)
    else:
        made = flow.open_loop(starts, requests if count is None else itertools.islice(requests, count))
    if duration is not None and one.answers_decide:
        made = replace(made, total=None)
    endless = isinstance(table, ClosedArrivals) and count is None  # it goes on taking requests
    if not endless and len(made.known) != count and (fault := _ended_early(one, made, requests, starts, duration)):
        raise DataError([fault])
    if not made.requests:
        within = "" if duration is None else f" within {duration:g} s"
        raise DataError([f"{_key(one, 'arrivals')}: nothing comes due{within}"])
    return made


def _follow_ups(one: Traffic, scenario: Scenario, seed: int) -> Iterator[Request] | None:
    """What the later turns of conversations ask, where that is not what their first ones do: a system prompt stands
    at the beginning only."""
    made = one.workload.prompts()
    if not isinstance(made, workload.SharedPrefix):
        return None
    return _sent(one, scenario, made.questions(stream(seed, _named(one, "follow-ups"))))


def _of_one_form(one: Traffic, requests: Iterable[Request]) -> None:
    forms = {str: "text", tuple: "messages"}
    if len(found := {forms.get(type(request.prompt), "input_ids") for request in requests}) > 1:
        both = " and ".join(sorted(found))
        raise DataError([f"{_key(one, 'workload')}: {both} cannot be turns of one conversation: give a tokenizer"])


def _ended_early(
    one: Traffic, made: Flow, requests: Iterator[Request], starts: Iterator[float], duration: float | None
) -> str | None:
    """What ended a class before its count or the duration did; None where nothing did."""
    count, found = one.workload.num_prompts, len(made.known)
    of_requests = next(requests, None) is None
    if duration is not None and not (of_requests and next(starts, None) is not None):
        return None  # the arrivals that there are within the duration
    if count is None and duration is None:
        return None  # all that there is
    asked = "measure.duration" if count is None else f"{_key(one, 'workload.num_prompts')} = {count}"
    instead = "leave it out" if count is None else "ask for at most as many"
    if not of_requests:
        return f"{asked}, but the arrivals end after {found}: {instead}"
    if not found:
        return f"{_key(one, 'workload')}: none of its requests can be used: all were left out as too short or too long"
    helps = not getattr(one.workload, "repeat", True) and not isinstance(one.arrivals, ReplayArrivals)
    or_repeat = "" if not helps else " or set workload.repeat = true"
    return f"{asked}, but the workload ends after {found}: {instead}{or_repeat}"


def _requests(one: Traffic, scenario: Scenario, rng: np.random.Generator) -> Iterator[Request]:
    """The class's requests, as they are sent."""
    endless = isinstance(one.arrivals, ClosedArrivals) and one.workload.num_prompts is None
    return _sent(one, scenario, one.workload.prompts().requests(rng), bounded=not endless)


def _sent(one: Traffic, scenario: Scenario, requests: Iterable[Request], *, bounded: bool = True) -> Iterator[Request]:
    """Requests in the form that the API takes, with what the class adds to them; raises DataError where they would fill
    the memory, unless they are drawn as the load goes on and not `bounded`."""
    sampling = (one.sampling or scenario.sampling).chosen()
    tokenizer, chat = one.workload.tokens(), scenario.target.api == "chat"
    talk = chat and isinstance(one.arrivals, SessionsArrivals)
    size = 0
    for drawn in requests:
        size += (drawn.input_len or 0) + EACH
        if bounded and size > MOST:
            key = _key(one, "workload")
            raise DataError(
                [f"{key}: {drawn.index:,} prompts take {MOST * 4 / 1e9:g} GB and are not all: ask for fewer"]
            )
        if isinstance(drawn.prompt, tuple) and not chat:
            key = _key(one, "workload")
            raise DataError([f"{key}: prompt {drawn.index} is a conversation, which only chat takes: set target.api"])
        said = drawn
        if tokenizer:
            said = workload.as_text(drawn, tokenizer) if chat else workload.as_ids(drawn, tokenizer)
        prompt = conversation(said.prompt) if talk else said.prompt
        yield replace(said, prompt=prompt, text_len=said.input_len, sampling=sampling, traffic=one.name)


def _named(one: Traffic, name: str) -> str:
    return f"{one.name}/{name}" if one.name else name


def _key(one: Traffic, key: str) -> str:
    """A key of this class as it is written in a scenario."""
    return f"traffic.{one.name}.{key}" if one.name else key


def _in_turn(streams: Iterable[Iterator[Request]]) -> Iterator[Request]:
    """One of each, again and again, until the shortest ends."""
    return itertools.chain.from_iterable(zip(*streams, strict=False))


def _fingerprint_of_flow(own: Flow) -> str:
    """Offsets, think times, and where conversations begin."""
    turns = (float(request.turn) for request in own.known if request.session is not None)
    return fingerprint.of_offsets([*own.offsets, *own.thinks, *turns])
