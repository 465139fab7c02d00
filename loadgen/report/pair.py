"""The report of a pair in a terminal: whether its rungs may be compared, the waterfall, the cards, the diagnosis."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.waterfall import UNITS

CARDS = ("oneshot", "serving")
_HOW = {
    "static": "fixed batches, into the model runner",
    "oneshot": "+ the scheduler: all at once, in process",
    "http": "+ the transport: all at once, over HTTP",
    "capped": "+ the client's cap",
    "serving": "+ the arrivals",
}


def pair_report(data: Mapping[str, Any]) -> RenderableType:
    """The report of a pair, from pair.json."""
    return Group(*_parts(data))


def _parts(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text(f"{data['name']} · pair of {', '.join(data['rungs'])} · {data['who']}", style="bold")
    if data["differences"]:
        yield Text("REFUSED: these runs differ in more than their rung, so no figure of theirs is compared", "bold red")
        yield from (Text(f"  • {difference['text']}") for difference in data["differences"])
        return
    as_known = ", as far as is known" if data["unknown"] else ""
    yield Text(f"COMPARABLE: same requests, server limits, sampling and budget{as_known}", style="bold green")
    yield from (Text(f"  {line}") for line in (*data["by_design"], *data["unknown"]))
    if "waterfall" in data:
        yield from _ladder(data)
    yield from _diagnosis(data["diagnosis"])


def _ladder(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    fall = data["waterfall"]
    yield Text("")
    yield from (_rung(name, own) for name, own in fall["rungs"].items())
    yield _means(fall)
    yield from _reasons(fall)
    yield Text(f"\nfrom rung to rung, mean of {fall['repeats']} paired repeats [{fall['confidence']:.0%} interval]")
    yield _steps(fall)
    yield from _of_chance(fall)
    yield Text("")
    yield _cards({name: data["cards"][name] for name in CARDS if name in data["cards"]})


def _rung(name: str, own: Mapping[str, Any]) -> Text:
    batch = "not known" if own["mean_batch"] is None else f"{own['mean_batch']:.1f}"
    kind = "fixed at" if own["batching"] == "static" else "mean"
    line = f"{name:<8} {_HOW.get(name, ''):<42} {own['batching']} batching, batch {kind} {batch}; {_field(own['path'])}"
    lost = "".join(f"\n         not used: {reason}" for reason in own["not_used"])
    return Text(line + lost)


def _means(fall: Mapping[str, Any]) -> Table:
    table = Table("mean", "", *fall["rungs"], box=None, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    for figure in fall["figures"]:
        shown = [_shown(own["mean"], figure["unit"]) for own in figure["rungs"].values()]
        table.add_row(figure["name"], figure["unit"], *shown)
    return table


def _reasons(fall: Mapping[str, Any]) -> Iterator[Text]:
    """Why a figure is missing, said once for each reason; runs that are not used have said theirs above."""
    missing: dict[str, dict[str, list[str]]] = {}
    for figure in fall["figures"]:
        for rung, own in figure["rungs"].items():
            if own["reason"] and not fall["rungs"][rung]["not_used"]:
                missing.setdefault(figure["name"], {}).setdefault(own["reason"], []).append(rung)
    for name, reasons in missing.items():
        told = "; ".join(f"{reason} ({', '.join(rungs)})" for reason, rungs in reasons.items())
        yield Text(f"no {name}: {told}", style="dim")


def _steps(fall: Mapping[str, Any]) -> Table:
    """A block for each step, a row in it for each figure that both of its rungs have."""
    table = Table("", "", "difference", "", "interval", "finding", box=None, pad_edge=False)
    for column in table.columns[2:5]:
        column.justify = "right"
    for number, step in enumerate(fall["figures"][0]["steps"]):
        how = _changed(step["from"], step["to"])
        table.add_row(Text(f"{step['from']} → {step['to']}", style="bold"), "", "", "", "", Text(how, style="dim"))
        for figure in fall["figures"]:
            if figure["steps"][number]["difference"] is not None:
                table.add_row(
                    f"  {figure['name']}",
                    figure["unit"],
                    *_cells(figure["steps"][number], figure["unit"], fall["repeats"]),
                )
    return table


def _changed(below: str, above: str) -> str:
    """What is changed from one rung to another: one thing, or all of those between."""
    rungs = list(_HOW)
    if below not in _HOW or above not in _HOW:
        return ""
    return "; ".join(_HOW[rung] for rung in rungs[rungs.index(below) + 1 : rungs.index(above) + 1])


def _cells(step: Mapping[str, Any], unit: str, repeats: int) -> Iterator[RenderableType]:
    yield _signed(step["difference"], unit)
    yield "" if step["relative"] is None else f"{step['relative']:+.0%}"
    yield "" if step["interval"] is None else f"[{', '.join(_signed(end, unit) for end in step['interval'])}]"
    of = "" if step["n"] == repeats else f" ({step['n']} of {repeats} repeats)"  # the means above are of all
    yield Text(step["finding"] + of, style="" if step["finding"] in ("higher", "lower") else "dim")


def _of_chance(fall: Mapping[str, Any]) -> Iterator[Text]:
    with_interval = sum(step["interval"] is not None for figure in fall["figures"] for step in figure["steps"])
    if with_interval:
        missed = with_interval * (1.0 - fall["confidence"])
        yield Text(
            f"of {with_interval} intervals about {missed:.1f} miss their true value by chance alone", style="dim"
        )


def _cards(cards: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table("card", *cards, box=None, pad_edge=False)
    rows: dict[str, dict[str, Any]] = {}
    for name, card in cards.items():
        for key, value in card.items():
            fields = value.items() if isinstance(value, Mapping) else [("", value)]
            for field, own in fields:
                rows.setdefault(f"{key}.{field}" if field else key, {})[name] = own
    for key, values in rows.items():
        table.add_row(key, *(_field(values.get(name)) for name in cards))
    return table


def _field(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {own}" for key, own in value.items())
    return str(value)


def _diagnosis(findings: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    for finding in findings:
        yield Text(f"\n{finding['title']}", style="bold")
        yield from (Text(f"  {line}") for line in finding["evidence"])
        yield Text(f"  → {finding['action']}")


def _shown(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value * UNITS[unit]:,.{_places(unit)}f}"


def _signed(value: float, unit: str) -> str:
    return f"{value * UNITS[unit]:+,.{_places(unit)}f}"


def _places(unit: str) -> int:
    return {"tokens/s": 0, "%": 3}.get(unit, 2)
