"""Nets trained on true values alone predict one step well, and drift when they must read their own outputs.

A mass on a stiffening spring is let go anywhere; the harder it swings, the faster. Place and speed are measured under a
little noise. A net with feedback reads what came a step before: the measurement while it is taught, its own output when
it runs free, here after ten measurements. Taught by measurements alone (teacher forcing) it never meets its own
errors. Two remedies: train it free running too; or flip a coin at every step, and let the share of measurements fall
(scheduled sampling, Bengio et al. 2015).

What held over eight seeds. Teacher forcing is best or as good as any one step ahead, free running worst. Running free,
every net is several times as far off, and the more so, the less memory it has beside what it reads back: Jordan, then
Elman-Jordan, then LSTM. Both remedies bring the Jordan net from 1.1 to 0.85, the Elman-Jordan net from 0.7 to 0.4 or
0.5; mixtures keep it good one step ahead. For the LSTM, which keeps the motion in its own memory, none of the five was
better than another.

    python examples/03_teacher_forcing.py --help
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

import leporello as lp
from leporello.language.training.teacher_forcing import forcing_of

SCHEDULES = {
    "teacher forcing": "1",
    "free running": "0",
    "linear": "linear:1:0",
    "inverse sigmoid": "inverse-sigmoid:6",
    "exponential": "exponential:0.01",
}
CELLS: dict[str, Callable[[int], lp.Cell]] = {
    "Jordan": lambda hidden: lp.Jordan(1, hidden, 2),
    "Elman-Jordan": lambda hidden: lp.ElmanJordan(1, hidden, 2),
    "LSTM": lambda hidden: lp.Feedback(lp.Stack(lp.LSTM(1 + 2, hidden), Linear(hidden, 2))),
}
PARTS = 8  # of a step of the motion: the spring is followed more finely than it is measured
WARM_UP = 10  # measurements before a net runs free
POOL = 32  # batches to train on, again and again


class Linear(lp.Cell):
    """o = V x + c, without a state."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.read = nn.Linear(inputs, outputs)

    def forward(self, x, state):
        return self.read(x), state


@dataclass(frozen=True)
class Motion:
    """Place and speed as they are and as they are measured, (length, batch, 2)."""

    true: Tensor
    measured: Tensor

    @property
    def inputs(self) -> Tensor:
        """Nothing but feedback tells a net anything: zeros (length, batch, 1)."""
        return torch.zeros(*self.true.shape[:2], 1)


@dataclass(frozen=True)
class Result:
    """Errors relative to the spread of the motion, and one motion that the net ran through freely."""

    one_step: float
    free: float
    shown: Tensor


def moved(length: int, batch: int, noise: float, random: torch.Generator, seconds: float = 0.2) -> Motion:
    """place'' = -place - place^3, without friction; a measurement every so many seconds."""
    size, phase = 0.5 + torch.rand(batch, generator=random), 2 * torch.pi * torch.rand(batch, generator=random)
    place, speed = size * phase.cos(), size * phase.sin()
    true = []
    for _ in range(length):
        for _ in range(PARTS):
            speed = speed - seconds / PARTS * (place + place**3)
            place = place + seconds / PARTS * speed
        true.append(torch.stack([place, speed], -1))
    whole = torch.stack(true)
    return Motion(whole, whole + noise * torch.randn(whole.shape, generator=random))


def coins(like: Motion, probability: float) -> Tensor | float:
    """Where a step hands on the measurement: always while warming up, then as the coin falls; 1 for everywhere."""
    if probability == 1:
        return 1
    length, batch = like.true.shape[:2]
    warming = torch.arange(length).unsqueeze(1) < WARM_UP
    return warming | (torch.rand(length, batch) < probability)


def trained(net: lp.Recurrent, schedule: str, data: Motion, settings: argparse.Namespace) -> Iterator[float]:
    """Train on batch after batch of the motions; the loss of each update."""
    forcing = forcing_of(schedule)
    spread = data.true.std((0, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=settings.rate)
    slower = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=settings.updates)
    batches = [
        Motion(*parts)
        for parts in zip(data.true.split(settings.batch, 1), data.measured.split(settings.batch, 1), strict=True)
    ]
    for update in range(settings.updates):
        batch = batches[update % len(batches)]
        progress = update / max(1, settings.updates - 1)
        outputs, _ = net(batch.inputs, targets=batch.measured, forcing=coins(batch, forcing(progress)))
        loss = ((outputs - batch.measured) / spread)[1:].square().mean()  # nothing is known of the first
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        slower.step()
        yield loss.item()


@torch.no_grad()
def tested(net: lp.Recurrent, data: Motion) -> Result:
    """The error against the true motion, reading measurements and reading its own outputs."""

    def error(outputs: Tensor) -> float:
        return ((outputs - data.true) / data.true.std((0, 1)))[WARM_UP:].square().mean().sqrt().item()

    one_step, _ = net(data.inputs, targets=data.measured)
    free, _ = net(data.inputs, targets=data.measured, forcing=coins(data, 0))
    return Result(error(one_step), error(free), free[:, 0, 0])


