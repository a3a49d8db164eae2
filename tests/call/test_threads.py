"""Several Python threads with one network: a trace in one does not disturb a call in another."""

from __future__ import annotations

import threading

import torch

import leporello as lp


def test_threads_that_call_one_net_at_once_all_get_its_outputs() -> None:
    net = lp.Recurrent(lp.LSTM(3, 4, learned=True))
    inputs = torch.randn(5, 2, 3)
    found: list[torch.Tensor] = []
    lengths = [None, [5, 1], [4, 5], [2, 2]]

    def call(own: list[int] | None) -> None:
        found.append(net(inputs, lengths=own)[0])

    threads = [threading.Thread(target=call, args=(own,)) for own in lengths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [net(inputs, lengths=own)[0] for own in lengths]
    assert len(found) == len(expected)
    assert all(any(torch.equal(one, other) for other in found) for one in expected)
    assert all(isinstance(value, torch.nn.Parameter) for value in net.parameters())
