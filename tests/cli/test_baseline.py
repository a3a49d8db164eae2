"""`leporello baseline`: n-grams on the split of a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leporello.language.model.language_model import LanguageModel
from leporello.language.model.perplexity import perplexity_of
from leporello.language.report.run_summary import summary_of
from leporello.language.run.folder import Run
from leporello.language.training.train import corpus_of_run
from tests.cli.invoke import drawn, leporello, refused
from tests.language.tiny import TEXT, tiny_run  # noqa: F401


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "shells.txt"
    file.write_text(TEXT)
    return file


def models(*words: object) -> dict[str, dict[str, object]]:
    found = json.loads(leporello("baseline", *words, "--json").stdout)
    return {one["name"]: one for one in found["models"]}


def test_the_models_are_those_that_a_run_on_the_same_text_shows(text: Path, tiny: Run) -> None:
    found = models(text, "--order", 3)
    kept_models = {row.name: (row.perplexity, row.stored) for row in summary_of(tiny).models}
    assert {name: (one["perplexity"], one["stored"]) for name, one in found.items()} == kept_models


def test_a_table_shows_counts_beside_parameters(text: Path, tiny: Run) -> None:
    result = leporello("baseline", text, "--order", 2, "--run", tiny.path)
    lines = result.stdout.splitlines()
    assert lines[0].startswith("shells.txt: 886 tokens to count, 98 to score, ")
    assert lines[2].split("  ")[0] == "model"
    assert [line.split()[0] for line in lines[3:]] == ["uniform", "1-gram", "2-gram", "gru"]
    assert f"{summary_of(tiny).parameters:,}" in lines[-1]


def test_one_order_alone(text: Path) -> None:
    assert list(models(text, "--order", 4, "--only")) == ["uniform", "4-gram"]


def test_a_run_without_a_text_brings_its_own(text: Path, tiny: Run) -> None:
    assert models("--run", tiny.path, "--order", 2)["2-gram"]["perplexity"] == models(text)["2-gram"]["perplexity"]


def test_the_network_is_scored_anew_on_another_part_and_that_is_said(text: Path, tiny: Run) -> None:
    result = leporello("baseline", text, "--validation", 0.3, "--run", tiny.path, "--order", 1, "--json")
    assert "trained on another text or another part" in result.stderr
    own = json.loads(result.stdout)["models"][-1]
    model = LanguageModel.load(tiny.path)
    tokens = model.tokenizer.encode(TEXT[len(TEXT) - round(0.3 * len(TEXT)) :])
    assert own["perplexity"] == pytest.approx(perplexity_of(model.scorer(), tokens).perplexity, rel=1e-6)


def test_the_network_on_its_own_part_has_its_measured_perplexity(text: Path, tiny: Run) -> None:
    best = summary_of(tiny).best
    assert best is not None
    assert models(text, "--run", tiny.path)["gru 8"]["perplexity"] == best["perplexity"]
    part = corpus_of_run(tiny).validation
    assert part is not None
    scored = perplexity_of(LanguageModel.load(tiny.path).scorer(), part.tokens).perplexity
    assert scored == pytest.approx(best["perplexity"], rel=1e-5)


def test_options_reach_the_text(text: Path) -> None:
    words = json.loads(drawn("baseline", text, "--tokens", "word", "--min-count", 2, "--first", 500, "--json"))
    assert words["tokens"] + words["validation"] < 500 / 3
    letters = json.loads(drawn("baseline", text, "--normalise", "letters", "--json"))
    assert letters["size"] <= 28


def test_what_cannot_be_is_refused(text: Path, tiny: Run) -> None:
    assert "--order is no order" in refused("baseline", text, "--order", 0)
    assert "there is nothing to score" in refused("baseline", text, "--validation", 0)
    assert "--tokens does not go with --run" in refused("baseline", text, "--tokens", "byte", "--run", tiny.path)
    assert "the name of the text too" in refused("baseline", "--first", 100, "--run", tiny.path)
    assert "there is no such run" in refused("baseline", text, "--run", text.parent / "nowhere")
