"""Rewrites: each takes a Loop and returns a Loop. `part` is defined in `loop.split`, which uses it."""

from leporello.loop.part import part
from leporello.rewrite.associate import associate
from leporello.rewrite.clip import clip
from leporello.rewrite.differentiate import differentiate
from leporello.rewrite.force import force
from leporello.rewrite.forward_in_time.influence import influence
from leporello.rewrite.forward_in_time.linearize import Linear
from leporello.rewrite.forward_in_time.rank_one import rank_one
from leporello.rewrite.mask import mask
from leporello.rewrite.prune import prune
from leporello.rewrite.reset import reset
from leporello.rewrite.rows_for_draws import rows_for_draws
from leporello.rewrite.sample import sample
from leporello.rewrite.save import save
from leporello.rewrite.tabulate import tabulate
from leporello.rewrite.weigh import weigh

__all__ = [
    "Linear",
    "associate",
    "clip",
    "differentiate",
    "force",
    "influence",
    "mask",
    "part",
    "prune",
    "rank_one",
    "reset",
    "rows_for_draws",
    "sample",
    "save",
    "tabulate",
    "weigh",
]
