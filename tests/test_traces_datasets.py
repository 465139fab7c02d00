"""ServeGen's tables, JSON lines of prompts and ShareGPT's conversations, as small made-up rows."""

import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.traces import Client, DataError, Window, read_clients, read_jsonl, read_sharegpt

HEADER = "client,timestamp_s,rate_rps,cv,pattern,shape,scale\n"
TABLE = HEADER + (
    "7,0,2.0,1.2,Gamma,0.7,9\n7,600,4.0,1.2,Weibull,0.8,9\n3,600,1.0,,,,\n3,1200,0,1,nonsense,,\n".replace(
        "nonsense", "Gamma"
    )
    + "3,1800,nan,,Gamma,,\n"
    "3,2400,9.0,2.0,Gamma,,\n"
)


def table(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def told(read: Any, path: Path, content: Any) -> list[str]:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DataError) as error:
        list(read(path))
    return [fault.removeprefix(str(path)) for fault in error.value.faults]


def test_clients_have_the_windows_of_the_table_and_none_between(tmp_path: Path) -> None:
    assert read_clients(table(tmp_path / "t.csv", TABLE)) == [
        Client(3, [Window(600, 1200, 1.0, "exponential", 1.0), Window(2400, 3000, 9.0, "gamma", 0.25)]),
        Client(7, [Window(0, 600, 2.0, "gamma", 0.7), Window(600, 1200, 4.0, "weibull", 0.8)]),
    ]


def test_windows_are_cut_to_the_selection_and_count_from_its_start(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", TABLE)
    assert read_clients(path, start=500, stop=700) == [
        Client(3, [Window(100, 200, 1.0, "exponential", 1.0)]),
        Client(7, [Window(0, 100, 2.0, "gamma", 0.7), Window(100, 200, 4.0, "weibull", 0.8)]),
    ]
    assert [client.id for client in read_clients(path, top=1)] == [3]
    assert [client.id for client in read_clients(path, top=1, stop=1200)] == [7]
    with pytest.raises(DataError, match=r"no client sends from 1200 s to 2400 s: the table spans 0 s to 3000 s"):
        read_clients(path, start=1200, stop=2400)


def test_a_folder_of_servegens_own_tables_names_its_clients(tmp_path: Path) -> None:
    table(tmp_path / "chunk-12-trace.csv", "0,2.0,1.2,Gamma,0.7,9\n300,1.0,1.2,Gamma,0.7,9\n")
    table(tmp_path / "chunk-2-trace.csv", "300,1.0,1.2,Weibull,0.5,9\n")
    (tmp_path / "chunk-2-dataset.json").write_text("{}")
    assert read_clients(tmp_path) == [
        Client(2, [Window(300, 600, 1.0, "weibull", 0.5)]),
        Client(12, [Window(0, 300, 2.0, "gamma", 0.7), Window(300, 600, 1.0, "gamma", 0.7)]),
    ]
    table(tmp_path / "chunk-2-trace.csv", "x,1.0,1.2,Weibull,0.5,9\n")
    with pytest.raises(DataError, match=r"chunk-2-trace.csv:1: timestamp_s: expected a number"):
        read_clients(tmp_path)


def test_one_window_alone_is_ten_minutes(tmp_path: Path) -> None:
    (client,) = read_clients(table(tmp_path / "t.csv", HEADER + "1,1200,2,1,Gamma,1,1\n"))
    assert client.windows == [Window(1200, 1800, 2.0, "gamma", 1.0)]
    assert client.requests == 1200


TABLES = {
    "client,t\n": ":1: has 'client,t': expected client,timestamp_s,rate_rps,cv,pattern,shape,scale",
    HEADER: ": has no rows: expected at least one window",
    HEADER + "1,2\n": ":2: has 2 fields: expected client, timestamp_s, rate_rps, cv, pattern, shape, scale",
    HEADER + "a,0,1,1,Gamma,1,1\n": ":2: client: expected a whole number, got 'a'",
    HEADER + "1,0,-1,1,Gamma,1,1\n": ":2: rate_rps: expected a number from 0 to 1e+06, got '-1'",
    HEADER + "1,0,inf,1,Gamma,1,1\n": ":2: rate_rps: expected a number from 0 to 1e+06, got 'inf'",
    HEADER + "1,,1,1,Gamma,1,1\n": ":2: timestamp_s: expected a number from 0 to 1e+10, got ''",
    HEADER + "1,0,1,1,Pareto,1,1\n": ":2: pattern: expected Gamma, Weibull or nothing, got 'Pareto'",
    HEADER + "1,0,1,1,Weibull,,1\n": ":2: shape: a Weibull needs one above 0, got ''",
    HEADER + "1,0,1,,Gamma,0,1\n": ":2: shape: a Gamma needs one above 0 or a cv of at least 0.001, got '0'",
    HEADER + "1,0,1,1,Gamma,1,1\n" * 2: ":3: client 1: 0 s comes after 0 s: expected stamps that increase",
}


@pytest.mark.parametrize(("content", "expected"), TABLES.items())
def test_a_table_with_a_fault(content: str, expected: str, tmp_path: Path) -> None:
    assert told(read_clients, tmp_path / "t.csv", content) == [expected]


PUBLIC = os.environ.get("LOADGEN_TRACES")


@pytest.mark.skipif(PUBLIC is None, reason="LOADGEN_TRACES does not name the folder of the public traces")
def test_servegens_own_day() -> None:
    clients = read_clients(Path(PUBLIC or "") / "servegen_m_large_day1.csv")
    assert len(clients) == 101
    assert sum(client.requests for client in clients) / 86_400 == pytest.approx(279.297, abs=0.001)


messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": st.text()}), min_size=1
)
rows = st.lists(
    st.one_of(
        st.fixed_dictionaries({"prompt": st.text(min_size=1)}, optional={"output_len": st.integers(1, 10**9 - 1)}),
        st.fixed_dictionaries({"messages": messages}, optional={"input_len": st.integers(1, 10**9 - 1)}),
        st.fixed_dictionaries({"input_ids": st.lists(st.integers(0, 2**31 - 1), min_size=1)}),
    ),
    min_size=1,
)


