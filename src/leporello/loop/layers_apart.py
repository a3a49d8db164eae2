"""`LayersApart`: a call of torch's recurrent functions with dropout between layers, as a call for each layer.

While a step is traced, torch runs a Python form of `nn.RNN`, `nn.GRU` and `nn.LSTM` that leaves this dropout out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_RECURRENT = ("gru", "lstm", "rnn_tanh", "rnn_relu")


class LayersApart(TorchFunctionMode):
    """While active, layers with dropout between them run one by one, each with the batch first where it is dropped."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "").partition(".")[0] in _RECURRENT and len(args) == 9 and not kwargs:
            x, state, weights, bias, layers, dropout, training, both_ways, batch_first = args
            if isinstance(layers, int) and layers > 1 and dropout and training:
                options = both_ways, batch_first
                return _layer_by_layer(func, x, state, weights, bias, layers, dropout, *options)
        return func(*args, **(kwargs or {}))


def _layer_by_layer(
    function: Callable[..., tuple[Tensor, ...]],
    x: Tensor,
    state: Tensor | Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: bool,
    layers: int,
    dropout: float,
    both_ways: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """What the function returns: the output of the last layer, and each part of the state, [layers, batch, features].

    state   of nn.LSTM the parts h and c, else one tensor; [layers x directions, batch, features]
    """
    parts = [state] if isinstance(state, Tensor) else state
    by_layer = zip(*(part.chunk(layers) for part in parts), strict=True)
    each, after = len(weights) // layers, []
    for layer, own in enumerate(by_layer):
        if layer:
            x = x if batch_first else x.transpose(0, 1)
            x = torch.dropout(x, dropout, True)
            x = x if batch_first else x.transpose(0, 1)
        mine = weights[layer * each : (layer + 1) * each]
        before = own[0] if isinstance(state, Tensor) else own
        x, *parts_after = function(x, before, mine, bias, 1, 0.0, True, both_ways, batch_first)
        after.append(parts_after)
    return (x, *map(torch.cat, zip(*after, strict=True)))
