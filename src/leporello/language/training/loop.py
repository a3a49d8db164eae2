"""`Training`: the loop that trains a language model, as a stream of events.

    for each epoch, for each window:  scores = net(tokens);  loss;  gradient;  clip;  update

Knows networks, windows and checkpoints; knows nothing of terminals: whoever runs it shows the events as they come.
Clocks decide when something is said or saved, never what is learnt; only a time budget does.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leporello.errors import FileMismatch
from leporello.language.config import Config
from leporello.language.model.language_model import LanguageModel
from leporello.language.model.network import network_of
from leporello.language.model.perplexity import perplexity_of
from leporello.language.run.checkpoint import of_all, of_one_process, part, put_back, state_again, write_checkpoint
from leporello.language.run.folder import Metrics, Run, keeping
from leporello.language.run.metrics import Board, board_of
from leporello.language.tokens.corpus import Corpus
from leporello.language.training.batches import Batches
from leporello.language.training.distributed import Ranks, device_of
from leporello.language.training.progress import Progress, Tally, perplexity
from leporello.language.training.teacher_forcing import forcing_of
from leporello.language.training.update import optimiser_of, rate_at, refuse_not_finite
from leporello.loop.state import detach
from leporello.modules.finite import Origin, first_not_finite

Event = dict[str, Any]

FEWEST = 100  # updates between validations, where epochs are shorter
SAID = 1.0  # seconds between lines of metrics


class Training:
    """A run in the making.

    config   what is asked for
    corpus   the text as tokens
    run      the folder to write into; None: nothing is written
    ranks    the processes that take part
    """

    def __init__(self, config: Config, corpus: Corpus, run: Run | None = None, ranks: Ranks = Ranks()) -> None:  # noqa: B008
        self.config, self.corpus, self.run, self.ranks = config, corpus, run, ranks
        self.device = device_of(config.device)
        self.net = network_of(config, corpus.tokenizer.size).to(self.device)
        self.model = LanguageModel(self.net, corpus.tokenizer, config)
        self.parameters = [value for value in self.net.parameters() if value.requires_grad]
        self.optimiser = optimiser_of(config, self.parameters)
        self.wrapped: nn.Module = ranks.wrapped(self.net, self.device)
        self.batches = Batches(
            corpus.train.tokens,
            config.batch,
            config.window,
            partition=config.partition,
            seed=config.seed,
            rank=ranks.rank,
            ranks=ranks.count,
        )
        self.forcing = forcing_of(config.forcing)
        self.fed = self.net.feedback_leaf() is not None
        self.every = config.evaluate_every or max(self.batches.updates, FEWEST)
        self.progress, self.tally = Progress(), Tally()
        self.state: Any = None
        self.metrics: Metrics | None = None
        self.board: Board | None = None
        self.written = 0  # bytes of metrics that count
        self.saved: int | None = None  # the update of the last checkpoint
        self.interrupted = False
        torch.manual_seed(config.seed + ranks.rank)

    def stop(self) -> None:
        """End after the present update, with a checkpoint."""
        self.interrupted = True

    def leave(self) -> None:
        """Take no further part, where several processes do; the network stays."""
        self.wrapped = self.net  # what wraps it holds the group of processes, which ends without it
        self.ranks.leave()

    def events(self) -> Iterator[Event]:
        """Train to the end; what happens on the way."""
        if self.run is None or not self.ranks.leads:
            yield from self._events()
            return
        with ExitStack() as files:
            self.board = board_of(self.config, self.run, self.progress.update)
            if self.board is not None:
                files.callback(self.board.close)
            self.metrics = files.enter_context(Metrics(self.run.metrics_file, self.written))
            yield from self._events()

    def _events(self) -> Iterator[Event]:
        progress, begun = self.progress, time.monotonic() - self.progress.seconds
        said = saved = sampled = time.monotonic()
        self.tally = Tally()
        self.net.train()
        if self.run and not self.run.last_file.is_file():
            self.save()  # from here on a run can be resumed
        while progress.ended is None:
            for window in self.batches.epoch(progress.epoch, progress.position):
                self._update(window.to(self.device))
                now = time.monotonic()
                progress.seconds = now - begun
                due = [
                    now - said > SAID,
                    0 < self.config.sample_every < now - sampled,
                    now - saved > self.config.save_every,
                    self.interrupted,
                    bool(progress.over(self.config)),
                ]
                say, sample, save, stop, over, progress.seconds = self.ranks.told([*due, progress.seconds])
                self.interrupted, over = bool(stop), over or stop
                if say:
                    yield self._line()
                    said = time.monotonic()
                if progress.update - progress.evaluated >= self.every:
                    yield from self._validated()
                if sample and not over:
                    yield self._sample()
                    sampled = time.monotonic()
                if save:
                    self.save()
                    saved = time.monotonic()
                if over:
                    break
            self._turn_page()
            if self.interrupted and progress.over(self.config) is None:
                break
            progress.ended = progress.over(self.config)
        if self.tally.updates:
            yield self._line()
        if progress.ended and progress.evaluated != progress.update:
            yield from self._validated()
        self.save()
        yield {"kind": "end", **self._now(), "why": progress.ended or "interrupted", "best": progress.best}

    def _turn_page(self) -> None:
        """After the last window of an epoch comes the first of the next, from the initial state."""
        if self.progress.position == self.batches.updates:
            self.progress.epoch, self.progress.position, self.state = self.progress.epoch + 1, 0, None

    def _update(self, window: Tensor) -> None:
        """One change of the parameters."""
        config, progress = self.config, self.progress
        inputs, targets = window[:-1], window[1:]
        share = progress.share(config, self.batches.updates)
        for group in self.optimiser.param_groups:
            group["lr"] = rate_at(config, share)
        own = {"targets": targets, "forcing": self.forcing(share)} if self.fed else {}
        with self._precision():
            scores, state = self.wrapped(inputs, self.state, **own)
            loss = cross_entropy(scores, targets)
        self.optimiser.zero_grad()
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(self.parameters, config.clip_norm or math.inf))
        value = float(loss.detach())
        for number, what in ((value, "the loss"), (norm, "the norm of the gradient")):
            refuse_not_finite(number, what, lambda: self._first(inputs, targets, own), update=progress.update)
        self.optimiser.step()
        self.state = detach(state) if self.batches.continues else None
        progress.update += 1
        progress.position += 1
        progress.tokens += targets.numel() * self.ranks.count
        self.tally.add(value, targets.numel(), norm, 0 < config.clip_norm < norm)

    def _first(self, inputs: Tensor, targets: Tensor, own: dict[str, Any]) -> Origin | None:
        """Where a number that is not finite appeared first."""
        return first_not_finite(
            self.net, inputs, self.state, loss=cross_entropy, targets=targets, forcing=own.get("forcing")
        )

    def _precision(self) -> AbstractContextManager[Any]:
        if self.config.precision == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    def _now(self) -> Event:
        done = self.progress.epoch + self.progress.position / self.batches.updates
        return {
            "update": self.progress.update,
            "epoch": round(done, 4),
            "tokens": self.progress.tokens,
            "seconds": round(self.progress.seconds, 3),
        }

    def _line(self) -> Event:
        """What was measured since the last one."""
        tally = self.tally
        sums = torch.tensor([tally.nats, tally.tokens], dtype=torch.float64)
        nats, tokens = self.ranks.summed(sums.to(self.device) if self.device.type == "cuda" else sums).tolist()
        tally.nats, tally.tokens = nats, int(tokens)
        part = self.corpus.train
        line = {
            "kind": "train",
            **self._now(),
            **tally.line(part.characters / len(part.tokens)),
            "rate": self.optimiser.param_groups[0]["lr"],
        }
        self.tally = Tally()
        return self._written(line)

    def _validated(self) -> Iterator[Event]:
        """The surprise of the part that is never trained on; the best net so far is kept."""
        progress, part = self.progress, self.corpus.validation
        progress.evaluated = progress.update
        if part is None:
            return
        loss = 0.0
        if self.ranks.leads:
            self.model.forced = self.forced
            loss = perplexity_of(self.model.scorer(), part.tokens).loss
        (loss,) = self.ranks.told([loss])
        better = progress.best is None or loss < progress.best
        progress.best, progress.stale = (loss, 0) if better else (progress.best, progress.stale + 1)
        predicted = len(part.tokens) - 1
        line = {
            "kind": "validation",
            **self._now(),
            "loss": loss,
            "perplexity": perplexity(loss),
            "bits_per_character": loss / math.log(2) * predicted / (part.characters - part.first_characters),
            "unknown": part.unknown / len(part.tokens),
            "best": better,
        }
        yield self._written(line)
        if better and self.run:
            self._checkpoint(self.run.best_file)

    @property
    def forced(self) -> bool:
        """Whether true tokens are fed back when the net is judged: if they mostly were when it was trained last."""
        return self.forcing(self.progress.share(self.config, self.batches.updates)) >= 0.5

    def _sample(self) -> Event:
        text = self.model.generate(length=200, seed=self.progress.update) if self.ranks.leads else ""
        return self._written({"kind": "sample", **self._now(), "text": text})

    def _written(self, line: Event) -> Event:
        if self.metrics is not None:
            with keeping(self.run, self.saved):
                self.metrics.write(line)
        if self.board is not None:
            self.board.write(line)
        return line

    def save(self) -> None:
        """A checkpoint from which the run goes on as if it had never stopped."""
        if self.run is not None:
            self._checkpoint(self.run.last_file)
            self.saved = self.progress.update

    def _checkpoint(self, path: Path) -> None:
        everyone = self.ranks.gathered(of_one_process(self.state, self.device))
        if not self.ranks.leads:
            return
        with keeping(self.run, self.saved):
            if self.metrics is not None:
                self.written = self.metrics.synced()
            facts = {
                "progress": dataclasses.asdict(self.progress),
                "metrics": self.written,
                "ranks": self.ranks.count,
                "forced": self.forced,
                "text": self.corpus.digest,
            }
            write_checkpoint(path, of_all(self.net, self.optimiser, everyone), facts)

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Stand where a checkpoint was written."""
        if facts["ranks"] != self.ranks.count:
            raise FileMismatch(
                "the run has another number of processes.",
                came=self.ranks.count,
                expected=facts["ranks"],
                tries=f"torchrun --nproc-per-node {facts['ranks']} -m leporello resume ...",
            )
        put_back(self.net, self.optimiser, tensors)
        self.state = state_again(part(tensors, f"rank.{self.ranks.rank}"), self.net, self.config.batch, self.device)
        self.progress = Progress(**facts["progress"])
        self.saved = self.progress.update
        self.written = facts["metrics"]


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """The mean surprise of the targets, in nats."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())
