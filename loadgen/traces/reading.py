"""Reading a trace: when requests came and how long they were, in columns, or everything that is wrong with the file."""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain, islice
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.traces.formats import FORMATS, Parser, recognise
from loadgen.traces.lines import DataError, Faults, Wrong, lines, text

HEAD = 1000  # rows from the top of the file that tell whether its stamps are quantised


@dataclass(frozen=True, eq=False)
class Trace:
    """The requests of a window of a trace, in columns."""

    at: NDArray[np.float64]  # seconds since the window's start, never decreasing
    input_len: NDArray[np.int64]  # tokens
    output_len: NDArray[np.int64]  # tokens
    blocks: list["array[int]"] | None  # of each request, the hash ids of its prompt's blocks
    block_size: int | None  # tokens in a block; the last of a prompt may hold fewer
    bin: float | None  # seconds that one stamp stands for, where the format is quantised: what a jitter may use
    format: str
    skipped: Mapping[str, int]  # rows of the window that cannot be replayed, by reason


def read_trace(
    path: Path,
    *,
    format: str | None = None,  # noqa: A002 - its name wherever a file is described
    start: float = 0.0,
    stop: float | None = None,
    limit: int | None = None,
) -> Trace:
    """The requests with start <= t < stop, and of those the first `limit`; t in seconds from the file's first stamp.

    `format` is one of FORMATS, or recognised by the first line:

    azure     CSV TIMESTAMP,ContextTokens,GeneratedTokens (Azure LLM inference 2023 and 2024); 100 ns are kept
    burstgpt  CSV Timestamp (s),Request tokens,Response tokens and others; whole seconds have a bin of 1.0
    mooncake  JSON lines timestamp (ms),input_length,output_length[,hash_ids of 512 tokens]; where over 5 % of the gaps
              in the first 1,000 rows are ties, the bin is the median distance between distinct stamps there
    bailian   JSON lines chat_id,timestamp (s),input_length,output_length[,hash_ids of 16 tokens] (Qwen-Bailian)
    record    a run's folder, its record.json or its requests.jsonl; t is `due` as written, from the run's start

    Rows must be sorted, so that nothing is read beyond the window; those before it are checked, but not kept. A row
    with an input or an output of 0 tokens cannot be replayed and is skipped and counted. A record is read whole, since
    it is written in order of ending, and keeps all stamps; a length that nobody knows is 0.

    Raises DataError with every fault of what is read, or if nothing is in the window.
    """
    path = _requests_of(path)
    if format not in (None, *FORMATS):
        raise DataError([f"{path}: format {format!r}: expected one of {', '.join(FORMATS)}"])
    if limit is not None and limit < 1:
        raise DataError([f"{path}: limit {limit}: expected at least 1 request"])
    faults = Faults(path)
    with closing(lines(path, faults)) as source:
        number, first = next(source, (0, b""))
        if not number:
            faults.settle()
            raise DataError([f"{path}: holds only blank lines"])
        try:
            name = format or recognise(text(first))
            parser = Parser(FORMATS[name], text(first))
        except Wrong as wrong:
            raise DataError([f"{path}:{number}: {what}" for what in wrong.args]) from None
        rows = _Rows(path, name, parser, source if FORMATS[name].csv else chain([(number, first)], source), faults)
        read = _by_due if name == "record" else _in_order
        return read(rows, start, inf if stop is None else stop, limit)


def _requests_of(path: Path) -> Path:
    """The file of requests, where the path is that of a run."""
    try:
        if path.is_dir():
            if not (path / "requests.jsonl").exists():
                raise DataError(
                    [f"{path}: is a folder without requests.jsonl: expected a file, or the folder of a run"]
                )
            return path / "requests.jsonl"
    except OSError as error:
        raise DataError([f"{path}: cannot be read: {error.strerror}"]) from None
    return path.with_name("requests.jsonl") if path.name == "record.json" else path


@dataclass(frozen=True)
class _Rows:
    """The rows of a file, each with its line; one that cannot be read goes to `faults` instead."""

    path: Path
    name: str
    parser: Parser
    source: Iterable[tuple[int, bytes]]
    faults: Faults

    def __iter__(self) -> Iterator[tuple[int, bytes, list[Any]]]:
        for number, raw in self.source:
            whole = raw.endswith(b"\n")
            if self.name == "record" and not whole:
                return  # cut by a kill
            try:
                row = self.parser(text(raw))
            except Wrong as wrong:
                self.faults.add(number, *wrong.args, cut=not whole)
            else:
                yield number, raw, row


