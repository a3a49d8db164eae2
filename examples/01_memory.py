"""An Elman net learns to hold bits in its state, and holds them over sequences far longer than it was trained on.

The task, known as the flip-flop: now and then a pulse of +1 or -1 arrives on one of a few channels, under noise. At
every step the net must say, for each channel, which sign came last. Between two pulses the answer is nowhere in the
input, so whoever has no memory guesses, and is right half of the time.

    python examples/01_memory.py --help
"""

from __future__ import annotations

import argparse
import time

import torch
from rich import box
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

import leporello as lp

PULSES_PER_TEST = 3  # pulses on each channel in a test sequence, on average, however long it is: the wait grows with it


def main() -> None:
    settings = read_settings()
    console = Console(highlight=False)
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    random = torch.Generator().manual_seed(settings.seed)
    net = lp.Recurrent(lp.Elman(settings.bits, settings.hidden, settings.bits))

    unfold(console, lp.fold(net.cell, torch.zeros(1, settings.bits)))
    announce(console, net, settings)
    train(console, net, settings, random)

    inputs, _, _ = sequences(settings.length, settings.batch, settings.gap, settings, random)
    console.rule("how it runs", align="left", style="dim")
    console.print(net.explain(inputs).rstrip(), markup=False, soft_wrap=True, end="\n\n")

    console.rule("one sequence it never saw", align="left", style="dim")
    show(console, net, settings, random)

    console.rule("lengths it never saw", align="left", style="dim")
    console.print(test(net, settings, random))
    console.print(
        f"Trained on {settings.length} steps with a pulse every {settings.gap:g} on average. "
        "Counted where no pulse shows the answer.",
        style="dim",
    )


def unfold(console: Console, loop: lp.Loop, pause_seconds: float = 0.8) -> None:
    """The net as a loop, its delay a black square; then as a strip, which grows step by step if somebody watches."""
    console.rule("one step, folded", align="left", style="dim")
    console.print(str(loop), markup=False, soft_wrap=True)
    console.rule("the same net, unfolded over time", align="left", style="dim")
    strips = [Text(str(loop.unfold(steps)), no_wrap=True, overflow="crop") for steps in (1, 2, 3)]
    if not console.is_terminal:
        console.print(strips[-1], soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False) as live:
        for strip in strips:
            live.update(strip, refresh=True)
            time.sleep(pause_seconds)


