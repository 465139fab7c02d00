"""A scenario: a TOML file that states one question.

tables    its tables as checked models
reading   a file and its overrides in, a scenario or all of its faults out
shelf     names for the files
"""

from loadgen.scenario.reading import ScenarioError, load
from loadgen.scenario.shelf import every, find, question
from loadgen.scenario.tables import Scenario, SimulatorTarget, UrlTarget

__all__ = ["Scenario", "ScenarioError", "SimulatorTarget", "UrlTarget", "every", "find", "load", "question"]
