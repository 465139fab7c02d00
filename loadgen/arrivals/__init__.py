"""When requests are due: pure arrival processes. A seeded generator goes in, offsets come out.

An offset is in seconds from the start of the run, and offsets never decrease. A process knows no clock, no request
and no count: the caller takes as many offsets as it needs, and a longer run begins with the shorter one's offsets.
Nothing is rescaled to hit a total, so the time that n requests take is as random as the process is.

Each process knows its own theory (see `Arrivals`), and `statistics` measures a sample against it. What the arguments
must satisfy is checked by who reads them, not here.
"""

from loadgen.arrivals.clients import Client, Clients, Window
from loadgen.arrivals.curve import Curve, Diurnal, PiecewiseLinear, ramp, spike, step
from loadgen.arrivals.gaps import EvenGaps, ExponentialGaps, GammaGaps, Gaps, WeibullGaps
from loadgen.arrivals.mmpp import Mmpp
from loadgen.arrivals.process import Arrivals, Burst, Fixed, Oneshot, Poisson, Staggered
from loadgen.arrivals.renewal import Gamma, Renewal, Weibull
from loadgen.arrivals.replay import Replay
from loadgen.arrivals.varying import Varying

__all__ = [
    "Arrivals",
    "Burst",
    "Client",
    "Clients",
    "Curve",
    "Diurnal",
    "EvenGaps",
    "ExponentialGaps",
    "Fixed",
    "Gamma",
    "GammaGaps",
    "Gaps",
    "Mmpp",
    "Oneshot",
    "PiecewiseLinear",
    "Poisson",
    "Renewal",
    "Replay",
    "Staggered",
    "Varying",
    "Weibull",
    "WeibullGaps",
    "Window",
    "ramp",
    "spike",
    "step",
]
