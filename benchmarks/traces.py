"""What reading a trace of two million rows takes: seconds and, on Linux, the peak of memory. Run it alone."""

import resource
import tempfile
import time
from pathlib import Path

from loadgen.traces import read_trace

ROWS = 2_000_000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "azure.csv"
        with path.open("w") as file:
            file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
            for i in range(ROWS):
                second, k = divmod(i, 1000)
                clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
                file.write(f"2024-05-10 {clock}.{k:03}0000+00:00,{k + 1},{i % 999 + 1}\n")
        for window in ({"limit": 1000}, {"start": 1900.0, "stop": 1901.0}, {}):
            began = time.perf_counter()
            rows = len(read_trace(path, **window).at)
            took, peak = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{rows:>9,} rows kept of {ROWS:,} {window or ''}: {took:.1f} s, peak so far {peak:.0f} MiB")


if __name__ == "__main__":
    main()
