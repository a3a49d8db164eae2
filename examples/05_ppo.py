"""A pole is balanced by a policy that sees where it is, never how fast it moves: without a memory that cannot be done.

The cart pole of Barto, Sutton and Anderson (1983), with the speeds hidden: a policy with a memory can tell them from
what it saw before. It is a GRU trained by proximal policy optimisation (Schulman et al. 2017), on many carts at once.
Episodes end in the middle of a batch and of a training sequence: while acting, `net.step` has the flags of what has
just begun as `reset`, and training has the same flags as `resets`. The same policy without a memory is reset before
every step.

    python examples/05_ppo.py
    python examples/05_ppo.py --plot ppo.png
"""

from __future__ import annotations

import argparse
import math
from typing import NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch.distributions import Categorical

import leporello as lp

LIMIT = 500  # steps of the longest episode
DISCOUNT, TRACE = 0.99, 0.95  # of rewards, and of advantages (generalised advantage estimation)


class Carts:
    """Carts side by side, each with a pole: (count, 4) place, speed, angle, angular speed."""

    def __init__(self, count: int) -> None:
        self.motion, self.age = torch.empty(count, 4), torch.zeros(count, dtype=torch.long)
        self.begin(torch.ones(count, dtype=torch.bool))

    def begin(self, rows: Tensor) -> None:
        self.motion = torch.where(rows.unsqueeze(1), torch.empty_like(self.motion).uniform_(-0.05, 0.05), self.motion)
        self.age = self.age.masked_fill(rows, 0)

    def seen(self) -> Tensor:
        """Place and angle, (count, 2), in units of what ends an episode."""
        return self.motion[:, ::2] / torch.tensor([2.4, 0.21])

    def step(self, push_right: Tensor) -> tuple[Tensor, Tensor]:
        """Push each cart for 20 ms. Which episodes are done, by a fall or by their age; those begin again; and ages."""
        _, speed, angle, turning = self.motion.unbind(1)
        force = 20.0 * push_right - 10.0
        sin, cos = angle.sin(), angle.cos()
        pull = (force + 0.05 * turning.square() * sin) / 1.1
        turned = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos.square() / 1.1))
        moved = pull - 0.05 * turned * cos / 1.1
        change = torch.stack([speed, moved, turning, turned], 1)
        self.motion, self.age = self.motion + 0.02 * change, self.age + 1
        done = (self.motion[:, 0].abs() > 2.4) | (self.motion[:, 2].abs() > 0.21) | (self.age == LIMIT)
        ages = self.age
        self.begin(done)
        return done, ages


class Agent(lp.Cell):
    """A GRU with two heads: what to do, as logits, and how much reward is to come."""

    def __init__(self, seen: int, hidden: int, actions: int) -> None:
        super().__init__(h=hidden)
        self.gru, self.actor, self.critic = nn.GRUCell(seen, hidden), nn.Linear(hidden, actions), nn.Linear(hidden, 1)

    def forward(self, x, h):
        h = self.gru(x, h)
        return (self.actor(h), self.critic(h).squeeze(1)), h


class Steps(NamedTuple):
    """What happened, (length, count) each: `resets` before a step, `done` after it."""

    seen: Tensor
    actions: Tensor
    logs: Tensor  # log probabilities of the actions
    values: Tensor
    resets: Tensor
    done: Tensor


@torch.no_grad()
def collect(net: lp.Recurrent, carts: Carts, state, begins: Tensor, settings) -> tuple[Steps, Tensor, Tensor, list]:
    """`length` steps of all carts; the state after them, which rows begin then, and the ages of ended episodes."""
    steps, ends = [], []
    for _ in range(settings.length):
        seen, resets = carts.seen(), begins | (not settings.memory)
        (logits, values), state = net.step(seen, state, reset=resets)
        chosen = Categorical(logits=logits, validate_args=False)
        actions = chosen.sample()
        done, ages = carts.step(actions)
        steps.append((seen, actions, chosen.log_prob(actions), values, resets, done))
        ends += ages[done].tolist()
        begins = done
    return Steps(*map(torch.stack, zip(*steps, strict=True))), state, begins, ends


def advantages_of(steps: Steps, next_value: Tensor) -> Tensor:
    """How much more reward came than was expected: 0.01 a step, so that a pole that never falls is worth 1."""
    found, later = [], torch.zeros_like(next_value)
    for value, done in zip(steps.values.flip(0), steps.done.flip(0), strict=True):
        surprise = 1 - DISCOUNT + DISCOUNT * next_value.masked_fill(done, 0) - value
        later = surprise + DISCOUNT * TRACE * later.masked_fill(done, 0)
        found.append(later)
        next_value = value
    return torch.stack(found).flip(0)


def update(net: lp.Recurrent, optimizer, steps: Steps, state: Tensor, advantages: Tensor, settings) -> None:
    """Some epochs over the steps, in batches of carts: whole sequences, each from the state it was collected with."""
    returns = advantages + steps.values
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
    for _ in range(settings.epochs):
        for rows in torch.randperm(settings.carts).chunk(4):
            batch = Steps(*(part[:, rows] for part in steps))
            (logits, values), _ = net(batch.seen, lp.rows(state, rows), resets=batch.resets)
            chosen = Categorical(logits=logits, validate_args=False)
            ratio = (chosen.log_prob(batch.actions) - batch.logs).exp()
            gain = torch.minimum(ratio * advantages[:, rows], ratio.clamp(0.8, 1.2) * advantages[:, rows])
            miss = (values - returns[:, rows]).square()
            loss = -gain.mean() + 2.0 * miss.mean() - 0.005 * chosen.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()


