"""A classifier of sequences trained by Lightning: early stopping, checkpoints, resuming, and 16 bits.

Words of the embedded Reber grammar (Hochreiter and Schmidhuber 1997): after the first letter comes a T or a P, then a
word of any length from a small grammar, and then the T or P from the beginning again. In half of the words it is the
other one, and the net has to tell them apart: it must carry one letter over the whole word. `lp.Summary` reads each
word to its own end.

    pip install lightning
    python examples/06_lightning.py --epochs 3         # stopped early by hand ...
    python examples/06_lightning.py --resume           # ... and gone on with, as if it had never stopped
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, RichModelSummary, RichProgressBar
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leporello as lp

LETTERS = "BTPSXVE"
# from each place of Reber's grammar: two letters, each with the place behind it; 5 is the end
GRAMMAR = [("T", 1, "P", 2), ("S", 1, "X", 3), ("T", 2, "V", 4), ("X", 2, "S", 5), ("P", 3, "V", 5)]


def word(random: torch.Generator, right: bool) -> str:
    """An embedded word, whose last letter but one is the second, if it is a right one."""
    place, inner = 0, "B"
    while place != 5:
        way = 2 * int(torch.randint(2, (), generator=random))
        letter, place = GRAMMAR[place][way : way + 2]
        inner += letter
    second = "TP"[int(torch.randint(2, (), generator=random))]
    return f"B{second}{inner}E{second if right else 'TP'.replace(second, '')}E"


def words(count: int, seed: int) -> TensorDataset:
    """Letters as numbers, (count, longest), padded with zeros; lengths; and which words are right."""
    random = torch.Generator().manual_seed(seed)
    right = torch.randint(2, (count,), generator=random)
    spelled = [torch.tensor([LETTERS.index(letter) for letter in word(random, bool(one))]) for one in right]
    lengths = torch.tensor([len(letters) for letters in spelled])
    return TensorDataset(nn.utils.rnn.pad_sequence(spelled, batch_first=True), lengths, right)


class Classifier(lightning.LightningModule):
    """Letters, embedded; a GRU; a decision on the output at each word's own end."""

    def __init__(self, hidden: int = 32, rate: float = 5e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(len(LETTERS), 8)
        self.read = lp.Summary(lp.GRU(8, hidden), nn.Linear(hidden, 2), batch_first=True)
        self.example_input_array = torch.zeros(4, 9, dtype=torch.long), torch.tensor([9, 1, 7, 5])  # for the summary

    def forward(self, letters: Tensor, lengths: Tensor) -> Tensor:
        decisions, _ = self.read(self.embed(letters), lengths=lengths)
        return decisions

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        letters, lengths, right = batch
        loss = nn.functional.cross_entropy(self(letters, lengths), right)
        self.log("loss", loss, prog_bar=True, on_step=False, on_epoch=True, batch_size=len(right))
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        letters, lengths, right = batch
        decisions = self(letters, lengths)
        self.log("val_loss", nn.functional.cross_entropy(decisions, right), prog_bar=True, batch_size=len(right))
        self.log("val_right", (decisions.argmax(1) == right).float().mean(), prog_bar=True, batch_size=len(right))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.hparams.rate)


class Shuffled(torch.utils.data.Sampler):
    """Every epoch in an order of its own, which does not depend on when training began or was resumed."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed, self.epoch = count, seed, 0

    def set_epoch(self, epoch: int) -> None:  # Lightning calls it
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        random = torch.Generator().manual_seed(1_000_003 * self.seed + self.epoch)
        return iter(torch.randperm(self.count, generator=random).tolist())


def plot(path: str, log: Path) -> None:
    """The losses of all runs in a log, a colour a run: training dotted, words to check with solid."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    runs = sorted(log.glob("version_*/metrics.csv"), key=lambda file: int(file.parent.name.split("_")[1]))
    for number, file in enumerate(runs):
        with open(file, newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        for column, style in (("loss", ":"), ("val_loss", "-")):
            epochs, losses = zip(*((int(row["epoch"]), float(row[column])) for row in rows if row[column]), strict=True)
            axes.plot(epochs, losses, style, color=f"C{number}", marker=".", label=f"run {number + 1}, {column}")
    axes.set(xlabel="epoch", ylabel="cross-entropy", ylim=(0, None))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    settings = read_settings()
    lightning.seed_everything(settings.seed, verbose=False)
    torch.set_num_threads(1)
    learn, check = words(settings.words, settings.seed), words(settings.words // 4, settings.seed + 1)
    best = ModelCheckpoint(settings.out, "best", monitor="val_loss", save_last=True, enable_version_counter=False)
    trainer = lightning.Trainer(
        max_epochs=settings.epochs,
        precision=settings.precision,
        gradient_clip_val=1.0,
        callbacks=[
            EarlyStopping("val_loss", patience=settings.patience, min_delta=1e-3),
            best,
            RichModelSummary(max_depth=3),
            RichProgressBar(leave=True),
        ],
        logger=CSVLogger(settings.out, name="log"),
        log_every_n_steps=10,
        num_sanity_val_steps=0,
    )
    last = Path(settings.out) / "last.ckpt"
    if settings.resume and not last.exists():
        raise SystemExit(f"{last} is not there; train first, without --resume")
    trainer.fit(
        Classifier(settings.hidden, settings.rate),
        DataLoader(learn, 64, sampler=Shuffled(len(learn), settings.seed)),
        DataLoader(check, 512),
        ckpt_path=last if settings.resume else None,
    )
    net = Classifier.load_from_checkpoint(best.best_model_path).eval()
    letters, lengths, right = words(2000, settings.seed + 2).tensors
    with torch.no_grad():
        found = net(letters, lengths).argmax(1) == right
    print(f"{trainer.current_epoch} epochs; best: {best.best_model_path}")
    long = found[lengths > 20]
    print(f"right of new words: {found.float().mean():.1%}; of those over 20 letters: {long.float().mean():.1%}")
    if settings.plot:
        plot(settings.plot, Path(settings.out) / "log")
        print(f"plotted: {settings.plot}")


def read_settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=30, help="at most; early stopping may end it before")
    parser.add_argument("--patience", type=int, default=5, help="epochs without a better loss, after which it stops")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    parser.add_argument("--precision", default="bf16-mixed", help="32, bf16-mixed, or on a GPU 16-mixed")
    parser.add_argument("--words", type=int, default=2000, help="to learn from; a quarter as many to check")
    parser.add_argument("--hidden", type=int, default=32, help="units of the GRU")
    parser.add_argument("--rate", type=float, default=5e-3, help="learning rate of Adam")
    parser.add_argument("--out", default="runs/lightning", help="a folder for checkpoints and the log")
    parser.add_argument("--plot", help="a file for the picture of the losses, .png or .svg; needs matplotlib")
    parser.add_argument("--seed", type=int, default=0, help="of weights, words and their order")
    return parser.parse_args()


if __name__ == "__main__":
    main()
