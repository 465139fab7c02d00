"""The command line: one file for each kind of command, and what all of them stand in.

Exit codes: 0 fine, 1 the check failed (an SLO was missed, a fixed batch does not fit), 2 wrong use, 3 the run is
INVALID or a comparison refused, 4 the target failed, 130 interrupted.
"""

from __future__ import annotations

import io
import os
import sys

import click

from loadgen.cli import pairs, runs, shelf  # noqa: F401 - each adds its commands
from loadgen.cli.frame import INTERRUPTED, commands

__all__ = ["commands", "main"]


def main() -> None:
    """The console script: click's own, but for an interrupt, which is not a failed check, and for closed streams."""
    for descriptor in range(3):  # a closed standard stream would lend its number to a socket
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ≤ shows a question mark
    try:
        sys.exit(commands.main(standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
