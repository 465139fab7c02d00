"""What a run over HTTP records of the real server, and that both sides count the same."""

import asyncio
import json
from dataclasses import replace
from typing import Any

from real import SERVER, Server, scenario

from loadgen import wire
from loadgen.card import figure
from loadgen.client.http import HttpClient, Timeouts
from loadgen.exchange import Exchange
from loadgen.record import Record
from loadgen.run import run
from loadgen.schedule import plan


def said(record: Record) -> dict[str, Any]:
    log: dict[str, Any] = record.data["telemetry"]["log"]
    assert (log["absent"], log["unreadable"]) == (None, 0)
    return log


def prompt_tokens(record: Record) -> int:
    return sum(request["input_tokens"] for request in record.requests())


def output_tokens(record: Record) -> int:
    return sum(request["output_tokens"] for request in record.requests())


def test_requests_are_batched_continuously_and_both_sides_count_the_same(server: Server) -> None:
    record = server.drive("poisson", scenario())
    log, counts = said(record), record.data["counts"]
    assert counts == {"scheduled": 24, "sent": 24, "ok": 24, "fault": 0, "dropped": 0}
    assert (prompt_tokens(record), output_tokens(record)) == (24 * 40, 24 * 12)
    assert log["new_seqs"] >= 24  # a prompt that was cut at the end of a step counts twice
    assert log["new_tokens"] + log["cached_tokens"] == 24 * 40
    assert log["decode_tokens"] == 24 * (12 - 1)  # the first token of each is its prefill's
    assert log["running"]["peak"] > 1
    metrics = record.data["telemetry"]["metrics"]
    assert metrics["counters"]["prompt_tokens_total"] == 24 * 40
    assert metrics["counters"]["generation_tokens_total"] == 24 * 12
    assert metrics["counters"]["num_requests_total"] == 24
    target, card = record.data["target"], record.data["card"]
    assert (target["server"]["version"], target["stand_ins"], target["simulated"]) == ("0.5.23", True, False)
    assert card["memory"]["serving_kv_pool"] == SERVER["max_total_tokens"]
    assert card["concurrency"]["max_running_requests"] == SERVER["max_running_requests"]
    path = card["path"]["resolved_backend"]
    assert set(path.values()) == {"torch_native, no graph"}
    value, reason = figure(record.data, "memory.offline_peak")
    assert value is None
    assert reason
    assert record.data["memory"]["peak_bytes"] > 1 << 29  # a Python with torch in it, three times
    assert record.data["memory"]["processes"] >= 3


def test_our_latencies_are_the_servers_and_what_the_transport_adds(server: Server) -> None:
    """The server counts from when it has a request to when it has a token; we from before to after: never less."""
    record = server.drive("histograms", scenario())
    ours, theirs = record.data["metrics"], record.data["telemetry"]["metrics"]["histograms"]
    ttft, itl = theirs["time_to_first_token_seconds"], theirs["inter_token_latency_seconds"]
    assert (ttft["count"], itl["count"]) == (24, 24 * 11)
    assert ours["ttft_service"]["mean"] > ttft["mean"]
    assert theirs["e2e_request_latency_seconds"]["count"] == 24


def test_a_prompt_over_the_chunk_is_prefilled_in_chunks(server: Server) -> None:
    record = server.drive("chunks", scenario(workload={"num_prompts": 4, "input_len": 600}, arrivals={"rate": 5}))
    log = said(record)
    assert record.data["counts"]["ok"] == 4
    assert (log["new_tokens"] + log["cached_tokens"], log["prefill_tokens"]["max"]) == (4 * 600, 256)
    assert log["prefill_steps"] >= 4 * 3 - 3  # 600 = 256 + 256 + 88, and the end of one may share a step with the next
    assert log["new_seqs"] > 4  # a prompt counts with each of its chunks