def sequences(
    length: int, batch: int, gap: float, settings: argparse.Namespace, random: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, right answers (true for +1), and where a pulse shows the answer; each [length, batch, bits].

    A pulse comes at every step with probability 1 / gap, and on all channels at the first.
    """
    size = (length, batch, settings.bits)
    pulses = torch.rand(size, generator=random) < 1 / gap
    pulses[0] = True
    signs = torch.randint(2, size, generator=random) * 2 - 1
    steps = torch.arange(length).reshape(length, 1, 1)
    last_pulse = torch.where(pulses, steps, 0).cummax(dim=0).values
    answers = signs.gather(0, last_pulse) > 0
    noise = settings.noise * torch.randn(size, generator=random)
    return torch.where(pulses, signs, 0) + noise, answers, pulses


def train(console: Console, net: lp.Recurrent, settings: argparse.Namespace, random: torch.Generator) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=settings.rate)
    slower = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=settings.updates)
    columns = (
        TextColumn("training"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}   bits right {task.fields[right]:6.2%}   left"),
        TimeRemainingColumn(),
    )
    started = time.perf_counter()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=settings.updates, loss=float("nan"), right=0.5)
        for _ in range(settings.updates):
            inputs, answers, pulses = sequences(settings.length, settings.batch, settings.gap, settings, random)
            outputs, _ = net(inputs)
            loss = nn.functional.binary_cross_entropy_with_logits(outputs, answers.float())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), settings.clip)
            optimizer.step()
            slower.step()
            right = bits_right(outputs, answers, pulses)
            progress.update(task, advance=1, loss=loss.item(), right=right)
    seconds = time.perf_counter() - started
    console.print(f"{seconds:.0f} s, {seconds / settings.updates * 1e3:.1f} ms an update\n", style="dim")


@torch.no_grad()
def test(net: lp.Recurrent, settings: argparse.Namespace, random: torch.Generator) -> Table:
    """A table: the longer the sequence, the rarer the pulses, the longer each bit must be held."""
    table = Table(
        box=box.SIMPLE_HEAD,
    )
    for title in ("steps", "mean wait", "bits right", "chance", f"all {settings.bits} right", "chance"):
        table.add_column(title, justify="right")
    for length in settings.lengths:
        inputs, answers, pulses = sequences(length, settings.batch, length / PULSES_PER_TEST, settings, random)
        outputs, _ = net(inputs)
        waiting = ~pulses.any(-1)
        all_right = ((outputs > 0) == answers).all(-1)[waiting].float().mean()
        table.add_row(
            str(length),
            f"{mean_wait(pulses):.0f}",
            f"{bits_right(outputs, answers, pulses):.2%}",
            "50%",
            f"{all_right:.2%}",
            f"{0.5**settings.bits:.1%}",
            style=None if length > settings.length else "dim",
        )
    return table


@torch.no_grad()
def show(console: Console, net: lp.Recurrent, settings: argparse.Namespace, random: torch.Generator) -> None:
    """Pulses and answers of one sequence, channel by channel; wrong answers in red."""
    length = max(1, min(console.width - 12, 72))
    inputs, answers, pulses = sequences(length, 1, settings.gap, settings, random)
    outputs, _ = net(inputs)
    for bit in range(settings.bits):
        pulse, said, true = (
            Text(f"pulses {bit + 1}  ", style="dim"),
            Text("net says  ", style="dim"),
            answers[:, 0, bit],
        )
        for step in range(length):
            plus = bool(outputs[step, 0, bit] > 0)
            pulse.append(("+" if true[step] else "-") if pulses[step, 0, bit] else "·", style="not dim bold")
            said.append("▀" if plus else "▄", style="not dim " + ("green" if plus == bool(true[step]) else "red"))
        console.print(pulse)
        console.print(said)
    console.print()


def bits_right(outputs: Tensor, answers: Tensor, pulses: Tensor) -> float:
    """The share of right answers where no pulse shows them."""
    right = ((outputs > 0) == answers)[~pulses]
    return right.float().mean().item() if len(right) else float("nan")


def mean_wait(pulses: Tensor) -> float:
    """Steps since the last pulse, on average over all steps without one."""
    steps = torch.arange(len(pulses)).reshape(-1, 1, 1)
    wait = steps - torch.where(pulses, steps, 0).cummax(dim=0).values
    return wait[~pulses].float().mean().item()


def announce(console: Console, net: lp.Recurrent, settings: argparse.Namespace) -> None:
    count = sum(parameter.numel() for parameter in net.parameters())
    console.print(
        f"An Elman net of {settings.hidden} units and {count:,} parameters learns to hold {settings.bits} bits. "
        f"On each of {settings.bits} channels it must say which sign came last, +1 or -1. "
        f"A pulse comes every {settings.gap:g} steps or so; in between there is nothing but noise.\n"
    )


def read_settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train an Elman net to hold bits, then test it on lengths it never saw.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--bits", type=int, default=3, help="channels, each with one bit to hold")
    parser.add_argument("--hidden", type=int, default=64, help="hidden units")
    parser.add_argument("--length", type=int, default=50, help="steps of a training sequence")
    parser.add_argument("--gap", type=float, default=10.0, help="steps between two pulses on a channel, on average")
    parser.add_argument("--noise", type=float, default=0.1, help="standard deviation of the noise on the inputs")
    parser.add_argument("--batch", type=int, default=64, help="sequences in an update, and in each test")
    parser.add_argument("--updates", type=int, default=3000, help="updates of the parameters")
    parser.add_argument(
        "--rate", type=float, default=3e-3, help="learning rate of Adam at the start; falls to a twentieth"
    )
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[50, 100, 200, 500, 1000, 2000], help="steps of the test sequences"
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of torch; products this small gain nothing by more"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the data")
    return parser.parse_args()


if __name__ == "__main__":
    main()
