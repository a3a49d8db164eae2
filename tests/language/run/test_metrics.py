"""Events for TensorBoard."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from leporello.errors import ArgumentError, LeporelloError
from leporello.language.run.metrics import TensorBoardWriter, tensorboard_writer
from leporello.language.text.sources import Source
from leporello.language.training.train import start_training
from tests.language.tiny import CONFIG, TEXT, finished

LINE = {"kind": "train", "update": 3, "epoch": 0.5, "loss": 2.5, "perplexity": 12.1}


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder)).Reload()
    return {name: [(one.step, one.value) for one in read.Scalars(name)] for name in read.Tags()["scalars"]}


def test_every_number_of_a_line_is_a_scalar(tmp_path: Path) -> None:
    board = TensorBoardWriter(tmp_path)
    board.write(LINE)
    board.write({"kind": "validation", "update": 4, "loss": 2.25, "best": True})
    board.write({"kind": "sample", "update": 4, "text": "红楼梦"})
    board.close()
    found = scalars(tmp_path)
    assert found.pop("train/perplexity") == [(3, pytest.approx(12.1))]
    assert found == {"train/epoch": [(3, 0.5)], "train/loss": [(3, 2.5)], "validation/loss": [(4, 2.25)]}


def test_what_was_written_after_the_checkpoint_a_run_goes_on_from_counts_no_longer(tmp_path: Path) -> None:
    first = TensorBoardWriter(tmp_path)
    for update in (3, 5, 7):
        first.write({**LINE, "update": update})
    first.close()
    again = TensorBoardWriter(tmp_path, update=5)
    again.write({**LINE, "update": 6, "loss": 1.5})
    again.close()
    assert scalars(tmp_path)["train/loss"] == [(3, 2.5), (5, 2.5), (6, 1.5)]


def test_a_training_writes_what_it_measures(tmp_path: Path) -> None:
    config = CONFIG.replaced({"tensorboard": True, "epochs": 1})
    training = start_training(config, Source.of_text(TEXT), tmp_path / "run")
    lines = [event for event in finished(training) if event["kind"] == "validation"]
    found = scalars(tmp_path / "run" / "tensorboard")
    assert found["validation/loss"] == [(line["update"], pytest.approx(line["loss"], rel=1e-6)) for line in lines]
    assert "train/gradient_norm" in found


def test_nothing_is_written_where_nobody_asked(tmp_path: Path) -> None:
    assert tensorboard_writer(CONFIG, tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_without_the_package_a_training_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(LeporelloError, match="pip install tensorboard"):
        start_training(CONFIG.replaced({"tensorboard": True}), Source.of_text(TEXT), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_events_need_a_folder() -> None:
    with pytest.raises(ArgumentError, match="needs a folder"):
        tensorboard_writer(CONFIG.replaced({"tensorboard": True}), None)
