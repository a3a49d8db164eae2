"""Large cells as people write them: nested states without names, long names, many lines between few values."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import leporello as lp


class Turing(nn.Module):
    """A memory with a controller; the state is ((h, c), M, [w1, w2])."""

    def __init__(self) -> None:
        super().__init__()
        self.controller = nn.LSTMCell(5 + 3, 6)
        self.read_head, self.write_head = nn.Linear(6, 7), nn.Linear(6, 7)
        self.erase, self.add, self.out = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6 + 3, 4)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        (h, c), M, [w1, w2] = state
        h, c = self.controller(torch.cat([x, torch.einsum("bn,bnm->bm", w1, M)], 1), (h, c))
        w2 = torch.softmax(self.write_head(h) + w2, 1)
        M = M * (1 - w2.unsqueeze(2) * torch.sigmoid(self.erase(h)).unsqueeze(1))
        M = M + w2.unsqueeze(2) * torch.tanh(self.add(h)).unsqueeze(1)
        w1 = torch.softmax(self.read_head(h) + M.sum(2) + w1, 1)
        return self.out(torch.cat([h, torch.einsum("bn,bnm->bm", w1, M)], 1)), ((h, c), M, [w1, w2])


class Decoder(nn.Module):
    """A step of a speech decoder, with attention that knows where it was: nested states and long names."""

    def __init__(self) -> None:
        super().__init__()
        self.prenet = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU())
        self.attention_rnn, self.decoder_rnn = nn.LSTMCell(6 + 6, 8), nn.LSTMCell(8 + 6, 8)
        self.query_layer, self.v = nn.Linear(8, 4), nn.Linear(4, 1, bias=False)
        self.location_conv, self.location_dense = nn.Conv1d(2, 3, 5, padding=2), nn.Linear(3, 4)
        self.linear_projection, self.gate_layer = nn.Linear(8 + 6, 5), nn.Linear(8 + 6, 1)

    def forward(self, frame: Tensor, state: Any, memory: Tensor) -> tuple[Any, Any]:
        (attention_hidden, attention_cell), (decoder_hidden, decoder_cell), weights, attention_context = state
        attention_weights, attention_weights_cum = weights
        cell_input = torch.cat([self.prenet(frame), attention_context], 1)
        attention_hidden, attention_cell = self.attention_rnn(cell_input, (attention_hidden, attention_cell))
        attention_weights_cat = torch.stack([attention_weights, attention_weights_cum], 1)
        located = self.location_dense(self.location_conv(attention_weights_cat).transpose(1, 2))
        energies = self.v(torch.tanh(self.query_layer(attention_hidden).unsqueeze(1) + located)).squeeze(2)
        attention_weights = torch.softmax(energies, 1)
        attention_weights_cum = attention_weights_cum + attention_weights
        attention_context = torch.einsum("bt,btm->bm", attention_weights, memory)
        decoder_input = torch.cat([attention_hidden, attention_context], 1)
        decoder_hidden, decoder_cell = self.decoder_rnn(decoder_input, (decoder_hidden, decoder_cell))
        decoder_hidden_attention_context = torch.cat([decoder_hidden, attention_context], 1)
        decoder_output = self.linear_projection(decoder_hidden_attention_context)
        gate_prediction = self.gate_layer(decoder_hidden_attention_context)
        states = (attention_hidden, attention_cell), (decoder_hidden, decoder_cell)
        return (decoder_output, gate_prediction), (
            *states,
            (attention_weights, attention_weights_cum),
            attention_context,
        )


class Hyper(lp.Cell):
    """A small LSTM scales the gates of a larger one: one matrix on many arrows."""

    def __init__(self) -> None:
        super().__init__(h=6, c=6, s=4, d=4)
        self.small, self.says = nn.LSTMCell(5 + 6, 4), nn.Linear(4, 24)
        self.U, self.W = nn.Linear(5, 24, bias=False), nn.Linear(6, 24, bias=False)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, c, s, d = state
        s, d = self.small(torch.cat([x, h], 1), (s, d))
        gates = self.says(s) * self.W(h) + self.U(x)
        i, f, o, g = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c, s, d)


def zeros(*sizes: int) -> Tensor:
    return torch.zeros(2, *sizes)


@cache
def turing() -> lp.Loop:
    return lp.fold(Turing(), zeros(5), ((zeros(6), zeros(6)), zeros(7, 3), [zeros(7), zeros(7)]))


@cache
def decoder() -> lp.Loop:
    state = ((zeros(8), zeros(8)), (zeros(8), zeros(8)), (zeros(7), zeros(7)), zeros(6))
    return lp.Recurrent(Decoder()).fold(zeros(5).unsqueeze(0), state, context=zeros(7, 6))


LARGE: dict[str, Callable[[], lp.Loop]] = {
    "Turing": turing,
    "Decoder": decoder,
    "Hyper": lambda: lp.fold(Hyper(), zeros(5)),
    "six layers": lambda: lp.fold(lp.Stack(lp.LSTM(5, 4), *(lp.LSTM(4, 4) for _ in range(5))), zeros(5)),
}
