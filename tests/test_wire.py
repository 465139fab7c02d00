"""Answers: what a real server sent, what broken ones send, and what is asked for."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.exchange import Exchange, Fault, Outcome, Request, Sampling
from loadgen.wire import APIS

GOLDEN = Path(__file__).parent / "golden"
EXACT = Sampling(temperature=0.0, top_p=1.0, ignore_eos=True)
FREE = Sampling(temperature=0.7, top_p=0.9, ignore_eos=False)

# File, API, output tokens asked for and got, prompt tokens: read off the requests that made these files.
CAPTURED = [
    ("generate_stream.sse", "generate", 16, 6),
    ("generate_stream_logprob_inputids.sse", "generate", 4, 8),
    ("completions_stream_usage.sse", "completions", 16, 4),
    ("completions_stream_continuous_usage.sse", "completions", 8, 4),
    ("chat_stream_usage.sse", "chat", 16, 14),
]


def read(api: str, stream: bytes, asked: int, cuts: list[int] | None = None, sampling: Sampling = EXACT) -> Exchange:
    """The exchange after reading a stream in pieces that come a second apart; raises Fault."""
    exchange = Exchange(Request(0, [1], asked, sampling=sampling), due=0.0)
    answer = APIS[api].answer(exchange)
    last = 0
    for at, cut in enumerate([*sorted(cut % (len(stream) + 1) for cut in cuts or []), len(stream)]):
        answer.feed(stream[last:cut], float(at))
        last = cut
    answer.close()
    return exchange


def contents(stream: bytes) -> list[dict[str, Any]]:
    """The JSON of each event, by the plainest parse that this well-formed stream allows."""
    datas = [line[6:] for line in stream.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(data) for data in datas if data != "[DONE]"]


@pytest.mark.parametrize(("file", "api", "asked", "prompt"), CAPTURED)
def test_a_real_servers_answer_is_whole_and_its_counts_are_the_servers(
    file: str, api: str, asked: int, prompt: int
) -> None:
    stream = (GOLDEN / file).read_bytes()
    exchange = read(api, stream, asked)
    assert (exchange.input_tokens, exchange.output_tokens) == (prompt, asked)
    assert exchange.tokens[-1] == asked
    events = contents(stream)
    if api == "generate":
        counts = [event["meta_info"]["completion_tokens"] for event in events]
        assert exchange.tokens.tolist() == sorted(set(counts))
        assert exchange.cached_tokens == events[-1]["meta_info"]["cached_tokens"]
    else:
        texts = [c.get("text") or c.get("delta", {}).get("content") for event in events for c in event["choices"]]
        assert len(exchange.at) == sum(bool(text) for text in texts)


@pytest.mark.parametrize(("file", "api", "asked", "prompt"), CAPTURED)
@given(cuts=st.lists(st.integers(0, 100_000), max_size=20))
def test_any_split_of_a_real_answer_gives_the_same_counts(
    file: str, api: str, asked: int, prompt: int, cuts: list[int]
) -> None:
    stream = (GOLDEN / file).read_bytes()
    whole, split = read(api, stream, asked), read(api, stream, asked, cuts)
    assert split.tokens == whole.tokens
    assert (split.input_tokens, split.output_tokens) == (prompt, asked)


def test_the_servers_own_times_are_noted_where_it_tells_them() -> None:
    """Golden: what the server wrote into its last event."""
    told = read("generate", (GOLDEN / "generate_stream.sse").read_bytes(), 16)
    assert told.server_ttft == 0.059370878999970955
    assert told.server_span == 1796074694.4446554 - 1796074694.3792088
    silent = read("generate", (GOLDEN / "generate_stream.sse").read_bytes().replace(b"request_received_ts", b"x"), 16)
    assert (silent.server_ttft, silent.server_span, silent.transport) == (None, None, None)


@pytest.mark.parametrize(("file", "api", "asked", "prompt"), CAPTURED)
def test_byte_by_byte_gives_the_same_counts(file: str, api: str, asked: int, prompt: int) -> None:
    stream = (GOLDEN / file).read_bytes()
    split = read(api, stream, asked, list(range(len(stream))))
    assert split.tokens == read(api, stream, asked).tokens
    assert split.input_tokens == prompt


@pytest.mark.parametrize(("file", "api", "asked", "prompt"), CAPTURED)
def test_a_real_answer_cut_at_any_byte_is_never_a_success(file: str, api: str, asked: int, prompt: int) -> None:
    stream = (GOLDEN / file).read_bytes()
    assert stream.endswith(b"data: [DONE]\n\n")
    for cut in range(len(stream)):
        with pytest.raises(Fault) as caught:
            read(api, stream[:cut], asked)
        assert caught.value.kind is Outcome.TRUNCATED


@pytest.mark.parametrize(("file", "api", "asked", "prompt"), CAPTURED)
@pytest.mark.parametrize("off", [-1, 1])
def test_another_number_of_tokens_than_asked_for_is_a_fault(
    file: str, api: str, asked: int, prompt: int, off: int
) -> None:
    with pytest.raises(Fault) as caught:
        read(api, (GOLDEN / file).read_bytes(), asked + off)
    assert caught.value.kind is Outcome.TOKEN_MISMATCH
    assert str(asked) in caught.value.detail


def test_fewer_tokens_than_asked_for_are_fine_where_the_model_may_stop() -> None:
    stream = (GOLDEN / "generate_stream.sse").read_bytes()
    assert read("generate", stream, 99, sampling=FREE).output_tokens == 16


def test_more_tokens_than_asked_for_are_a_fault_even_where_the_model_may_stop() -> None:
    with pytest.raises(Fault) as caught:
        read("generate", (GOLDEN / "generate_stream.sse").read_bytes(), 15, sampling=FREE)
    assert caught.value.kind is Outcome.TOKEN_MISMATCH


def generated(*tokens: int, reason: Any = None) -> list[dict[str, Any]]:
    metas: list[dict[str, Any]] = [{"completion_tokens": n, "prompt_tokens": 1, "finish_reason": None} for n in tokens]
    metas[-1]["finish_reason"] = reason or {"type": "length", "length": tokens[-1]}
    return [{"text": "x", "meta_info": meta} for meta in metas]


def stream_of(*events: Any, end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + end


ERROR = {"error": {"message": "out of memory", "type": "internal", "code": 500}}


@pytest.mark.parametrize(
    ("why", "stream", "kind", "detail"),
    [
        ("an error between tokens", stream_of(*generated(1, 2), ERROR), Outcome.SERVER_ERROR, "out of memory"),
        ("an error before any token", stream_of(ERROR), Outcome.SERVER_ERROR, "out of memory"),
        ("an error as plain JSON", json.dumps(ERROR).encode(), Outcome.SERVER_ERROR, "out of memory"),
        ("vLLM's error", b'{"object":"error","message":"too long"}', Outcome.SERVER_ERROR, "too long"),
        (
            "an abort is no finish",
            stream_of(*generated(1, 2, reason={"type": "abort", "message": "pool is full"})),
            Outcome.SERVER_ERROR,
            "pool is full",
        ),
        ("nothing at all", b"", Outcome.TRUNCATED, "before its first event"),
        ("comments only", b": ping\n\n", Outcome.TRUNCATED, "before its first event"),
        ("a web page", b"<html>hello</html>", Outcome.PROTOCOL, "<html>"),
        ("a whole answer", b'{"text":"x","meta_info":{}}', Outcome.PROTOCOL, "not an event stream"),
        ("no JSON", b"data: {oops\n\n", Outcome.PROTOCOL, "{oops"),
        ("another API", stream_of({"choices": []}), Outcome.PROTOCOL, "choices"),
        ("JSON of another kind", stream_of(["text"]), Outcome.PROTOCOL, "text"),
        ("no end mark", stream_of(*generated(1, 2, 3), end=b""), Outcome.TRUNCATED, "[DONE]"),
        ("no finish reason", stream_of(*generated(1, 2, 3)[:2]), Outcome.TRUNCATED, "finish reason"),
        ("more after the end", stream_of(*generated(3)) + stream_of(*generated(3)), Outcome.PROTOCOL, "after the end"),
        ("half an event after the end", stream_of(*generated(3)) + b"data: {", Outcome.PROTOCOL, "after its end"),
        ("bytes after the end", stream_of(*generated(3)) + b"<html>\n", Outcome.PROTOCOL, "after its end"),
        ("one byte after the end", stream_of(*generated(3)) + b"x", Outcome.PROTOCOL, "after its end"),
        ("a count beyond 64 bits", stream_of(*generated(2**63)), Outcome.PROTOCOL, "not of this API"),
        ("a negative count", stream_of(*generated(-1)), Outcome.PROTOCOL, "not of this API"),
        ("a count that is a boolean", stream_of(*generated(True)), Outcome.PROTOCOL, "not of this API"),
        ("JSON too deep to read", b"data: " + b"[" * 200_000 + b"\n\n", Outcome.PROTOCOL, "[[["),
        ("a plain body too deep to read", b"[" * 60_000, Outcome.PROTOCOL, "[[["),
        ("a long error as plain JSON", b'{"error":"' + b"m" * 9000 + b'"}', Outcome.SERVER_ERROR, "mmm"),
        ("a wordless abort", stream_of(*generated(1, reason={"type": "abort"})), Outcome.SERVER_ERROR, "no reason"),
        ("a count that falls", stream_of(*generated(1, 3, 2)), Outcome.TOKEN_MISMATCH, "fell from 3 to 2"),
        ("too many tokens", stream_of(*generated(1, 2, 4)), Outcome.TOKEN_MISMATCH, "4 came"),
        ("no tokens", stream_of(*generated(0)), Outcome.TOKEN_MISMATCH, "0 came"),
    ],
)  # fmt: skip
def test_a_200_alone_is_no_success(why: str, stream: bytes, kind: Outcome, detail: str) -> None:
    with pytest.raises(Fault) as caught:
        read("generate", stream, 3)
    assert (caught.value.kind, detail in caught.value.detail) == (kind, True), why
    assert len(caught.value.detail) < 300


def test_a_comment_after_the_end_says_nothing() -> None:
    assert read("generate", stream_of(*generated(1, 2, 3)) + b": ping\n\n", 3).output_tokens == 3


def test_half_a_surrogate_pair_in_an_error_can_be_written_down() -> None:
    with pytest.raises(Fault) as caught:
        read("generate", b'data: {"error":{"message":"bad \\ud800 text"}}\n\n', 3)
    assert caught.value.detail.encode() == b"bad ? text"


jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


def places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to each value inside a JSON value."""
    keys = content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    return [place for key in keys for place in [(*path, key), *places(content[key], (*path, key))]]


