"""The built-in cells, one file each: a step as its equations."""

from leporello.cells.elman import Elman
from leporello.cells.elman_jordan import ElmanJordan
from leporello.cells.gru import GRU
from leporello.cells.ind_rnn import IndRNN
from leporello.cells.jordan import Jordan
from leporello.cells.layer_norm_lstm import LayerNormLSTM
from leporello.cells.leaky import Leaky
from leporello.cells.lstm import LSTM
from leporello.cells.min_gru import MinGRU
from leporello.cells.peephole_lstm import PeepholeLSTM
from leporello.cells.perceptron import Perceptron
from leporello.cells.rnn import RNN
from leporello.cells.time_delay import TimeDelay
from leporello.cells.zoneout_lstm import ZoneoutLSTM

__all__ = [
    "GRU",
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
