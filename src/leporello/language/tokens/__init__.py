"""Texts as numbers and numbers as texts: characters, bytes, words, or pairs merged by how often they occur (BPE)."""

from leporello.language.tokens.kinds import fitted, tokenizer_from
from leporello.language.tokens.tokenizer import Decoder, Tokenizer
from leporello.language.tokens.written import read_vocabulary, write_vocabulary

__all__ = ["Decoder", "Tokenizer", "fitted", "read_vocabulary", "tokenizer_from", "write_vocabulary"]