@pytest.mark.parametrize(("file", "api", "asked", "prompt"), CAPTURED)
@given(data=st.data())
def test_whatever_stands_in_place_of_a_value_nothing_but_a_fault_comes_of_it(
    file: str, api: str, asked: int, prompt: int, data: st.DataObject
) -> None:
    events = contents((GOLDEN / file).read_bytes())
    *path, last = data.draw(st.sampled_from(places(events)))
    inner: Any = events
    for key in path:
        inner = inner[key]
    inner[last] = data.draw(jsons)
    with suppress(Fault):
        exchange = read(api, stream_of(*events), asked)
        counts = (exchange.input_tokens, exchange.output_tokens, exchange.cached_tokens)
        assert all(count is None or type(count) is int for count in counts)


def chat(delta: dict[str, Any] | None = None, usage: int | None = None, reason: str | None = None) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
    return {"choices": choices, "usage": None if usage is None else {"prompt_tokens": 5, "completion_tokens": usage}}


@pytest.mark.parametrize("key", ["content", "reasoning_content", "reasoning", "tool_calls"])
def test_every_kind_of_output_counts_and_the_role_alone_does_not(key: str) -> None:
    said = {key: "x"}
    stream = stream_of(chat({"role": "assistant", "content": ""}), chat(said), chat(said), chat({}, reason="stop"))
    exchange = read("chat", stream, 9, sampling=FREE)
    assert (exchange.tokens.tolist(), exchange.output_tokens) == ([1, 2], None)


