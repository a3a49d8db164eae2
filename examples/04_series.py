"""A series goes on: a GRU learns it from true values, then runs free on its own draws, and gives intervals.

Each step reads the last value and the one a season ago, and says how the next is distributed. In training the last
value is the true one (teacher forcing). In a forecast it is a draw from the net's own distribution: many such paths
side by side are the forecast, and their quantiles its intervals. Beside it stand two forecasts that need no net: the
value a season ago, and the last value. Everything is tested on the last seasons of the series, which no net has seen.

    python examples/04_series.py                                            # a series like sunspots, made here
    python examples/04_series.py --csv monthly-sunspots.csv --plot sunspots.png
    python examples/04_series.py --csv airline-passengers.csv --season 12
"""

from __future__ import annotations

import argparse
import csv
import math
from itertools import pairwise
from typing import NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

import leporello as lp


class Next(NamedTuple):
    """The next value: its mean and standard deviation, and a draw; (batch, 1) each."""

    mean: Tensor
    deviation: Tensor
    draw: Tensor


class Forecaster(lp.Cell):
    """Reads the last value and the one a season ago; running free, the last value is its own draw."""

    feedback = "last"

    def __init__(self, hidden: int) -> None:
        super().__init__(h=hidden, last=1)
        self.gru, self.head = nn.GRUCell(2, hidden), nn.Linear(hidden, 2)

    def feed(self, output):
        return output.draw

    def forward(self, season_ago, state):
        h, last = state
        h = self.gru(torch.cat([last, season_ago], 1), h)
        change, deviation = self.head(h).chunk(2, 1)
        mean, deviation = last + change, nn.functional.softplus(deviation) + 0.01
        return Next(mean, deviation, mean + deviation * torch.randn_like(mean)), (h, last)


