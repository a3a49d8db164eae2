"""`Training`: the loop that trains a language model, as a stream of events.

    for each epoch, for each window:  update the parameters;  now and then measure, validate, sample, save

The caller shows the events as they come. Clocks decide when something is measured or saved, never what is learnt,
except by a time limit.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leporello.errors import FileMismatch
from leporello.language.config import Config
from leporello.language.model.language_model import LanguageModel
from leporello.language.model.network import network_of
from leporello.language.model.perplexity import perplexity_of, perplexity_of_loss
from leporello.language.run.checkpoint_file import (
    load_process,
    load_training,
    process_tensors,
    tensors_below,
    training_tensors,
    write_checkpoint,
)
from leporello.language.run.folder import Run, errors_name_checkpoint
from leporello.language.run.metrics import MetricsFile, TensorBoardWriter, tensorboard_writer
from leporello.language.tokens.corpus import Corpus
from leporello.language.training.batches import Batches
from leporello.language.training.distributed import Ranks, device_of
from leporello.language.training.progress import Progress, Tally
from leporello.language.training.teacher_forcing import forcing_of
from leporello.language.training.update import Updater
from leporello.loop.state import detach

Event = dict[str, Any]

MIN_UPDATES_BETWEEN_VALIDATIONS = 100  # where epochs are shorter
SECONDS_BETWEEN_LINES = 1.0  # of metrics
SAMPLE_TOKENS = 200


class Training:
    """A training run.

    config   how to train
    corpus   the text as tokens
    run      the folder to write into; None: nothing is written
    ranks    the processes that train together
    """

    def __init__(self, config: Config, corpus: Corpus, run: Run | None = None, ranks: Ranks = Ranks()) -> None:  # noqa: B008
        self.config, self.corpus, self.run, self.ranks = config, corpus, run, ranks
        self.device = device_of(config.device)
        self.net = network_of(config, corpus.tokenizer.size).to(self.device)
        self.model = LanguageModel(self.net, corpus.tokenizer, config)
        self.updater = Updater(self.net, ranks.data_parallel(self.net, self.device), config, self.device)
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
        self.has_feedback = self.net.feedback_leaf() is not None
        self.evaluate_every = config.evaluate_every or max(self.batches.updates, MIN_UPDATES_BETWEEN_VALIDATIONS)
        self.progress, self.tally = Progress(), Tally()
        self.state: Any = None
        self.metrics: MetricsFile | None = None
        self.tensorboard: TensorBoardWriter | None = None
        self.metrics_bytes = 0  # at the last checkpoint
        self.saved_update: int | None = None  # of the last checkpoint
        self.interrupted = False
        torch.manual_seed(config.seed + ranks.rank)

    def stop(self) -> None:
        """End after the current update, with a checkpoint."""
        self.interrupted = True

    def leave(self) -> None:
        """Leave the other processes, if there are any. The network stays usable."""
        self.updater.data_parallel = self.net  # the wrapper holds the process group
        self.ranks.leave()

    def events(self) -> Iterator[Event]:
        """Train to the end, and yield what happens as dicts: their "kind" is train, validation, sample or end."""
        if self.run is None or not self.ranks.is_main:
            yield from self._events()
            return
        with ExitStack() as files:
            self.tensorboard = tensorboard_writer(self.config, self.run.path, self.progress.update)
            if self.tensorboard is not None:
                files.callback(self.tensorboard.close)
            self.metrics = files.enter_context(MetricsFile(self.run.metrics_file, self.metrics_bytes))
            yield from self._events()

    def _events(self) -> Iterator[Event]:
        """The training loop. The main process decides for all what is due after an update."""
        progress, start = self.progress, time.monotonic() - self.progress.seconds
        last_line = last_save = last_sample = time.monotonic()
        self.tally = Tally()
        self.net.train()
        if self.run and not self.run.last_file.is_file():
            self.save()  # from now on the run can be resumed
        while progress.ended is None:
            for window in self.batches.epoch(progress.epoch, progress.position):
                self._update(window.to(self.device))
                now = time.monotonic()
                progress.seconds = now - start
                due = [
                    now - last_line > SECONDS_BETWEEN_LINES,
                    0 < self.config.sample_every < now - last_sample,
                    now - last_save > self.config.save_every,
                    self.interrupted,
                    bool(progress.over(self.config)),
                ]
                line, sample, save, stop, over, progress.seconds = self.ranks.broadcast([*due, progress.seconds])
                self.interrupted, over = bool(stop), over or stop
                if line:
                    yield self._measured()
                    last_line = time.monotonic()
                if progress.update - progress.evaluated >= self.evaluate_every:
                    yield from self._validated()
                if sample and not over:
                    yield self._sampled()
                    last_sample = time.monotonic()
                if save:
                    self.save()
                    last_save = time.monotonic()
                if over:
                    break
            self._end_epoch()
            if self.interrupted and progress.over(self.config) is None:
                break
            progress.ended = progress.over(self.config)
        if self.tally.updates:
            yield self._measured()
        if progress.ended and progress.evaluated != progress.update:
            yield from self._validated()
        self.save()
        yield {"kind": "end", **self._position(), "why": progress.ended or "interrupted", "best": progress.best}

    def _end_epoch(self) -> None:
        """If the last window of the epoch is done: go on with the first of the next, from the initial state."""
        if self.progress.position == self.batches.updates:
            self.progress.epoch, self.progress.position, self.state = self.progress.epoch + 1, 0, None

    def _update(self, window: Tensor) -> None:
        """Train on one window."""
        progress = self.progress
        share = progress.share(self.config, self.batches.updates)
        result = self.updater.update(
            window,
            self.state,
            progress=share,
            forcing=self.forcing(share) if self.has_feedback else None,
            number=progress.update,
        )
        self.state = detach(result.state) if self.batches.continues else None
        tokens = window[1:].numel()
        progress.update += 1
        progress.position += 1
        progress.tokens += tokens * self.ranks.count
        self.tally.add(result.loss, tokens, result.norm, 0 < self.config.clip_norm < result.norm)

    def _position(self) -> Event:
        """How far the training has come, for an event."""
        done = self.progress.epoch + self.progress.position / self.batches.updates
        return {
            "update": self.progress.update,
            "epoch": round(done, 4),
            "tokens": self.progress.tokens,
            "seconds": round(self.progress.seconds, 3),
        }

    def _measured(self) -> Event:
        """Write and return the means since the last line of metrics, over all processes; begin a new tally."""
        tally = self.tally
        sums = torch.tensor([tally.nats, tally.tokens], dtype=torch.float64)
        nats, tokens = self.ranks.sum(sums.to(self.device) if self.device.type == "cuda" else sums).tolist()
        tally.nats, tally.tokens = nats, int(tokens)
        part = self.corpus.train
        line = {
            "kind": "train",
            **self._position(),
            **tally.line(part.characters / len(part.tokens)),
            "rate": self.updater.optimiser.param_groups[0]["lr"],
        }
        self.tally = Tally()
        return self._write(line)

    def _validated(self) -> Iterator[Event]:
        """Measure the validation part, and yield one event; none if there is no such part.

        The main process measures for all. The best network so far becomes a checkpoint.
        """
        progress, part = self.progress, self.corpus.validation
        progress.evaluated = progress.update
        if part is None:
            return
        loss = 0.0
        if self.ranks.is_main:
            self.model.forced = self.forced
            loss = perplexity_of(self.model.scorer(), part.tokens).loss
        (loss,) = self.ranks.broadcast([loss])
        better = progress.best is None or loss < progress.best
        progress.best, progress.stale = (loss, 0) if better else (progress.best, progress.stale + 1)
        predicted = len(part.tokens) - 1
        line = {
            "kind": "validation",
            **self._position(),
            "loss": loss,
            "perplexity": perplexity_of_loss(loss),
            "bits_per_character": loss / math.log(2) * predicted / (part.characters - part.first_characters),
            "unknown": part.unknown / len(part.tokens),
            "best": better,
        }
        yield self._write(line)
        if better and self.run:
            self._checkpoint(self.run.best_file)

    @property
    def forced(self) -> bool:
        """Whether true tokens are fed back in validation: if they are in at least half of the steps of training now."""
        return self.forcing(self.progress.share(self.config, self.batches.updates)) >= 0.5

    def _sampled(self) -> Event:
        """A text that the network generates now; "" in all processes but the main one."""
        text = self.model.generate(length=SAMPLE_TOKENS, seed=self.progress.update) if self.ranks.is_main else ""
        return self._write({"kind": "sample", **self._position(), "text": text})

    def _write(self, line: Event) -> Event:
        """Write a line of metrics to the files that there are, and return it."""
        if self.metrics is not None:
            with errors_name_checkpoint(self.run, self.saved_update):
                self.metrics.write(line)
        if self.tensorboard is not None:
            self.tensorboard.write(line)
        return line

    def save(self) -> None:
        """Write the checkpoint from which the run resumes bit for bit; nothing without a folder."""
        if self.run is not None:
            self._checkpoint(self.run.last_file)
            self.saved_update = self.progress.update

    def _checkpoint(self, path: Path) -> None:
        """Write a checkpoint. All processes take part; the main one writes."""
        processes = self.ranks.gather(process_tensors(self.state, self.device))
        if not self.ranks.is_main:
            return
        with errors_name_checkpoint(self.run, self.saved_update):
            if self.metrics is not None:
                self.metrics_bytes = self.metrics.sync()
            facts = {
                "progress": dataclasses.asdict(self.progress),
                "metrics": self.metrics_bytes,
                "ranks": self.ranks.count,
                "forced": self.forced,
                "text": self.corpus.digest,
            }
            write_checkpoint(path, training_tensors(self.net, self.updater.optimiser, processes), facts)

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Continue from the tensors and facts of `read_checkpoint`; another number of processes is refused."""
        if facts["ranks"] != self.ranks.count:
            raise FileMismatch(
                "the run has another number of processes.",
                came=self.ranks.count,
                expected=facts["ranks"],
                tries=f"torchrun --nproc-per-node {facts['ranks']} -m leporello resume ...",
            )
        load_training(self.net, self.updater.optimiser, tensors)
        process = tensors_below(tensors, f"rank.{self.ranks.rank}")
        self.state = load_process(process, self.net, self.config.batch, self.device)
        self.progress = Progress(**facts["progress"])
        self.saved_update = self.progress.update
        self.metrics_bytes = facts["metrics"]