def test_a_total_at_the_end_is_dealt_over_the_chunks() -> None:
    stream = stream_of(chat({"content": "x"}), chat({"content": "y"}), chat({}, reason="length"), chat(usage=8))
    exchange = read("chat", stream, 8)
    assert (exchange.tokens.tolist(), exchange.output_tokens, exchange.input_tokens) == ([4, 8], 8, 5)


def test_chunks_that_contradict_the_usage_at_the_end_are_a_fault() -> None:
    stream = stream_of(chat({"content": "x"}, usage=1), chat({"content": "y"}, usage=2, reason="length"), chat(usage=3))
    with pytest.raises(Fault) as caught:
        read("chat", stream, 3)
    assert caught.value.kind is Outcome.TOKEN_MISMATCH


def test_where_each_chunk_has_its_usage_it_is_the_usage_that_counts_not_the_text() -> None:
    said = [chat({"content": "xyz"}, usage=3), chat({"content": ""}, usage=5), chat({"content": "held"}, usage=5)]
    exchange = read("chat", stream_of(*said, chat({}, usage=5, reason="length"), chat(usage=5)), 5)
    assert (exchange.tokens.tolist(), exchange.output_tokens) == ([3, 5], 5)


def test_a_last_token_without_text_is_no_contradiction() -> None:
    """SGLang's chat sends no chunk for a token without text, and no usage with the finish reason."""
    said = [chat({"content": "x"}, usage=1), chat({"content": "y"}, usage=2), chat({}, reason="stop")]
    exchange = read("chat", stream_of(*said, chat(usage=3)), 9, sampling=FREE)
    assert (exchange.tokens.tolist(), exchange.output_tokens) == ([1, 2, 3], 3)


