"""`save` and `load`: a network in a safetensors file, never in a pickle.

The file is one that any safetensors reader opens. Its metadata hold, under `leporello`, a JSON text with the version of
this format and of the libraries, the class of every module, shape and dtype of every tensor, which names share one
tensor (saved once), and how the network is constructed (`rebuild`). Files of version 1 lack the last.
Complex tensors are saved as real ones with a last axis of two.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from leporello.atomic_write import replacing
from leporello.errors import ArgumentError, FileMismatch, MissingPackage
from leporello.nets.rebuild import described_construction, rebuilt

VERSION = 2
READABLE = (1, 2)
KEY = "leporello"


@dataclass(frozen=True)
class Contents:
    """What a network holds, without the values of its tensors.

    classes   the class of each module by its path, the network itself under ""
    tensors   by name: dtype, then shape
    tied      names that stand for the tensor of another name
    """

    classes: dict[str, str]
    tensors: dict[str, str]
    tied: dict[str, str]


def save(net: nn.Module, file: str | os.PathLike[str]) -> None:
    """Write a network to a file, whole or not at all: its classes and their arguments, parameters and buffers.

    The file gets its name when everything is written: if that fails, one of that name stays as it was. What no file can
    hold, such as a function among the arguments, is left out; `load` then says so and needs `into=`.

    net    any module
    file   its path; by custom it ends in .safetensors

    >>> save(lp.Recurrent(lp.GRU(3, 4)), "net.safetensors")   # doctest: +SKIP
    """
    safetensors = _safetensors()
    path = _path(file)
    tensors = _tensors_of(net)
    contents = _contents_of(net, tensors)
    distinct = {name: _storable(value) for name, value in tensors.items() if name not in contents.tied}
    versions = {"leporello": importlib.metadata.version("leporello"), "torch": torch.__version__}
    facts = {"version": VERSION, "versions": versions, "construction": described_construction(net)}
    text = json.dumps({**facts, **asdict(contents)}, sort_keys=True)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder to save into", str(path.parent))
    with replacing(path) as temporary:
        temporary.touch()
        usual = temporary.stat().st_mode
        safetensors.torch.save_file(distinct, temporary, metadata={KEY: text})
        temporary.chmod(usual)  # safetensors sets its own


def load(file: str | os.PathLike[str], *, into: nn.Module | None = None) -> nn.Module:
    """Read a file of `save`, and return the network; the file of another network is refused with the differences.

    Without `into` the network is made again, on the CPU and in train(): its classes are imported by name, and nothing
    but classes of modules is called, with plain arguments. With `into` a refused file changes nothing, and tensors keep
    their place: optimisers and shared parameters stay what they are.

    file   its path
    into   a network like the one that was saved, on any device

    >>> net = load("net.safetensors")                               # doctest: +SKIP
    >>> load("net.safetensors", into=lp.Recurrent(lp.GRU(3, 4)))    # doctest: +SKIP
    """
    safetensors = _safetensors()
    path = _path(file)
    if into is not None:
        _tensors_of(into)  # refuses what is no network before a file is opened
    with _opened(safetensors, path) as opened:
        saved, construction = _contents_in(opened, path)
        made = into is None
        net = _made_again(construction, saved, path) if into is None else into
        tensors = _tensors_of(net)
        _refuse_differences(saved, _contents_of(net, tensors), path, made=made)
        stored = {name: opened.get_tensor(name) for name in saved.tensors if name not in saved.tied}
        numbers = {name: _as_complex(value, like=tensors[name]) for name, value in stored.items()}
        if any(_form(value) != saved.tensors[name] for name, value in numbers.items()):
            raise _damaged(path)
        with torch.no_grad():
            for name, value in numbers.items():
                tensors[name].copy_(value)
    return net


def _made_again(construction: Any, saved: Contents, path: Path) -> nn.Module:
    """The network of a file as its constructors make it, in the dtypes of the file."""
    if construction is None:
        raise FileMismatch(
            "the file holds parameters alone: it was written by an older version.",
            file=path,
            tries="lp.load(file, into=net), with a network like the one that was saved",
        )
    try:
        net = rebuilt(construction, path)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise _damaged(path) from error
    for name, tensor in _tensors_of(net).items():
        wanted = saved.tensors.get(name, "").partition(" ")[0]
        if wanted and wanted != str(tensor.dtype).removeprefix("torch."):
            tensor.data = tensor.data.to(getattr(torch, wanted))
    return net


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch  # here, because `import leporello` needs torch alone
    except ImportError as error:
        raise MissingPackage(
            "lp.save and lp.load need the package safetensors.", tries="pip install 'leporello[files]'"
        ) from error
    return safetensors


def _path(file: Any) -> Path:
    if not isinstance(file, (str, os.PathLike)):
        raise ArgumentError("the argument 'file' is no path.", came=type(file).__name__, expected="str or PathLike")
    return Path(os.path.realpath(file))  # a link stays one: what it points to is written


def _tensors_of(net: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers themselves, by name."""
    if not isinstance(net, nn.Module):
        raise ArgumentError("the network is no module.", came=type(net).__name__, expected="an nn.Module")
    tensors: dict[str, Tensor] = {}
    for name, value in net.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_meta:
            kind = type(value).__name__ if not isinstance(value, Tensor) else f"{value.layout} on {value.device}"
            raise ArgumentError(
                f"'{name}' holds no numbers that a file can keep.",
                net=type(net).__name__,
                came=kind,
                expected="a dense tensor on a device",
            )
        tensors[name] = value
    return tensors


