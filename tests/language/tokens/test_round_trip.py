"""Every text comes back from its tokens; where it is cut changes none; a stream of ids never gives half a character."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leporello.language.text.sources import manual
from leporello.language.text.text_pieces import cut_at_borders, cut_to_length
from leporello.language.tokens.tokenizer import Tokenizer
from leporello.language.tokens.vocabulary import fit_tokenizer, tokenizer_from_record
from tests.language.chinese import SIMPLIFIED, TRADITIONAL

ALPHABET = "abcdE'’12 ,.!-_\n\t  \u3000\x1c\x85é折页，。」😀🏳️\u200d"
TEXTS = st.text(alphabet=ALPHABET, max_size=40)
PIECES = st.lists(st.text(alphabet=ALPHABET, max_size=6), max_size=8)
KINDS = ["char", "byte", "word", "bpe:400"]


@cache
def tokenizer(kind: str) -> Tokenizer:
    """Fitted to an English text with some Chinese in it."""
    return fit_tokenizer(kind, [manual()[:60_000], SIMPLIFIED, TRADITIONAL, "😀 " * 9, "👍🏽" * 9])


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=50)
@given(text=TEXTS)
def test_a_text_comes_back_from_the_tokens_fitted_to_it(kind: str, text: str) -> None:
    padded = text + " and on" * 20  # words need blanks
    fit = fit_tokenizer(kind, [padded])
    ids = fit.encode(padded)
    assert ids.dtype == torch.int32
    assert ids.dim() == 1
    assert ids.numel() == 0 or int(ids.max()) < fit.size
    assert fit.decode(ids) == padded


@pytest.mark.parametrize("kind", ["byte", "bpe:400"])
@settings(deadline=None)
@given(text=st.text(max_size=30))
def test_to_bytes_and_pairs_no_text_is_unknown(kind: str, text: str) -> None:
    assert tokenizer(kind).unknown is None
    assert tokenizer(kind).decode(tokenizer(kind).encode(text)) == text


@pytest.mark.parametrize("kind", ["char", "word"])
def test_what_is_unknown_becomes_the_unknown_symbol(kind: str) -> None:
    fit = fit_tokenizer(kind, ["a b a b"])
    assert fit.unknown == 0
    assert fit.encode("z").tolist() == [0]
    assert fit.decode([0]) == "\ufffd"
    assert fit.symbol(0) == "<unknown>"


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(pieces=PIECES)
@example(pieces=["a ", " b", "\n", "\n c", "don", "'t"])
@example(pieces=["好，", "他", "说", "。"])
def test_where_a_text_is_cut_changes_no_token(kind: str, pieces: list[str]) -> None:
    found = [id for ids in tokenizer(kind).encode_pieces(iter(pieces)) for id in ids.tolist()]
    assert found == tokenizer(kind).encode("".join(pieces)).tolist()


@settings(deadline=None)
@given(pieces=PIECES, length=st.integers(1, 9))
def test_cutting_at_borders_loses_nothing(pieces: list[str], length: int) -> None:
    assert "".join(cut_at_borders(pieces)) == "".join(pieces)
    assert "".join(cut_to_length("".join(pieces), length)) == "".join(pieces)


@pytest.mark.parametrize("length", [1, 7, 100])
def test_pairs_do_not_depend_on_how_long_the_texts_are_that_are_encoded_at_once(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = manual()[:5000] + SIMPLIFIED
    expected = tokenizer("bpe:400").encode(text)
    monkeypatch.setattr("leporello.language.tokens.byte_tokens.TEXT_CHARACTERS", length)
    assert torch.equal(tokenizer("bpe:400").encode(text), expected)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(text=TEXTS)
def test_ids_one_by_one_give_the_same_text(kind: str, text: str) -> None:
    fit, decoder = tokenizer(kind), tokenizer(kind).decoder()
    ids = fit.encode(text).tolist()
    given_out = [decoder.push(id) for id in ids]
    assert "".join(given_out) + decoder.flush() == fit.decode(ids)


@pytest.mark.parametrize("kind", ["byte", "bpe:400"])
@settings(deadline=None)
@given(text=st.text(alphabet="折页书，。😀👍🏽🏳\u200da", max_size=20))
def test_no_partial_character_is_given_out(kind: str, text: str) -> None:
    decoder = tokenizer(kind).decoder()
    so_far = ""
    for id in tokenizer(kind).encode(text).tolist():
        so_far += decoder.push(id)
        assert text.startswith(so_far)  # a cut character would be U+FFFD
    assert so_far == text
    assert decoder.flush() == ""


@pytest.mark.parametrize("kind", ["byte", "bpe:400"])
@settings(deadline=None)
@given(data=st.data())
def test_malformed_bytes_become_replacement_characters(kind: str, data: st.DataObject) -> None:
    fit, decoder = tokenizer(kind), tokenizer(kind).decoder()
    ids = data.draw(st.lists(st.integers(0, fit.size - 1), max_size=12))
    given_out = "".join(decoder.push(id) for id in ids) + decoder.flush()
    assert (
        given_out
        == fit.decode(ids)
        == fit.decode(torch.tensor(ids, dtype=torch.uint8 if kind == "byte" else torch.int64))
    )


def test_an_unfinished_character_is_left_to_the_end_and_the_decoder_starts_afresh() -> None:
    decoder = tokenizer("byte").decoder()
    assert [decoder.push(id) for id in "页".encode()[:2]] == ["", ""]
    assert decoder.flush() == "\ufffd"
    assert [decoder.push(id) for id in "页".encode()] == ["", "", "页"]


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_character_is_encoded_as_a_replacement(kind: str) -> None:
    fit = tokenizer(kind)
    assert fit.decode(fit.encode("a\ud83d")) == "a\ufffd"


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_has_no_tokens(kind: str) -> None:
    assert tokenizer(kind).encode("").shape == (0,)
    assert tokenizer(kind).decode([]) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_comes_back_from_its_record(kind: str) -> None:
    fit = tokenizer(kind)
    again = tokenizer_from_record(fit.record())
    text = manual()[60_000:70_000] + SIMPLIFIED
    assert (again.kind, again.size, again.unknown) == (fit.kind, fit.size, fit.unknown)
    assert torch.equal(again.encode(text), fit.encode(text))
    assert again.record() == fit.record()
