"""What a diagnosis is made of: runs, and findings with their evidence."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from loadgen.diagnosis.attribution import Attribution


@dataclass(frozen=True, slots=True)
class Run:
    """A rung of a pair: its name, its record.json, and what its long gaps are put down to, None where it has none."""

    rung: str
    data: Mapping[str, Any]
    gaps: Attribution | None = None

    @property
    def log(self) -> Mapping[str, Any]:
        """What its server's log says, empty where there is none."""
        log: Mapping[str, Any] = (self.data.get("telemetry") or {}).get("log") or {}
        return {} if log.get("absent") else log

    @property
    def valid(self) -> bool:
        return bool(self.data["verdict"]["valid"])

    @property
    def batch(self) -> float | None:
        """Sequences in a batch: as it was fixed, or the mean over the decode steps."""
        if "static" in self.data:
            return float(self.data["static"]["batch_size"])
        mean = (self.log.get("running") or {}).get("mean")
        return None if mean is None else float(mean)

    def says(self, text: str, where: str) -> str:
        """A line of evidence: the figure with its mode and batch composition, and where it stands."""
        data = self.data
        mode = "" if self.rung == data["mode"] else f"{data['mode']}, "
        batch = "not known" if self.batch is None else f"{self.batch:.1f}"
        how = f"{mode}{data.get('arrivals', '?')} arrivals, {data['card']['batching_mode']} batching, batch {batch}"
        return f"{self.rung} ({how}): {text}  [{where}]"


@dataclass(frozen=True, slots=True)
class Finding:
    """One symptom that is there: what it is, the figures that show it, and what to do next."""

    symptom: str
    title: str
    evidence: list[str]
    action: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