@given(rows)
def test_rows_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "p.jsonl"
    path.write_text("\n\n".join(json.dumps(row) for row in rows))
    read = list(read_jsonl(path))
    assert [row.line for row in read] == list(range(1, 2 * len(rows), 2))
    for written, row in zip(rows, read, strict=True):
        assert (row.prompt, row.messages) == (written.get("prompt"), written.get("messages"))
        assert (row.output_len, row.input_len) == (written.get("output_len"), written.get("input_len"))
        assert (None if row.input_ids is None else list(row.input_ids)) == written.get("input_ids")


def test_other_names_and_stamps_of_rows(tmp_path: Path) -> None:
    path = table(tmp_path / "p", '{"text": "a", "max_tokens": 4, "timestamp": 1}\n{"prompt": "b", "timestamp": 1.5}')
    assert [(row.prompt, row.output_len, row.timestamp) for row in read_jsonl(path)] == [
        ("a", 4, 1.0),
        ("b", None, 1.5),
    ]


ROWS = {
    '{"output_len": 1}\n': ":1: has none: expected one of prompt, messages and input_ids",
    '{"prompt": "a", "input_ids": [1]}\n': ":1: has prompt and input_ids: expected one of prompt, mess",
    '{"prompt": "a", "text": "b"}\n': ":1: prompt and its other name at once: expected one",
    '{"prompt": ""}\n': ":1: prompt: expected text, got ''",
    '{"messages": []}\n': ":1: messages: expected a list of messages, got []",
    '{"messages": [{"role": "user"}]}\n': ":1: messages: expected role and content, both text, got {'role': 'user'}",
    '{"input_ids": [1, -1]}\n': ":1: input_ids: expected a list of token ids, whole numbers from 0 to 2,147,483,647, g",
    '{"input_ids": [true]}\n': ":1: input_ids: expected a list of token ids, whole numbers from 0 to 2,147,483,647, go",
    '{"input_ids": [2147483648]}\n': ":1: input_ids: expected a list of token ids, whole numbers from 0 to 2,147,483,",
    '{"input_ids": [1, 2], "input_len": 3}\n': ":1: input_len 3 with 2 input_ids: expected the same",
    '{"prompt": "a", "output_len": 0}\n': ":1: output_len: expected a whole number of tokens from 1 to 999,999,999",
    '{"prompt": "a", "timestamp": -1}\n': ":1: timestamp: expected a number from 0 to 1e+15, got -1",
    '{"prompt": "a"}\n{"prompt": "a", "timestamp": 1}\n': ":2: timestamp here: expected one in every row or in none",
    '{"prompt": "a", "timestamp": 2}\n{"prompt": "a", "timestamp": 1}\n': ":2: timestamp 1.0 comes after 2.0 of line 1",
    '{"prompt": "a"}\n{"prompt"': ":2: is not JSON: Expecting ':' delimiter at column 10: expected one object (the",
    "\n": ": holds only blank lines",
}


