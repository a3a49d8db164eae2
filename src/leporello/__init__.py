"""Leporello: write the step of a recurrence once; fold it, unfold it, run it, differentiate it."""

from leporello import analysis, errors, language
from leporello.cells import (
    GRU,
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
)
from leporello.gradient import RTRL, UORO, Checkpointed, Full, RandomTruncated, Truncated
from leporello.loop.cell import Cell, named
from leporello.loop.state import detach, rows, to
from leporello.modules.bidirectional import Bidirectional
from leporello.modules.check import GradientReport, check_gradients
from leporello.modules.feedback import Feedback
from leporello.modules.files import load, save
from leporello.modules.fold import fold
from leporello.modules.generating import generate
from leporello.modules.layers import Layers
from leporello.modules.online import online
from leporello.modules.record import record
from leporello.modules.recurrent import Recurrent
from leporello.modules.resets import resets_after
from leporello.modules.stack import Stack
from leporello.modules.stream import stream
from leporello.modules.summary import Summary
from leporello.modules.torch_nn import from_torch, to_torch
from leporello.view.folded_loop import FoldedLoop as Loop

__all__ = [
    "Cell",
    "Recurrent",
    "Summary",
    "Stack",
    "Layers",
    "Bidirectional",
    "Feedback",
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
    "Loop",
    "fold",
    "generate",
    "named",
    "online",
    "record",
    "stream",
    "detach",
    "resets_after",
    "rows",
    "to",
    "from_torch",
    "to_torch",
    "load",
    "save",
    "analysis",
    "language",
    "errors",
]
