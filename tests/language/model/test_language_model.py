"""`LanguageModel` and `train`: numbers that a plain loop gives too, text that a seed repeats, mistakes in words."""

from __future__ import annotations

import math
import os
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.errors import ArgumentError, FileMismatch
from leporello.language.config import Config, read_toml
from leporello.language.model import language_model as models
from leporello.language.model.language_model import LanguageModel
from leporello.language.model.network import network_of
from leporello.language.run.folder import Run
from leporello.language.tokens.vocabulary import fit_tokenizer
from tests.language.texts import rhyme

TEXT = "the owl meets the hen.\nthe rat fears no cat.\n"
SMALL: dict[str, Any] = {
    "cell": "gru", "hidden": 8, "embedding": 0, "dropout": 0.0, "batch": 4, "window": 8, "epochs": 1, "first": 500,
    "sample_every": 0.0, "engine": "reference", "device": "cpu", "show": False,
}  # fmt: skip


@cache
def model_of(cell: str = "gru", forced: bool = True) -> LanguageModel:
    """A network as it begins, in float64, with scores that are far from equal."""
    config = Config(cell=cell, hidden=7, embedding=0, dropout=0.3, engine="reference", precision="float64")
    tokenizer = fit_tokenizer("char", [rhyme()])
    net = network_of(config, tokenizer.size)
    with torch.no_grad():
        for value in net.parameters():
            value.mul_(4)
    return LanguageModel(net, tokenizer, config, forced)


def tokens_of(model: LanguageModel, text: str) -> Tensor:
    return model.tokenizer.encode(text).long()


@torch.no_grad()
def read_by_hand(model: LanguageModel, tokens: Tensor) -> tuple[list[float], Any]:
    """The surprise of every token but the first, and the state behind all but the last: a plain loop over steps."""
    net, surprises, state = model.net.eval(), [], None
    for now, following in pairwise(tokens):
        scores, state = net.step(now.view(1), state)
        surprises.append(-float(torch.log_softmax(scores.double(), -1)[0, following]))
        if model.forced and net.feedback_leaf():  # what is handed on is the true token
            state = torch.nn.functional.one_hot(following.view(1), model.tokenizer.size).to(scores.dtype)
    return surprises, state


@torch.no_grad()
def by_hand(model: LanguageModel, prompt: str, length: int) -> str:
    """The likeliest text behind a prompt, step by step."""
    tokens = tokens_of(model, prompt)
    state, token = read_by_hand(model, tokens)[1], tokens[-1:]
    found = []
    for _ in range(length):
        scores, state = model.net.step(token, state)
        token = scores.argmax(-1)
        found.append(int(token))
        if model.forced and model.net.feedback_leaf():
            state = torch.nn.functional.one_hot(token, model.tokenizer.size).to(scores.dtype)
    return model.tokenizer.decode(found)


NETS = [("gru", True), ("jordan", True), ("jordan", False)]


@pytest.mark.parametrize(("cell", "forced"), NETS)
def test_perplexity_is_that_of_a_plain_loop(cell: str, forced: bool):
    model = model_of(cell, forced)
    surprises, _ = read_by_hand(model, tokens_of(model, TEXT))
    found = model.evaluate(TEXT)
    assert model.perplexity(TEXT) == found.perplexity == pytest.approx(math.exp(sum(surprises) / len(surprises)))
    assert found.bits_per_character == pytest.approx(sum(surprises) / math.log(2) / (len(TEXT) - 1))
    assert found.bits_per_byte == pytest.approx(found.bits_per_character)
    assert (found.tokens, found.unknown) == (len(TEXT) - 1, 0.0)
    symbols, bits = model.surprises(TEXT)
    assert len(symbols) == len(bits) == len(TEXT)
    assert symbols[3:5] == ["␣", "o"]
    assert bits == pytest.approx([0.0, *(one / math.log(2) for one in surprises)])


