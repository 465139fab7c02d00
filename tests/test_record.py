"""Reading records: older ones, newer ones, cut ones, and what is none."""

import json
from pathlib import Path

import pytest

from loadgen.driver import InFlight
from loadgen.exchange import Exchange, Outcome, Request
from loadgen.record import Record, Recorder, RecordError

HEAD = {"schema": 1, "complete": False, "counts": {"scheduled": 9}, "mode": "serving", "name": "x", "scenario": {}}
HEAD |= {"target": {}}


def written(folder: Path, data: object) -> Path:
    (folder / "record.json").write_text(json.dumps(data))
    return folder


def test_a_newer_schema_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"schema 2 is newer than this loadgen reads \(1\): update loadgen"):
        Record.read(written(tmp_path, {"schema": 2}))


@pytest.mark.parametrize("data", [{}, {"schema": "1"}, {"schema": 0}, {"schema": True}, [], None])
def test_what_is_no_record_is_refused(tmp_path: Path, data: object) -> None:
    with pytest.raises(RecordError, match="expected a record with a schema number"):
        Record.read(written(tmp_path, data))


def test_a_broken_or_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"is no record: it has no record\.json"):
        Record.read(tmp_path)
    (tmp_path / "record.json").write_text('{"schema": 1,')
    with pytest.raises(RecordError, match=r"record\.json cannot be read"):
        Record.read(tmp_path)


def test_a_request_line_that_was_cut_by_a_kill_is_left_out_of_the_counts(tmp_path: Path) -> None:
    written(tmp_path, HEAD)
    lines = [{"outcome": "ok", "sent": 0.1}, {"outcome": "status", "sent": 0.2}, {"outcome": "dropped", "sent": None}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "requests.jsonl").write_text(text + '{"outcome": "ok", "se')
    data = Record.read(tmp_path).data
    assert data["counts"] == {"scheduled": 9, "sent": 2, "ok": 1, "fault": 1, "dropped": 1}
    assert data["faults"] == {"status": 1}


@pytest.mark.parametrize("key", [key for key in HEAD if key != "schema"])
def test_a_record_without_what_every_record_has_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(RecordError, match=f"no {key}: this is not a whole record"):
        Record.read(written(tmp_path, {**HEAD, key: None}))


@pytest.mark.parametrize("line", [b"rubbish", b"\0\0", b"{}", b"[]", b"3", b"\xff"])
def test_a_line_that_is_no_request_is_told(tmp_path: Path, line: bytes) -> None:
    written(tmp_path, HEAD)
    (tmp_path / "requests.jsonl").write_bytes(line + b"\n")
    with pytest.raises(RecordError, match=r"requests\.jsonl: a line that is no request"):
        Record.read(tmp_path)


def test_a_record_may_be_named_by_its_file(tmp_path: Path) -> None:
    assert Record.read(written(tmp_path, HEAD) / "record.json").folder == tmp_path


def test_a_record_that_was_killed_before_its_first_request_counts_nothing(tmp_path: Path) -> None:
    data = Record.read(written(tmp_path, HEAD)).data
    assert data["counts"] == {"scheduled": 9, "sent": 0, "ok": 0, "fault": 0, "dropped": 0}


def test_a_request_is_on_the_disk_as_soon_as_it_has_ended(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, HEAD, "spread")
    recorder.begin(start=100.0, epoch=1_796_083_200.0)
    exchange = Exchange(Request(0, [1, 2], 1), due=100.5, ready=100.5, sent=100.75, outcome=Outcome.OK, ended=101.25)
    exchange.chunk(101.0, 1)
    recorder.add(exchange)
    (line,) = Record.read(tmp_path).requests()
    assert line == {
        "index": 0, "due": 0.5, "ready": 0.5, "sent": 0.75, "first": 1.0, "last": 1.0, "ended": 1.25, "input_len": 2,
        "output_len": 1, "input_tokens": 2, "output_tokens": 1, "chunks": 1, "cached_tokens": None,
        "shared_tokens": None, "server_ttft": None, "transport": None, "outcome": "ok", "detail": "",
    }  # fmt: skip
    recorder._files.close()


def test_the_instants_of_all_chunks_are_kept_beside_the_lines(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, HEAD, "spread")
    recorder.begin(start=100.0, epoch=1_796_083_200.0)
    for index, instants in enumerate([[101.0, 101.5], [], [100.25]]):
        exchange = Exchange(Request(index, [1], 9), due=100.0, ready=100.0, sent=100.0, ended=102.0)
        exchange.outcome = Outcome.OK if instants else Outcome.TIMEOUT
        for n, at in enumerate(instants, 1):
            exchange.chunk(at, n)
        recorder.add(exchange)
    recorder._files.close()
    record = Record.read(tmp_path)
    kept = {request["index"]: instants.tolist() for request, instants in record.chunks()}
    assert kept == {0: [1.0, 1.5], 1: [], 2: [0.25]}
    (tmp_path / "chunks.f64").write_bytes(b"\0" * 8)
    with pytest.raises(RecordError, match="ends before the chunks of request 0"):
        list(record.chunks())
    (tmp_path / "chunks.f64").unlink()
    assert list(record.chunks()) == []


def test_the_servers_steps_and_words_are_kept(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, HEAD, "spread")
    recorder.note_steps([{"at": 0.5, "kind": "decode", "running": 3}], b"[stamp] Decode batch\n")
    recorder.note_steps([{"at": 0.5, "kind": "decode", "running": 3}], b"not over what is there\n")
    assert list(Record.read(tmp_path).steps()) == [{"at": 0.5, "kind": "decode", "running": 3}]
    assert (tmp_path / "server.log").read_bytes() == b"[stamp] Decode batch\n"


def ended(index: int, at: float, session: int | None = None) -> Exchange:
    made = Exchange(Request(index, [1], 1, session=session), 0.0, ready=0.0, sent=0.0, ended=at, outcome=Outcome.OK)
    made.chunk(at, 1)
    return made


@pytest.mark.parametrize(("whole", "complete", "seconds"), [(True, True, 10), (False, True, 4), (True, False, 4)])
def test_rates_are_over_the_whole_window_unless_a_count_or_an_interruption_cut_it(
    tmp_path: Path, whole: bool, complete: bool, seconds: float
) -> None:
    recorder = Recorder(tmp_path, HEAD, "spread", window=(0.0, 10.0), whole=whole)
    recorder.begin(start=0.0, epoch=1_796_083_200.0)
    for index, at in enumerate([1.0, 4.0]):
        recorder.add(ended(index, at, session=0 if index else None))
    data = recorder.totals(InFlight(None, lambda: 5.0), complete=complete)
    assert (data["window"], data["duration"]) == ([0.0, seconds], 4.0)
    assert data["throughput"]["requests_per_s"] == 2 / seconds
    assert recorder.turns == 1
    recorder._files.close()