def _in_order(rows: _Rows, start: float, stop: float, limit: int | None) -> Trace:
    """Rows as they stand, which must be sorted; nothing is read beyond the window but what tells the bin."""
    known = FORMATS[rows.name]
    at, input_len, output_len, head = array("d"), array("q"), array("q"), array("d")
    blocks: list[array[int]] = []
    skipped = Counter[str]()
    origin: float | None = None
    t, read, before = 0.0, 0, (0, 0, b"")
    source = iter(rows)
    for number, raw, (stamp, inputs, outputs, *hashes) in source:
        read += 1
        if origin is None:
            origin = stamp
        elif stamp < before[0]:
            this, that = (rows.parser.stamp(text(line)) for line in (raw, before[2]))
            rows.faults.add(
                number,
                f"{known.stamp} {this} comes after {that} of line {before[1]}: expected stamps that never decrease",
            )
        before = stamp, number, raw
        t = (stamp - origin) / known.per_second
        if known.bin and read <= HEAD:
            head.append(stamp / known.per_second)
        if t >= stop:
            break
        if t < start:
            continue
        if not inputs or not outputs:
            skipped["output of 0 tokens" if inputs else "input of 0 tokens"] += 1
            continue
        at.append(t - start)
        input_len.append(inputs)
        output_len.append(outputs)
        if hashes and hashes[0] is not None:
            blocks.append(hashes[0])
        if len(at) == limit:
            break
    rows.faults.settle()
    if not at:
        raise _nothing(rows.path, start, stop, f"{read:,} rows read, of 0 to {t:.6g} s" if read else "", skipped)
    if known.bin:
        with suppress(DataError):  # what is wrong beyond the window is not this window's matter
            head.extend(row[0] / known.per_second for _, _, row in islice(source, max(HEAD - read, 0)))
    return Trace(
        at=np.frombuffer(at),
        input_len=np.frombuffer(input_len, np.int64),
        output_len=np.frombuffer(output_len, np.int64),
        blocks=blocks or None,
        block_size=known.block_size if blocks else None,
        bin=known.bin(np.frombuffer(head)) if known.bin else None,
        format=rows.name,
        skipped=dict(skipped),
    )


def _by_due(rows: _Rows, start: float, stop: float, limit: int | None) -> Trace:
    """A record's rows, in order of being due and, of those due at once, of their index."""
    due, index, input_len, output_len = array("d"), array("q"), array("q"), array("q")
    read, last = 0, 0.0
    for _, _, (at, inputs, outputs, i) in rows:
        read, last = read + 1, max(last, at)
        if start <= at < stop:
            due.append(at)
            input_len.append(inputs)
            output_len.append(outputs)
            index.append(i)
    rows.faults.settle()
    if not due:
        raise _nothing(rows.path, start, stop, f"{read:,} rows read, of 0 to {last:.6g} s" if read else "", {})
    order = np.lexsort((np.frombuffer(index, np.int64), np.frombuffer(due)))[:limit]
    return Trace(
        at=np.frombuffer(due)[order] - start,
        input_len=np.frombuffer(input_len, np.int64)[order],
        output_len=np.frombuffer(output_len, np.int64)[order],
        blocks=None,
        block_size=None,
        bin=None,
        format=rows.name,
        skipped={},
    )


def _nothing(path: Path, start: float, stop: float, read: str, skipped: Mapping[str, int]) -> DataError:
    if not read:
        return DataError([f"{path}: has no rows: expected at least one request"])
    until = "on" if stop == inf else f"to {stop:.6g} s"
    why = "".join(f"; {n:,} skipped for an {reason}" for reason, n in skipped.items())
    return DataError([f"{path}: no request from {start:.6g} s {until}: {read}{why}"])


def implied_block_hits(blocks: Iterable[Iterable[int]]) -> tuple[int, int]:
    """(hits, blocks): how many blocks of these prompts, in this order, a prefix cache that forgets nothing would hold.

    A block is a hit where an earlier prompt began with the same blocks up to and with this one. Prefixes are told apart
    by 64-bit hashes, so that memory grows with the distinct ones and not with their lengths.
    """
    seen = set[int]()
    hits = total = 0
    for ids in blocks:
        prefix = 0
        for block in ids:
            prefix = hash((prefix, block))
            total += 1
            if prefix in seen:
                hits += 1
            else:
                seen.add(prefix)
    return hits, total
