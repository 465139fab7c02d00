"""The metric definitions, on exchanges whose figures can be worked out by hand."""

import pytest

from loadgen.exchange import Exchange, Outcome, Request


def exchange(*chunks: tuple[float, int], outcome: Outcome = Outcome.OK) -> Exchange:
    """Due at 10 s, ready at 10.5, sent at 10.75."""
    made = Exchange(Request(0, [1, 2], 8), due=10.0, ready=10.5, sent=10.75, outcome=outcome)
    for at, tokens in chunks:
        made.chunk(at, tokens)
    return made


def test_latencies_run_from_the_instant_a_request_was_due() -> None:
    e = exchange((11.0, 1), (11.5, 2), (12.0, 3))
    assert (e.lateness, e.lag) == (0.75, 0.25)
    assert (e.ttft, e.ttft_service, e.e2e) == (1.0, 0.25, 2.0)
    assert e.tpot == 0.5
    assert e.itl().tolist() == [0.5, 0.5]


def test_tpot_is_over_the_tokens_after_the_first_chunk() -> None:
    """The first chunk brings 2 tokens, 6 more take 3 s."""
    assert exchange((11.0, 2), (12.0, 3), (14.0, 8)).tpot == 0.5


def test_itl_spreads_a_gap_over_its_tokens_or_counts_it_whole() -> None:
    e = exchange((11.0, 1), (12.0, 5), (12.5, 6))
    assert e.itl("spread").tolist() == [0.25, 0.25, 0.25, 0.25, 0.5]
    assert e.itl("chunk").tolist() == [1.0, 0.5]
    assert e.itl("spread").sum() == pytest.approx(12.5 - 11.0)


def test_one_chunk_has_a_ttft_and_neither_tpot_nor_itl() -> None:
    e = exchange((11.0, 4))
    assert (e.ttft, e.tpot, e.itl().size) == (1.0, None, 0)


def test_an_answer_without_tokens_has_no_latencies() -> None:
    e = exchange()
    assert (e.ttft, e.e2e, e.tpot, e.itl().size, e.lateness) == (None, None, None, 0, 0.75)


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.OK])
def test_a_failed_request_keeps_its_lateness_and_has_no_latencies(outcome: Outcome) -> None:
    e = exchange((11.0, 1), (12.0, 2), outcome=outcome)
    assert (e.ttft, e.ttft_service, e.tpot, e.e2e, e.itl().size) == (None, None, None, None, 0)
    assert e.lateness == 0.75


def test_a_total_that_comes_at_the_end_is_dealt_evenly_over_the_chunks() -> None:
    e = exchange((11.0, 1), (12.0, 2), (13.0, 3), (14.0, 4))
    e.settle(10)
    assert e.tokens.tolist() == [2, 5, 7, 10]
    assert e.tpot == pytest.approx(3 / 8)


def test_chunks_that_turn_out_to_bring_nothing_give_their_gap_to_the_next_token() -> None:
    e = exchange((11.0, 1), (12.0, 2), (13.0, 3), (14.0, 4))
    e.settle(2)  # 0, 1, 1, 2
    assert e.itl().tolist() == [2.0]