def test_fewer_tokens_by_usage_than_by_the_chunks_are_a_fault() -> None:
    said = [chat({"content": "x"}, usage=1), chat({"content": "y"}, usage=3), chat({}, reason="stop")]
    with pytest.raises(Fault) as caught:
        read("chat", stream_of(*said, chat(usage=2)), 9, sampling=FREE)
    assert caught.value.kind is Outcome.TOKEN_MISMATCH


def test_a_count_that_a_later_chunk_leaves_out_is_no_total() -> None:
    said = [chat({"content": "x"}, usage=1), chat({"content": "y"}, usage=2), chat({"content": "z"}, reason="length")]
    exchange = read("chat", stream_of(*said), 3)
    assert (exchange.tokens.tolist(), exchange.output_tokens) == ([1, 2, 3], None)


def test_without_usage_more_chunks_than_tokens_asked_for_are_a_fault_and_fewer_are_none() -> None:
    stream = stream_of(chat({"content": "x"}), chat({"content": "y"}), chat({"content": "z"}, reason="stop"))
    assert [read("chat", stream, asked).tokens.tolist() for asked in (3, 4)] == [[1, 2, 3]] * 2
    with pytest.raises(Fault) as caught:
        read("chat", stream, 2, sampling=FREE)
    assert caught.value.kind is Outcome.TOKEN_MISMATCH


def test_tokens_by_usage_of_which_no_chunk_brought_any_are_a_fault_where_the_length_is_exact() -> None:
    stream = stream_of(chat({"role": "assistant", "content": ""}), chat({}, reason="length"), chat(usage=2))
    assert read("chat", stream, 2, sampling=FREE).output_tokens == 2
    with pytest.raises(Fault) as caught:
        read("chat", stream, 2)
    assert caught.value.kind is Outcome.TOKEN_MISMATCH


