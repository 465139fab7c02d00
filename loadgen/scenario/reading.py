"""Reading a scenario file: overrides laid over it, and every fault told at once, with its line, its key and what was
expected.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from loadgen.exchange import METRICS
from loadgen.scenario.tables import STATISTICS, Scenario

FILES = ("file", "tokenizer", "server_log")  # keys whose value is a path
LAUNCHED = ("simulator", "sglang")  # targets that are started for the run


class ScenarioError(Exception):
    """A scenario that cannot be run: `faults` has one line for each thing that is wrong with it."""

    def __init__(self, source: str, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.source = source
        self.faults = list(faults)


def load(source: Path, overrides: Sequence[str] = (), target: str | None = None) -> Scenario:
    """Read and check the scenario file, with `key.key=value` overrides laid over it.

    `target` replaces the file's: "simulator", "sglang", or the URL of a running server. Raises ScenarioError with
    every fault.
    """
    try:
        text = source.read_text(encoding="utf-8-sig")
        tables = tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:  # TOML's and Unicode's own are ValueErrors
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ScenarioError(str(source), [f"{source}: cannot be read: {reason}"]) from None
    faults = []
    if target is not None:  # first, so that overrides of the target's keys are those of this one
        if target not in LAUNCHED and "://" not in target:
            faults.append(f"--target {target}: expected simulator, sglang, or a URL such as http://127.0.0.1:30000")
        else:
            _retarget(tables, target)
    faults += [fault for override in overrides if (fault := _override(tables, override))]
    try:
        scenario = Scenario.model_validate(tables, context={"folder": source.parent})
    except ValidationError as error:
        faults += [_describe(fault, source, tables, text, overrides) for fault in error.errors()]
    if faults:
        raise ScenarioError(str(source), faults)
    return scenario


def _override(tables: dict[str, Any], override: str) -> str | None:
    """Lay table.key=value, or table={...}, over the tables; what is wrong with it, if anything."""
    key, _, text = override.partition("=")
    *path, last = key.strip().split(".")
    try:
        (value,) = tomllib.loads(f"value = {text}").values()
    except (ValueError, RecursionError):
        value = text.strip()  # a bare word is a string: --set limits.overflow=drop
    if not (last and all(path) and text and "\n" not in text and (path or isinstance(value, dict))):
        return f"--set {override}: expected table.key=value, such as arrivals.rate=8"
    value = _from_here(last, value)
    if "traffic" in tables and [*path, last][0] in ("workload", "arrivals"):
        return f"--set {override}: this scenario has classes: say traffic.NAME.{override}"
    table: Any = tables
    for name in path:
        if isinstance(table, list):  # [[traffic]]: a class by its name
            names = [str(one.get("name")) for one in table if isinstance(one, dict)]
            if name not in names:
                return f"--set {override}: there is no {name} in this list, only {', '.join(names)}"
            table = next(one for one in table if isinstance(one, dict) and one.get("name") == name)
        else:
            table = table.setdefault(name, {})
        if not isinstance(table, dict | list):
            return f"--set {override}: {name} is not a table"
    if not isinstance(table, dict):
        return f"--set {override}: expected the name of a class, such as traffic.NAME.arrivals.rate=8"
    table[last] = value
    return None


def _from_here(key: str, value: Any) -> Any:
    """A value given on the command line, its paths counted from where we are."""
    if isinstance(value, dict):
        return {key: _from_here(key, own) for key, own in value.items()}
    return str(Path(value).absolute()) if key in FILES and isinstance(value, str) else value


def _retarget(tables: dict[str, Any], target: str) -> None:
    given = tables.setdefault("target", {})
    if not isinstance(given, dict):
        return  # the models will tell
    kind = "url" if "://" in target else target
    if given.get("kind", "simulator") != kind:
        # The simulator's arguments are SGLang's own, by name and meaning; SGLang has many that the simulator has not.
        kept = {"url": ("api", "model"), "sglang": ("api", "server"), "simulator": ("api",)}[kind]
        tables["target"] = {"kind": kind, **{key: given[key] for key in kept if key in given}}
    if kind == "url":
        tables["target"]["url"] = target


_EXPECTED = {
    "missing": "required key is missing",
    "greater_than": "must be above {gt:.10g}",
    "greater_than_equal": "must be at least {ge:.10g}",
    "less_than": "must be below {lt:.10g}",
    "less_than_equal": "must be at most {le:.10g}",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "string_type": "expected text in quotes",
    "bool_type": "expected true or false",
    "dict_type": "expected a table",
    "list_type": "expected a list",
    "model_type": "expected a table",
    "model_attributes_type": "expected a table",
    "too_short": "must not be empty",
    "finite_number": "expected a finite number",
    "literal_error": "expected {expected}",
    "union_tag_invalid": "kind must be one of {expected_tags}, got {tag!r}",
    "union_tag_not_found": "the table needs a kind",
    "value_error": "{error}",
}
_SAYS_WHAT_IT_GOT = {"missing", "value_error", "union_tag_invalid", "union_tag_not_found"}


def _describe(fault: ErrorDetails, source: Path, tables: Any, text: str, overrides: Iterable[str]) -> str:
    """One line for one of pydantic's faults: where, which key, what was expected, what was there."""
    keys, kinds = _known()
    # pydantic puts the tag of a union into the path: arrivals.burst.size is arrivals.size to the writer.
    path = [str(part) for i, part in enumerate(fault["loc"]) if part != "[key]" and not (i and part in kinds)]
    if fault["loc"][-2:] == ("constant", "value"):
        path.pop()  # a length given as a plain number
    if not path:  # what holds between tables: the message names the keys
        return f"{source}: {fault.get('ctx', {}).get('error', fault['msg'])}"
    key, kind = ".".join(_by_name(path, tables)), fault["type"]
    expected = _EXPECTED[kind].format(**fault.get("ctx", {})) if kind in _EXPECTED else fault["msg"]
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(path[-1], keys, n=1)
        hint = " for this kind" if path[-1] in keys else f", did you mean {near[0]}?" if near else ""
        expected = f"unknown key{hint}"
    elif kind == "union_tag_invalid":
        near = difflib.get_close_matches(
            fault["ctx"]["tag"], fault["ctx"]["expected_tags"].replace("'", "").split(", "), n=1
        )
        expected += f", did you mean {near[0]}?" if near else ""
    elif path[-1] == "name" and kind == "string_pattern_mismatch":
        expected = "expected a name of small letters, digits, - and _"
    elif "server" in path and kind == "string_pattern_mismatch":
        expected = "expected an argument's name in small letters, such as max_running_requests"
    elif "slo" in path and kind == "string_pattern_mismatch":
        expected = (
            f"expected a metric ({', '.join(METRICS)}) and a statistic ({', '.join(STATISTICS)}), such as ttft_p99"
        )
    got = f", got {fault['input']!r}" if kind not in _SAYS_WHAT_IT_GOT | {"extra_forbidden"} else ""
    override = next((o for o in overrides if _concerns(o.partition("=")[0].strip(), key, kind)), None)
    if override:
        inside = "" if override.partition("=")[0].strip() == key or "tag" in kind else f"{key}: "
        return f"--set {override}: {inside}{expected}{got}"
    return f"{source}{_line(path, text)}: {key}: {expected}{got}"


