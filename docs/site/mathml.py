"""Formulas as MathML, which browsers show without scripts or a network; a formula that cannot be read is a warning.

The translation from LaTeX is docutils' own (`docutils.utils.math`).
"""

from __future__ import annotations

import html
import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from docutils.utils.math.unichar2tex import uni2tex_table
from sphinx.util import logging

logger = logging.getLogger(__name__)
KNOWN_AS = {  # commands that docutils has under another name
    "dots": "ldots",
    "iff": "Longleftrightarrow",
    "stackrel": "overset",
    "texttt": "mathtt",
    "textbf": "mathbf",
    "big": "bigl",
    "Big": "Bigl",
    "bigg": "biggl",
    "Bigg": "Biggl",
    "lt": "<",
    "gt": ">",
}
TAG = re.compile(r"\\tag\{(?P<number>[^}]*)\}")  # the number of an equation
DIGITS = re.compile(r"(?P<frac>\\[td]?frac) ?(?P<over>\d)(?P<under>\d)")  # \frac12
COMMAND = re.compile(r"\\(?P<name>[A-Za-z]+)")


def inline_math(writer: Any, node: nodes.math) -> None:
    writer.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def display_math(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="formula">{_mathml(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def _mathml(node: nodes.Element, *, as_block: bool) -> str:
    formula = node.astext()
    try:
        return tex2mathml(_in_known_commands(formula).translate(uni2tex_table), as_block=as_block)
    except MathError as error:
        logger.warning("no MathML for the formula %r: %s", formula, error, location=node)
        return f"<code>{html.escape(formula)}</code>"


def _in_known_commands(formula: str) -> str:
    def known(found: re.Match[str]) -> str:
        name = KNOWN_AS.get(found["name"], found["name"])
        return name if name in "<>" else "\\" + name

    formula = TAG.sub(r"\\qquad \\text{(\g<number>)}", formula)
    formula = DIGITS.sub(r"\g<frac>{\g<over>}{\g<under>}", formula)
    return COMMAND.sub(known, formula)
