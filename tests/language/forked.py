"""The command in processes of its own, which can be killed: forked from one that has imported all there is to import.

A process that starts from nothing spends seconds on imports; these begin with the command at once.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from leporello.language.training.train import resume_training
from leporello_command import main

IMPORTED = [
    "leporello.cli.app",
    "safetensors.torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.export._trace",
]


def begun(words: Sequence[object], said: Path, **variables: str) -> ForkServerProcess:
    """A process that runs `leporello WORDS`; what it says goes to a file."""
    return _forked(_command, [str(word) for word in words], said, variables)


def going_on(run: Path, said: Path, **variables: str) -> ForkServerProcess:
    """A process that trains a run to its end, without a report."""
    return _forked(_resumed, run, said, variables)


def _forked(*call: Any) -> ForkServerProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    process = context.Process(target=call[0], args=call[1:], daemon=True)
    process.start()
    return process


def _command(words: Sequence[str], said: Path, variables: Mapping[str, str]) -> None:
    _talk(said, variables)
    sys.argv[1:] = words
    main()


def _resumed(run: Path, said: Path, variables: Mapping[str, str]) -> None:
    _talk(said, variables)
    training = resume_training(run)
    for event in training.events():
        print(json.dumps(event), flush=True)
    training.leave()


def _talk(said: Path, variables: Mapping[str, str]) -> None:
    """What is said goes to a file."""
    os.environ.update(variables)
    handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    torch.set_num_threads(1)
