"""What the tables of a scenario are made of: numbers with their units and bounds, lengths, times, files.

Times are seconds, rates are requests per second, lengths are tokens. An unknown key is an error.
"""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from loadgen import think, workload


def _bare(unit: str) -> BeforeValidator:
    def number_without_unit(value: object) -> object:
        if isinstance(value, str):
            raise ValueError(f"expected a number of {unit} without its unit, such as 2.5, got {value!r}")
        return value

    return BeforeValidator(number_without_unit, json_schema_input_type=float)


# Upper bounds are far beyond use; they keep a slip of the keyboard from filling the memory or stopping the clock.
Seconds = Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False), _bare("seconds")]
Instant = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False), _bare("seconds")]
Rate = Annotated[
    float, Field(ge=1e-6, le=1e6, allow_inf_nan=False, description="requests per second"), _bare("requests per second")
]
RateOrNone = Annotated[
    float, Field(ge=0, le=1e6, allow_inf_nan=False, description="requests per second"), _bare("requests per second")
]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Share = Annotated[float, Field(ge=0, le=1)]


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _from_the_scenario(path: str, info: ValidationInfo) -> str:
    folder = (info.context or {}).get("folder", ".")
    found = Path(os.path.realpath(Path(folder, path)))  # Path.resolve raises where links go in a circle
    if not found.exists():
        raise ValueError(f"there is no {found}")
    if not (found.is_file() or found.is_dir()):
        raise ValueError(f"is no file, but a pipe or a device: {found}")
    return str(found)


File = Annotated[
    str,
    Field(description="path, from the scenario's own folder; given with --set, from where you are"),
    AfterValidator(_from_the_scenario),
]


# ── lengths, in tokens ───────────────────────────────────────────────────────────────────────────────────────────────


class UniformLength(Table):
    kind: Literal["uniform"]
    low: Count
    high: Count

    @field_validator("high")
    @classmethod
    def low_is_below_high(cls, high: int, info: ValidationInfo) -> int:
        if (low := info.data.get("low", high)) > high:
            raise ValueError(f"must not be below low = {low}, got {high}")
        return high

    def distribution(self) -> workload.Length:
        return workload.Uniform(self.low, self.high)


class LognormalLength(Table):
    kind: Literal["lognormal"]
    mean: Annotated[float, Field(ge=1)]
    cv: Annotated[float, Field(gt=0, le=100, description="standard deviation over mean")]
    high: Count = Field(32768, description="longer draws are cut to this", validate_default=True)

    @field_validator("high")
    @classmethod
    def mean_is_below_high(cls, high: int, info: ValidationInfo) -> int:
        if (mean := info.data.get("mean", high)) > high:
            raise ValueError(f"must not be below mean = {mean:g}, got {high}")
        return high

    def distribution(self) -> workload.Length:
        return workload.Lognormal(self.mean, self.cv, self.high)


class ConstantLength(Table):
    kind: Literal["constant"]
    value: Count

    def distribution(self) -> workload.Length:
        return workload.Constant(self.value)


def _number_is_constant(value: object) -> object:
    return {"kind": "constant", "value": value} if isinstance(value, int | float | str) else value


Length = Annotated[
    Annotated[ConstantLength | UniformLength | LognormalLength, Field(discriminator="kind")],
    BeforeValidator(
        _number_is_constant, json_schema_input_type=Count | ConstantLength | UniformLength | LognormalLength
    ),
]


# ── times, in seconds ────────────────────────────────────────────────────────────────────────────────────────────────

Pause = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False), _bare("seconds")]


class ConstantTime(Table):
    kind: Literal["constant"]
    value: Pause

    def distribution(self) -> think.Think:
        return think.Always(self.value)


class UniformTime(Table):
    kind: Literal["uniform"]
    low: Pause
    high: Pause

    @field_validator("high")
    @classmethod
    def low_is_below_high(cls, high: float, info: ValidationInfo) -> float:
        if (low := info.data.get("low", high)) > high:
            raise ValueError(f"must not be below low = {low:g}, got {high:g}")
        return high

    def distribution(self) -> think.Think:
        return think.Between(self.low, self.high)


class ExponentialTime(Table):
    kind: Literal["exponential"]
    mean: Seconds

    def distribution(self) -> think.Think:
        return think.Exponential(self.mean)


class LognormalTime(Table):
    kind: Literal["lognormal"]
    mean: Seconds
    cv: Annotated[float, Field(gt=0, le=100, description="standard deviation over mean")]

    def distribution(self) -> think.Think:
        return think.Lognormal(self.mean, self.cv)


Time = Annotated[
    Annotated[ConstantTime | UniformTime | ExponentialTime | LognormalTime, Field(discriminator="kind")],
    BeforeValidator(
        _number_is_constant,
        json_schema_input_type=Pause | ConstantTime | UniformTime | ExponentialTime | LognormalTime,
    ),
]
