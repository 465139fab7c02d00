"""The reader of SGLang's log, on a real server's log and on lines as its source writes them."""

import re
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.telemetry.serverlog import Decode, Event, Prefill, Retraction, ServerLog

GOLDEN = Path(__file__).parent / "golden"
STEPS = (GOLDEN / "server_log.txt").read_bytes().decode()  # as it is, with its \r
RETRACTIONS = (GOLDEN / "server_log_retraction.txt").read_bytes().decode()

STAMP = "[2026-11-30 22:05:07] "
SECOND = time.mktime((2026, 11, 30, 22, 5, 7, 0, 0, -1))
PREFILL = (
    "Prefill batch, #new-seq: 4, #new-token: 192, #cached-token: 32, token usage: 0.24, #running-req: 1, "
    "#queue-req: 7, #pending-token: 336, cuda graph: False, input throughput (token/s): 9156.72"
)
DECODE = (
    "Decode batch, #running-req: 5, #token: 250, token usage: 0.25, cuda graph: True, "
    "gen throughput (token/s): 294.73, #queue-req: 7"
)


def read(text: str, seen: float | None = None) -> tuple[list[Event], ServerLog]:
    log = ServerLog()
    return log.feed(text, seen) + log.close(), log


def one(line: str, seen: float | None = None) -> Event:
    (event,), log = read(line, seen)
    assert (log.ignored, log.unreadable, log.errors) == (0, 0, [])
    return event


def test_a_prefill_and_a_decode_line_field_by_field() -> None:
    assert one(STAMP + PREFILL) == Prefill(
        at=SECOND, new_seqs=4, new_tokens=192, cached_tokens=32, usage=0.24, running=1, queued=7, pending=336,
        graph=False, graph_label="cuda graph", throughput=9156.72, iteration=None,
    )  # fmt: skip
    assert one(STAMP + DECODE) == Decode(
        at=SECOND, running=5, tokens=250, usage=0.25, graph=True, graph_label="cuda graph", throughput=294.73,
        queued=7, accept_len=None,
    )  # fmt: skip


def test_a_retraction_field_by_field() -> None:
    text = "KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 134"
    full = f"{STAMP}{text}, #mamba_num_gained: 3, #new_token_ratio: 0.0297 -> 0.7451"
    assert one(full) == Retraction(SECOND, requests=2, gained=134, ratio_before=0.0297, ratio_after=0.7451)
    testing = f"{STAMP}Testing retraction. #retracted_reqs: 1, #new_tokens_gained: 9"
    assert one(testing) == Retraction(SECOND, requests=1, gained=9, ratio_before=None, ratio_after=None)


@pytest.mark.parametrize("text", [STEPS, RETRACTIONS], ids=["steps", "retractions"])
def test_a_real_log_says_what_plain_sums_over_its_text_say(text: str) -> None:
    """The second implementation knows nothing of lines: it finds every `key: number` of the batches."""
    events, log = read(text)
    prefills = [event for event in events if isinstance(event, Prefill)]
    decodes = [event for event in events if isinstance(event, Decode)]
    batches = [event for event in events if not isinstance(event, Retraction)]
    retractions = [event for event in events if isinstance(event, Retraction)]
    assert (log.unreadable, log.unreadable_example) == (0, None)
    assert len(events) == text.count(" batch, #") + text.count("#retracted_reqs")

    def total(key: str, kind: str) -> float:
        return sum(float(n) for n in re.findall(rf"{kind}[^\n]*? {re.escape(key)}: ([\d.]+)", text))

    assert sum(p.new_seqs for p in prefills) == total("#new-seq", "Prefill batch")
    assert sum(p.new_tokens for p in prefills) == total("#new-token", "Prefill batch")
    assert sum(p.cached_tokens for p in prefills) == total("#cached-token", "Prefill batch")
    assert sum(p.pending or 0 for p in prefills) == total("#pending-token", "Prefill batch")
    assert sum(p.throughput or 0 for p in prefills) == pytest.approx(total("(token/s)", "input throughput"))
    assert sum(p.queued for p in prefills) == total("#queue-req", "Prefill batch")
    assert sum(p.running for p in prefills) == total("#running-req", "Prefill batch")
    assert sum(d.running for d in decodes) == total("#running-req", "Decode batch")
    assert sum(d.tokens or 0 for d in decodes) == total("#token", "Decode batch")
    assert sum(d.queued for d in decodes) == total("#queue-req", "Decode batch")
    assert sum(d.throughput for d in decodes) == pytest.approx(total("(token/s)", "gen throughput"))
    assert sum(e.usage for e in batches) == pytest.approx(total("token usage", "batch"))
    assert sum(r.requests for r in retractions) == total("#retracted_reqs", "Retract")
    assert sum(r.gained or 0 for r in retractions) == total("#new_tokens_gained", "Retract")
    assert {(e.graph, e.graph_label) for e in batches} == {(False, "cpu graph")}


