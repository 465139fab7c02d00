"""`loadgen scenarios` and `loadgen serve`: what can be run, and what can be run against."""

from __future__ import annotations

import sys

import click

from loadgen.cli.frame import commands, inputs, load_scenario, set_option


@commands.group(invoke_without_command=True)
@click.pass_context
def scenarios(context: click.Context) -> None:
    """List the scenarios, each with the question it answers."""
    if context.invoked_subcommand is None:
        from loadgen.scenario import every, question

        found = every()
        width = max(map(len, found), default=0)
        for name, path in sorted(found.items()):
            click.echo(f"{name:<{width}}  {question(path)}")


@scenarios.command()
@click.argument("scenario")
@click.option("--arrivals", is_flag=True, help="Rate over time, CV and dispersion of the schedule, against theory.")
@set_option
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the schedule.")
def show(scenario: str, arrivals: bool, overrides: tuple[str, ...], seed: int) -> None:
    """Show SCENARIO with all its keys, or its arrivals against their theory; nothing is sent."""
    import json

    from loadgen.report.arrivals import shown
    from loadgen.report.terminal import console
    from loadgen.scenario import find, question

    checked, name = load_scenario(scenario, list(overrides), None)
    click.echo(f"{name}: {question(find(scenario))}")
    if not arrivals:
        click.echo(json.dumps(checked.model_dump(mode="json", exclude_none=True), indent=2))
        return
    with inputs():
        console().print(shown(checked, seed))


@scenarios.command()
def schema() -> None:
    """Print the JSON Schema of a scenario, for editors."""
    import json

    from loadgen.scenario import Scenario

    click.echo(json.dumps(Scenario.model_json_schema(), indent=2))


@commands.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(arguments: tuple[str, ...]) -> None:
    """Serve the simulator on 127.0.0.1; takes SGLang's own argument names (see serve --help)."""
    from loadgen.simulator.__main__ import main as serve_simulator

    sys.exit(serve_simulator(list(arguments)))