def runs(settings: argparse.Namespace, console: Console, test: Motion) -> dict[tuple[str, str], list[Result]]:
    """Every cell with every schedule, once a seed; a cell is traced once, and gets fresh parameters each time."""
    found: dict[tuple[str, str], list[Result]] = {}
    columns = (
        TextColumn("{task.description:<30}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}   left"),
        TimeRemainingColumn(),
    )
    total = len(CELLS) * len(SCHEDULES) * settings.seeds * settings.updates
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total, loss=float("nan"))
        for cell, make in CELLS.items():
            net = lp.Recurrent(make(settings.hidden), engine=settings.engine)
            for name, schedule in SCHEDULES.items():
                for seed in range(settings.seeds):
                    torch.manual_seed(seed)
                    net.load_state_dict(lp.Recurrent(make(settings.hidden)).state_dict())
                    random = torch.Generator().manual_seed(seed)
                    data = moved(settings.length, POOL * settings.batch, settings.noise, random)
                    progress.update(task, description=f"{cell}, {name}")
                    for loss in trained(net, schedule, data, settings):
                        progress.update(task, advance=1, loss=loss)
                    found.setdefault((cell, name), []).append(tested(net, test))
    return found


def table(found: dict[tuple[str, str], list[Result]]) -> Table:
    """Medians over seeds: free running, and beside it one step ahead."""
    made = Table(box=box.SIMPLE_HEAD)
    made.add_column("trained with")
    for cell in CELLS:
        made.add_column(f"{cell}\nfree running", justify="right")
        made.add_column("\none step", justify="right", style="dim")
    for name in SCHEDULES:
        cells = []
        for cell in CELLS:
            errors = [median(getattr(result, way) for result in found[cell, name]) for way in ("free", "one_step")]
            least = min(median(result.free for result in found[cell, other]) for other in SCHEDULES)
            cells += [f"[bold]{errors[0]:.2f}[/]" if errors[0] == least else f"{errors[0]:.2f}", f"{errors[1]:.2f}"]
        made.add_row(name, *cells)
    return made


def show(console: Console, found: dict[tuple[str, str], list[Result]], test: Motion, cell: str) -> None:
    """One motion it never saw, as heights: the true place, and what nets running free make of it."""
    length = max(WARM_UP, min(console.width - 18, len(test.true)))
    true = test.true[:length, 0, 0]
    limit = true.abs().max().item()
    console.print(f"{'':<18}{'measured':<{WARM_UP}}running free", style="dim")
    console.print(f"{'true':<17} {sparkline(true, limit)}")
    for name in SCHEDULES:
        free = found[cell, name][0].shown[:length]
        line = Text(f"{name:<17} ")
        for mark, error in zip(sparkline(free, limit), (free - true).abs().tolist(), strict=True):
            line.append(mark, "red" if error > limit / 2 else "yellow" if error > limit / 4 else "green")
        console.print(line)


def sparkline(values: Tensor, limit: float) -> str:
    """Heights from -limit to limit."""
    heights = ((values / limit + 1) / 2 * 7).round().clamp(0, 7).int().tolist()
    return "".join("▁▂▃▄▅▆▇█"[height] for height in heights)


def main() -> None:
    settings = read_settings()
    console = Console(highlight=False)
    torch.set_num_threads(settings.threads)
    test = moved(settings.test_length, 64, settings.noise, torch.Generator().manual_seed(10_000))
    started = time.perf_counter()
    found = runs(settings, console, test)
    console.print(f"{time.perf_counter() - started:.0f} s\n", style="dim")
    console.print("Error against the true motion, relative to its spread: 1 is no better than guessing its mean.")
    console.print(
        f"Median of {settings.seeds} seeds, over {settings.test_length} steps, the first {WARM_UP} of them measured; "
        f"trained on {settings.length}."
    )
    console.print(table(found))
    console.rule("where the Elman-Jordan net thinks the mass is, running free", align="left", style="dim")
    show(console, found, test, "Elman-Jordan")
    console.print(
        "Yellow: off by more than a quarter of the largest swing; red: by more than half.",
        style="dim",
    )


def read_settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train nets with feedback in five ways, then let them run free.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--updates", type=int, default=500, help="updates of each net")
    parser.add_argument("--seeds", type=int, default=3, help="how often each net is trained, from other parameters")
    parser.add_argument("--hidden", type=int, default=24, help="hidden units")
    parser.add_argument("--length", type=int, default=80, help="steps of a training sequence")
    parser.add_argument("--test-length", type=int, default=110, help="steps of a test sequence")
    parser.add_argument("--batch", type=int, default=32, help="sequences in an update")
    parser.add_argument("--noise", type=float, default=0.03, help="standard deviation of the noise on measurements")
    parser.add_argument("--rate", type=float, default=1e-2, help="learning rate of Adam; falls to a twentieth")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch; nets this small gain nothing by more")
    parser.add_argument("--engine", default="auto", help="that runs the nets")
    parser.add_argument("--quick", action="store_true", help="a few updates of one seed: only to see that it runs")
    settings = parser.parse_args()
    if settings.quick:
        settings.updates, settings.seeds, settings.hidden, settings.length, settings.test_length = 3, 1, 5, 12, 15
        settings.engine = "stepwise"  # which need not build kernels first
    return settings


if __name__ == "__main__":
    main()
