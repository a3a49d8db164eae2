"""How the site's search divides pages into words: English ones with their stems, and Chinese by pairs of characters."""

from __future__ import annotations

import re

from sphinx.search.en import SearchEnglish

CHINESE = re.compile(r"[\u4e00-\u9fff]{2,}")


class EnglishAndChinese(SearchEnglish):
    """Chinese has no spaces. Each run of characters is a word, and so is each pair in it: two characters are found
    as a pair, more of them as a part of a run, which is how Sphinx looks for words of more than two letters."""

    def split(self, input: str) -> list[str]:
        pairs = [run[at : at + 2] for run in CHINESE.findall(input) for at in range(len(run) - 1)]
        return super().split(input) + pairs