def test_a_shared_prefix_comes_out_of_the_radix_cache(server: Server) -> None:
    shared = {"kind": "prefix", "num_prompts": 6, "groups": 1, "system_len": 300, "question_len": 20, "output_len": 4}
    record = server.drive("prefix", scenario(workload=shared, arrivals={"kind": "fixed", "rate": 2}))
    cache, log = record.data["prompts"]["cache"], said(record)
    assert record.data["counts"]["ok"] == 6
    assert log["cached_tokens"] == cache["cached_tokens"] == sum(r["cached_tokens"] for r in record.requests())
    assert cache["cached_tokens"] >= 300  # the first pays, the others find it, unless two came at once
    assert log["new_tokens"] + log["cached_tokens"] == prompt_tokens(record)
    assert cache["unexplained_tokens"] == 0
    assert record.data["target"]["cache_flushed"] is True


def test_a_pool_that_is_over_committed_is_seen_to_retract(server: Server) -> None:
    """Without ignore_eos SGLang admits by what it expects answers to be, here little; then the pool is full."""
    many = {"num_prompts": 16, "input_len": 32, "output_len": 120}
    record = server.drive("retraction", scenario(workload=many, sampling={"ignore_eos": False}), together=True)
    log = said(record)
    assert record.data["counts"]["ok"] == 16
    assert log["retractions"]["events"] >= 1
    assert log["retractions"]["requests"] >= 1
    assert record.data["telemetry"]["metrics"]["counters"]["num_retracted_requests_total"] >= 1
    kinds = [step["kind"] for step in record.steps()]
    assert kinds.count("retraction") == log["retractions"]["events"]
    assert log["usage"]["peak"] > 0.9


def test_greedy_ids_are_the_engines(server: Server, engine: tuple[Record, list[list[int]]]) -> None:
    requests = plan(scenario(), 1).requests
    client = HttpClient(server.endpoint.url, wire.APIS["generate"], "", Timeouts(300, 300, 300, 300))
    asked = [Exchange(replace(request, session=0), due=0.0) for request in requests[: len(engine[1])]]

    async def ask() -> None:
        async with client:
            await asyncio.gather(*map(client.stream, asked))

    server.runner.run(ask())
    assert [exchange.answer for exchange in asked] == engine[1]
    assert [len(ids) for ids in engine[1]] == [12] * len(asked)


def test_a_server_that_is_attached_to_is_followed_by_its_log(server: Server) -> None:
    asked = scenario(
        target={"kind": "url", "url": server.endpoint.url, "server_log": str(server.folder / "server.log")}
    )
    folder = server.folder / "attached"
    folder.mkdir()
    record = server.runner.run(run(asked, plan(asked, 2), "attached", 2, folder))
    log = said(record)
    assert log["new_tokens"] + log["cached_tokens"] == prompt_tokens(record) == 24 * 40
    assert log["decode_tokens"] == 24 * 11
    assert log["facts"]["max_total_num_tokens"] == SERVER["max_total_tokens"]
    assert record.data["memory"]["peak_bytes"] is None
    assert "not started here" in record.data["memory"]["reason"]
    own = (folder / "server.log").read_bytes()
    assert own
    assert own in (server.folder / "server.log").read_bytes()


def test_the_records_files_are_all_there_and_fit_each_other(server: Server) -> None:
    record = server.drive("files", scenario(measure={"metrics_interval": 0.2}))
    steps = list(record.steps())
    log = said(record)
    assert sum(step["kind"] == "decode" for step in steps) == log["decode_lines"]
    chunks = list(record.chunks())
    assert [instants.size for _, instants in chunks] == [request["chunks"] for request, _ in chunks]
    for request, instants in chunks:
        assert instants[0] == request["first"] or abs(instants[0] - request["first"]) < 1e-6
    assert b"Decode batch" in (record.folder / "server.log").read_bytes()
    points = [json.loads(line) for line in (record.folder / "timeline.jsonl").read_text().splitlines()]
    loads, metrics = ([point for point in points if key in point] for key in ("server", "metrics"))
    assert any(point["server"]["num_running_reqs"] is not None for point in loads)
    assert metrics[0]["metrics"]["max_total_num_tokens"] == SERVER["max_total_tokens"]
    told = record.data["telemetry"]
    assert (told["polls"]["count"], told["scrapes"]["count"]) == (len(loads), len(metrics))
