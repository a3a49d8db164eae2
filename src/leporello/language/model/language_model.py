"""`LanguageModel`: a trained network with its tokenizer, which scores texts and generates them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leporello.errors import ArgumentError
from leporello.language.config import Config
from leporello.language.model.network import network_of
from leporello.language.model.perplexity import perplexity_of
from leporello.language.run.checkpoint_file import load_network, read_checkpoint, write_checkpoint
from leporello.language.run.folder import Run
from leporello.language.text.normalise import normalised
from leporello.language.tokens.tokenizer import Tokenizer
from leporello.language.tokens.vocabulary import read_vocabulary, write_vocabulary
from leporello.nets.generate import Choosing, generate
from leporello.nets.recurrent import Recurrent
from leporello.text_table import html_text

TOKENS_PER_PIECE = 256  # generated in one call, in some milliseconds
TOKENS_PER_SCORING_CALL = 4096


@dataclass(frozen=True)
class Evaluation:
    """How well a text is predicted. Its first token is read, not predicted: it counts among the unknown ones alone.

    tokens           the number of predicted tokens
    unknown          share of tokens outside the vocabulary
    unknown_tokens   their number
    """

    perplexity: float
    bits_per_character: float
    bits_per_byte: float
    tokens: int
    unknown: float
    unknown_tokens: int


class LanguageModel:
    """A network that predicts the next token of a text.

    net         an lp.Recurrent: class indices in, scores (logits) out
    tokenizer   turns text into class indices and back
    config      that it was trained with; `normalise` is applied to every text
    forced      for a net with feedback: whether true tokens are fed back instead of its own scores

    >>> model = LanguageModel.load("runs/shakespeare")   # doctest: +SKIP
    >>> model.generate("ROMEO:", length=300, temperature=0.8)   # doctest: +SKIP
    """

    def __init__(self, net: Recurrent, tokenizer: Tokenizer, config: Config, forced: bool = True) -> None:
        self.net, self.tokenizer, self.config, self.forced = net, tokenizer, config, forced

    def __repr__(self) -> str:
        return f"LanguageModel({self.tokenizer.size} tokens, {type(self.tokenizer).__name__})\n{self.net!r}"

    def _repr_html_(self) -> str:
        return html_text(repr(self).split("\n")[0]) + self.net._repr_html_()

    @classmethod
    def load(cls, run: str | Path, which: str = "best") -> LanguageModel:
        """The model of a run folder, its network in eval().

        which   the checkpoint; "best": that of the best validation, or the last one where there is none; "last"
        """
        if which not in ("best", "last"):
            raise ArgumentError("'which' names no checkpoint.", came=repr(which), expected="'best' or 'last'")
        opened = Run.open(run)
        config = opened.config()
        opened.data()  # refuses a folder of another version
        tokenizer = read_vocabulary(opened.vocabulary_file)
        file = opened.best_file if which == "best" and opened.best_file.is_file() else opened.last_file
        tensors, facts = read_checkpoint(file)
        net = network_of(config, tokenizer.size)
        load_network(net, tensors)
        net.eval()
        return cls(net, tokenizer, config, facts["forced"])

    def scorer(self) -> NetworkScorer:
        """A `NetworkScorer` of this network, for `perplexity_of`."""
        return NetworkScorer(self.net, self.forced)

    def perplexity(self, text: str) -> float:
        """exp of the mean surprise of the text's tokens, each given all before it."""
        return self.evaluate(text).perplexity

    def evaluate(self, text: str) -> Evaluation:
        """Perplexity and bits per character of a text; one of fewer than two tokens is refused."""
        text = self._normalised(text)
        tokens = self.tokenizer.encode(text).long()
        if len(tokens) < 2:
            raise ArgumentError(
                "the text is too short to predict anything.",
                came=f"{len(tokens)} token{'s'[: len(tokens) != 1]}",
                expected="2 or more",
            )
        scores = perplexity_of(self.scorer(), tokens)
        characters, size = self.tokenizer.first_token_size(int(tokens[0]), text)  # read, not predicted
        return Evaluation(
            scores.perplexity,
            scores.bits(max(1, len(text) - characters)),
            scores.bits(max(1, len(text.encode()) - size)),
            len(tokens) - 1,
            self.unknown_share(tokens),
            self.unknown_count(tokens),
        )

    def unknown_share(self, tokens: Tensor) -> float:
        """Share of tokens outside the vocabulary."""
        return self.unknown_count(tokens) / len(tokens) if len(tokens) else 0.0

    def unknown_count(self, tokens: Tensor) -> int:
        """How many tokens are outside the vocabulary."""
        return 0 if self.tokenizer.unknown is None else int((tokens == self.tokenizer.unknown).sum())

    def surprises(self, text: str) -> tuple[list[str], list[float]]:
        """Each token as its symbol, and its surprise in bits: 0 for the first, which is not predicted."""
        tokens = self._tokens(text)
        nats = torch.cat([torch.zeros(1, dtype=torch.float64), *self.scorer().surprises(tokens)])
        bits = (nats[: len(tokens)] / math.log(2)).tolist()
        return [self.tokenizer.symbol(token) for token in tokens.tolist()], bits

    def generate(self, prompt: str = "", *, length: int = 200, **options: Any) -> str:
        """The text that follows a prompt, without the prompt itself. Options are those of `generate_stream`."""
        return "".join(self.generate_stream(prompt, length=length, **options))

    def generate_stream(
        self,
        prompt: str = "",
        *,
        length: int = 200,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> Iterator[str]:
        """The text that follows a prompt, piece by piece as it is generated.

        The call itself checks the arguments and reads the prompt; iterating generates.

        prompt        "": the network reads a line end instead
        length        tokens to generate
        temperature   below 1: likelier tokens more often; 0: always the likeliest
        top_k         choose among the k likeliest tokens only
        top_p         choose among the likeliest tokens that together have this probability
        seed          the same text for the same seed; None: another one each time
        """
        if not isinstance(length, int) or length < 0:
            raise ArgumentError("'length' is no count of tokens.", came=repr(length), expected="0 or more")
        if seed is not None and not (isinstance(seed, int) and -(2**63) <= seed < 2**63):
            raise ArgumentError("'seed' is no seed.", came=repr(seed), expected="an integer of 64 bits, or None")
        Choosing(temperature, top_k, top_p)  # refuses impossible options before anything is generated
        generator = torch.Generator()
        _ = generator.seed() if seed is None else generator.manual_seed(seed)
        state, token = self._state_after(prompt)
        return self._generated(state, token, length, generator, temperature=temperature, top_k=top_k, top_p=top_p)

    def _generated(
        self, state: Any, token: Tensor, length: int, generator: torch.Generator, **options: Any
    ) -> Iterator[str]:
        """The text of `length` generated tokens, in pieces of complete characters.

        state     before the first step
        token     (1,) what the first step reads
        options   of `leporello.nets.generate.generate`
        """
        decoder = self.tokenizer.decoder()
        while length:
            steps = min(TOKENS_PER_PIECE, length)
            length -= steps
            with evaluation_mode(self.net):
                tokens, state = generate(
                    self.net, token, state, steps=steps, generator=generator, forced=self.forced, **options
                )
            token = tokens[-1]
            if text := "".join(decoder.push(id) for id in tokens[:, 0].tolist()):
                yield text
        if text := decoder.flush():
            yield text

    def _state_after(self, prompt: str) -> tuple[Any, Tensor]:
        """The state before the last token of a prompt, and that token, (1,); an empty prompt is read as a line end.

        The state is None, which stands for the initial one, if the prompt has one token.
        """
        tokens = self._tokens(prompt or "\n").to(next(self.net.parameters()).device)
        state = None
        if len(tokens) > 1:
            inputs, targets = tokens[:-1].unsqueeze(1), tokens[1:].unsqueeze(1)
            _, state = self.scorer().read(inputs, targets, None)
        return state, tokens[-1:]

    def _tokens(self, text: str) -> Tensor:
        return self.tokenizer.encode(self._normalised(text)).long()

    def _normalised(self, text: str) -> str:
        """The text, normalised as the training text was."""
        if not isinstance(text, str):
            raise ArgumentError("the text is no string.", came=type(text).__name__, expected="str")
        return "".join(normalised([text], self.config.normalise))

    def save(self, folder: str | Path) -> None:
        """Write the model into a new folder, for `load`: as the best checkpoint of a run without its text."""
        run = Run.create(Path(folder), self.config)
        write_vocabulary(self.tokenizer, run.vocabulary_file)
        run.write_data({"corpus": None})
        tensors = {f"net.{name}": value for name, value in self.net.state_dict().items()}
        write_checkpoint(run.best_file, tensors, {"forced": self.forced})


class NetworkScorer:
    """The surprise -ln p of each token of a text under a network, whose state is carried from first to last.

    forced   for a net with feedback: whether true tokens are fed back instead of its own scores
    """

    def __init__(self, net: Recurrent, forced: bool = False) -> None:
        self.net = net
        self.forced = forced and net.feedback_leaf() is not None
        self.device = next(net.parameters()).device

    def surprises(self, tokens: Tensor) -> Iterator[Tensor]:
        """The surprises of all tokens but the first, in nats, in pieces of float64 on the CPU."""
        state: Any = None
        for begin in range(0, len(tokens) - 1, TOKENS_PER_SCORING_CALL):
            piece = tokens[begin : begin + TOKENS_PER_SCORING_CALL + 1].to(self.device, torch.int64).unsqueeze(1)
            scores, state = self.read(piece[:-1], piece[1:], state)
            targets = piece[1:].flatten()
            yield nn.functional.cross_entropy(scores.flatten(0, 1).double(), targets, reduction="none").cpu()

    def read(self, inputs: Tensor, targets: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The scores of a piece, (steps, batch, size), and the state after it, without gradients.

        inputs    (steps, batch) tokens
        targets   (steps, batch) the token after each; read only if true tokens are fed back
        state     before the piece; None: the initial state
        """
        with evaluation_mode(self.net), torch.no_grad():
            return self.net(inputs, state, targets=targets if self.forced else None)


@contextmanager
def evaluation_mode(net: nn.Module) -> Iterator[None]:
    """The network in eval() inside the block, and in its previous mode afterwards."""
    training = net.training
    net.eval()
    try:
        yield
    finally:
        net.train(training)
