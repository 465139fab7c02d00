"""Runs in SGLang's environment: one Engine, a one-shot record of a scenario on it, its answers to the first prompts.

python in_process.py FOLDER SCENARIO-AS-JSON
"""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from loadgen.client.engine import EngineClient
from loadgen.client.http import Timeouts
from loadgen.exchange import Exchange
from loadgen.run import measure
from loadgen.scenario import Scenario
from loadgen.schedule import at_once, plan
from loadgen.target import reach

ANSWERED = 6  # prompts whose answers are kept


async def main(folder: Path, scenario: Scenario) -> None:
    once, schedule = at_once(scenario, plan(scenario, 1))
    async with reach(once.target, "oneshot", folder / "engine.log") as target:
        (folder / "oneshot").mkdir()
        await measure(target, once, schedule, "oneshot", 1, folder / "oneshot", mode="oneshot")
        client = EngineClient(target.body, Timeouts(300, 300, 300, 300))  # type: ignore[union-attr]
        asked = [Exchange(replace(request, session=0), due=0.0) for request in schedule.requests[:ANSWERED]]
        await asyncio.gather(*map(client.stream, asked))
        (folder / "ids.json").write_text(json.dumps([exchange.answer for exchange in asked]))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Scenario.model_validate_json(sys.argv[2])))