@pytest.mark.parametrize("text", ["", "t", "th"])
def test_every_token_of_a_short_text_has_its_surprise(text: str):
    symbols, bits = model_of().surprises(text)
    assert (len(symbols), len(bits)) == (len(text), len(text))
    assert bits[:1] in ([], [0.0])


def test_feedback_that_is_forced_is_another_than_ones_own():
    assert model_of("jordan", True).perplexity(TEXT) != pytest.approx(model_of("jordan", False).perplexity(TEXT))


@pytest.mark.parametrize(("cell", "forced"), NETS)
def test_the_likeliest_text_is_that_of_a_plain_loop_behind_the_prompt(cell: str, forced: bool):
    model = model_of(cell, forced)
    for prompt in ("t", "the owl "):
        assert model.generate(prompt, length=12, temperature=0) == by_hand(model, prompt, 12)


def test_a_piece_goes_on_where_the_last_one_stopped(monkeypatch: pytest.MonkeyPatch):
    model = model_of()
    whole = model.generate("the ", length=20, seed=3)
    monkeypatch.setattr(models, "TOKENS_PER_PIECE", 7)
    pieces = list(model.generate_stream("the ", length=20, seed=3))
    assert [len(piece) for piece in pieces] == [7, 7, 6]
    assert "".join(pieces) == whole


def test_the_same_seed_writes_the_same_text():
    model = model_of()
    texts = [model.generate("the ", length=30, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert model.generate("the ", length=30) != model.generate("the ", length=30)
    assert model.generate("the ", length=0) == ""


def test_among_one_token_the_likeliest_is_chosen():
    model = model_of()
    assert model.generate("cat", length=15, top_k=1, seed=5) == model.generate("cat", length=15, temperature=0)


def test_unknown_characters_are_read_as_one_unknown_symbol():
    model = model_of()
    assert model.generate("光", length=9, seed=1) == model.generate("ß", length=9, seed=1)
    assert model.perplexity("the 光") == model.perplexity("the ß")
    assert model.evaluate("光at光").unknown == 0.5


def test_texts_are_normalised_as_the_training_text_was():
    plain = model_of()
    model = LanguageModel(plain.net, plain.tokenizer, plain.config.replaced({"normalise": "lower"}))
    assert model.perplexity(TEXT.upper()) == plain.perplexity(TEXT)
    assert model.generate("THE OWL", length=9, seed=1) == plain.generate("the owl", length=9, seed=1)


def test_bits_are_counted_of_what_was_predicted_alone():
    tokenizer = fit_tokenizer("byte", [""])
    config = Config(hidden=3, embedding=3, cell="rnn", engine="reference")
    model = LanguageModel(network_of(config, tokenizer.size), tokenizer, config)
    found = model.evaluate("纸张")  # six bytes, of which the first is read
    bits = math.log2(found.perplexity) * 5
    assert found.bits_per_byte == pytest.approx(bits / 5)
    assert found.bits_per_character == pytest.approx(bits / 2)


def test_without_a_prompt_a_new_line_is_begun():
    model = model_of()
    assert model.generate(length=9, seed=1) == model.generate("\n", length=9, seed=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"length": -1}, "'length' is no count"),
        ({"length": 2.5}, "'length' is no count"),
        ({"temperature": -0.1}, "'temperature' is out of range"),
        ({"temperature": math.nan}, "'temperature' is out of range"),
        ({"top_k": 0}, "'top_k' is out of range"),
        ({"top_p": 0.0}, "'top_p' is out of range"),
        ({"top_p": 1.5}, "'top_p' is out of range"),
        ({"seed": 2**70}, "'seed' is no seed"),
        ({"seed": "one"}, "'seed' is no seed"),
    ],
)
def test_options_that_cannot_be_are_refused_in_words(options: dict[str, Any], said: str):
    with pytest.raises(ArgumentError, match=said):
        model_of().generate("the ", **options)


