"""Inputs, state and parameters on one device. `meta` stands for the other one where there is no GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.errors import DeviceMismatch
from tests.errors import steps
from tests.errors.said import said

X = torch.randn(5, 2, 3)


def test_parameters_on_another_device_are_refused_by_name() -> None:
    text = said(DeviceMismatch, lambda: lp.Recurrent(lp.Elman(3, 4, 2).to("meta"))(X))
    assert text == (
        "the parameter 'U' lies on another device than the inputs.\n"
        f"  cell       {steps.place(lp.Elman)}\n"
        "  parameter  meta\n"
        "  inputs     cpu\n"
        '  try        net.to_empty(device="cpu"), then its parameters from a file'
    )


def test_one_parameter_elsewhere_is_refused_by_its_full_name() -> None:
    cell = steps.Good()
    cell.W.to("meta")
    said(
        DeviceMismatch,
        lambda: lp.Recurrent(cell)(X),
        "the parameter 'W.weight' lies on another device than the inputs.",
    )


def test_a_net_that_moves_between_calls_is_noticed() -> None:
    net = lp.Recurrent(steps.Good())
    net(X)
    net.to("meta")
    said(DeviceMismatch, lambda: net(X), "parameter  meta")


def test_inputs_without_numbers_are_refused() -> None:
    for cell in (steps.Good(), steps.Good().to("meta")):
        said(DeviceMismatch, lambda: lp.Recurrent(cell)(X.to("meta")), "'meta', which holds no numbers")  # noqa: B023


@pytest.mark.parametrize("traced", [False, True], ids=["first call", "later call"])
def test_a_state_on_another_device_is_refused_by_name(traced: bool) -> None:
    net = lp.Recurrent(steps.Good())
    if traced:
        net(X)
    state = torch.zeros(2, 4, device="meta")
    said(
        DeviceMismatch,
        lambda: net(X, state),
        "the state 'h' lies on another device",
        "state   meta",
        'lp.to(state, "cpu")',
    )


def test_inputs_on_two_devices_are_refused_by_name() -> None:
    net = lp.Recurrent(lambda x, h: (h, h))
    inputs = {"a": X, "b": X.to("meta")}
    said(
        DeviceMismatch, lambda: net(inputs, torch.zeros(2, 4)), "the input 'b' lies on another device than the inputs."
    )


def test_targets_on_another_device_are_refused() -> None:
    net = lp.Recurrent(lp.Jordan(3, 4, 2))
    targets = torch.zeros(5, 2, 2, device="meta")
    said(DeviceMismatch, lambda: net(X, targets=targets), "the argument 'targets' lies on another", 'targets.to("cpu")')


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lengths", torch.ones(2, dtype=torch.int64, device="meta")),
        ("resets", torch.zeros(5, 2, dtype=torch.bool, device="meta")),
    ],
)
def test_what_is_copied_to_the_inputs_device_must_hold_numbers(name: str, value: Tensor) -> None:
    said(
        DeviceMismatch,
        lambda: lp.Recurrent(steps.Good())(X, **{name: value}),
        f"the argument '{name}' lies on the device",
    )


def test_a_step_that_makes_tensors_elsewhere_is_refused_at_its_line() -> None:
    class Elsewhere(steps.Good):
        def end(self, x: Tensor, h: Tensor) -> Any:
            return h + torch.ones(x.shape[0], 4, device="meta"), h

    said(
        DeviceMismatch,
        lambda: lp.Recurrent(Elsewhere())(X),
        "the step joins tensors of different devices.",
        'return h + torch.ones(x.shape[0], 4, device="meta"), h',
        "device=x.device",
    )


@pytest.mark.gpu
def test_parameters_on_the_gpu_and_inputs_on_the_cpu_are_refused() -> None:
    net = lp.Recurrent(steps.Good()).cuda()
    said(DeviceMismatch, lambda: net(X), "parameter  cuda:0", "inputs     cpu", 'net.to("cpu"), or inputs.to("cuda:0")')
    said(DeviceMismatch, lambda: net(X.cuda(), torch.zeros(2, 4)), "state   cpu", "inputs  cuda:0")
    assert net(X.cuda())[0].is_cuda


@pytest.mark.gpu
def test_lengths_out_of_range_are_clamped_on_the_gpu() -> None:
    net = lp.Recurrent(lp.GRU(3, 4)).cuda()
    clamped = net(X.cuda(), lengths=torch.tensor([0, 9]).cuda())
    right = net(X.cuda(), lengths=torch.tensor([1, 5]))
    torch.testing.assert_close(clamped, right)
