"""The built-in cells, a file for each family: steps as their equations."""

from leporello.cells.elman_jordan import Elman, ElmanJordan, Jordan
from leporello.cells.feed_forward import Perceptron, TimeDelay
from leporello.cells.ind_rnn import IndRNN
from leporello.cells.leaky import Leaky
from leporello.cells.lif import LIF
from leporello.cells.lstm_variants import LayerNormLSTM, PeepholeLSTM, ZoneoutLSTM
from leporello.cells.min_gru import MinGRU
from leporello.cells.torch_cells import GRU, LSTM, RNN

__all__ = [
    "GRU",
    "LIF",
    "LSTM",
    "RNN",
    "Elman",
    "ElmanJordan",
    "IndRNN",
    "Jordan",
    "LayerNormLSTM",
    "Leaky",
    "MinGRU",
    "PeepholeLSTM",
    "Perceptron",
    "TimeDelay",
    "ZoneoutLSTM",
]
