"""Chinese is a text like any other: in every encoding the same tokens, weights and numbers, and no character is cut."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len

from leporello.cli.score import read_text
from leporello.errors import ArgumentError
from leporello.language.config import Config
from leporello.language.model import language_model as models
from leporello.language.model.language_model import LanguageModel
from leporello.language.report.markdown_report import write_report
from leporello.language.run.folder import Run
from leporello.language.text.sources import source_of
from leporello.language.tokens.corpus import corpus_of
from leporello.language.tokens.vocabulary import fit_tokenizer
from leporello.language.training.train import encode_source, start_training
from leporello.language.training.training_loop import Training
from tests.cli.invoke import drawn, refused
from tests.language.chinese import TRADITIONAL
from tests.language.reciting import reciting
from tests.language.tiny import finished

ENCODINGS = ("utf-8", "utf-8-sig", "gb18030", "big5", "utf-16")
OPTIONS = {
    "cell": "gru", "hidden": 8, "embedding": 0, "dropout": 0.0, "batch": 3, "window": 7, "epochs": 1,
    "sample_every": 0.0, "ngrams": 0, "engine": "reference", "device": "cpu",
}  # fmt: skip


def written(folder: Path, encoding: str) -> Path:
    file = folder / f"{encoding}.txt"
    file.write_bytes(TRADITIONAL.encode(encoding))
    return file


def trained(folder: Path, encoding: str) -> Training:
    config = Config(text=str(written(folder, encoding)), **OPTIONS)
    training = start_training(config, None, folder / f"紙-{encoding}")
    finished(training)
    return training


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a run on the text in Big5."""
    folder = tmp_path_factory.mktemp("chinese")
    trained(folder, "big5")
    return folder


@pytest.fixture
def run(folder: Path) -> Run:
    return Run.open(folder / "紙-big5")


@pytest.mark.parametrize("kind", ["char", "byte", "bpe:300"])
def test_a_text_has_the_same_tokens_in_every_encoding(kind: str, tmp_path: Path):
    found = [encode_source(Config(tokens=kind), source_of([written(tmp_path, name)]), None) for name in ENCODINGS]
    assert len({corpus.digest for corpus in found}) == 1
    for corpus in found:
        assert torch.equal(corpus.train.tokens, found[0].train.tokens)
        text = corpus.tokenizer.decode(corpus.train.tokens)
        assert TRADITIONAL.startswith(text.rstrip("\ufffd"))
        assert len(text) > 200


def test_it_is_trained_to_the_same_weights_in_another_encoding(run: Run, tmp_path: Path):
    again = trained(tmp_path, "utf-16")
    kept = LanguageModel.load(run.path, "last").net.state_dict()
    assert kept.keys() == again.net.state_dict().keys()
    for name, value in again.net.state_dict().items():
        assert torch.equal(value, kept[name])


def test_its_perplexity_is_the_same_in_every_encoding(run: Run, folder: Path, tmp_path: Path):
    model = LanguageModel.load(run.path)
    assert {read_text([str(written(tmp_path, name))], "auto", model, "symbol") for name in ENCODINGS} == {TRADITIONAL}
    found = json.loads(drawn("evaluate", run.path, folder / "big5.txt", "--json"))
    assert found["tokens"] == len(TRADITIONAL) - 1
    bits = found["bits_per_byte"] * (len(TRADITIONAL.encode()) - 3)
    assert found["bits_per_character"] * (len(TRADITIONAL) - 1) == pytest.approx(bits)


def test_it_is_written_in_whole_characters(run: Run):
    said = drawn("generate", run.path, "--prompt", "老人", "--length", 30, "--seed", 1)
    assert said.startswith("老人")
    assert len(said) == 2 + 30 + 1
    assert set(said) <= {*TRADITIONAL, "\ufffd"}  # the unknown symbol


@pytest.mark.parametrize("kind", ["byte", "bpe:300"])
@pytest.mark.parametrize("piece", [1, 2, 256])
def test_no_character_is_cut_between_pieces(kind: str, piece: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "TOKENS_PER_PIECE", piece)
    tokenizer = fit_tokenizer(kind, [TRADITIONAL])
    model = reciting(TRADITIONAL, tokenizer)
    count = len(tokenizer.encode(TRADITIONAL[:21]))
    pieces = list(model.generate_stream(length=count, temperature=0))
    assert "".join(pieces) == TRADITIONAL[:21]
    assert not [piece for piece in pieces if "\ufffd" in piece]
    assert model.generate(length=1, temperature=0) in ("\ufffd", TRADITIONAL[0])  # half a character is told as such


def test_words_are_refused_with_what_to_use_instead(folder: Path):
    text = written(folder, "utf-8")
    said = refused("train", text, "--out", folder / "words", "--tokens", "word")
    assert "no blanks between its words" in said
    assert "char, byte or bpe:N" in said
    assert not (folder / "words").exists()
    with pytest.raises(ArgumentError, match="no blanks"):
        corpus_of(source_of([text]), kind="word")


def test_a_scored_line_and_its_marks_have_the_same_columns(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "40")
    _, *lines, _, _ = drawn("score", run.path, folder / "big5.txt", "--first", 30).splitlines()
    texts, marks = lines[::2], lines[1::2]
    assert "".join(texts) == TRADITIONAL[:30]
    assert [cell_len(text) for text in texts] == [38, 22]  # no line begins with a comma
    assert marks[0][:2] == "  "  # the first character was read, not predicted
    assert [len(mark) for mark in marks] == [38, 22]  # a net that knows nothing is surprised by all others
    assert all(one == two for mark in marks for one, two in zip(mark[::2], mark[1::2], strict=True))


def test_the_report_and_the_curve_lack_no_glyph(run: Run):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_report(run)
    assert "big5.txt" in run.report_file.read_text(encoding="utf-8")
    assert run.curve_file.read_bytes().startswith(b"<?xml")


def test_a_text_with_a_chinese_name_is_drawn_without_a_missing_glyph(run: Run):
    facts = run.data()
    facts["corpus"]["source"] = "紙.txt"
    run.write_data(facts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_report(run)
    assert "紙.txt" in run.report_file.read_text(encoding="utf-8")
