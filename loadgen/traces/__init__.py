"""Files that users bring: a file in, columns or every fault out. Nothing is kept that was not asked for."""

from loadgen.traces.clients import Client, Window, read_clients
from loadgen.traces.lines import DataError
from loadgen.traces.prompts import Conversation, Row, read_jsonl, read_sharegpt
from loadgen.traces.reading import Trace, implied_block_hits, read_trace

__all__ = [
    "Client",
    "Conversation",
    "DataError",
    "Row",
    "Trace",
    "Window",
    "implied_block_hits",
    "read_clients",
    "read_jsonl",
    "read_sharegpt",
    "read_trace",
]
