"""Files that users bring: a file in, columns or every fault out."""

from loadgen.traces.lines import DataError
from loadgen.traces.reading import Trace, implied_block_hits, read_trace

__all__ = ["DataError", "Trace", "implied_block_hits", "read_trace"]
