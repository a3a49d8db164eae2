"""Every example runs from the command line, with few updates; the worked ones also do what their pages say."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import leporello as lp
from tests.nets.twins import thoroughly

EXAMPLES = Path(__file__).parent.parent / "examples"

# one row an example: the options that make it short
SHORT = {
    "01_memory.py": ["--updates", "2", "--batch", "3", "--hidden", "5", "--length", "7", "--lengths", "1", "7", "63"],
    "02_influence_balancing.py": ["--updates", "3"],
    "03_teacher_forcing.py": ["--quick"],
    "04_series.py": ["--season=12", "--updates=2", "--nets=1", "--paths=3", "--hidden=5", "--plot=series.png"],
    "05_ppo.py": ["--updates", "2", "--carts", "5", "--length", "7", "--hidden", "3", "--plot", "ppo.png"],
    "06_lightning.py": ["--epochs", "2", "--words", "65", "--hidden", "3", "--plot", "loss.png"],
    "07_audio_in_c.py": ["--updates", "2", "--length", "120", "--seconds", "0.1", "--hidden", "5"],
    "08_microcontroller.py": ["--updates", "2", "--length", "31", "--hidden", "9"],
    "10_1_elman.py": [],
    "10_2_jordan.py": [],
    "10_3_summary.py": [],
    "10_4_teacher_forcing.py": [],
}


def test_every_example_has_its_row() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(SHORT)


def run(name: str, folder: Path, *options: str) -> str:
    """What an example prints; a warning is an error, but for those of Lightning about itself."""
    warnings = ["-W", "default" if name == "06_lightning.py" else "error"]
    command = [sys.executable, *warnings, str(EXAMPLES / name), *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", [*list(SHORT)[:1], *thoroughly(*list(SHORT)[1:])])
@pytest.mark.timeout(1200)
def test_example_runs(name: str, tmp_path: Path) -> None:
    assert run(name, tmp_path, *SHORT[name])


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(f"example_{Path(request.param).stem}", EXAMPLES / request.param)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("example", ["04_series.py"], indirect=True)
def test_paths_of_a_series_read_nothing_from_their_origin_on(example: ModuleType) -> None:
    torch.manual_seed(0)
    net, season, series = lp.Recurrent(example.Forecaster(5)), 7, torch.rand(45)
    origins = torch.tensor([15, 22, 38])
    drawn = []
    for later in (0.0, 9.0):
        torch.manual_seed(1)
        changed = torch.cat([series[:15], series[15:] + later])
        drawn.append(example.paths(net, changed, origins, season, 3))
    assert drawn[0].shape == (7, 3, 3)
    assert torch.equal(drawn[0][:, 0], drawn[1][:, 0])
    assert not torch.equal(drawn[0][:, 1], drawn[1][:, 1])


@pytest.mark.parametrize("example", ["04_series.py"], indirect=True)
def test_paths_begin_after_the_last_value_before_their_origin(example: ModuleType) -> None:
    torch.manual_seed(0)
    net, season, series = lp.Recurrent(example.Forecaster(5)), 7, torch.rand(45)
    net.cell.head.weight.data.zero_()
    net.cell.head.bias.data = torch.tensor([0.0, -100.0])  # the last value again, with a deviation of 0.01
    origins = torch.tensor([15, 22, 38])
    drawn = example.paths(net, series, origins, season, 3)
    torch.testing.assert_close(drawn[0], series[origins - 1].unsqueeze(1).expand(3, 3), atol=0.1, rtol=0)


@pytest.mark.parametrize("example", ["04_series.py"], indirect=True)
def test_a_series_is_the_last_column_of_numbers(example: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "values.csv"
    file.write_text("month,index,value,remark\n1749-01,1,58.0,low\n1749-02,2,62.6,\n\n", encoding="utf-8")
    labels, values = example.read(str(file))
    assert labels == ["1749-01", "1749-02"]
    assert values.tolist() == pytest.approx([58.0, 62.6])
    file.write_text("month,remark\n1749-01,low\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="no column of numbers"):
        example.read(str(file))


@pytest.mark.parametrize("example", ["05_ppo.py"], indirect=True)
@pytest.mark.parametrize("memory", [True, False])
def test_a_training_call_repeats_what_was_collected(example: ModuleType, memory: bool) -> None:
    torch.manual_seed(0)
    settings = SimpleNamespace(length=63, memory=memory)
    net, carts = lp.Recurrent(example.Agent(2, 3, 2)), example.Carts(5)
    state, begins = net.initial_state(5), torch.zeros(5, dtype=torch.bool)
    for _ in range(2):
        before = state
        steps, state, begins, ends = example.collect(net, carts, state, begins, settings)
        (_, values), after = net(steps.seen, before, resets=steps.resets)
        torch.testing.assert_close(values, steps.values)
        torch.testing.assert_close(after, state)
        assert len(ends) == steps.done.sum() > 0


@pytest.mark.parametrize("example", ["05_ppo.py"], indirect=True)
def test_advantages_stop_at_the_end_of_an_episode(example: ModuleType) -> None:
    torch.manual_seed(0)
    values, done, following = torch.rand(7, 3), torch.rand(7, 3) < 0.3, torch.rand(3)
    steps = example.Steps(None, None, None, values, None, done)
    found = example.advantages_of(steps, following)
    for row in range(3):
        for begin in range(7):
            total, weight = 0.0, 1.0
            for t in range(begin, 7):
                then = 0 if done[t, row] else (following[row] if t == 6 else values[t + 1, row])
                total += weight * (0.01 + 0.99 * then - values[t, row])
                weight *= 0 if done[t, row] else 0.99 * 0.95
            assert found[begin, row].item() == pytest.approx(float(total), abs=1e-5)


def row_of(printed: str, name: str) -> list[float]:
    """The numbers of the first row of a table that begins with a name."""
    found = re.search(rf"^ *{name} +([\d. ]+)$", printed, re.MULTILINE)
    assert found, printed
    return [float(number) for number in found[1].split()]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_series_is_forecast_better_than_without_a_net(tmp_path: Path) -> None:
    printed = run("04_series.py", tmp_path, "--nets", "1", "--season", "48", "--paths", "50")
    one_step, ahead = printed.split("steps ahead")[-2:]
    assert row_of(one_step, "net")[0] < min(row_of(one_step, "a season ago")[0], row_of(one_step, "the last value")[0])
    assert row_of(ahead, "net")[0] < min(row_of(ahead, "a season ago")[0], row_of(ahead, "the last value")[0])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_pole_stays_up_with_a_memory_alone(tmp_path: Path) -> None:
    printed = run("05_ppo.py", tmp_path)
    assert row_of(printed, "with a memory")[1] > 300
    assert row_of(printed, "without")[1] < 100


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("precision", ["32", "bf16-mixed"])
def test_resumed_by_lightning_training_goes_on_as_if_never_stopped(tmp_path: Path, precision: str) -> None:
    options = ["--words", "200", "--hidden", "5", "--precision", precision]
    whole, first, rest = (
        run("06_lightning.py", tmp_path, *options, *more)
        for more in (
            ["--out", "whole", "--epochs", "4"],
            ["--out", "parts", "--epochs", "2"],
            ["--out", "parts", "--epochs", "4", "--resume"],
        )
    )
    assert "2 epochs" in first
    assert "4 epochs" in rest
    assert whole.splitlines()[-1] == rest.splitlines()[-1]
    found = [torch.load(tmp_path / out / "last.ckpt", weights_only=False) for out in ("whole", "parts")]
    assert found[0]["epoch"] == found[1]["epoch"] == 3
    assert found[0]["global_step"] == found[1]["global_step"]
    for name, value in found[0]["state_dict"].items():
        assert torch.equal(value, found[1]["state_dict"][name]), name


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_lightning_stops_early_and_shows_sizes(tmp_path: Path) -> None:
    printed = run(
        "06_lightning.py",
        tmp_path,
        "--words",
        "65",
        "--hidden",
        "3",
        "--epochs",
        "30",
        "--patience",
        "1",
        "--rate",
        "0",
    )
    assert "2 epochs" in printed
    assert "read.net" in printed
    assert "[4, 9]" in printed
