"""The training loop: it learns, it says what it does, and it goes on as if it had never stopped."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from leporello.errors import FileMismatch, NotFinite
from leporello.language.config import Config
from leporello.language.model.network import network_of
from leporello.language.run.checkpoint_file import read_checkpoint
from leporello.language.run.folder import Run
from leporello.language.text.sources import Source
from leporello.language.training.batches import Batches
from leporello.language.training.train import resume_training, start_training
from leporello.language.training.training_loop import Training
from leporello.language.training.update import rate_at
from tests.language.texts import rhyme, small_corpus

SMALL: dict[str, Any] = {
    "cell": "gru",
    "hidden": 8,
    "batch": 4,
    "window": 8,
    "epochs": 2,
    "sample_every": 0.0,
    "dropout": 0.0,
    "embedding": 0,
    "engine": "stepwise",
    "threads": 1,
}


def config(**options: Any) -> Config:
    return Config(**{**SMALL, **options})


def trained(**options: Any) -> tuple[Training, list[dict[str, Any]]]:
    training = Training(config(**options), small_corpus())
    return training, list(training.events())


def test_an_update_is_the_plain_one():
    training = Training(config(optimiser="sgd", rate=0.5, clip_norm=0.1, schedule="constant"), small_corpus())
    net = network_of(training.config, small_corpus().tokenizer.size)
    batches = Batches(small_corpus().train.tokens, 4, 8, partition="sequential", seed=0)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    state = None
    for number, window in enumerate(batches.epoch(0)):
        if number == 3:
            break
        training._update(window)
        scores, state = net(window[:-1], state)
        state = state.detach()
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), window[1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimiser.step()
    for ours, theirs in zip(training.net.parameters(), net.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_perplexity_falls():
    _, events = trained(epochs=4, rate=0.02)
    losses = [event["loss"] for event in events if event["kind"] == "validation"]
    assert losses[-1] < 0.8 * math.log(small_corpus().tokenizer.size)
    assert events[-1]["kind"] == "end"
    assert events[-1]["best"] == min(losses)


def test_lines_tell_what_was_measured():
    training, events = trained()
    line = next(event for event in events if event["kind"] == "train")
    assert line["perplexity"] == pytest.approx(math.exp(line["loss"]))
    assert line["bits_per_character"] == pytest.approx(line["loss"] / math.log(2), rel=1e-3)
    assert line["tokens"] == line["update"] * 4 * 8
    assert 0 <= line["clipped"] <= 1
    assert training.progress.epoch == 2
    assert training.progress.update == 2 * training.batches.updates


def test_windows_at_random_begin_from_the_initial_state():
    training, _ = trained(partition="random", epochs=1)
    assert training.state is None


def test_without_a_validation_part_the_text_is_trained_on_all_the_same():
    training = Training(config(validation=0.0, epochs=1), small_corpus(0.0))
    events = list(training.events())
    assert not [event for event in events if event["kind"] == "validation"]
    assert events[-1]["best"] is None


def test_patience_ends_a_run_that_makes_no_progress():
    _, events = trained(rate=1e-12, patience=2, evaluate_every=5, epochs=50)
    assert events[-1]["why"] == "no progress in 2 validations"


def test_minutes_end_a_run():
    _, events = trained(epochs=0, minutes=0.005)
    assert events[-1]["why"] == "0.005 minutes are over"


def test_learning_rates_follow_their_schedule():
    cosine = config(rate=1.0, schedule="cosine", warm_up=0.1)
    assert rate_at(cosine, 0.05) == pytest.approx(0.5)
    assert rate_at(cosine, 0.1) == pytest.approx(1.0)
    assert rate_at(cosine, 0.55) == pytest.approx(0.51)
    assert rate_at(cosine, 1.0) == pytest.approx(0.02)
    assert rate_at(config(rate=1.0, schedule="linear"), 0.75) == pytest.approx(0.25)
    assert rate_at(config(rate=1.0, schedule="constant"), 0.75) == 1.0
    assert rate_at(config(optimiser="sgd"), 0.0) == 1.0


@pytest.mark.parametrize("forcing", ["1", "0.5", "linear:1:0"])
def test_cells_with_feedback_are_forced_as_asked(forcing: str):
    training, events = trained(cell="jordan", forcing=forcing, epochs=1)
    assert math.isfinite(events[-1]["best"])
    assert training.forced == (forcing != "linear:1:0")


@pytest.mark.parametrize("gradient", ["truncated:5", "random:0.9", "checkpointed"])
def test_gradient_methods_are_exchanged_in_one_word(gradient: str):
    _, events = trained(gradient=gradient, epochs=1)
    assert events[-1]["best"] < math.log(small_corpus().tokenizer.size)


def run_in(folder: Path, **options: Any) -> Training:
    return start_training(config(**options), Source.of_text(rhyme()), folder)


def test_a_stopped_run_goes_on_as_if_it_had_never_stopped(tmp_path: Path):
    options = {"dropout": 0.2, "text": ("-",), "optimiser": "adam", "gradient": "random:0.9"}
    whole = run_in(tmp_path / "whole", **options)
    list(whole.events())
    parts = run_in(tmp_path / "parts", **options)
    for count in (7, 50):  # in the middle of the first epoch and of the second
        for event in _until(parts, count):
            assert event["kind"] in ("train", "validation", "end")
        torch.manual_seed(12345)  # another process has other random numbers
        parts = resume_training(tmp_path / "parts")
        assert parts.progress.update >= count
    list(parts.events())
    first, facts = read_checkpoint(whole.run.last_file)
    second, others = read_checkpoint(parts.run.last_file)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    assert facts["progress"]["update"] == others["progress"]["update"]
    assert facts["progress"]["best"] == others["progress"]["best"]


def _until(training: Training, update: int) -> list[dict[str, Any]]:
    """Events of a training that is stopped after so many updates."""
    plain = training._update

    def counted(window: torch.Tensor) -> None:
        plain(window)
        if training.progress.update >= update:
            training.stop()

    training._update = counted  # type: ignore[method-assign]
    return list(training.events())


def test_lines_behind_the_checkpoint_are_written_anew(tmp_path: Path):
    training = run_in(tmp_path / "a", text=("-",), epochs=1)
    list(training.events())
    lines = training.run.metrics_file.read_bytes()
    training.run.metrics_file.write_bytes(lines + b'{"kind": "train", "upd')
    assert [line["kind"] for line in training.run.metrics()][-1] == "validation"
    again = resume_training(tmp_path / "a")
    list(again.events())
    assert training.run.metrics_file.read_bytes() == lines


def test_a_run_broken_off_before_its_first_checkpoint_begins_again(tmp_path: Path):
    text = tmp_path / "rhyme.txt"
    text.write_text(rhyme())
    whole = start_training(config(text=(str(text),)), None, tmp_path / "a")
    Run.create(tmp_path / "b", whole.config)
    list(whole.events())
    again = resume_training(tmp_path / "b")
    list(again.events())
    for ours, theirs in zip(whole.net.parameters(), again.net.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_changed_text_is_refused(tmp_path: Path):
    text = tmp_path / "rhyme.txt"
    text.write_text(rhyme())
    training = start_training(config(text=(str(text),)), None, tmp_path / "a")
    _until(training, 3)
    text.write_text(rhyme().replace("owl", "elk", 1))
    with pytest.raises(FileMismatch, match="the text has changed"):
        resume_training(tmp_path / "a")
    text.unlink()  # the tokens are kept
    assert resume_training(tmp_path / "a").progress.update == 3


def test_a_folder_of_another_version_is_refused(tmp_path: Path):
    training = run_in(tmp_path / "a", text=("-",))
    facts = json.loads(training.run.data_file.read_text())
    training.run.data_file.write_text(json.dumps({**facts, "version": 77}))
    with pytest.raises(FileMismatch, match=r"another version(.|\n)*77"):
        resume_training(tmp_path / "a")


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_checkpoint(tmp_path: Path):
    training = run_in(
        tmp_path / "a", text=("-",), optimiser="sgd", rate=1e30, clip_norm=0.0, cell="rnn:nonlinearity=relu"
    )
    with pytest.raises(NotFinite, match="update"):
        list(training.events())
    tensors, facts = read_checkpoint(training.run.last_file)
    assert facts["progress"]["update"] == 0
    assert all(value.isfinite().all() for name, value in tensors.items() if name.startswith("net."))
