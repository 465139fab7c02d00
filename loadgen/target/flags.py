"""SGLang's arguments as a command line has them; the simulator's are its own by name and form."""

from collections.abc import Mapping
from typing import Any


def flags(given: Mapping[str, Any]) -> list[str]:
    """A bool is a flag, or is not; a list is a flag and its values."""
    line: list[str] = []
    for key, value in given.items():
        flag = f"--{key.replace('_', '-')}"
        if isinstance(value, bool):
            line += [flag] if value else []
        elif isinstance(value, list):
            line += [flag, *map(str, value)]
        else:
            line.append(f"{flag}={value}")
    return line
