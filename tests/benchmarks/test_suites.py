"""Every suite measures a small case and finds what its promises speak of."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from benchmarks import agreement, first_call, turns
from benchmarks.cases import FORWARD, KEPT, TRAINING, Case
from benchmarks.contestants import Eager, Engine
from benchmarks.record import Measurement, Suite, summaries
from benchmarks.sizes import Size
from benchmarks.suites import SUITES, arguments, busy, call, first, own, rate
from benchmarks.turns import Settings
from leporello.errors import LeporelloError

SIZE = Size(16, 2, 3, 5)
ONCE = Settings(rounds=1)
NAMED = {suite.name: suite for suite in SUITES}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(rate, "PRODUCTS", ((3, 4, 5), (64, 64, 64)))
    monkeypatch.setattr(call, "CALLS", 3)
    monkeypatch.setattr(own, "OTHERS", [Eager()])  # jax has tests of its own


def figures(suite: Suite, case: Case) -> Measurement:
    """The measurement, after a look that everything promised of such a case is in it."""
    found = suite.measure(case, ONCE)
    promised = [promise for promise in suite.promises if promise.of(case) and "jax" not in promise.figure]
    assert promised
    for one in promised:
        value = found.value(one.unit, one.figure)
        assert value is not None
        assert value > 0
    return found


@pytest.mark.kernels
@pytest.mark.parametrize("name", ["torch", "own", "arguments", "memory", "growth", "methods"])
def test_a_suite_finds_what_it_promises(name: str) -> None:
    figures(NAMED[name], Case("RNN", SIZE))


@pytest.mark.kernels
def test_a_forced_net_is_measured_beside_a_free_one_and_torch_by_hand() -> None:
    figures(NAMED["forced"], Case("Jordan", SIZE))


@pytest.mark.kernels
def test_a_busy_machine_is_made_busy_and_quiet_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUIET_SECONDS", "BUSY_SECONDS", "SETTLE_SECONDS"):
        monkeypatch.setattr(busy, name, 0.02)
    found = figures(NAMED["busy"], Case("RNN", SIZE))
    assert set(found.ratios) == {"torch.nn, busy over quiet", "cpu, busy over quiet"}


@pytest.mark.kernels
def test_a_language_model_trains_and_writes_beside_torch_nn() -> None:
    figures(NAMED["training"], Case("RNN", Size(16, 4, 28, 5)))
    figures(NAMED["generating"], Case("LSTM", Size(8, 1, 7, 5), FORWARD))


@pytest.mark.kernels
def test_the_rate_is_that_of_both_kernels_and_of_the_best_product() -> None:
    found = figures(NAMED["rate"], Case("RNN", Size(3, 2, 64, 64)))
    assert set(found.figures["gigaflops"]) == {"forward kernels", "backward kernels", "torch.mm"}


@pytest.mark.kernels
@pytest.mark.parametrize("what", [FORWARD, KEPT, TRAINING])
def test_a_call_is_its_kernels_and_what_lies_beyond(what: str) -> None:
    found = figures(NAMED["call"], Case("RNN", Size(1, 1, 3, 5), what)).figures["microseconds"]
    assert found["call"] == pytest.approx(found["kernels"] + found["beyond"])


@pytest.mark.kernels
def test_one_step_stands_beside_the_cell_of_torch() -> None:
    assert set(figures(NAMED["call"], Case("LSTM", Size(1, 1, 3, 5), call.STEP)).ratios) == {"torch.nn over cpu"}


def test_stepwise_is_measured_in_time_and_memory() -> None:
    assert set(figures(NAMED["stepwise"], Case("Elman", SIZE)).figures) == {"milliseconds", "peak_bytes"}


def test_lengths_and_resets_are_some_and_not_all() -> None:
    exercise = Case("RNN", Size(512, 3, 1, 1)).build()
    lengths, resets = arguments.lengths(exercise)["lengths"], arguments.resets(exercise)["resets"]
    assert ((lengths >= 1) & (lengths <= 512)).all()
    assert 0 < resets.sum() < resets.numel() / 10


@pytest.mark.kernels
def test_a_wrong_argument_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(range(9))
    uneven = {"lengths": lambda exercise: {"lengths": torch.full((2,), 1 + next(drawn))}}  # other ones at each call
    monkeypatch.setattr(arguments, "ARGUMENTS", uneven)
    with pytest.raises(agreement.Disagreement, match="cpu with lengths differs from reference with lengths"):
        arguments.measure(Case("RNN", SIZE), ONCE)


def test_first_calls_find_an_empty_cache_and_then_a_filled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []

    def seconds(case: Case, before: str, cache: str) -> tuple[float, float]:
        assert os.path.isdir(cache)
        seen.append((before, cache))
        return 10.0 * len(seen), float(len(seen))

    monkeypatch.setattr(first, "_seconds", seconds)
    found = figures(NAMED["first"], Case("RNN", SIZE))
    assert list(found.figures["seconds"].values()) == [1.0, 2.0, 3.0, 4.0, 15.0]
    (new, one), (_, same), (warm, other), (_, again) = seen
    assert not new
    assert warm
    assert one == same != other == again


@pytest.mark.kernels
def test_a_first_call_is_timed_in_a_process_of_its_own() -> None:
    made, called = first._seconds(Case("RNN", SIZE), "", os.environ["LEPORELLO_CACHE"])
    assert 0 < made < 60
    assert 0 < called < 60


def test_a_first_call_that_fails_is_told_in_its_own_words() -> None:
    with pytest.raises(LeporelloError, match="invalid choice: 'NoCell'"):
        first._seconds(Case("NoCell", SIZE), "", os.environ["LEPORELLO_CACHE"])


@pytest.mark.kernels
def test_the_command_for_a_first_call_prints_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    sizes = [str(number) for number in (SIZE.length, SIZE.batch, SIZE.inputs, SIZE.hidden)]
    assert first_call.main(["RNN", *sizes, "--before", "RNN", "--threads", str(threads)]) == 0
    made, called = map(float, capsys.readouterr().out.split())
    assert made > 0
    assert called > 0


def test_a_case_that_disagrees_is_never_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Eager):
        name = "wrong"

        def prepare(self, exercise, what=TRAINING):  # type: ignore[no-untyped-def]
            task = super().prepare(exercise, what)
            return replace(task, run=lambda inputs: 2 * task.run(inputs))

    monkeypatch.setattr(own, "OTHERS", [Eager(), Wrong()])
    monkeypatch.setattr(own, "Engine", lambda name: Engine("stepwise"))
    with pytest.raises(agreement.Disagreement, match="wrong differs from eager"):
        own.measure(Case("Leaky", SIZE), ONCE)


def test_small_sizes_are_those_with_few_units_or_one_row() -> None:
    small = [case.size for case in own.SUITE.cases if own.is_small(case) and case.cell == "Leaky"]
    assert [str(size) for size in small] == [
        "35x32x28x32",
        "64x32x64x64",
        "1024x16x64x64",
        "256x1x128x128",
        "2048x40x1x40",
    ]


def test_without_jax_its_promise_is_left_out() -> None:
    case = own.SUITE.cases[0]
    eager = Measurement(case, ratios={"eager over cpu": turns.Ratio(9.0, 9.0, 9.0)})
    assert {one.promise.figure for one in summaries(own.SUITE, [eager])} == {"eager over cpu"}