def _by_name(path: Sequence[str], tables: Any) -> Sequence[str]:
    """The path with the name of a class in place of its number: traffic.background.arrivals."""
    match path, tables:
        case ["traffic", number, *rest], {"traffic": list(classes)} if number.isdigit():
            one = classes[int(number)]
            return ["traffic", str(one.get("name", number)) if isinstance(one, dict) else number, *rest]
    return path


def _concerns(overridden: str, key: str, kind: str) -> bool:
    """Whether a fault at this key comes from an override of that one: the same, its table, or the table's kind."""
    return key == overridden or key.startswith(f"{overridden}.") or ("tag" in kind and overridden == f"{key}.kind")


def _known() -> tuple[set[str], set[str]]:
    """Every key and every kind that some table knows."""
    tables = [table.get("properties", {}) for table in Scenario.model_json_schema()["$defs"].values()]
    keys = {key for table in tables for key in table} | set(Scenario.model_fields)
    return keys, {table["kind"]["const"] for table in tables if "kind" in table}


def _line(path: Sequence[str], text: str) -> str:
    """`:LINE` of the key in the file, or of its table's head; empty where neither is written there."""
    table: list[str] = []
    element: dict[str, int] = {}  # of [[traffic]]: the number of the one whose keys these are
    found = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if head := re.match(r"\s*(\[?)\[\s*([\w.]+)\s*\]", line):
            first, *rest = head[2].split(".")
            if head[1]:
                element[first] = element.get(first, -1) + 1
            table = [first, str(element[first]), *rest] if first in element else [first, *rest]
            if path[: len(table)] == table:
                found = f":{number}"
        elif (key := re.match(r"\s*([\w.]+)\s*=", line)) and path[: len(table) + key[1].count(".") + 1] == [
            *table,
            *key[1].split("."),
        ]:
            return f":{number}"
    return found