@pytest.mark.parametrize(("content", "expected"), ROWS.items())
def test_a_row_with_a_fault(content: str, expected: str, tmp_path: Path) -> None:
    (fault,) = told(read_jsonl, tmp_path / "p.jsonl", content)
    assert fault.startswith(expected)


def test_no_row_comes_after_the_first_fault(tmp_path: Path) -> None:
    path = table(tmp_path / "p", '{"prompt": "a"}\n{}\n{"prompt": "b"}\n{}\n')
    read = read_jsonl(path)
    assert next(read).prompt == "a"
    with pytest.raises(DataError, match=r"p:4: has none"):
        next(read)


def said(*turns: str, key: str = "conversations") -> dict[str, Any]:
    """human:hello, gpt:hello …"""
    pairs = (turn.split(":") for turn in turns)
    return {"id": "x", key: [{"from": who, "value": value} for who, value in pairs]}


def test_conversations_begin_with_a_human_and_go_up_to_the_first_turn_out_of_turn(tmp_path: Path) -> None:
    items = [
        said("human:a", "gpt:b", "human:c"),
        said("gpt:b", "human:c"),
        said("human:a"),
        said(),
        said("user:d", "assistant:e", "gpt:f", "human:g", key="conversation"),
        said("human:a", "gpt:"),
        said("human:é", "bard:ü", "human:"),
    ]
    path = table(tmp_path / "s.json", json.dumps(items, indent=2))
    assert [(c.ordinal, c.turns) for c in read_sharegpt(path)] == [
        (1, ("a", "b", "c")),
        (5, ("d", "e")),
        (7, ("é", "ü")),
    ]
    assert [c.ordinal for c in read_sharegpt(path, limit=2)] == [1, 5]


def test_sharegpt_is_read_piece_by_piece(tmp_path: Path) -> None:
    whole = json.dumps([said("human:a", "gpt:b")] * 10_000)
    path = table(tmp_path / "s.json", whole[:-1000])
    assert len(list(islice(read_sharegpt(path), 1000))) == 1000
    with pytest.raises(
        DataError, match=r"s.json:after conversation 99\d\d: is not JSON that can be read: .*was the file"
    ):
        list(read_sharegpt(path))


SHARED = {
    '{"a": 1}': ":1: expected a JSON array of conversations",
    "[]": ": no conversation begins with a human and has an answer, of 0",
    "[5]": ":conversation 1: expected an object with conversations, a list, got 5",
    '[{"conversations": [{"from": "human"}]}]': ":conversation 1: expected turns with from and value, both text, got {",
    "[] x": ":after conversation 0: is not JSON that can be read: ",
}


@pytest.mark.parametrize(("content", "expected"), SHARED.items())
def test_conversations_with_a_fault(content: str, expected: str, tmp_path: Path) -> None:
    (fault,) = told(read_sharegpt, tmp_path / "s.json", content)
    assert fault.startswith(expected)