def _contents_of(net: nn.Module, tensors: dict[str, Tensor]) -> Contents:
    """Classes, forms and ties of a network in memory."""
    first: dict[Any, str] = {}
    tied = {}
    for name, value in tensors.items():
        where = (value.device, value.data_ptr(), value.shape, value.stride(), value.dtype) if value.numel() else name
        if first.setdefault(where, name) != name:
            tied[name] = first[where]
    return Contents(
        classes={path: type(module).__name__ for path, module in net.named_modules(remove_duplicate=False)},
        tensors={name: _form(value) for name, value in tensors.items()},
        tied=tied,
    )


def _form(value: Tensor) -> str:
    """Dtype and shape, as files hold them."""
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _storable(value: Tensor) -> Tensor:
    """A contiguous copy on the CPU, with the real and imaginary parts of complex numbers as a last axis."""
    value = value.detach().resolve_conj().resolve_neg()
    value = torch.view_as_real(value) if value.is_complex() else value
    return value.to("cpu", copy=True, memory_format=torch.contiguous_format)


def _as_complex(value: Tensor, *, like: Tensor) -> Tensor:
    """A stored tensor as complex numbers, if it is to be copied into some."""
    pairs = value.is_floating_point() and value.dim() > 0 and value.shape[-1] == 2
    # cloned: in the mapped file a pair may begin where no complex number may, and torch then crashes
    return torch.view_as_complex(value.clone()) if like.is_complex() and pairs else value


@contextlib.contextmanager
def _opened(safetensors: ModuleType, path: Path) -> Iterator[Any]:
    with path.open("rb"):  # absent, a folder, not allowed: the system's own words
        pass
    try:
        opened = safetensors.safe_open(path, framework="pt")
    except safetensors.SafetensorError as error:
        raise FileMismatch(
            "the file is no safetensors file, or a damaged one.", file=path, says=error, expected="a file of lp.save"
        ) from error
    with opened:
        yield opened


def _contents_in(opened: Any, path: Path) -> tuple[Contents, Any]:
    """What the metadata say, and how the network is made; raises if the file holds other tensors."""
    text = (opened.metadata() or {}).get(KEY)
    if text is None:
        raise FileMismatch(
            "the file was not written by lp.save.",
            file=path,
            holds=_some(sorted(opened.keys())),
            tries="net.load_state_dict(safetensors.torch.load_file(file)), if the names fit",
        )
    try:
        fields = json.loads(text)
        version = fields.pop("version")
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise _damaged(path) from error
    if version not in READABLE:
        raise FileMismatch("the file has another version of the format.", file=path, came=version, expected=VERSION)
    construction = fields.pop("construction", None)
    fields.pop("versions", None)
    try:
        contents = Contents(**fields)
        stored = contents.tensors.keys() - contents.tied.keys()
    except (TypeError, AttributeError) as error:
        raise _damaged(path) from error
    if stored != set(opened.keys()):
        raise _damaged(path)
    return contents, construction


def _damaged(path: Path) -> FileMismatch:
    return FileMismatch("the file is damaged: its metadata and its tensors differ.", file=path)


def _refuse_differences(saved: Contents, wanted: Contents, path: Path, *, made: bool) -> None:
    """Raise if a network differs from that of a file.

    made   whether it was constructed as the file says: then the saved one had been changed since its construction
    """
    missing = sorted(wanted.tensors.keys() - saved.tensors.keys())
    unexpected = sorted(saved.tensors.keys() - wanted.tensors.keys())
    shared = sorted(wanted.tensors.keys() & saved.tensors.keys())
    differences = {
        "missing": _some([f"{name} {wanted.tensors[name]}" for name in missing]),
        "unexpected": _some([f"{name} {saved.tensors[name]}" for name in unexpected]),
        "other_shape_or_dtype": _some(_unlike(saved.tensors, wanted.tensors, shared)),
        "other_class": _some(
            _unlike(saved.classes, wanted.classes, sorted(wanted.classes.keys() & saved.classes.keys()))
        ),
        "otherwise_tied": _some(_ties_apart(saved.tied, wanted.tied, shared)),
    }
    if any(differences.values()) and made:
        tries = "lp.load(file, into=net), with a network that was changed in the same way"
        raise FileMismatch(
            "the network was changed after it was constructed, which the file does not say.",
            file=path,
            **differences,
            tries=tries,
        )
    if any(differences.values()):
        raise FileMismatch("the file holds another network.", file=path, **differences)


def _unlike(saved: dict[str, str], wanted: dict[str, str], names: list[str]) -> list[str]:
    return [
        f"{name or 'the net'}: {saved[name]} in the file, {wanted[name]} in the net"
        for name in names
        if saved[name] != wanted[name]
    ]


def _ties_apart(saved: dict[str, str], wanted: dict[str, str], names: list[str]) -> list[str]:
    """Names that share a tensor on one side only."""

    def in_words(tied: dict[str, str], name: str) -> str:
        return f"the same as {tied[name]}" if name in tied else "on its own"

    return [
        f"{name}: {in_words(saved, name)} in the file, {in_words(wanted, name)} in the net"
        for name in names
        if saved.get(name) != wanted.get(name)
    ]


def _some(lines: list[str], limit: int = 20) -> str | None:
    """The first of these lines as one text, and how many more; None without any: an error leaves such a detail out."""
    rest = [f"and {len(lines) - limit} more"] if len(lines) > limit else []
    return "\n".join(lines[:limit] + rest) or None
