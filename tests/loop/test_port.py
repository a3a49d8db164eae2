"""Roles of ports: which one a port has by default, which it keeps, and that a text carries them."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.loop.port import Kind, Port, Role
from leporello.view.folded_loop import loop_from

DEFAULTS = {
    "sequence": Role.INPUT,
    "invariant": Role.INVARIANT,
    "draw": Role.DRAW,
    "state": Role.STATE,
    "total": Role.TOTAL,
}


def port(kind: Kind, **options: object) -> Port:
    return Port(kind, "x", (3,), torch.float32, torch.device("cpu"), **options)  # type: ignore[arg-type]


def test_every_kind_has_a_default() -> None:
    assert set(DEFAULTS) == set(get_args(Kind))


@pytest.mark.parametrize("kind", DEFAULTS)
def test_the_default_follows_from_the_kind(kind: Kind) -> None:
    assert port(kind).role is DEFAULTS[kind]
    assert port(kind).has_default_role


@pytest.mark.parametrize("kind", DEFAULTS)
@pytest.mark.parametrize("other", DEFAULTS)
def test_a_default_follows_the_kind_when_that_changes(kind: Kind, other: Kind) -> None:
    assert replace(port(kind), kind=other).role is DEFAULTS[other]


@pytest.mark.parametrize("kind", DEFAULTS)
@pytest.mark.parametrize("other", DEFAULTS)
def test_another_role_stays_when_the_kind_changes(kind: Kind, other: Kind) -> None:
    target = port(kind, role=Role.TARGET)
    assert target.role is replace(target, kind=other).role is Role.TARGET
    assert not target.has_default_role


def test_a_loop_makes_roles_fit_its_sides() -> None:
    loop = lp.fold(lp.Elman(3, 4, 2), torch.zeros(1, 3), loss=nn.functional.mse_loss)
    assert {p.role for p in loop.inputs} == {Role.INPUT, Role.INVARIANT, Role.STATE, Role.LOSS_TARGET}
    assert {p.role for p in loop.outputs} == {Role.OUTPUT, Role.STATE}
    loop = lp.fold(lp.Elman(3, 4, 2), torch.zeros(1, 3))
    turned = loop.replace(inputs=tuple(replace(p, role=Role.OUTPUT) for p in loop.inputs), outputs=loop.inputs)
    assert turned.inputs == loop.inputs
    assert {p.role for p in turned.outputs} == {Role.OUTPUT, Role.INVARIANT, Role.STATE}


@functools.cache
def folded() -> lp.Loop:
    return lp.fold(lp.ZoneoutLSTM(3, 4), torch.zeros(1, 3))


@pytest.mark.parametrize("role", Role)
def test_a_text_carries_the_role_of_every_port_and_is_read_back(role: Role) -> None:
    loop = folded()
    changed = loop.replace(
        inputs=tuple(replace(p, role=role) for p in loop.inputs),
        outputs=tuple(replace(p, role=role) for p in loop.outputs),
    )
    again = loop_from(changed.text())
    assert again.inputs == changed.inputs
    assert again.outputs == changed.outputs
    assert again.text() == changed.text()


def test_a_default_role_is_not_written() -> None:
    loop = lp.fold(lp.Elman(3, 4, 2), torch.zeros(1, 3))
    assert " as " not in loop.text()
    target = loop.replace(inputs=(replace(loop.inputs[0], role=Role.LOSS_TARGET), *loop.inputs[1:]))
    assert "  sequence   x = 'x' float32 [rows, 3] as loss_target\n" in target.text()