def trained(series: Tensor, number: int, settings: argparse.Namespace, console: Console) -> lp.Recurrent:
    """Forced on windows of the series, each at a size of its own: large seasons and small ones have one shape."""
    net, season = lp.Recurrent(Forecaster(settings.hidden)), settings.season
    nn.init.zeros_(net.cell.head.weight)  # before it has learned, the last value is its forecast,
    net.cell.head.bias.data = torch.tensor([0.0, -1.0])  # with a deviation of 0.3
    window = min(max(2 * season, 48), len(series) - season)
    optimizer = torch.optim.AdamW(net.parameters(), lr=settings.rate)
    slower = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.rate, total_steps=settings.updates)
    with Progress(*Progress.get_default_columns(), "loss {task.fields[loss]:.3f}", console=console) as progress:
        task = progress.add_task(f"training net {number}", total=settings.updates, loss=math.nan)
        for _ in range(settings.updates):
            begins = torch.randint(season, len(series) - window + 1, (64,))
            at = begins + torch.arange(window).unsqueeze(1)
            size = torch.exp(0.3 * torch.randn(64, 1))
            true = size * series[at].unsqueeze(-1)
            said, _ = net(size * series[at - season].unsqueeze(-1), targets=true)
            loss = nn.functional.gaussian_nll_loss(said.mean, true, said.deviation.square(), reduction="none")
            loss = loss[window // 4 :].mean()  # what comes first is only read: the state begins at zero
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            slower.step()
            progress.update(task, advance=1, loss=loss.item())
    return net


@torch.no_grad()
def one_ahead(net: lp.Recurrent, series: Tensor, season: int) -> Tensor:
    """The mean of each value, given all before it, from the second season on: (length - season,)."""
    said, _ = net(series[:-season].reshape(-1, 1, 1), targets=series[season:].reshape(-1, 1, 1))
    return said.mean.flatten()


@torch.no_grad()
def paths(net: lp.Recurrent, series: Tensor, origins: Tensor, season: int, count: int) -> Tensor:
    """Paths of one season from each origin on: (season, origins, count). Nothing is read from an origin on."""
    true, ago = (part.reshape(-1, 1, 1).expand(-1, len(origins), 1) for part in (series[season:], series[:-season]))
    _, state = net(ago, targets=true, lengths=origins - season)  # each row ends where its forecast begins
    rows = torch.arange(len(origins)).repeat_interleave(count)
    season_before = series[origins - season + torch.arange(season).unsqueeze(1)].unsqueeze(-1)
    said, _ = net(season_before[:, rows], lp.rows(state, rows))
    return said.draw.reshape(season, len(origins), count)


def read(path: str) -> tuple[list[str], Tensor]:
    """The first column of a CSV file as labels, and the last one that holds only numbers."""
    with open(path, newline="", encoding="utf-8") as file:
        _, *rows = [row for row in csv.reader(file) if row]
    for column in reversed(list(zip(*rows, strict=True))):
        try:
            return [row[0] for row in rows], torch.tensor([float(cell) for cell in column])
        except ValueError:
            continue
    raise SystemExit(f"{path}: no column of numbers")


def made(season: int, seasons: int = 20) -> tuple[list[str], Tensor]:
    """A series like sunspots: cycles that rise faster than they fall, of varying length and height, under noise."""
    values: list[Tensor] = []
    for _ in range(seasons):
        length, height = int(season * (1 + 0.08 * torch.randn(()))), 8 * torch.exp(0.25 * torch.randn(()))
        phase = torch.arange(length) / length
        values.append(height * torch.sin(math.pi * phase**0.75).square())
    root = torch.cat(values)
    root = root + 0.6 * torch.randn(len(root)) + 1
    return [str(month) for month in range(len(root))], root.clamp(min=0).square()


def errors(forecasts: dict[str, Tensor], true: Tensor, scale: Tensor, parts: int) -> Table:
    """A row a forecast: mean absolute error in parts of what is ahead, then over all of it three measures of error."""
    edges = [round(part * len(true) / parts) for part in range(parts + 1)]
    spans = [f"{low + 1}-{high}" for low, high in pairwise(edges)] if parts > 1 else []
    table = Table("steps ahead" if parts > 1 else "one step ahead", *spans, "MAE", "RMSE", "MASE", box=box.SIMPLE_HEAD)
    table.columns[0].no_wrap = True
    for name, forecast in forecasts.items():
        error = forecast - true
        pieces = [error[low:high].abs().mean() for low, high in pairwise(edges)] if spans else []
        whole = [error.abs().mean(), error.square().mean().sqrt()]
        table.add_row(name, *(f"{value:.1f}" for value in [*pieces, *whole]), f"{whole[0] / scale:.2f}")
    return table


def plot(path: str, labels: list[str], values: Tensor, origins: Tensor, sampled: Tensor, forecasts, true) -> None:
    """Above, forecasts of season after season, each made where it begins; below, the error by how far ahead."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[2, 1])
    season, first = len(sampled), int(origins[0])
    shown = range(first - season // 2, len(values))
    above.plot(shown, values[shown.start :], color="black", linewidth=0.8, label="measured")
    for row in [row for row, origin in enumerate(origins.tolist()) if (origin - first) % season == 0]:
        ahead = range(int(origins[row]), int(origins[row]) + season)
        for share, alpha in ((0.95, 0.18), (0.8, 0.3)):
            low, high = sampled[:, row].quantile(torch.tensor([0.5 - share / 2, 0.5 + share / 2]), 1)
            label = f"{share:.0%} of paths" if row == 0 else None
            above.fill_between(ahead, low, high, color="tab:red", alpha=alpha, linewidth=0, label=label)
        above.plot(ahead, sampled[:, row].median(1).values, color="tab:red", label="median" if row == 0 else None)
        above.axvline(ahead.start, color="gray", linewidth=0.8, linestyle=":")
    ticks = list(shown)[:: max(1, len(shown) // 8)]
    above.set_xticks(ticks, [labels[tick] for tick in ticks])
    above.legend(loc="upper left", ncols=4, frameon=False)
    for (name, forecast), style in zip(forecasts.items(), ("tab:red", "black", "darkgray"), strict=True):
        below.plot(range(1, season + 1), (forecast - true).abs().mean(1), color=style, label=name)
    below.set(xlabel="steps ahead", ylabel="mean absolute error", ylim=(0, None))
    below.legend(loc="upper left", frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    settings = read_settings()
    console, season = Console(highlight=False), settings.season
    torch.manual_seed(settings.seed)
    torch.set_num_threads(1)
    labels, values = read(settings.csv) if settings.csv else made(season)
    first = len(values) - settings.held_out * season  # the first that is held out
    if first < 3 * season or values.min() < 0:
        raise SystemExit("a series of at least 3 seasons and those held out is needed, without negative values")
    scale = values[:first].sqrt().std()
    series = values.sqrt() / scale  # of a root, high and low values scatter alike
    console.print(f"{len(values):,} values from {labels[0]} to {labels[-1]}; held out: from {labels[first]} on.")
    nets = [trained(series[:first], number, settings, console) for number in range(1, settings.nets + 1)]

    unit = (values[season:first] - values[: first - season]).abs().mean()
    true = values[first:]
    mean = torch.stack([one_ahead(net, series, season) for net in nets]).mean(0)
    mean = (scale * mean).square()[first - season :]
    forecasts = {
        "net": mean,
        "a season ago": values[first - season : -season],
        "the last value": values[first - 1 : -1],
    }
    console.print(errors(forecasts, true, unit, parts=1))

    origins = torch.arange(first, len(values) - season + 1, max(1, season // 22))
    sampled = torch.cat([paths(net, series, origins, season, settings.paths) for net in nets], 2)
    sampled = (scale * sampled).clamp(min=0).square()
    ahead = torch.arange(season).unsqueeze(1) + origins
    true = values[ahead]
    forecasts = {"net": sampled.median(2).values, "a season ago": values[ahead - season]}
    forecasts["the last value"] = values[origins - 1].expand(season, -1)
    console.print(errors(forecasts, true, unit, parts=4))
    for share in (0.8, 0.95):
        low, high = sampled.quantile(torch.tensor([0.5 - share / 2, 0.5 + share / 2]), 2)
        console.print(
            f"Intervals of {share:.0%} hold {((low <= true) & (true <= high)).float().mean():.0%} of the values."
        )
    if settings.plot:
        plot(settings.plot, labels, values, origins, sampled, forecasts, true)
        console.print(f"plotted: {settings.plot}")


def read_settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--csv", help="a file with a row a value; its last column of numbers is the series")
    parser.add_argument("--season", type=int, default=132, help="values in a season: 132 months between sunspot maxima")
    parser.add_argument("--held-out", type=int, default=4, help="seasons at the end to test on")
    parser.add_argument("--hidden", type=int, default=32, help="units of the GRU")
    parser.add_argument("--nets", type=int, default=3, help="nets from other parameters, whose paths are pooled")
    parser.add_argument("--updates", type=int, default=300, help="updates of each net")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate of AdamW")
    parser.add_argument("--paths", type=int, default=100, help="paths that each net draws from each origin")
    parser.add_argument("--plot", help="a file for the picture, .png or .svg; needs matplotlib")
    parser.add_argument("--seed", type=int, default=0, help="of weights, windows and draws")
    return parser.parse_args()


if __name__ == "__main__":
    main()
