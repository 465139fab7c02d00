"""What the documents show is what the files and the program say."""

import re
from pathlib import Path

from loadgen.cli import commands

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_scenario_in_the_readme_is_the_one_that_ships() -> None:
    shown = re.search(r"```toml\n(.*?)```", README, re.DOTALL)
    shipped = (ROOT / "scenarios" / "burst.toml").read_text().partition("\n")[2]  # without the editor's schema line
    assert shown is not None
    assert shown[1] == shipped


def test_every_path_in_the_readme_exists() -> None:
    paths = re.findall(r"\]\(([\w/.]+)\)", README)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_command_in_the_readme_is_one() -> None:
    blocks = "".join(re.findall(r"```\n(.*?)```", README, re.DOTALL))
    assert set(re.findall(r"^loadgen (\w+)", blocks, re.MULTILINE)) == {"run", "pair", "report", "scenarios"}
    assert {"run", "pair", "report", "scenarios"} <= set(commands.commands)
    targets = set(re.findall(r"^(?:    )?make ([\w-]+)", README, re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text()
    assert {target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)} == set()