@given(st.lists(st.integers(0, len(RETRACTIONS)), max_size=30))
def test_any_cut_gives_the_same_events(cuts: list[int]) -> None:
    whole, log = ServerLog(), ServerLog()
    expected = whole.feed(RETRACTIONS) + whole.close()
    edges = [0, *sorted(cuts), len(RETRACTIONS)]
    found = [e for a, b in pairwise(edges) for e in log.feed(RETRACTIONS[a:b])] + log.close()
    assert found == expected
    assert (log.facts, log.errors, log.ignored) == (whole.facts, whole.errors, whole.ignored)


def test_one_character_at_a_time() -> None:
    log = ServerLog()
    found = [event for character in STEPS[:9000] for event in log.feed(character)]
    assert found
    assert found == ServerLog().feed(STEPS[:9000])


def test_a_line_is_an_event_once_it_ends() -> None:
    log = ServerLog()
    assert log.feed(STAMP + DECODE) == []
    assert log.feed("\n", seen=SECOND + 0.25)[0].at == SECOND + 0.25
    log.feed(STAMP + DECODE, seen=SECOND + 0.5)
    assert [event.at for event in log.close()] == [SECOND + 0.5]
    assert log.close() == []


@pytest.mark.parametrize(
    ("stamp", "seen", "at"),
    [
        ("22:05:07", None, SECOND),
        ("22:05:07", SECOND + 0.3, SECOND + 0.3),
        ("22:05:07", SECOND + 9.0, SECOND + 1.0),  # read late: it was written within its second
        ("22:05:07", SECOND - 9.0, SECOND),  # our clock is behind
        ("22:05:07.123", None, SECOND + 0.123),
        ("22:05:07.123", SECOND + 0.9, SECOND + 0.123),  # milliseconds are better than when it was read
    ],
)
def test_when_it_was(stamp: str, seen: float | None, at: float) -> None:
    assert one(f"[2026-11-30 {stamp}] {DECODE}", seen).at == pytest.approx(at, abs=1e-6)


@pytest.mark.parametrize("rank", ["", "TP0", "DP1 TP0", "PP0 TP0", "DP3 PP1 ATTN_CP0 MOE_DP2 TP0 EP0"])
def test_ranks_stand_in_the_stamp(rank: str) -> None:
    for time_of_day in "22:05:07", "22:05:07.000":
        event = one(f"[2026-11-30 {time_of_day}{' ' if rank else ''}{rank}] {PREFILL}")
        assert (event.rank, event.at) == (rank, SECOND)


@pytest.mark.parametrize("label", ["cuda graph", "cpu graph", "npu graph", "musa graph", "xyz graph"])
@pytest.mark.parametrize(("word", "graph"), [("True", True), ("False", False), ("maybe", None)])
def test_graphs_of_any_device(label: str, word: str, graph: bool | None) -> None:
    event = one(STAMP + DECODE.replace("cuda graph: True", f"{label}: {word}"))
    assert isinstance(event, Decode)
    assert (event.graph_label, event.graph) == (label, graph)


