"""A net that tells gestures apart, small enough for a microcontroller: its C is measured against the chip's limits.

A sensor gives three accelerations a hundred times a second. The net says at every step which gesture it sees. It is
exported as C twice, with float and with int8 weights; a table has flash, RAM and the time of a step beside what the
chip has, and how often each is right.

    python examples/08_microcontroller.py --help
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import leporello as lp

GESTURES = ("rest", "shake", "circle", "tap")
FLASH, RAM = 256 * 1024, 64 * 1024  # bytes of the chip
CLOCK, STEPS_PER_SECOND = 64e6, 100  # cycles a second; readings of the sensor
CYCLES = {"multiply_adds": 3, "functions": 120, "others": 4}  # of a processor with an FPU, roughly


class Gestures(lp.Cell):
    """A layer that reads the sensor's three numbers, and the scores of the gestures."""

    def __init__(self, hidden: int) -> None:
        super().__init__(h=hidden)
        self.read = lp.GRU(3, hidden)
        self.score = nn.Linear(hidden, len(GESTURES))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        _, h = self.read(x, h)
        return self.score(h), h


def recordings(length: int, batch: int) -> tuple[Tensor, Tensor]:
    """Accelerations [length, batch, 3] and gestures [length, batch]; each row goes from one gesture to another."""
    time = torch.arange(length)[:, None] / STEPS_PER_SECOND
    kinds = torch.randint(0, len(GESTURES), (2, batch))
    gesture = torch.where(torch.arange(length)[:, None] < torch.randint(length // 3, length, (batch,)), *kinds)
    speed = 2 * torch.pi * (2 + 2 * torch.rand(batch)) * time
    zero = torch.zeros_like(speed)
    tap = (torch.sin(speed) > 0.97).float() * 2
    motions = {
        "rest": torch.stack([zero, zero, zero], -1),
        "shake": torch.stack([torch.sin(2 * speed).sign(), zero, zero], -1),
        "circle": torch.stack([torch.sin(speed), torch.cos(speed), zero], -1),
        "tap": torch.stack([zero, zero, tap], -1),
    }
    every = torch.stack([motions[name] for name in GESTURES])
    chosen = every.gather(0, gesture[None, ..., None].expand(1, length, batch, 3))[0]
    return chosen + 0.4 * torch.randn(length, batch, 3) + torch.tensor([0.0, 0.0, 1.0]), gesture


def main() -> None:
    settings = read_settings()
    console = Console(highlight=False)
    torch.manual_seed(0)
    net = lp.Recurrent(Gestures(settings.hidden))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in track(range(settings.updates), "training", console=console):
        inputs, gesture = recordings(settings.length, 32)
        loss = nn.functional.cross_entropy(net(inputs)[0].flatten(0, 1), gesture.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    folder = Path(settings.folder)
    folder.mkdir(exist_ok=True)
    inputs, gesture = recordings(settings.length, 200)
    nets: dict[str, Any] = {"float": net, "int8": lp.quantise(net, inputs[:, :50])}
    table = Table("", "flash", f"of {FLASH // 1024} KB", "RAM", f"of {RAM // 1024} KB", "a step, about", "right")
    for name, one in nets.items():
        report: Any = lp.export(one, folder / f"gestures_{name}.c", example=inputs[:, :4])
        with torch.no_grad():
            right = (one(inputs)[0].argmax(-1) == gesture).float().mean().item()
        cycles = sum(each * getattr(report.work, kind) for kind, each in CYCLES.items())
        table.add_row(
            name,
            f"{report.flash_bytes:,}",
            f"{report.flash_bytes / FLASH:.1%}",
            f"{report.ram_bytes:,}",
            f"{report.ram_bytes / RAM:.1%}",
            f"{1e3 * cycles / CLOCK:.2f} ms of {1000 / STEPS_PER_SECOND:.0f}",
            f"{right:.1%}",
        )
        if report.flash_bytes > FLASH or report.ram_bytes > RAM:
            console.print(f"{name}: too large for the chip")
    console.print(table)
    console.print(str(nets["int8"].report))
    console.print(f"The code's size is that of this machine's compiler. The files are in {folder}.")


def read_settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=64, help="numbers of the state")
    parser.add_argument("--updates", type=int, default=150, help="of the training")
    parser.add_argument("--length", type=int, default=150, help="steps of a recording")
    parser.add_argument("--folder", default="gestures", help="where the C is written")
    return parser.parse_args()


if __name__ == "__main__":
    main()
