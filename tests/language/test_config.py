"""The typed configuration, and its TOML."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from leporello.errors import ArgumentError
from leporello.language.config import Config, config_of, read_toml, toml_of


def test_every_key_has_a_group_and_a_help():
    for field in dataclasses.fields(Config):
        assert field.metadata["group"] in ("text", "network", "training", "run", "machine")
        assert len(field.metadata["help"]) > 5


def test_toml_gives_back_what_it_was_given(tmp_path: Path):
    config = Config(
        text=("a b.txt", 'quo"te\\.txt', "时间机器.txt"), hidden=17, rate=1e-5, tied=True, embedding=17, minutes=0.5
    )
    file = tmp_path / "config.toml"
    file.write_text(toml_of(config), encoding="utf-8")
    assert read_toml(file) == config


def test_the_groups_are_the_tables_of_the_file():
    assert list(tomllib.loads(toml_of(Config()))) == ["text", "network", "training", "run", "machine"]


def test_keys_may_stand_outside_their_tables(tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text('hidden = 8\n[training]\ncell = "gru"\n')
    assert read_toml(file) == Config(hidden=8, cell="gru")


def test_a_misspelt_key_is_refused_with_the_right_one(tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text("[network]\nhiden = 8\n")
    with pytest.raises(ArgumentError, match=r"no key 'hiden'(.|\n)*config.toml(.|\n)*nearest +hidden"):
        read_toml(file)
    with pytest.raises(ArgumentError, match=r"no key 'clipnorm'(.|\n)*clip_norm"):
        config_of({"clipnorm": 1})


def test_a_key_twice_is_refused(tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text("hidden = 8\n[network]\nhidden = 9\n")
    with pytest.raises(ArgumentError, match="twice"):
        read_toml(file)


@pytest.mark.parametrize("contents", ["hidden = ", "[network\n"])
def test_a_file_that_is_no_toml_is_refused_by_name(tmp_path: Path, contents: str):
    file = tmp_path / "config.toml"
    file.write_text(contents)
    with pytest.raises(ArgumentError, match=r"no TOML(.|\n)*config.toml"):
        read_toml(file)


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(ArgumentError, match="no such configuration"):
        read_toml(tmp_path / "nothing.toml")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"hidden": 0}, "'hidden' is out of bounds"),
        ({"hidden": 1.5}, "'hidden' is of the wrong type"),
        ({"hidden": True}, "'hidden' is of the wrong type"),
        ({"dropout": 1.0}, "from 0 to below 1"),
        ({"dropout": float("nan")}, "out of bounds"),
        ({"rate": float("inf")}, "out of bounds"),
        ({"partition": "sequental"}, "sequential"),
        ({"optimiser": "adan"}, "adam"),
        ({"tied": True, "embedding": 0}, "embedding"),
        ({"cell": 3}, "'cell' is of the wrong type"),
    ],
)
def test_values_out_of_bounds_are_refused(values: dict[str, object], said: str):
    with pytest.raises(ArgumentError, match=said):
        config_of(values)


def test_whole_numbers_pass_for_others():
    assert Config(clip_norm=2).clip_norm == 2.0


def test_one_text_may_be_written_without_brackets():
    assert Config(text="a.txt").text == ("a.txt",)
