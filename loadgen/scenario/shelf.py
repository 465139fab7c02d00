"""Where scenarios live: a name stands for a file in ./scenarios, or for one that came with the package."""

from pathlib import Path

import loadgen
from loadgen.scenario.reading import ScenarioError


def folders() -> list[Path]:
    """Where names are looked up: ./scenarios, then those that came with the package."""
    package = Path(loadgen.__file__).parent
    shipped = package / "_scenarios"
    return [Path("scenarios"), shipped if shipped.is_dir() else package.parent / "scenarios"]


def find(name: str) -> Path:
    """The file of a scenario, given as a name in a scenarios folder or as a path."""
    if name.endswith(".toml") or "/" in name:
        return Path(name)
    for folder in folders():
        if (path := folder / f"{name}.toml").is_file():
            return path
    known = ", ".join(sorted(every())) or "none"
    raise ScenarioError(name, [f"no scenario named {name!r}: give one of {known}, or the path of a .toml file"])


def every() -> dict[str, Path]:
    """All scenarios by name."""
    return {path.stem: path for folder in reversed(folders()) for path in sorted(folder.glob("*.toml"))}


def question(path: Path) -> str:
    """The question a scenario answers: its opening comment."""
    lines = []
    for line in path.read_text(encoding="utf-8-sig", errors="replace").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("#:"):  # an editor's schema directive
            lines.append(line.lstrip("# ").strip())
    return " ".join(lines).partition(": ")[2]
