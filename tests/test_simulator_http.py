"""The simulator over HTTP: SGLang's shapes, key by key, and what a server must do with the odd request."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import FAST, simulator

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with simulator(*FAST, "--max-total-tokens", "500", "--context-length", "400") as (url, _):
        yield url


@pytest.fixture(scope="module")
def small() -> Iterator[str]:
    with simulator(*FAST, "--max-total-tokens", "50", "--stream-interval", "3", "--random-seed", "7") as (url, _):
        yield url


def ask(url: str, body: Any = None, method: str | None = None) -> tuple[int, str]:
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def events(stream: str) -> list[dict[str, Any]]:
    datas = [line[6:] for line in stream.split("\n") if line.startswith("data: ")]
    assert datas[-1] == "[DONE]"
    return [json.loads(data) for data in datas[:-1]]


def captured_json(name: str) -> dict[str, Any]:
    text = (GOLDEN / name).read_text()
    found: dict[str, Any] = json.loads(text[text.index("{") :])
    return found


def shape(content: Any) -> Any:
    """Keys all the way down, and the kind of each value; a list has the shape of its first element."""
    if isinstance(content, dict):
        return {key: shape(value) for key, value in content.items()}
    if isinstance(content, list):
        return [shape(content[0])] if content else []
    return "number" if isinstance(content, int | float) and not isinstance(content, bool) else type(content).__name__


GENERATE = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}, "stream": True}


def test_generate_streams_cumulative_text_and_ids_in_sglangs_shape(url: str) -> None:
    _, stream = ask(f"{url}/generate", GENERATE)
    ours, real = events(stream), events((GOLDEN / "generate_stream.sse").read_text())
    assert [event["meta_info"]["completion_tokens"] for event in ours] == [1, 2, 3, 4, 5]
    assert all(len(event["output_ids"]) == event["meta_info"]["completion_tokens"] for event in ours)
    assert ours[-1]["text"].startswith(ours[0]["text"])
    for position in (0, 1, -2, -1):
        assert shape(ours[position]) == shape(real[position])
    whole = json.loads(ask(f"{url}/generate", {**GENERATE, "stream": False})[1])
    for key in ("text", "output_ids"):
        assert ours[-1][key] == whole[key]
        assert ours[-2][key] == whole[key][: len(ours[-2][key])] != whole[key]
    meta = ours[-1]["meta_info"]
    assert meta["decode_throughput"] * (meta["e2e_latency"] - meta["first_token_latency"]) == pytest.approx(4)


@pytest.mark.parametrize(
    ("path", "asked", "capture"),
    [
        (
            "/v1/completions",
            {"prompt": [5, 6], "stream_options": {"include_usage": True}},
            "completions_stream_usage.sse",
        ),
        (
            "/v1/completions",
            {"prompt": "a b", "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
            "completions_stream_continuous_usage.sse",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "hi"}], "stream_options": {"include_usage": True}},
            "chat_stream_usage.sse",
        ),
    ],
)
def test_the_openai_apis_stream_in_sglangs_shape(url: str, path: str, asked: dict[str, Any], capture: str) -> None:
    _, stream = ask(f"{url}{path}", {**asked, "max_tokens": 4, "stream": True})
    ours, real = events(stream), events((GOLDEN / capture).read_text())
    for position in (0, 1, -3, -2):
        assert shape(ours[position]) == shape(real[position])
    end, real_end = shape(ours[-1]), shape(real[-1])
    assert end.keys() == real_end.keys()
    assert set(real_end["usage"]) <= set(end["usage"])
    assert ours[-1]["usage"]["completion_tokens"] == 4


def test_continuous_usage_counts_on_with_every_chunk(url: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"prompt": "a b", "max_tokens": 4, "stream": True, "stream_options": options}
    usages = [event["usage"] for event in events(ask(f"{url}/v1/completions", asked)[1])]
    assert [usage["completion_tokens"] for usage in usages] == [1, 2, 3, 4, 4]
    assert [usage["total_tokens"] for usage in usages] == [3, 4, 5, 6, 6]


def test_whole_answers_hold_all_of_it(url: str) -> None:
    _, text = ask(f"{url}/generate", {**GENERATE, "stream": False})
    assert json.loads(text)["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
    _, text = ask(f"{url}/v1/completions", {"prompt": "a b c", "max_tokens": 3})
    assert json.loads(text)["usage"]["total_tokens"] == 6
    _, text = ask(f"{url}/v1/chat/completions", {"messages": [{"role": "user", "content": "w7"}], "max_tokens": 3})
    assert json.loads(text)["choices"][0]["message"]["content"].count(" w") == 3


def test_the_same_prompt_gives_the_same_output_as_greedy_decoding_does(url: str) -> None:
    outputs = [json.loads(ask(f"{url}/generate", {**GENERATE, "stream": False})[1])["output_ids"] for _ in range(2)]
    other = json.loads(ask(f"{url}/generate", {**GENERATE, "input_ids": [5, 6], "stream": False})[1])["output_ids"]
    assert outputs[0] == outputs[1] != other


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/generate", b"{oops", "no JSON"),
        ("/generate", [1], "must be a JSON object"),
        ("/generate", {}, "a prompt must be given"),
        ("/generate", {"input_ids": []}, "the prompt is empty"),
        ("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 0}}, "at least 1, got 0"),
        ("/generate", {"input_ids": [1] * 399}, "exceeds the model's maximum context length of 400"),
        ("/generate", {"input_ids": [1], "sampling_params": 3}, "sampling_params must be an object"),
        ("/v1/completions", {"prompt": [[1], [2]]}, "one list of token ids"),
        ("/generate", b"[" * 100_000, "no JSON"),
        ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": True}}, "must be a whole number, got true"),
        ("/generate", {"input_ids": [1, True]}, "one list of token ids"),
        ("/generate", {"text": "a", "rid": 7}, "rid must be a string, got 7"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "at least 1, got 0"),
        ("/v1/completions", {"prompt": "a", "stream_options": 3}, "stream_options must be an object"),
        ("/v1/completions", {"prompt": "a", "n": 2}, "n must be 1"),
        ("/v1/completions", {"prompt": "a", "model": 7}, "model must be a string"),
        ("/v1/chat/completions", {"messages": "hi"}, "messages must be a list"),
        ("/v1/chat/completions", {"messages": []}, "the prompt is empty"),
    ],
)
def test_a_bad_request_is_a_400_that_says_why(url: str, path: str, body: Any, says: str) -> None:
    status, text = ask(f"{url}{path}", body)
    assert status == 400
    error = json.loads(text)
    assert says in (error["error"]["message"] if path == "/generate" else error["message"])


@pytest.mark.parametrize("stream", [False, True])
def test_what_can_never_fit_the_pool_is_refused_at_once(small: str, stream: bool) -> None:
    status, text = ask(f"{small}/generate", {"input_ids": [1] * 40, "max_new_tokens": 128, "stream": stream})
    assert (status, "can never fit a pool of 50" in text) == (400, True)
    assert json.loads(ask(f"{small}/v1/loads")[1])["loads"][0]["num_waiting_reqs"] == 0


def test_names_that_a_request_brings_come_back_as_they_are(url: str) -> None:
    odd = 'a "%b" %d \\ ü'
    _, stream = ask(f"{url}/generate", {**GENERATE, "rid": odd})
    assert {event["meta_info"]["id"] for event in events(stream)} == {odd}
    _, stream = ask(f"{url}/v1/completions", {"prompt": "a", "max_tokens": 3, "stream": True, "model": odd})
    assert {event["model"] for event in events(stream)} == {odd}


def test_a_stream_interval_holds_tokens_back_but_never_the_first_or_last(small: str) -> None:
    _, stream = ask(f"{small}/generate", {**GENERATE, "sampling_params": {"max_new_tokens": 8}})
    assert [event["meta_info"]["completion_tokens"] for event in events(stream)] == [1, 3, 6, 8]
    _, stream = ask(f"{small}/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 8, "stream": True})
    assert [event["choices"][0]["text"].count(" w") for event in events(stream)] == [1, 2, 3, 2]


def test_another_seed_is_another_model(url: str, small: str) -> None:
    ours, theirs = (json.loads(ask(f"{of}/generate", {**GENERATE, "stream": False})[1])["text"] for of in (url, small))
    assert ours != theirs


def test_loads_models_and_identity_have_sglangs_keys(url: str) -> None:
    loads = json.loads(ask(f"{url}/v1/loads")[1])
    real = captured_json("GET_v1_loads_include_all.txt")
    assert loads.keys() == real.keys()
    assert loads["loads"][0].keys() == real["loads"][0].keys()
    models = json.loads(ask(f"{url}/v1/models")[1])
    assert shape(models) == shape(captured_json("GET_v1_models.txt"))
    info, real_info = json.loads(ask(f"{url}/server_info")[1]), captured_json("GET_server_info.txt")
    assert info.keys() - real_info.keys() == {"simulator"}
    assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == 64
    model_info = json.loads(ask(f"{url}/model_info")[1])
    assert model_info.keys() <= captured_json("GET_model_info.txt").keys()
    assert [ask(f"{url}{path}")[0] for path in ("/health", "/health_generate")] == [200, 200]


def test_metrics_count_what_was_done() -> None:
    with simulator(*FAST) as (url, _):
        for _ in range(3):
            ask(f"{url}/generate", GENERATE)
        text = ask(f"{url}/metrics")[1]
    samples = {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}
    assert samples["sglang:num_requests_total"] == 3
    assert samples["sglang:prompt_tokens_total"] == 9
    assert samples["sglang:generation_tokens_total"] == 15
    assert samples["sglang:time_to_first_token_seconds_count"] == 3
    assert samples["sglang:inter_token_latency_seconds_count"] == 12
    assert samples["sglang:e2e_request_latency_seconds_count"] == 3
    assert samples["sglang:queue_time_seconds_count"] == 3
    assert samples["sglang:max_total_num_tokens"] == 65536
    assert re.search(r'sglang:inter_token_latency_seconds_bucket\{[^}]*le="0.035"', text)


SLOW = ("--step-time", "decode_base=0.2", "prefill_base=0.001")


def test_a_client_that_goes_away_gives_its_tokens_back_and_the_cache_is_flushed_only_when_idle() -> None:
    with simulator(*SLOW) as (url, _):
        body = {**GENERATE, "sampling_params": {"max_new_tokens": 1000, "ignore_eos": True}}
        request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.readline()
            assert json.loads(ask(f"{url}/v1/loads")[1])["loads"][0]["num_used_tokens"] > 0
            assert ask(f"{url}/flush_cache", method="POST")[0] == 400
        deadline = time.monotonic() + 5
        while json.loads(ask(f"{url}/v1/loads")[1])["loads"][0]["num_running_reqs"]:
            assert time.monotonic() < deadline
        assert ask(f"{url}/flush_cache", method="POST")[0] == 200
        assert ask(f"{url}/flush_cache?timeout=soon")[0] == 400


def test_the_log_is_in_sglangs_words(tmp_path: Path) -> None:
    with simulator(*FAST, "--decode-log-interval", "1", log=tmp_path / "log") as (url, process):
        ask(f"{url}/generate", GENERATE)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=10)
        log = (tmp_path / "log").read_text()
    assert process.returncode == 0
    assert "#running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): " in log
    assert "max_total_num_tokens=65536, chunked_prefill_size=2048, max_prefill_tokens=16384" in log
    assert log.count("Prefill batch, #new-seq: 1, #new-token: 3, #cached-token: 0, token usage: 0.00, ") == 1
    assert (
        len(re.findall(r"Decode batch, #running-req: 1, #token: \d+, token usage: 0.00, cuda graph: True, ", log)) == 4
    )


def test_a_signal_ends_it_at_once_whatever_it_is_streaming() -> None:
    with simulator(*SLOW) as (url, process):
        body = {**GENERATE, "sampling_params": {"max_new_tokens": 1000}}
        with urllib.request.urlopen(f"{url}/generate", json.dumps(body).encode(), timeout=10) as answer:
            answer.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=2) == 0


def test_the_end_of_its_parent_is_its_own() -> None:
    with simulator() as (_, process):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=10) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "serves this machine only, expected 127.0.0.1, got '0.0.0.0'"),  # noqa: S104
        (["--host", "::1"], "serves this machine only, expected 127.0.0.1, got '::1'"),
        (["--step-time", "decode_base=nan"], "decode_base: expected a number of 0 or more, got 'nan'"),
        (["--port", "70000"], "expected a port from 0 to 65535, got '70000'"),
        (["--max-running-requests", "0"], "expected a whole number of 1 or more, got '0'"),
        (["--step-time", "decode=1"], "unknown step-time coefficient 'decode', expected one of prefill_base"),
        (["--step-time", "decode_base=fast"], "decode_base: expected a number of 0 or more, got 'fast'"),
    ],
)
def test_wrong_arguments_are_told(arguments: list[str], says: str) -> None:
    asked = [sys.executable, "-m", "loadgen.simulator", *arguments]
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2
    assert says in ended.stderr