def test_what_is_no_text_is_refused():
    with pytest.raises(ArgumentError, match=r"no string(.|\n)*bytes"):
        model_of().perplexity(b"the cat")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"too short(.|\n)*1 token\n"):
        model_of().evaluate("t")


def test_scoring_and_writing_leave_the_network_in_its_mode():
    model = model_of()
    model.net.train()
    model.perplexity(TEXT)
    model.generate(length=3, seed=0)
    assert model.net.training


def test_a_model_is_saved_and_loaded_with_all_that_counts(tmp_path: Path):
    model = model_of("jordan", False)
    model.save(tmp_path / "jordan")
    again = LanguageModel.load(tmp_path / "jordan")
    assert again.forced is False
    assert again.config == model.config
    assert not again.net.training
    assert again.perplexity(TEXT) == model.perplexity(TEXT)
    with pytest.raises(ArgumentError, match="not empty"):
        model.save(tmp_path / "jordan")
    with pytest.raises(ArgumentError, match=r"names no checkpoint(.|\n)*'first'"):
        LanguageModel.load(tmp_path / "jordan", "first")
    with pytest.raises(ArgumentError, match=r"no such run(.|\n)*leporello runs"):
        LanguageModel.load(tmp_path / "jardon")


def test_a_checkpoint_of_another_network_is_refused_by_parameter(tmp_path: Path):
    model_of().save(tmp_path / "gru")
    file = Run(tmp_path / "gru").config_file
    file.write_text(file.read_text().replace("hidden = 7", "hidden = 9"))
    with pytest.raises(
        FileMismatch, match=r"another network(.|\n)*came +float64 \[21, 21\]\n +expected +float64 \[27, 21\]"
    ):
        LanguageModel.load(tmp_path / "gru")


# ---- train


@pytest.mark.usefixtures("_one_thread")
def test_a_text_in_memory_is_trained_on_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    model = lp.language.train(rhyme(), **SMALL)
    assert model.perplexity(rhyme()) < model.tokenizer.size
    assert not model.net.training
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("_one_thread")
def test_a_file_is_trained_on_into_a_folder(tmp_path: Path):
    text = tmp_path / "rhyme.txt"
    text.write_text(rhyme())
    model = lp.language.train(text, out=tmp_path / "run", **SMALL)
    again = LanguageModel.load(tmp_path / "run", "last")
    assert again.perplexity(TEXT) == model.perplexity(TEXT)
    assert read_toml(tmp_path / "run" / "config.toml") == model.config
    assert model.config.text == (str(text),)
    assert (tmp_path / "run" / "report.md").is_file()


def test_the_name_of_a_file_is_not_taken_for_a_text(tmp_path: Path):
    text = tmp_path / "rhyme.txt"
    text.write_text(rhyme())
    with pytest.raises(ArgumentError, match=r"name of a file(.|\n)*text=Path\("):
        lp.language.train(str(text), **SMALL)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hiden": 8}, r"no key 'hiden'(.|\n)*nearest +hidden"),
        ({"hidden": "many"}, "'hidden' is of the wrong type"),
        ({"cell": "lsmt"}, r"'lsmt'(.|\n)*LSTM"),
        ({"gradient": "truncate:3"}, r"'truncate'(.|\n)*truncated"),
        ({"gradient": "full,rtrl"}, "names several methods"),
        ({"device": "gpu"}, r"names no device(.|\n)*cuda"),
        ({"device": "cuda:99"}, r"no such device here(.|\n)*auto"),
        ({"seed": 2**64}, "'seed' is out of bounds"),
        ({"tensorboard": True}, "needs a folder"),
        ({"first": 30}, r"too short(.|\n)*try +window=6"),
    ],
)
def test_options_of_a_training_are_refused_before_it_begins(options: dict[str, Any], said: str):
    with pytest.raises(ArgumentError, match=said):
        lp.language.train(rhyme(), **{**SMALL, **options})
