"""Schedules: the same for the same seed everywhere, and one concern never moves another."""

from pathlib import Path

from loadgen.fingerprint import of_offsets
from loadgen.scenario import find, load
from loadgen.schedule import Schedule, plan


def planned(name: str, seed: int, *overrides: str) -> Schedule:
    return plan(load(find(name), overrides), seed)


def test_the_same_seed_gives_the_same_offsets_and_prompts() -> None:
    one, other = planned("poisson", 1), planned("poisson", 1)
    assert (one.offsets, one.requests) == (other.offsets, other.requests)
    assert one.fingerprints == other.fingerprints


def test_a_seed_means_the_same_on_every_machine_and_version() -> None:
    """Golden: what this version printed when the streams were first drawn. A change here breaks every old record."""
    fingerprints = planned("poisson", 1).fingerprints
    assert fingerprints == {
        "schedule": "c36500e3b352122b",
        "workload": "d0c8a42818e1d5d6",
        "concurrency": "3d5b001578a5948f",
        "sampling": "fdf498fd33d28ff3",
        "prompts": fingerprints["prompts"],
        "output_len": fingerprints["output_len"],
    }


def test_another_seed_gives_other_offsets_and_prompts() -> None:
    one, other = planned("poisson", 1), planned("poisson", 2)
    assert one.fingerprints["schedule"] != other.fingerprints["schedule"]
    assert one.fingerprints["workload"] != other.fingerprints["workload"]


def test_changing_the_workload_does_not_move_the_arrivals() -> None:
    one, other = planned("poisson", 1), planned("poisson", 1, "workload.input_len=9", "measure.warmup=0")
    assert one.offsets == other.offsets
    assert one.fingerprints["workload"] != other.fingerprints["workload"]


def test_changing_the_arrivals_or_the_warm_up_does_not_move_the_prompts() -> None:
    one, other = planned("poisson", 1), planned("poisson", 1, "arrivals.rate=3", "measure.warmup=50")
    assert one.requests == other.requests
    assert one.fingerprints["schedule"] != other.fingerprints["schedule"]


def test_warm_up_prompts_are_none_of_the_measured_ones() -> None:
    schedule = planned("fixed", 1)
    measured = {tuple(request.prompt) for request in schedule.requests}
    assert len(schedule.warmup) == 4
    assert measured.isdisjoint(tuple(request.prompt) for request in schedule.warmup)


def test_caps_and_sampling_have_fingerprints_of_their_own() -> None:
    base = planned("fixed", 1).fingerprints
    capped = planned("fixed", 1, "limits.max_concurrency=3").fingerprints
    warm = planned("fixed", 1, "sampling.temperature=0.5").fingerprints
    assert {key for key in base if base[key] != capped[key]} == {"concurrency"}
    assert {key for key in base if base[key] != warm[key]} == {"sampling"}


def test_the_last_bit_of_an_offset_is_not_in_the_fingerprint_and_a_microsecond_is() -> None:
    assert of_offsets([0.1 + 0.2]) == of_offsets([0.3])
    assert of_offsets([0.300001]) != of_offsets([0.3])


def test_scenarios_live_beside_the_package_or_in_the_current_folder() -> None:
    assert find("burst").resolve() == (Path(__file__).parent.parent / "scenarios" / "burst.toml").resolve()
