"""A net learns the sound of an overdriven amplifier, a sample a step, and runs in C at many times real time.

The amplifier is a filter, a stage that saturates, and a supply that sags while it is loud: what it does to a sample
depends on what came before. The net hears what goes in and what should come out, 48,000 numbers a second. Then it is
exported to C, a program plays a melody through it, and the clock says how many times faster than real time that was.

    python examples/07_audio_in_c.py --help
"""

from __future__ import annotations

import argparse
import subprocess
import wave
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

import leporello as lp
from leporello.engine.cpu.build import compiler

RATE = 48_000  # samples a second
PLAYER = """
#include "amplifier.h"
#include <stdio.h>
#include <time.h>

static struct amplifier m;

int main(void) { /* 32-bit floats from in.raw to out.raw, a sample a step; prints the nanoseconds of a step */
    FILE *in = fopen("in.raw", "rb"), *out = fopen("out.raw", "wb");
    float x, y;
    long samples = 0;
    double seconds = 0;
    if (!in || !out) return 1;
    amplifier_reset(&m);
    while (fread(&x, sizeof x, 1, in) == 1) {
        struct timespec begin, end;
        if (samples % 256 == 0) timespec_get(&begin, TIME_UTC);
        amplifier_step(&m, &x, &y);
        if (samples % 256 == 0) {
            timespec_get(&end, TIME_UTC);
            seconds += (end.tv_sec - begin.tv_sec) + 1e-9 * (end.tv_nsec - begin.tv_nsec);
        }
        samples++;
        fwrite(&y, sizeof y, 1, out);
    }
    printf("%.1f\\n", 1e9 * seconds / ((samples + 255) / 256));
    return fclose(in) || fclose(out);
}
"""


class Amplifier(lp.Cell):
    """z = sigmoid(A x + B h);  h' = z h + (1 - z) tanh(C x + D h);  y = V h' + x."""

    def __init__(self, hidden: int) -> None:
        super().__init__(h=hidden)
        self.A, self.C = nn.Linear(1, hidden), nn.Linear(1, hidden)
        self.B, self.D = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.V = nn.Linear(hidden, 1)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.sigmoid(self.A(x) + self.B(h))
        h = z * h + (1 - z) * torch.tanh(self.C(x) + self.D(h))
        return self.V(h) + x, h


def amplified(dry: Tensor) -> Tensor:
    """What the amplifier makes of samples [length, batch]."""
    low, sag = torch.zeros_like(dry[0]), torch.zeros_like(dry[0])
    samples = []
    for x in dry:
        low = low + 0.4 * (x - low)
        sag = sag + 0.01 * (low.abs() - sag)
        samples.append(torch.tanh(4 * low / (1 + 2 * sag)) * 0.7)
    return torch.stack(samples)


def notes(length: int, batch: int) -> Tensor:
    """Plucked strings of random pitch and loudness, [length, batch]."""
    time = torch.arange(length)[:, None] / RATE
    pitch, loudness = 80 * 2 ** (4 * torch.rand(batch)), torch.rand(batch)
    partials = [torch.sin(2 * torch.pi * pitch * k * time + 6.3 * torch.rand(batch)) / k for k in (1, 2, 3, 5)]
    return sum(partials, torch.zeros(())) * loudness * torch.exp(-4 * time)


def melody(seconds: float) -> Tensor:
    """The samples of a few notes one after another."""
    count = max(1, round(4 * seconds))
    return notes(int(seconds * RATE) // count, count).T.flatten()


def write_wave(path: Path, samples: Tensor) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples.clamp(-1, 1) * 32767).short().numpy().tobytes())


def main() -> None:
    settings = read_settings()
    console = Console(highlight=False)
    torch.manual_seed(0)
    net = lp.Recurrent(Amplifier(settings.hidden))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in track(range(settings.updates), "training", console=console):
        dry = notes(settings.length, 32)
        wet, heard = amplified(dry), net(dry[..., None])[0][..., 0]
        loss = (heard - wet)[100:].square().mean() / wet[100:].square().mean()  # the first samples warm it up
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    console.print(f"error {100 * loss.item():.2f} % of the signal's energy")

    folder = Path(settings.folder)
    folder.mkdir(exist_ok=True)
    dry = melody(settings.seconds)
    report = lp.export(net, folder / "amplifier.c", example=dry[:2000, None, None])
    console.print(str(report), soft_wrap=True)
    (folder / "player.c").write_text(PLAYER)
    dry.numpy().tofile(folder / "in.raw")
    sources = ["player.c", "amplifier.c"]
    subprocess.run([str(compiler()), "-O3", "-march=native", "-o", "player", *sources, "-lm"], cwd=folder, check=True)
    done = subprocess.run(["./player"], cwd=folder, check=True, capture_output=True, text=True)
    with torch.no_grad():
        wanted = net(dry[:, None, None])[0][:, 0, 0]
    played = torch.frombuffer(bytearray((folder / "out.raw").read_bytes()), dtype=torch.float32)
    for name, samples in (("dry", dry), ("wet", played)):
        write_wave(folder / f"{name}.wav", samples)
    nanoseconds = float(done.stdout)
    console.print(f"a step takes {nanoseconds:.0f} ns: {1e9 / RATE / nanoseconds:.0f} times real time at {RATE:,} Hz")
    console.print(
        f"largest difference from the net {(played - wanted).abs().max():.1e}; listen to {folder / 'wet.wav'}"
    )


def read_settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=16, help="numbers of the state")
    parser.add_argument("--updates", type=int, default=300, help="of the training")
    parser.add_argument("--length", type=int, default=500, help="samples of a training sequence, above 100")
    parser.add_argument("--seconds", type=float, default=4.0, help="of the melody")
    parser.add_argument("--folder", default="amplifier", help="where the C and the sounds are written")
    return parser.parse_args()


if __name__ == "__main__":
    main()
