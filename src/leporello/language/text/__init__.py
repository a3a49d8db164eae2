"""Texts from files, folders, standard input and memory, as pieces of str that can be read again and again."""
