"""The description of a kernel, which targets spell: from an inside of a split Loop to an ordered list of blocks."""
