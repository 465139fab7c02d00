"""A scenario: a TOML file that states one question.

fields    what the tables are made of: numbers with units, lengths, times, files
target, workload, arrivals    the tables that have a kind
tables    the others, and what holds between them
reading   a file and its overrides in, a scenario or all of its faults out
shelf     names for the files
"""

from loadgen.scenario.reading import ScenarioError, load
from loadgen.scenario.shelf import every, find, question
from loadgen.scenario.tables import Scenario, Traffic
from loadgen.scenario.target import SglangTarget, SimulatorTarget, UrlTarget

__all__ = [
    "Scenario",
    "ScenarioError",
    "SglangTarget",
    "SimulatorTarget",
    "Traffic",
    "UrlTarget",
    "every",
    "find",
    "load",
    "question",
]
