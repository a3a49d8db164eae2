"""How a cell is named on the command line: built-in, of one's own, stacked, with sizes and options."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from leporello import cells
from leporello.cli.network_spec import build_network
from leporello.specs.cell_spec import built_in_cell, parse_cells
from tests.cli.invoke import drawn, refused


@pytest.mark.parametrize(
    ("text", "kind", "sizes"),
    [
        ("lstm:28,63", cells.LSTM, {"inputs": 28, "hidden": 63}),
        ("LSTM : 28 , 63", cells.LSTM, {"inputs": 28, "hidden": 63}),
        ("elman:1,1,1", cells.Elman, {"inputs": 1, "hidden": 1, "outputs": 1}),
        ("elman-jordan", cells.ElmanJordan, {"inputs": 3, "hidden": 4, "outputs": 2}),
        ("time_delay:3,1,5", cells.TimeDelay, {"inputs": 3, "outputs": 1, "window": 5}),
        ("rnn:3,5,nonlinearity=relu,bias=false", cells.RNN, {"nonlinearity": "relu", "b": None}),
        ("leaky:3,5,1,alpha=0.5", cells.Leaky, {"fixed_alpha": 0.5}),
        ("leaky", cells.Leaky, {"fixed_alpha": 0.2}),
    ],
)
def test_built_in_cells(text: str, kind: type, sizes: dict[str, object]) -> None:
    cell = built_in_cell(parse_cells(text)[0])
    assert type(cell) is kind
    assert {name: getattr(cell, name) for name in sizes} == sizes


def test_a_stack_fits_together_by_itself() -> None:
    first, second, third = build_network("lstm:7,5+gru+elman").module.cells
    assert (first.inputs, second.inputs, third.inputs) == (7, 5, 4)


def test_layers_that_do_not_fit_are_refused() -> None:
    assert "fails on these inputs" in refused("draw", "lstm:3,5+lstm:3,5")


@pytest.mark.parametrize("text", ["my_model:Leaky:3,5", "my_model:make", "my_model:make:7", "my_model:Outer.Inner:3,5"])
def test_classes_and_functions_of_ones_own(text: str, folder: Path) -> None:
    drawn("draw", text, "--out", "net.svg")
    assert Path("net.svg").exists()


@pytest.mark.parametrize("text", ["my_model:ready", "my_model:net", "my_model:summary"])
def test_what_is_built_already(text: str, folder: Path) -> None:
    drawn("draw", text, "--unfold", 2)


@pytest.mark.parametrize("text", ["torch.nn:GRUCell:3,5", "torch.nn:LSTM:3,5,num_layers=2"])
def test_networks_of_torch_are_read_as_ours(text: str) -> None:
    assert drawn("draw", text) == drawn("draw", {"GRUCell": "gru:3,5"}.get(text[9:16], "lstm:3,5+lstm:5,5"))


def test_options_of_a_class_of_ones_own(folder: Path) -> None:
    assert build_network("my_model:Leaky:3,5,outputs=7").module.V.out_features == 7


def test_classes_and_no_input_can_be_told(folder: Path) -> None:
    drawn("draw", "my_model:Words", "--input", "class", "--loss")
    drawn("draw", "my_model:Free", "--input", "none")
    drawn("draw", "my_model:Free", "--input", "none", "--forced", "--unfold", 2)


def test_the_told_input_wins(folder: Path) -> None:
    assert build_network("my_model:Leaky:3,5", "7,1").shape == (7, 1)
    assert build_network("lstm:3,5").shape == (3,)


def test_the_current_folder_comes_first_and_once(folder: Path) -> None:
    for _ in range(2):
        drawn("draw", "my_model:ready")
    assert sys.path.count(str(folder)) == 1


@pytest.mark.parametrize(("wrong", "right"), [("lsmt", "LSTM"), ("gur", "GRU"), ("elmann:3,4,2", "Elman")])
def test_an_unknown_cell_is_refused_with_the_nearest(wrong: str, right: str) -> None:
    said = refused("draw", wrong)
    assert "no built-in cell is called" in said
    assert right in next(line for line in said.splitlines() if line.startswith("  nearest"))


@pytest.mark.parametrize("text", ["", ":", "a:b:c:d", "+", "lstm+", "lstm:3,5:7"])
def test_what_names_nothing_is_refused(text: str) -> None:
    assert "names no cell." in refused("draw", text)


@pytest.mark.parametrize("text", ["lstm:a1,b", "lstm:3,", "lstm:", "lstm:3;5", "lstm:3,=5"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    said = refused("draw", text)
    assert "is no size." in said or "names no cell." in said or "there is no module" in said


def test_sizes_are_counted() -> None:
    said = refused("draw", "lstm:3")
    assert "LSTM is built from other arguments." in said
    assert "try       lstm:3,4" in said
    assert "'hidden' is no size." in refused("draw", "lstm:3,0")
    assert "'hidden' is no size." in refused("draw", "lstm:3,2.5")


def test_an_unknown_option_is_refused() -> None:
    assert "unexpected keyword argument 'depth'" in refused("draw", "lstm:3,5,depth=2")


def test_sizes_beyond_memory_are_refused() -> None:
    assert "LSTM(1000000, 1000000) cannot be built." in refused("draw", "lstm:1000000,1000000")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("my_modle:Leaky", ["there is no module 'my_modle'.", "my_model"]),
        ("my_model:Laeky", ["has no 'Laeky'.", "Leaky"]),
        ("my_model.py:Leaky", ["is a file; a module is asked for.", "my_model:Leaky"]),
        ("my_model:number", ["gives no cell.", "int"]),
        ("my_model:Leaky", ["(inputs, hidden, outputs=2)", "my_model:Leaky:3,4"]),
        ("my_model:ready:3", ["is built already.", "my_model:ready"]),
        ("my_model:Unbuildable", ["Unbuildable() cannot be built.", "RuntimeError: no [red]way[/red]"]),
        ("my_model:Words", ["what Words reads is not known.", "--input 3"]),
        ("my_model:Plain", ["Plain declares no state", "lp.Cell"]),
        ("my_model:Undecided", ["decides in Python", "my_model.py"]),
        ("my_model:Homeless", ["fails in a line of its own.", "nowhere to begin", "my_model.py"]),
        ("my_model:both", ["Bidirectional is several loops."]),
        ("broken:Net", ["the module 'broken' cannot be imported.", "SyntaxError", "broken.py, line 2"]),
        ("leaving:Net", ["the module 'leaving' cannot be imported.", "SystemExit: not today"]),
        ("needy:Net", ["the module 'needy' cannot be imported.", "no_such_package_anywhere"]),
        ("no.such:Net", ["there is no module 'no'."]),
        ("..my_model:Net", ["cannot be imported."]),
    ],
)
def test_cells_of_ones_own_are_refused_in_words(text: str, words: list[str], folder: Path) -> None:
    said = refused("draw", text)
    assert said.startswith("error: ")
    assert [word for word in words if word not in said] == []


def test_an_input_that_does_not_fit_names_the_option(folder: Path) -> None:
    said = refused("draw", "my_model:Leaky:3,5", "--input", 7)
    assert "my_model.py, line" in said
    assert "--input 3" in said


@pytest.mark.parametrize("text", ["0", "-1", "three", "", "3,,5"])
def test_an_input_that_is_no_size_is_refused(text: str, folder: Path) -> None:
    assert "--input is no size." in refused("draw", "my_model:Leaky:3,5", f"--input={text}")
