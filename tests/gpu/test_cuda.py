"""The engines on a GPU: the same numbers as the plain loop, no synchronisation where none is promised."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import leporello as lp

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@contextmanager
def _no_waiting() -> Iterator[None]:
    """An error where the host waits for the GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


CELLS = {
    "Elman": lambda: lp.Elman(3, 5, 2),
    "Jordan": lambda: lp.Jordan(3, 5, 2),
    "ElmanJordan": lambda: lp.ElmanJordan(3, 5, 2),
    "RNN": lambda: lp.RNN(3, 5),
    "GRU": lambda: lp.GRU(3, 5),
    "LSTM": lambda: lp.LSTM(3, 5),
    "projected": lambda: lp.LSTM(3, 5, projection=2),
    "LayerNormLSTM": lambda: lp.LayerNormLSTM(3, 5),
    "PeepholeLSTM": lambda: lp.PeepholeLSTM(3, 5),
    "ZoneoutLSTM": lambda: lp.ZoneoutLSTM(3, 5),
    "IndRNN": lambda: lp.IndRNN(3, 5),
    "MinGRU": lambda: lp.MinGRU(3, 5),
    "Leaky": lambda: lp.Leaky(3, 5, 2, alpha=0.2, noise=0.1),
    "Perceptron": lambda: lp.Perceptron(3, 5, 2),
    "TimeDelay": lambda: lp.TimeDelay(3, 2, 3),
    "Stack": lambda: lp.Stack(lp.GRU(3, 4), lp.LSTM(4, 5), dropout=0.3),
    "Feedback": lambda: lp.Feedback(lp.LSTM(3 + 4, 4)),
}


@pytest.mark.parametrize("engine", ["reference", "stepwise"])
@pytest.mark.parametrize("name", CELLS)
def test_gradients_on_the_gpu_are_the_plain_loops(name: str, engine: str) -> None:
    net = lp.Recurrent(CELLS[name](), engine=engine).double().cuda()
    inputs = torch.randn(7, 3, 3, dtype=torch.float64, device="cuda")
    resets = torch.rand(7, 3, device="cuda") < 0.2
    for arguments in ({}, {"lengths": [7, 1, 4]}, {"resets": resets}, {"lengths": [2, 7, 3], "resets": resets}):
        report = lp.check_gradients(net, inputs, **arguments)
        assert report.worst < 1e-10, report


def test_lengths_out_of_range_are_clamped_on_the_gpu_without_waiting() -> None:
    net = lp.Recurrent(lp.GRU(3, 5)).cuda()
    inputs = torch.randn(7, 3, 3, device="cuda")
    wild = torch.tensor([9, 0, 4], device="cuda")
    net(inputs, lengths=wild)[0].sum().backward()  # trace and plan first
    with _no_waiting():
        outputs, _ = net(inputs, lengths=wild)
        outputs.sum().backward()
    tame, _ = net(inputs, lengths=torch.tensor([7, 1, 4]))
    assert torch.equal(outputs, tame)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_stays_close_to_the_plain_loop(dtype: torch.dtype) -> None:
    net = lp.Recurrent(lp.LSTM(3, 5)).to("cuda", dtype)
    report = lp.check_gradients(net, torch.randn(20, 4, 3, device="cuda", dtype=dtype))
    assert report.ok, report


def test_autocast_keeps_the_states_dtype_and_trains() -> None:
    net = lp.Recurrent(lp.LSTM(3, 5)).cuda()
    inputs = torch.randn(20, 4, 3, device="cuda")
    exact, _ = net(inputs)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        outputs, state = net(inputs)
    assert state.h.dtype == state.c.dtype == torch.float32
    outputs.float().sum().backward()
    assert torch.allclose(outputs.float(), exact, atol=3e-2)


def test_weights_carried_across_give_cudnns_numbers() -> None:
    theirs = torch.nn.LSTM(3, 5, num_layers=2).cuda().double()
    ours = lp.from_torch(theirs)
    inputs = torch.randn(9, 4, 3, device="cuda", dtype=torch.float64)
    assert torch.allclose(ours(inputs)[0], theirs(inputs)[0], atol=1e-12)
