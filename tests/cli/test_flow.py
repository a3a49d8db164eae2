"""`leporello flow`: the verdict and the table of gradient_flow, plots in files, numbers as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import leporello as lp
from leporello.analysis import gradient_flow
from leporello.cli.network_spec import build_network
from tests.cli.invoke import drawn, leporello, refused

SHORT = ("--length", 7, "--batch", 3)


def measured(seed: int = 0) -> lp.analysis.GradientFlow:
    torch.manual_seed(seed)
    net = lp.Recurrent(lp.GRU(3, 5))
    return gradient_flow(net, torch.randn(7, 3, 3), lambda output: output.square().mean(-1))


def test_it_says_what_gradient_flow_says_of_random_inputs() -> None:
    assert drawn("flow", "gru:3,5", *SHORT) == f"GRU: 150 parameters, state h [5]\n\n{measured()}\n"


def test_another_seed_is_another_net() -> None:
    said = drawn("flow", "gru:3,5", *SHORT, "--seed", 4)
    assert said.endswith(f"\n{measured(4)}\n")
    assert said != drawn("flow", "gru:3,5", *SHORT)


def test_json_is_all_that_is_printed() -> None:
    found, flow = json.loads(drawn("flow", "gru:3,5", *SHORT, "--json")), measured()
    assert (found["cell"], found["length"], found["batch"], found["seed"]) == ("GRU", 7, 3, 0)
    assert (found["verdict"], found["rate"], found["horizon"]) == (flow.verdict, flow.rate, flow.horizon)
    assert found["left"] == flow.left.tolist()
    assert list(found["leaves"]) == ["h"]


def test_json_has_null_for_what_is_no_number() -> None:
    found = json.loads(drawn("flow", "elman", "--length", 1, "--batch", 1, "--json"))
    assert found["rate"] is None
    assert found["left"] == [1]


def test_plots_go_into_files_by_their_suffix(folder: Path) -> None:
    said = drawn("flow", "elman", *SHORT, "--plot", "flow.png", "--plot", "flow.SVG")
    assert said.endswith("wrote flow.png\nwrote flow.SVG\n")
    assert Path("flow.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in Path("flow.SVG").read_text()


def test_what_is_written_is_said_beside_the_json(folder: Path) -> None:
    result = leporello("flow", "elman", *SHORT, "--plot", "flow.png", "--json")
    assert json.loads(result.stdout)["cell"] == "Elman"
    assert result.stderr == "wrote flow.png\n"


@pytest.mark.parametrize("name", ["flow.dot", "flow", "not here/flow.png"])
def test_files_that_cannot_be_written_are_refused_before_the_work(name: str, folder: Path) -> None:
    said = refused("flow", "elman", "--length", 10**9, "--plot", name)
    assert ("--plot picture.png" if name != "not here/flow.png" else "there is no such folder") in said


def test_without_matplotlib_a_plot_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leporello.cli.output_files.find_spec", lambda name: None)
    assert "leporello[plots]" in refused("flow", "elman", "--length", 10**9, "--plot", "flow.png")


@pytest.mark.parametrize(
    ("option", "words"), [("--length", "no count"), ("--batch", "no count"), ("--seed", "no seed")]
)
def test_numbers_out_of_range_are_refused(option: str, words: str) -> None:
    assert f"{option} is {words}." in refused("flow", "rnn", option, -1)


def test_cells_of_ones_own(folder: Path) -> None:
    assert drawn("flow", "my_model:Leaky:3,5", *SHORT).startswith("Leaky (my_model.py, line 8): ")
    assert "3 rows" in drawn("flow", "my_model:net", *SHORT)  # batch first
    assert "each step back" in drawn("flow", "my_model:Words", "--input", "class", *SHORT)


def test_a_system_without_input_starts_from_a_random_state(folder: Path) -> None:
    said = drawn("flow", "my_model:Free", "--input", "none", *SHORT)
    assert "the gradient neither shrinks nor grows" in said
    assert "7 losses over 3 rows" in said


def test_class_indices_are_those_of_the_embedding(folder: Path) -> None:
    found = build_network("my_model:Words", "class").random_inputs(50, 4)
    assert set(found.unique().tolist()) == set(range(7))


@pytest.mark.parametrize("name", ["summary", "both", "layers"])
def test_networks_of_several_are_refused(name: str, folder: Path) -> None:
    assert "is not one net" in refused("flow", f"my_model:{name}", *SHORT)


def test_errors_are_said_in_words(folder: Path) -> None:
    assert "no built-in cell is called 'lsmt'" in refused("flow", "lsmt")
    assert "hands no floating state" in refused("flow", "perceptron", *SHORT)
    assert "no floating numbers" in refused("flow", "my_model:Silent", "--input", 3, *SHORT)
    assert "--input class" in refused("flow", "my_model:Words", "--input", 3, *SHORT)
