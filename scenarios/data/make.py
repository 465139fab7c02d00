"""Writes the made-up files of the scenarios beside it: traces in the public formats, with nothing of anybody's in them.

    python scenarios/data/make.py

A seed makes them the same every time. Use real traces for real questions.
"""

import datetime
import json
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
WORDS = "the model answers each of us in turn while long prompts wait for their first token and the queue grows".split()


def clients(rng: np.random.Generator) -> str:
    """Twelve clients over five minutes in windows of 60 s: two bursty ones, ten calm ones."""
    lines = ["client,timestamp_s,rate_rps,cv,pattern,shape,scale"]
    for client in range(12):
        pattern, shape = [("Weibull", 0.4), ("Gamma", 0.1)][client] if client < 2 else ("Gamma", 1.0)
        cv = {0: 3.14, 1: 3.16}.get(client, 1.0)
        for window in range(5):
            rate = (2.0 if client < 2 else 0.4) * rng.uniform(0.5, 1.5)
            lines.append(f"{client},{window * 60},{rate:.4f},{cv},{pattern},{shape},{1 / rate:.4f}")
    return "\n".join(lines) + "\n"


def requests(rng: np.random.Generator) -> str:
    """Two minutes of a service whose rate drifts, in Azure's form."""
    at, lines = 0.0, ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    begin = datetime.datetime(2026, 1, 5, 9, 0, 0)  # noqa: DTZ001 - the format has no time zone
    while (at := at + rng.exponential(1 / (5 + 3 * np.sin(at / 20)))) < 120:
        stamp = begin + datetime.timedelta(seconds=at)
        input_len = int(np.clip(rng.lognormal(5.6, 0.9), 2, 4000))
        output_len = int(np.clip(rng.exponential(40), 2, 300))
        lines.append(f"{stamp:%Y-%m-%d %H:%M:%S.%f}0,{input_len},{output_len}")
    return "\n".join(lines) + "\n"


def blocks(rng: np.random.Generator) -> str:
    """A minute of conversations in Mooncake's form: each turn's prompt begins with the blocks of the one before."""
    rows, fresh = [], 1  # block 0 is a system prompt that all share
    for _ in range(40):
        ids, length, at = [0], 512, rng.uniform(0, 50)
        for _ in range(int(rng.integers(1, 5))):
            length += int(rng.integers(200, 1200))
            new = -(-length // 512) - len(ids)
            ids = [*ids, *range(fresh, fresh + new)]
            fresh += new
            rows.append((int(at // 3) * 3000, length, int(rng.integers(8, 40)), ids))
            at += rng.exponential(8)
    rows = sorted(row for row in rows if row[0] < 60_000)
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    return "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows)


def sentence(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(WORDS, int(rng.integers(8, 60)))) + "?"


def prompts(rng: np.random.Generator) -> str:
    rows = [{"prompt": sentence(rng)} | ({"output_len": int(rng.integers(8, 64))} if i % 2 else {}) for i in range(12)]
    return "".join(json.dumps(row) + "\n" for row in rows)


def conversations(rng: np.random.Generator) -> str:
    turns = [[{"from": ("human", "gpt")[i % 2], "value": sentence(rng)} for i in range(4)] for _ in range(20)]
    return json.dumps([{"id": str(i), "conversations": one} for i, one in enumerate(turns)], indent=1) + "\n"


if __name__ == "__main__":
    makers = {
        "clients.csv": clients,
        "requests.csv": requests,
        "blocks.jsonl": blocks,
        "prompts.jsonl": prompts,
        "conversations.json": conversations,
    }
    for name, make in makers.items():
        (HERE / name).write_text(make(np.random.default_rng(sum(name.encode()))), encoding="utf-8")
