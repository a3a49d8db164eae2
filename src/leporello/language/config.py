"""`Config`: how a language model is trained, as one typed record; and as a TOML file, whose tables are the groups.

Commands, TOML files and Python calls all read it. A new option is one line here.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from leporello.errors import ArgumentError, MissingPackage


def _option(
    default: Any,
    group: str,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    below: float | None = None,
) -> Any:
    """A field of `Config` with what commands and checks need to know about it.

    group     the table in a TOML file, and the panel in the help of commands
    choices   the allowed values; empty: any
    least     the smallest allowed value
    below     allowed values are smaller than this
    """
    metadata = {"group": group, "help": help, "choices": choices, "least": least, "below": below}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Config:
    """How a language model is trained. A number 0 means "none" or "by itself" where the help says so."""

    # fmt: off
    text: tuple[str, ...] = _option((), "text", "files or folders; none: the manual inside Python; -: standard input")
    encoding: str = _option("auto", "text", "encoding of the text: auto finds it; or utf-8, gb18030, big5, utf-16, latin-1, ...")
    normalise: str = _option("none", "text", "change the text first; lower: lower case; letters: a to z and blanks alone", choices=("none", "lower", "letters"))
    first: int = _option(0, "text", "read this many characters from the beginning alone; 0: all", least=0)
    validation: float = _option(0.1, "text", "share at the end of the text to validate with; it is never trained on", least=0, below=1)
    tokens: str = _option("char", "text", "what a token is: char, byte, word, or bpe:N for N pieces of words")
    min_count: int = _option(1, "text", "characters or words that occur less often become the unknown symbol", least=1)
    unknown: str = _option("symbol", "text", "what becomes of characters outside the vocabulary: the unknown symbol, or an error", choices=("symbol", "error"))

    cell: str = _option("lstm", "network", "the cell: elman, jordan, elman-jordan, rnn, gru, lstm, any built-in, or my_model:Class")
    hidden: int = _option(256, "network", "units of each layer", least=1)
    layers: int = _option(1, "network", "number of cells one above the other", least=1)
    embedding: int = _option(64, "network", "size of the vector that a token becomes; 0: a one-hot row", least=0)
    tied: bool = _option(False, "network", "use the embedding as the matrix of the output layer too")
    dropout: float = _option(0.1, "network", "share of values dropped between layers and before the output", least=0, below=1)

    batch: int = _option(32, "training", "number of rows that are read side by side", least=1)
    window: int = _option(64, "training", "number of steps that are trained at once", least=1)
    partition: str = _option("sequential", "training", "sequential: rows go on from window to window; random: windows come at random", choices=("sequential", "random"))
    gradient: str = _option("full", "training", "how gradients are computed: full, truncated:STEPS, random:KEEP, checkpointed, rtrl, uoro")
    clip_norm: float = _option(1.0, "training", "largest norm of the gradient; 0: any", least=0)
    forcing: str = _option("1", "training", "share of true values fed back, for cells with feedback: 0.8, linear:1:0, inverse-sigmoid:6, exponential:0.01")
    optimiser: str = _option("adam", "training", "algorithm that changes the parameters", choices=("adam", "adamw", "sgd", "rmsprop"))
    rate: float = _option(0.0, "training", "learning rate; 0: 0.005 (sgd: 1)", least=0)
    schedule: str = _option("cosine", "training", "how the learning rate changes over the training", choices=("constant", "linear", "cosine"))
    warm_up: float = _option(0.0, "training", "share of the training in which the learning rate rises to its value", least=0, below=1)
    weight_decay: float = _option(0.0, "training", "weight decay of the optimiser", least=0)
    epochs: int = _option(0, "training", "number of times the text is gone through; 0: 20, or as often as the minutes allow", least=0)
    minutes: float = _option(0.0, "training", "time to train; 0: no limit", least=0)
    patience: int = _option(0, "training", "stop after this many validations without progress; 0: never", least=0)
    seed: int = _option(0, "training", "seed of all random numbers", least=0, below=2**62)

    evaluate_every: int = _option(0, "run", "number of updates between validations; 0: once an epoch, 100 at least", least=0)
    save_every: float = _option(20.0, "run", "seconds between checkpoints", least=0)
    sample_every: float = _option(20.0, "run", "seconds between samples of text; 0: none", least=0)
    ngrams: int = _option(5, "run", "highest order of the n-grams to compare with; 0: none", least=0)
    tensorboard: bool = _option(False, "run", "write events for TensorBoard too")

    precision: str = _option("float32", "machine", "dtype of the computation", choices=("float32", "float64", "bfloat16"))
    threads: int = _option(0, "machine", "number of threads of the processor; 0: as many as torch takes", least=0)
    device: str = _option("auto", "machine", "where to train: cpu, cuda, or auto: cuda where there is one")
    engine: str = _option("auto", "machine", "what runs the cell: auto, cpu, gpu, stepwise, reference")
    # fmt: on

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _checked(field, getattr(self, field.name)))
        if self.tied and not self.embedding:
            raise ArgumentError("'tied' needs an embedding to tie.", came="embedding=0", tries="embedding=256")

    def replaced(self, changes: Mapping[str, Any]) -> Config:
        """The same with some values changed."""
        refuse_unknown_keys(changes)
        return dataclasses.replace(self, **changes)


class Options(TypedDict, total=False):
    """The keys of `Config` but `text`, as keywords: type checkers then know them."""

    encoding: str
    normalise: Literal["none", "lower", "letters"]
    first: int
    validation: float
    tokens: str
    min_count: int
    unknown: Literal["symbol", "error"]
    cell: str
    hidden: int
    layers: int
    embedding: int
    tied: bool
    dropout: float
    batch: int
    window: int
    partition: Literal["sequential", "random"]
    gradient: str
    clip_norm: float
    forcing: str
    optimiser: Literal["adam", "adamw", "sgd", "rmsprop"]
    rate: float
    schedule: Literal["constant", "linear", "cosine"]
    warm_up: float
    weight_decay: float
    epochs: int
    minutes: float
    patience: int
    seed: int
    evaluate_every: int
    save_every: float
    sample_every: float
    ngrams: int
    tensorboard: bool
    precision: Literal["float32", "float64", "bfloat16"]
    threads: int
    device: str
    engine: str


def config_of(values: Mapping[str, Any]) -> Config:
    """A configuration from keys and values. Missing keys have their defaults; unknown ones are refused."""
    refuse_unknown_keys(values)
    return Config(**values)


def refuse_unknown_keys(values: Mapping[str, Any], where: str | None = None) -> None:
    """Refuse keys that `Config` does not have, with the nearest ones.

    where   the file they are from
    """
    known = [field.name for field in dataclasses.fields(Config)]
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=2, cutoff=0.5)
            raise ArgumentError(
                f"the configuration has no key '{key}'.",
                file=where,
                nearest=", ".join(near) or None,
                expected=None if near else ", ".join(known),
            )


def _checked(field: dataclasses.Field[Any], value: Any) -> Any:
    """The value in the type of its field; one that the field does not allow is refused."""
    kind: Any = type(field.default)
    if kind is tuple:
        return (value,) if isinstance(value, str) else tuple(map(str, value))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind:
        raise ArgumentError(
            f"'{field.name}' is of the wrong type.",
            came=f"{value!r} ({type(value).__name__})",
            expected=f"{kind.__name__}: {field.metadata['help']}",
        )
    choices, least, below = (field.metadata[name] for name in ("choices", "least", "below"))
    if choices and value not in choices:
        near = difflib.get_close_matches(value, choices, n=1)
        raise ArgumentError(
            f"'{field.name}' has no such choice.",
            came=repr(value),
            nearest=", ".join(near) or None,
            expected=", ".join(choices),
        )
    outside = (least is not None and not value >= least) or (below is not None and not value < below)
    if outside or (kind is float and not math.isfinite(value)):
        bounds = f"{least:g} or more" if below is None else f"from {least:g} to below {below:g}"
        raise ArgumentError(
            f"'{field.name}' is out of bounds.", came=value, expected=f"{bounds}: {field.metadata['help']}"
        )
    return value


def toml_of(config: Config) -> str:
    """A configuration as TOML: all keys with their values, and the help of each as a comment."""
    try:
        import tomli_w  # here, because `import leporello` needs torch alone
    except ImportError as error:
        raise MissingPackage(
            "run folders need the package tomli-w.", tries="pip install 'leporello[language]'"
        ) from error
    lines: list[str] = []
    group = None
    for field in dataclasses.fields(config):
        if field.metadata["group"] != group:
            group = field.metadata["group"]
            lines += [""] * bool(lines) + [f"[{group}]"]
        entry = tomli_w.dumps({field.name: getattr(config, field.name)}).rstrip("\n")
        lines.append(f"{entry}  # {field.metadata['help']}")
    return "\n".join(lines) + "\n"


def read_toml(path: Path) -> Config:
    """The configuration of a file."""
    return config_of(values_in(path))


def values_in(path: Path) -> dict[str, Any]:
    """The keys and values of a file. Keys may stand in any table, or in none."""
    try:
        contents = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArgumentError("there is no such configuration.", came=path) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError("the configuration cannot be read.", came=path, says=error) from error
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError("the configuration is no TOML.", came=path, says=error) from error
    values: dict[str, Any] = {}
    for key, value in contents.items():
        entries = value if isinstance(value, dict) else {key: value}
        for name in entries:
            if name in values:
                raise ArgumentError(f"the configuration has the key '{name}' twice.", came=path)
        values |= entries
    refuse_unknown_keys(values, str(path))
    return values