def trained(settings: argparse.Namespace, progress: Progress) -> tuple[lp.Recurrent, list[float]]:
    """The net, and how long episodes lasted, on average, during each update."""
    torch.manual_seed(settings.seed)
    net, carts = lp.Recurrent(Agent(2, settings.hidden, 2)), Carts(settings.carts)
    optimizer = torch.optim.Adam(net.parameters(), lr=settings.rate)
    slower = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=settings.updates)
    state, begins = net.initial_state(settings.carts), torch.zeros(settings.carts, dtype=torch.bool)
    name = "with memory" if settings.memory else "without"
    task = progress.add_task(f"{name:<11}", total=settings.updates, steps=math.nan)
    curve: list[float] = []
    for _ in range(settings.updates):
        before = state
        steps, state, begins, ends = collect(net, carts, state, begins, settings)
        with torch.no_grad():
            (_, next_value), _ = net.step(carts.seen(), state, reset=begins | (not settings.memory))
        update(net, optimizer, steps, before, advantages_of(steps, next_value), settings)
        slower.step()
        curve.append(sum(ends) / len(ends) if ends else (curve or [0.0])[-1])
        progress.update(task, advance=1, steps=curve[-1])
    return net, curve


@torch.no_grad()
def tested(net: lp.Recurrent, settings: argparse.Namespace) -> tuple[float, Tensor]:
    """How long the likeliest actions keep a pole up, on average, from new beginnings; and one episode, (steps, 4)."""
    carts = Carts(256)
    state, up, motions = net.initial_state(256), torch.ones(256, dtype=torch.bool), []
    steps = torch.zeros(256)
    for _ in range(LIMIT):
        motions.append(carts.motion[0])
        (logits, _), state = net.step(carts.seen(), state, reset=None if settings.memory else torch.ones_like(up))
        done, _ = carts.step(logits.argmax(1))
        steps += up
        up &= ~done
    return steps.mean().item(), torch.stack(motions)[: int(steps[0])]


def plot(path: str, curves: dict[str, list[float]], motions: dict[str, Tensor], per_update: int) -> None:
    """Left, how long episodes lasted while it learned; right, one episode of each policy after that."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subfigures(1, 2)
    learned, (angle, place) = left.subplots(), right.subplots(2, 1, sharex=True)
    for (name, curve), motion, colour in zip(curves.items(), motions.values(), ("tab:red", "black"), strict=True):
        learned.plot([per_update * (update + 1) for update in range(len(curve))], curve, color=colour, label=name)
        angle.plot(motion[:, 2].rad2deg(), color=colour, linewidth=0.9)
        place.plot(motion[:, 0], color=colour, linewidth=0.9)
        place.plot(len(motion) - 1, motion[-1, 0], "o" if len(motion) == LIMIT else "x", color=colour)
    learned.set(xlabel="steps of the environment", ylabel="mean length of an episode", ylim=(0, 1.05 * LIMIT))
    learned.legend(loc="center right", frameon=False)
    angle.set(ylabel="angle in degrees; seen", ylim=(-13, 13), title="one episode each; a cross is a fall")
    place.set(ylabel="place; seen", ylim=(-2.5, 2.5), xlabel="step")
    figure.savefig(path, dpi=120)


def main() -> None:
    settings = read_settings()
    console = Console(highlight=False)
    torch.set_num_threads(1)
    curves, motions = {}, {}
    table = Table("policy", "last updates", "when tested", box=box.SIMPLE_HEAD)
    columns = (*Progress.get_default_columns(), "an episode lasts {task.fields[steps]:.0f} steps")
    with Progress(*columns, console=console) as progress:
        for name, settings.memory in {"with a memory": True, "without": False}.items():
            net, curves[name] = trained(settings, progress)
            mean, motions[name] = tested(net, settings)
            last = curves[name][-5:]
            table.add_row(name, f"{sum(last) / len(last):.0f}", f"{mean:.0f}")
    console.print(f"\nHow many steps a pole stays up, of {LIMIT}, on average:", table)
    if settings.plot:
        plot(settings.plot, curves, motions, settings.carts * settings.length)
        console.print(f"plotted: {settings.plot}")


def read_settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=60, help="times that steps are collected and learned from")
    parser.add_argument("--carts", type=int, default=64, help="carts side by side")
    parser.add_argument("--length", type=int, default=64, help="steps of each cart between two updates")
    parser.add_argument("--epochs", type=int, default=4, help="times that each step is learned from")
    parser.add_argument("--hidden", type=int, default=32, help="units of the GRU")
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate of Adam; falls to a twentieth")
    parser.add_argument("--plot", help="a file for the picture, .png or .svg; needs matplotlib")
    parser.add_argument("--seed", type=int, default=0, help="of weights, carts and actions")
    return parser.parse_args()


if __name__ == "__main__":
    main()