def test_a_line_without_a_graph_does_not_say_whether_one_ran() -> None:
    event = one(STAMP + DECODE.replace("cuda graph: True, ", ""))
    assert isinstance(event, Decode)
    assert (event.graph_label, event.graph) == ("", None)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (DECODE.replace("batch,", "batch [812],"), {"iteration": 812}),
        (DECODE.replace("batch,", "batch."), {"running": 5}),  # as older versions wrote it
        (DECODE.replace("0.25, ", "0.25, accept len: 2.75, accept rate: 0.58, cap len: 3.10, "), {"accept_len": 2.75}),
        (
            DECODE + ", est. decode TFLOPS/s (per GPU): 1.25, est. read BW (GB/s per GPU): 9.00, est. write BW (GB/s"
            " per GPU): 0.10, fwd occupancy: 71.20%, fwd+idle occupancy: 99.00%",
            {"queued": 7, "throughput": 294.73},
        ),
        (
            DECODE.replace("cuda", "pre-allocated usage: 0.91, #prealloc-req: 3, #retracted-req: 0, cuda"),
            {"usage": 0.25, "queued": 7, "tokens": 250},
        ),
        (
            DECODE.replace("#token: 250, token usage: 0.25", "#full token: 250, full token usage: 0.25, #swa token: 9, "
                           "swa token usage: 0.45, mamba num: 3, mamba usage: 0.30"),
            {"tokens": 250, "usage": 0.45},  # get_max_pool_usage, which the gauge token_usage has too
        ),
        (DECODE.replace("#token: 250, ", ""), {"tokens": None, "usage": 0.25}),
        (PREFILL.replace("batch,", "batch [7],"), {"iteration": 7}),
        (PREFILL.replace("#pending-token: 336, ", ""), {"pending": None, "queued": 7}),
        (PREFILL.replace("0.24, #", "0.24, #token: 99, #"), {"usage": 0.24, "new_tokens": 192}),
        (PREFILL.replace("cuda graph: False", "#replay-token: 64, #bootstrap-req: 1, #inflight-req: 2, "
                         "#optimistic-req: 0, waiting-image-req: 1, npu graph: True"),
         {"graph": True, "new_tokens": 192, "queued": 7}),
        (PREFILL + ", est. prefill TFLOPS/s (per GPU): 3.21", {"throughput": 9156.72}),
        (PREFILL.partition(", cuda")[0], {"throughput": None, "graph": None, "pending": 336}),
        (PREFILL.replace("token usage: 0.24", "full token usage: 0.24, mamba usage: 0.50"), {"usage": 0.5}),
    ],
)  # fmt: skip
def test_what_other_modes_and_versions_print(line: str, expected: dict[str, object]) -> None:
    event = one(STAMP + line)
    assert {key: getattr(event, key) for key in expected} == expected


@pytest.mark.parametrize(
    "line",
    [
        "Decode batch, #running-req: 5, #token: 25",
        "Prefill batch, #new-seq: 4, #new-token: x, #cached-token: 0, token usage: 0.2, #running-req: 0, #queue-req: 0",
        DECODE.replace("294.73", "nan"),
        DECODE.replace("token usage: 0.25, ", ""),
        DECODE.replace("#running-req: 5", "#running-req: -5"),
        "Decode batch, #running-req: 5, #token: 2[2026-11-30 22:05:07] INFO:     Started",
        "Prefill batch",
        "KV cache pool is full. Retract requests. #retracted_reqs: many",
    ],
)
def test_a_step_that_cannot_be_read_is_counted_and_kept(line: str) -> None:
    events, log = read(f"{STAMP}{line}\n{STAMP}Decode batch, #too: late\n{STAMP}{DECODE}\n")
    assert len(events) == 1
    assert (log.unreadable, log.unreadable_example) == (2, STAMP + line)


def test_a_stamp_that_is_no_date_is_unreadable() -> None:
    events, log = read(f"[2026-13-41 22:05:07] {DECODE}\n")
    assert (events, log.unreadable) == ([], 1)


BEGINNINGS = ["", "Decode batch, ", "Prefill batch, #new-seq: ", "KV cache pool is full. Retract requests. "]


@given(st.sampled_from(BEGINNINGS), st.text(st.characters(exclude_characters="\r\n")))
def test_garbage_is_no_event_and_is_counted(beginning: str, text: str) -> None:
    events, log = read(f"{STAMP}{beginning}{text}\n")
    assert events == []
    assert log.ignored + log.unreadable == 1


