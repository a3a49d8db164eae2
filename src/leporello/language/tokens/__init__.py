"""Texts as numbers: tokenizers for characters, bytes, words and byte pairs, vocabulary files, and the corpus."""
