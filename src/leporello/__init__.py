"""Leporello: write the step of a recurrence once; fold it, unfold it, run it, differentiate it."""

from leporello import analysis, errors, language, turing
from leporello.cells import (
    GRU,
    LIF,
    LSTM,
    RNN,
    Elman,
    ElmanJordan,
    IndRNN,
    Jordan,
    LayerNormLSTM,
    Leaky,
    MinGRU,
    PeepholeLSTM,
    Perceptron,
    TimeDelay,
    ZoneoutLSTM,
    surrogate,
)
from leporello.gradient import RTRL, UORO, Checkpointed, Full, RandomTruncated, Truncated
from leporello.loop.cell import Cell, named
from leporello.loop.clock import time
from leporello.loop.context import shared
from leporello.loop.draws import once
from leporello.loop.state import detach, rows, to, write_rows
from leporello.nets.bidirectional import Bidirectional
from leporello.nets.check_gradients import GradientReport, check_gradients
from leporello.nets.export.export import export
from leporello.nets.feedback import Feedback
from leporello.nets.files import load, save
from leporello.nets.fold import fold
from leporello.nets.generate import generate
from leporello.nets.net_summary import summary
from leporello.nets.online import online
from leporello.nets.quantise import QuantiseReport, quantise
from leporello.nets.record import record
from leporello.nets.recurrent import Recurrent
from leporello.nets.stack import Layers, Stack
from leporello.nets.stateful import Stateful
from leporello.nets.stream import resets_after, stream
from leporello.nets.summary import Summary
from leporello.nets.torch_nn import from_torch, to_torch
from leporello.view.folded_loop import FoldedLoop as Loop

__all__ = [
    "Cell",
    "Recurrent",
    "Summary",
    "Stack",
    "Layers",
    "Bidirectional",
    "Feedback",
    "Stateful",
    "Elman",
    "Jordan",
    "ElmanJordan",
    "RNN",
    "GRU",
    "LSTM",
    "LayerNormLSTM",
    "PeepholeLSTM",
    "ZoneoutLSTM",
    "IndRNN",
    "MinGRU",
    "Leaky",
    "LIF",
    "Perceptron",
    "TimeDelay",
    "Full",
    "Truncated",
    "RandomTruncated",
    "Checkpointed",
    "RTRL",
    "UORO",
    "GradientReport",
    "check_gradients",
    "export",
    "Loop",
    "fold",
    "generate",
    "named",
    "once",
    "online",
    "quantise",
    "QuantiseReport",
    "record",
    "stream",
    "summary",
    "time",
    "detach",
    "resets_after",
    "rows",
    "shared",
    "to",
    "write_rows",
    "from_torch",
    "to_torch",
    "load",
    "save",
    "surrogate",
    "analysis",
    "language",
    "turing",
    "errors",
]