def test_a_model_that_may_stop_may_stop_before_its_first_token() -> None:
    exchange = read("generate", stream_of(*generated(0, reason={"type": "stop"})), 2, sampling=FREE)
    assert (exchange.tokens.tolist(), exchange.output_tokens) == ([], 0)


def test_cached_tokens_are_read_where_the_server_tells_them() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
    stream = stream_of(chat({"content": "x"}, reason="length"), {"choices": [], "usage": usage})
    assert read("chat", stream, 1).cached_tokens == 4


def test_payloads_say_what_was_asked_for() -> None:
    request = Request(3, [11, 12, 13], 7, sampling=FREE)
    sent = {name: json.loads(api.payload(request, "m")) for name, api in APIS.items()}
    assert sent["generate"]["input_ids"] == sent["completions"]["prompt"] == [11, 12, 13]
    assert sent["generate"]["sampling_params"] == {
        "temperature": 0.7, "top_p": 0.9, "max_new_tokens": 7, "ignore_eos": False
    }  # fmt: skip
    assert sent["chat"]["messages"] == [{"role": "user", "content": "w11 w12 w13"}]
    for name in ("completions", "chat"):
        assert sent[name]["max_tokens"] == 7
        assert (sent[name]["temperature"], sent[name]["top_p"]) == (0.7, 0.9)
        assert "ignore_eos" not in sent[name], "no field of the servers' own where it is not needed"
        assert json.loads(APIS[name].payload(Request(0, [1], 1), "m"))["ignore_eos"] is True
        assert sent[name]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
        assert sent[name]["model"] == "m"
    assert all(body["stream"] is True for body in sent.values())
    assert [api.path for api in APIS.values()] == ["/generate", "/v1/completions", "/v1/chat/completions"]


@pytest.mark.parametrize("incremental", [False, True])
def test_a_turn_keeps_the_ids_or_the_text_of_its_answer_whether_they_come_whole_or_piece_by_piece(
    incremental: bool,
) -> None:
    ids, texts = [7, 8, 9], ["a", "ab", "abc"]
    events = []
    for n in (1, 2, 3):
        said = {"text": texts[n - 1][-1], "output_ids": ids[n - 1 : n]}
        if not incremental:
            said = {"text": texts[n - 1], "output_ids": ids[:n]}
        meta = {"prompt_tokens": 1, "completion_tokens": n, "finish_reason": {"type": "length"} if n == 3 else None}
        events.append(said | {"meta_info": meta})
    stream = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"
    for prompt, expected in ([1], ids), ("one", "abc"):
        exchange = Exchange(Request(0, prompt, 3, session=0), due=0.0)
        answer = APIS["generate"].answer(exchange)
        answer.feed(stream, 1.0)
        answer.close()
        assert exchange.answer == expected
    alone = Exchange(Request(0, [1], 3), due=0.0)
    answer = APIS["generate"].answer(alone)
    answer.feed(stream, 1.0)
    answer.close()
    assert alone.answer is None, "nobody will need it"


@pytest.mark.parametrize("ids", [[None], ["7"], [True], [-1], [1 << 31]])
def test_output_ids_that_are_none_are_a_fault_where_a_turn_will_need_them(ids: list[object]) -> None:
    """Unseen, they would end the run where the next turn is made of them."""
    meta = {"prompt_tokens": 1, "completion_tokens": 1, "finish_reason": {"type": "length"}}
    stream = b"data: %b\n\ndata: [DONE]\n\n" % json.dumps({"text": "a", "output_ids": ids, "meta_info": meta}).encode()
    answer = APIS["generate"].answer(Exchange(Request(0, [1], 1, session=0), due=0.0))
    answer.feed(stream, 1.0)
    with pytest.raises(Fault, match="output_ids that are no token ids") as caught:
        answer.close()
    assert caught.value.kind is Outcome.PROTOCOL
