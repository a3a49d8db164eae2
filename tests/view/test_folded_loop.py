"""The Loop that users get: its class survives rewrites, and what it makes draws itself too."""

from __future__ import annotations

import torch
from torch import nn

import leporello as lp
from leporello.loop.loop import Loop
from leporello.loop.split import split
from leporello.loop.stages import Split
from leporello.loop.text import loop_of_text, text_of
from leporello.loop.unfold import Unfolding, unfold
from leporello.rewrite import differentiate, part
from leporello.view.folded_loop import FoldedLoop, SplitLoop, UnfoldedLoop, loop_from

X = torch.zeros(1, 3)


def test_what_users_fold_is_an_lp_loop() -> None:
    net = lp.Recurrent(lp.Elman(3, 4, 2))
    folded = [lp.fold(net.cell, X), lp.fold(net.cell, X, loss=nn.functional.mse_loss), net.fold(X.unsqueeze(0))]
    assert all(type(loop) is lp.Loop is FoldedLoop for loop in folded)
    assert isinstance(folded[0], Loop)


def test_a_rewritten_loop_is_an_lp_loop_still() -> None:
    loop = lp.fold(lp.Elman(3, 4, 2), X)
    assert isinstance(differentiate(loop), lp.Loop)
    assert isinstance(part(loop), lp.Loop)
    assert isinstance(loop.replace(name="another"), lp.Loop)
    assert isinstance(loop.split().loop, lp.Loop)


def test_a_plain_loop_stays_plain() -> None:
    loop = loop_of_text(lp.fold(lp.Elman(3, 4, 2), X).text())
    assert type(loop) is Loop
    assert type(split(loop)) is Split
    assert type(split(loop).loop) is Loop
    assert type(unfold(loop, 2)) is Unfolding


def test_methods_are_the_functions() -> None:
    loop = lp.fold(lp.Elman(3, 4, 2), X)
    assert loop.text() == text_of(loop)
    assert type(loop.split()) is SplitLoop
    assert str(loop.split()) == repr(loop.split()) == repr(split(loop))
    assert type(loop.unfold(2)) is UnfoldedLoop
    assert repr(loop.unfold(2)) == repr(unfold(loop, 2))
    assert type(loop_from(loop.text())) is FoldedLoop


def test_a_folded_loop_keeps_every_field() -> None:
    loop = lp.fold(lp.Elman(3, 4, 2), X)
    again = FoldedLoop.of(loop)
    assert vars(again) == vars(loop)
