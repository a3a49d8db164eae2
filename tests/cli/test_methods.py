"""`leporello methods`: names of methods, the table of bias_and_variance, plots in files, numbers as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import leporello as lp
from leporello.analysis import bias_and_variance
from leporello.specs.method_spec import METHODS, parse_methods
from tests.cli.invoke import drawn, leporello, refused

SHORT = ("--length", 7, "--batch", 3, "--draws", 4)


def test_methods_are_written_with_their_numbers() -> None:
    assert parse_methods(
        "full, truncated:35,truncated:35:5,random,random:0.5,checkpointed,Checkpointed:7,rtrl,uoro"
    ) == {
        "full": lp.Full(),
        "truncated:35": lp.Truncated(35),
        "truncated:35:5": lp.Truncated(35, every=5),
        "random": lp.RandomTruncated(),
        "random:0.5": lp.RandomTruncated(0.5),
        "checkpointed": lp.Checkpointed(),
        "Checkpointed:7": lp.Checkpointed(7),
        "rtrl": lp.RTRL(),
        "uoro": lp.UORO(),
    }


def test_methods_that_go_forward_in_time_are_compared_too() -> None:
    told = leporello("methods", "rnn:2,3", *SHORT, "--methods", "rtrl,uoro").stdout
    assert "rtrl is exact; uoro is right on average" in told


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("trucated:3", "nearest   truncated"),
        ("warp", ", ".join(METHODS)),
        ("full,", "has no name"),
        ("truncated", "truncated:STEPS or truncated:STEPS:EVERY"),
        ("full:3", "written in another way"),
        ("truncated:1:2:3", "written in another way"),
        ("truncated:x", "has no such number"),
        ("truncated:2.5", "has no such number"),
        ("truncated:0", "method    truncated:0"),
        ("truncated:3:5", "every <= steps"),
        ("random:2", "no probabilities"),
        ("checkpointed:-1", "full, truncated:35, random:0.97"),
        ("full,full", "'full' is written twice"),
    ],
)
def test_what_names_no_method_is_refused(written: str, words: str) -> None:
    said = refused("methods", "rnn", "--methods", written)
    assert words in said
    assert "lp." not in said


def test_the_table_has_a_line_for_each_method() -> None:
    said = drawn("methods", "rnn:3,5", "--methods", "full,truncated:2,random:0.8", *SHORT)
    lines = said.splitlines()
    assert lines[0] == "RNN: 50 parameters, state h [5]"
    assert lines[2].startswith("full is exact; random:0.8 is right on average, as far as 4 draws tell; ")
    assert [line.split()[0] for line in lines[4:7]] == ["full", "truncated:2", "random:0.8"]


def test_json_is_all_that_is_printed_and_the_same_for_the_same_seed() -> None:
    words = ("methods", "rnn:3,5", "--methods", "truncated:2,random:0.8", *SHORT, "--seed", 3, "--json")
    found = json.loads(drawn(*words))
    torch.manual_seed(3)
    net, inputs = lp.Recurrent(lp.RNN(3, 5)), torch.randn(7, 3, 3)
    methods = [lp.Truncated(2), lp.RandomTruncated(0.8)]
    wanted = bias_and_variance(net, inputs, lambda output: output.square().mean(-1), methods, 4, seed=3)
    assert (found["cell"], found["seed"], found["parameters"]) == ("RNN", 3, 50)
    assert found["norm"] == pytest.approx(wanted.norm, rel=1e-6)
    for own, row in zip(found["methods"], wanted.rows, strict=True):
        assert (own["method"], own["draws"], own["biased"]) == (repr(row.method), row.draws, row.is_biased)
        for name in ("cosine", "bias", "standard_error", "variance"):
            assert own[name] == pytest.approx(getattr(row, name), rel=1e-4)


def test_the_usual_methods_are_compared_where_none_are_named(folder: Path) -> None:
    found = json.loads(drawn("methods", "my_model:Leaky:3,5", *SHORT, "--json"))
    assert [row["name"] for row in found["methods"]] == ["full", "checkpointed", "truncated:10", "random:0.9"]


def test_plots_go_into_files(folder: Path) -> None:
    words = ("methods", "elman", "--methods", "full", *SHORT, "--plot", "a.png", "--plot", "a.svg")
    assert drawn(*words).endswith("wrote a.png\nwrote a.svg\n")
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    assert leporello(*words, "--json").stderr == "wrote a.png\nwrote a.svg\n"


def test_an_engine_can_be_named() -> None:
    drawn("methods", "elman", "--methods", "full", *SHORT, "--engine", "reference")
    assert "'warp'" in refused("methods", "elman", *SHORT, "--engine", "warp")


def test_numbers_out_of_range_are_refused() -> None:
    assert "--draws is no number of draws." in refused("methods", "elman", "--draws", 1)
    assert "--length is no count." in refused("methods", "elman", "--length", 0)


def test_a_cell_without_parameters_is_refused_in_words(folder: Path) -> None:
    said = refused("methods", "my_model:Free", "--input", "none", *SHORT)
    assert "no parameters to learn" in said