def test_undecodable_bytes_and_progress_bars_around_a_line() -> None:
    bar = "Capturing batches:  50%|\ufffd\ufffd  | 2/4 [00:01<00:01]\r"
    events, log = read(f"{bar}{bar}{STAMP}{DECODE}\r\n\ufffd\n75%|###  | 3/4{STAMP}{DECODE}\n")
    assert [event.at for event in events] == [SECOND, SECOND]
    assert log.ignored == 3


def test_the_facts_of_a_real_start() -> None:
    _, log = read(STEPS)
    assert log.facts == {
        "max_total_num_tokens": 4096,
        "chunked_prefill_size": 256,
        "max_prefill_tokens": 16384,
        "max_running_requests": 16,
        "context_len": 4096,
        "attention_backend": "torch_native",
        "decode_attention_backend": None,
        "prefill_attention_backend": None,
        "decode_log_interval": 1,
        "disable_overlap_schedule": False,
        "enable_mixed_chunk": False,
        "speculative_algorithm": None,
    }
    assert log.errors == []


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        (
            "Capture target decode CUDA graph end. bs=[1, 2, 4], elapsed=3.10 s, mem usage=0.1 GB, avail mem=9.00 GB.",
            {"graph_batch_sizes": [1, 2, 4]},
        ),
        ("Capture target verify NPU graph end. bs=[8], elapsed=1.00 s", {"graph_batch_sizes": [8]}),
        ("Capture cuda graph bs [1, 2, 4, 8]", {"graph_batch_sizes": [1, 2, 4, 8]}),
        ("Capture draft decode CUDA graph end. bs=[1], elapsed=3.10 s", {}),
        (
            "Using hybrid attention backend for decode and prefill: decode_backend=flashinfer, prefill_backend=fa3.",
            {"decode_backend": "flashinfer", "prefill_backend": "fa3"},
        ),
        (
            "server_args={'a': <sglang.X object at 0x7f>, 'attention_backend': 'fa3', 'speculative_algorithm': None, "
            "'inner': {'attention_backend': 'triton'}, 'decode_log_interval': 40}",
            {"attention_backend": "fa3", "speculative_algorithm": None, "decode_log_interval": 40},
        ),
        (
            "max_total_num_tokens=9, chunked_prefill_size=-1, max_prefill_tokens=None, available_gpu_mem=1.50 GB",
            {"max_total_num_tokens": 9, "chunked_prefill_size": -1, "max_prefill_tokens": None},
        ),
    ],
)
def test_the_facts_of_other_starts(line: str, facts: dict[str, object]) -> None:
    _, log = read(f"[2026-11-30 22:05:07 TP0] {line}\n")
    assert log.facts == facts


def test_a_part_that_is_not_the_real_one_is_a_fact() -> None:
    _, log = read("this is a stand-in of sgl_kernel\n")
    assert log.facts == {"stand_in": "this is a stand-in of sgl_kernel"}


def test_a_traceback_is_known_by_its_exception() -> None:
    _, log = read(RETRACTIONS)
    assert len(log.errors) == 1
    assert log.errors[0].startswith("requests.exceptions.ConnectionError: HTTPConnectionPool")


def test_what_kills_a_scheduler() -> None:
    text = (
        f"{STAMP}Scheduler hit an exception: Traceback (most recent call last):\n"
        f'  File "sglang/srt/managers/scheduler.py", line 1, in run\n{STAMP}{DECODE}\n    step()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n\nKilled\n"
        f"{STAMP}Receive: obj=GenerateReqInput(text='what to do when out of memory')\n"
        f"{STAMP}ReqTimeStats(rid=7, input_len=4, cached_input_len=0, output_len=2, attempts=1, type=unified): "
        "queue_duration=0.10ms, forward_duration=9.00ms, entry_time=1796074702.612\n"
    )
    events, log = read(text)
    assert len(events) == 1
    assert log.errors == [
        "Scheduler hit an exception: Traceback (most recent call last):",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    ]
    assert log.timed == 1


def test_the_last_twenty_errors_are_kept_and_cut_short() -> None:
    _, log = read("".join(f"out of memory {n} {'x' * 999}\n" for n in range(30)))
    assert [error.split()[3] for error in log.errors] == [str(n) for n in range(10, 30)]
    assert {len(error) for error in log.errors} == {500}
