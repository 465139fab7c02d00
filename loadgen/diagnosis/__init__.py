"""From records to reasons: what long gaps were made of, and rules for what contradicts between modes.

attribution   each long gap between chunks, and what the server was doing then
rules         one rule a symptom
options       an option that helps in one mode only: runs with it on and off, in both
"""

from loadgen.diagnosis.attribution import Attribution, attribute
from loadgen.diagnosis.finding import Finding, Run
from loadgen.diagnosis.rules import diagnose

__all__ = ["Attribution", "Finding", "Run", "attribute", "diagnose"]
