"""Networks in files: whole or not at all, and only into the network they were saved from."""

from __future__ import annotations

import copy
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import leporello as lp
from leporello.errors import ArgumentError, FileMismatch
from tests.cells.examples import EXAMPLES
from tests.nets.twins import close, normal, shaken


def numbers(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def same_numbers(net: nn.Module, wanted: dict[str, torch.Tensor]) -> None:
    assert net.state_dict().keys() == wanted.keys()
    for name, value in net.state_dict().items():
        assert torch.equal(value, wanted[name]), name


def tied() -> nn.Module:
    net = nn.ModuleDict({"embedding": nn.Embedding(5, 4), "net": lp.Recurrent(lp.GRU(4, 4)), "head": nn.Linear(4, 5)})
    net["head"].weight = net["embedding"].weight
    return net


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "net.safetensors"


@pytest.fixture
def saved(file: Path) -> Path:
    lp.save(shaken(lp.Recurrent(lp.GRU(3, 4))), file)
    return file


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_saved_is_loaded_bit_for_bit(name: str, file: Path) -> None:
    net = lp.Recurrent(shaken(EXAMPLES[name](), seed=1))
    other = lp.Recurrent(shaken(EXAMPLES[name](), seed=2))
    lp.save(net, file)
    assert lp.load(file, into=other) is other
    same_numbers(other, numbers(net))


@pytest.mark.parametrize(
    "make",
    [
        lambda: lp.Bidirectional(lp.GRU(3, 4), lp.LSTM(3, 4)),
        lambda: lp.Layers(lp.Recurrent(lp.GRU(3, 4)), lp.Recurrent(lp.RNN(4, 4))),
        lambda: lp.Summary(lp.GRU(3, 4, learned=True), nn.Linear(4, 2)),
        lambda: lp.Recurrent(lp.Feedback(lp.Stack(lp.GRU(7, 4), lp.GRU(4, 4)))),
        lambda: lp.LSTM(3, 4, projection=2),
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
        nn.Tanh,
    ],
    ids=["both directions", "layers", "summary", "feedback", "bare cell", "buffers", "nothing"],
)
def test_any_module_can_be_saved(make: Any, file: Path) -> None:
    torch.manual_seed(1)
    net = make()
    lp.save(net, file)
    torch.manual_seed(2)
    same_numbers(lp.load(file, into=make()), numbers(net))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
def test_dtypes_and_odd_shapes_are_kept(dtype: torch.dtype, file: Path) -> None:
    def make(seed: int) -> nn.Module:
        net = nn.Module()
        for index, shape in enumerate([(), (0, 3), (1,), (3, 1, 5)]):
            net.register_buffer(f"b{index}", (10 * normal(*shape, seed=seed + index)).to(dtype))
        return net

    lp.save(make(1), file)
    same_numbers(lp.load(file, into=make(9)), numbers(make(1)))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers_are_kept(dtype: torch.dtype, file: Path) -> None:
    def make(seed: int) -> nn.Module:
        net = nn.Module()
        net.w = nn.Parameter(normal(3, 2, seed=seed, dtype=dtype))
        net.register_buffer("v", normal(2, seed=seed + 1, dtype=dtype).conj())
        return net

    lp.save(make(1), file)
    same_numbers(lp.load(file, into=make(5)), {name: value.resolve_conj() for name, value in numbers(make(1)).items()})


def test_views_and_strides_are_kept(file: Path) -> None:
    whole = normal(4, 6)
    net = nn.Module()
    net.register_buffer("turned", whole.T)
    net.register_buffer("row", whole[1])
    lp.save(net, file)
    assert file.stat().st_size < 2000
    into = nn.Module()
    into.register_buffer("turned", torch.zeros(4, 6, dtype=torch.float64).T)
    into.register_buffer("row", torch.zeros(6, dtype=torch.float64))
    lp.load(file, into=into)
    assert torch.equal(into.turned, whole.T)
    assert torch.equal(into.row, whole[1])


def test_paths_may_be_strings_or_path_like(tmp_path: Path) -> None:
    class Somewhere:
        def __fspath__(self) -> str:
            return str(tmp_path / "c")

    net = lp.GRU(3, 4)
    for path in (str(tmp_path / "a"), tmp_path / "b", Somewhere()):
        lp.save(net, path)
        lp.load(path, into=lp.GRU(3, 4))
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


@pytest.mark.parametrize("path", [3, None, b"net", open])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(ArgumentError, match="'file' is no path"):
        lp.save(lp.GRU(3, 4), path)
    with pytest.raises(ArgumentError, match="'file' is no path"):
        lp.load(path, into=lp.GRU(3, 4))


def test_what_is_no_module_is_refused(file: Path) -> None:
    with pytest.raises(ArgumentError, match="no module"):
        lp.save({"w": torch.ones(2)}, file)
    assert not file.exists()


def test_a_net_without_numbers_is_refused(saved: Path) -> None:
    empty = lp.Recurrent(lp.GRU(3, 4)).to("meta")
    with pytest.raises(ArgumentError, match=r"'cell\.U' holds no numbers"):
        lp.save(empty, saved)
    with pytest.raises(ArgumentError, match=r"'cell\.U' holds no numbers"):
        lp.load(saved, into=empty)


def test_the_file_is_no_pickle_and_tells_what_it_holds(saved: Path) -> None:
    with pytest.raises((pickle.UnpicklingError, ValueError, EOFError, KeyError, IndexError)):
        pickle.loads(saved.read_bytes())
    with safetensors.safe_open(saved, framework="pt") as opened:
        told = json.loads(opened.metadata()["leporello"])
    assert told["version"] == 2
    assert told["versions"]["torch"] == torch.__version__
    assert told["construction"]["modules"][1]["args"] == [{"module": 0}]
    assert told["classes"][""] == "Recurrent"
    assert told["classes"]["cell"] == "GRU"
    assert told["tensors"]["cell.U"] == "float64 [12, 3]"
    assert set(safetensors.torch.load_file(saved)) == {"cell.U", "cell.W", "cell.b", "cell.c"}


def test_the_same_net_gives_the_same_bytes(tmp_path: Path) -> None:
    net = shaken(lp.Recurrent(lp.Leaky(3, 4, 2, alpha=[0.1, 0.2, 0.3, 0.4])))
    lp.save(net, tmp_path / "a")
    lp.save(net, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_tied_parameter_is_saved_once_and_stays_tied(file: Path) -> None:
    torch.manual_seed(1)
    net = tied()
    lp.save(net, file)
    assert "head.weight" not in safetensors.torch.load_file(file)
    torch.manual_seed(2)
    other = lp.load(file, into=tied())
    same_numbers(other, numbers(net))
    assert other["head"].weight is other["embedding"].weight


def test_a_cell_used_twice_is_saved_once(file: Path) -> None:
    def make() -> nn.Module:
        cell = lp.GRU(3, 4)
        return lp.Bidirectional(cell, cell)

    torch.manual_seed(1)
    net = make()
    lp.save(net, file)
    torch.manual_seed(2)
    same_numbers(lp.load(file, into=make()), numbers(net))


@pytest.mark.parametrize("first", ["tied", "apart"])
def test_a_net_tied_otherwise_is_refused(first: str, file: Path) -> None:
    apart = tied()
    apart["head"].weight = nn.Parameter(torch.ones(5, 4))
    net, into = (tied(), apart) if first == "tied" else (apart, tied())
    lp.save(net, file)
    before = numbers(into)
    with pytest.raises(FileMismatch, match=r"otherwise tied +head\.weight"):
        lp.load(file, into=into)
    same_numbers(into, before)


def test_loading_keeps_every_tensor_in_its_place(saved: Path) -> None:
    net = lp.Recurrent(lp.GRU(3, 4)).double()
    before = {name: (id(p), p.data_ptr()) for name, p in net.named_parameters()}
    optimiser = torch.optim.SGD(net.parameters(), lr=1.0)
    lp.load(saved, into=net)
    assert {name: (id(p), p.data_ptr()) for name, p in net.named_parameters()} == before
    assert all(p.requires_grad and p.grad_fn is None for p in net.parameters())
    outputs = net(normal(3, 2, 3))[0].detach()
    net(normal(3, 2, 3))[0].sum().backward()
    optimiser.step()
    assert not torch.equal(net(normal(3, 2, 3))[0], outputs)


def test_a_loaded_net_computes_the_same(saved: Path) -> None:
    net = shaken(lp.Recurrent(lp.GRU(3, 4)))
    other = lp.Recurrent(lp.GRU(3, 4)).double()
    other(normal(3, 2, 3))  # traced before
    close(lp.load(saved, into=other)(normal(3, 2, 3)), net(normal(3, 2, 3)), tolerance=0)


OTHERS = {
    "another cell": (
        lambda: lp.Recurrent(lp.LSTM(3, 4)).double(),
        ["other shape or dtype", "cell.U: float64 [12, 3] in the file"],
    ),
    "another size": (
        lambda: lp.Recurrent(lp.GRU(3, 5)).double(),
        ["cell.W: float64 [12, 4] in the file, float64 [15, 5] in the net"],
    ),
    "another dtype": (
        lambda: lp.Recurrent(lp.GRU(3, 4)).float(),
        ["cell.b: float64 [12] in the file, float32 [12] in"],
    ),
    "less": (lambda: lp.Recurrent(lp.GRU(3, 4, bias=False)).double(), ["unexpected", "cell.b float64 [12]"]),
    "more": (lambda: lp.Recurrent(lp.GRU(3, 4, learned=True)).double(), ["missing", "cell.initial.h float64 [4]"]),
    "another module": (
        lambda: lp.GRU(3, 4).double(),
        ["missing", "unexpected", "other class", "Recurrent in the file"],
    ),
}


@pytest.mark.parametrize(("make", "said"), OTHERS.values(), ids=OTHERS.keys())
def test_the_file_of_another_net_is_refused_with_the_differences(make: Any, said: list[str], saved: Path) -> None:
    into = make()
    before = numbers(into)
    with pytest.raises(FileMismatch, match="another network") as refusal:
        lp.load(saved, into=into)
    assert [word for word in said if word not in str(refusal.value)] == []
    assert str(saved) in str(refusal.value)
    same_numbers(into, before)


def test_a_cell_of_the_same_shapes_but_another_class_is_refused(file: Path) -> None:
    """Elman and Leaky have parameters of the same names and shapes."""
    lp.save(lp.Recurrent(lp.Elman(3, 4, 2)), file)
    with pytest.raises(FileMismatch, match="cell: Elman in the file, Leaky in the net"):
        lp.load(file, into=lp.Recurrent(lp.Leaky(3, 4, 2, alpha=0.1)))


def test_long_lists_of_differences_end(file: Path) -> None:
    lp.save(lp.Recurrent(lp.Stack(*(lp.GRU(3, 3) for _ in range(30)))), file)
    with pytest.raises(FileMismatch, match="and 100 more"):
        lp.load(file, into=lp.Recurrent(lp.GRU(3, 3)))


def test_an_absent_file_is_the_systems_own_error(file: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"net\.safetensors"):
        lp.load(file, into=lp.GRU(3, 4))
    with pytest.raises(IsADirectoryError):
        lp.load(file.parent, into=lp.GRU(3, 4))
    with pytest.raises(FileNotFoundError, match="no such folder"):
        lp.save(lp.GRU(3, 4), file / "deeper")


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.99])
def test_a_cut_file_is_refused(share: float, saved: Path) -> None:
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(share * len(whole))])
    net = lp.Recurrent(lp.GRU(3, 4)).double()
    before = numbers(net)
    with pytest.raises(FileMismatch, match="no safetensors file, or a damaged one"):
        lp.load(saved, into=net)
    same_numbers(net, before)


def test_a_pickle_is_refused(file: Path) -> None:
    net = lp.Recurrent(lp.GRU(3, 4))
    torch.save(net.state_dict(), file)
    with pytest.raises(FileMismatch, match="no safetensors file"):
        lp.load(file, into=net)


def test_a_file_of_somebody_else_is_refused(file: Path) -> None:
    net = lp.Recurrent(lp.GRU(3, 4))
    safetensors.torch.save_file(net.state_dict(), file)
    with pytest.raises(FileMismatch, match=r"not written by lp\.save") as refusal:
        lp.load(file, into=net)
    assert "cell.U" in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda told: {**told, "version": 3}, "another version"),
        (lambda told: {name: told[name] for name in told if name != "version"}, "damaged"),
        (lambda told: {name: told[name] for name in told if name != "tied"}, "damaged"),
        (lambda told: [told], "damaged"),
        (lambda told: {**told, "tensors": {}}, "damaged"),
        (lambda told: {**told, "tensors": 3}, "damaged"),
    ],
)
def test_strange_metadata_are_refused(change: Any, why: str, saved: Path) -> None:
    with safetensors.safe_open(saved, framework="pt") as opened:
        told = json.loads(opened.metadata()["leporello"])
    tensors = safetensors.torch.load_file(saved)
    safetensors.torch.save_file(tensors, saved, metadata={"leporello": json.dumps(change(told))})
    with pytest.raises(FileMismatch, match=why):
        lp.load(saved, into=lp.Recurrent(lp.GRU(3, 4)).double())


def test_metadata_that_lie_about_shapes_are_refused(saved: Path) -> None:
    with safetensors.safe_open(saved, framework="pt") as opened:
        told = opened.metadata()
    tensors = safetensors.torch.load_file(saved)
    tensors["cell.U"] = tensors["cell.U"][:1].clone()  # would spread over all rows
    safetensors.torch.save_file(tensors, saved, metadata=told)
    net = lp.Recurrent(lp.GRU(3, 4)).double()
    before = numbers(net)
    with pytest.raises(FileMismatch, match="damaged"):
        lp.load(saved, into=net)
    same_numbers(net, before)


def test_a_failure_while_saving_leaves_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def half(tensors: Any, path: Any, metadata: Any) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(safetensors.torch, "save_file", half)
    with pytest.raises(OSError, match="no space left"):
        lp.save(lp.Recurrent(lp.GRU(3, 4)), saved)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_the_name_is_taken_only_when_all_is_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, seen = safetensors.torch.save_file, []

    def watched(tensors: Any, path: Any, metadata: Any) -> None:
        write(tensors, path, metadata=metadata)
        seen.append((Path(path).parent, file.exists()))

    monkeypatch.setattr(safetensors.torch, "save_file", watched)
    lp.save(lp.GRU(3, 4), file)
    assert seen == [(file.parent, False)]
    assert os.listdir(file.parent) == [file.name]


def test_a_link_stays_a_link(saved: Path) -> None:
    link = saved.with_name("latest")
    link.symlink_to(saved.name)
    lp.save(lp.RNN(3, 4), link)
    assert link.is_symlink()
    lp.load(saved, into=lp.RNN(3, 4))


def test_a_new_file_has_the_usual_permissions(saved: Path) -> None:
    plain = saved.with_name("plain")
    plain.write_bytes(b"")
    assert saved.stat().st_mode == plain.stat().st_mode


def test_without_safetensors_the_error_says_what_to_install(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    for call in (lambda: lp.save(lp.GRU(3, 4), file), lambda: lp.load(file, into=lp.GRU(3, 4))):
        with pytest.raises(lp.errors.MissingPackage, match=r"pip install 'leporello\[files\]'"):
            call()


# ---- without `into`: the network is made again


class Gated(lp.Cell):
    """A cell with a cell among its arguments, a list, and an argument by default."""

    def __init__(self, inner: lp.Cell, sizes: list[int], *, scale: float = 0.5) -> None:
        super().__init__(h=sizes[-1])
        self.inner, self.scale = inner, scale
        self.V = nn.Linear(sizes[0], sizes[-1])

    def forward(self, x: Any, h: Any) -> Any:
        output, _ = self.inner(x, self.inner.initial_state(x.shape[0], dtype=x.dtype))
        h = torch.tanh(self.V(output) * self.scale + h)
        return h, h


class WithHead(nn.Module):
    """A module that does not say what it was constructed with."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 2)

    def forward(self, x: Any) -> Any:
        return self.linear(x)


MADE_AGAIN: dict[str, Any] = {
    "options": lambda: lp.Recurrent(lp.GRU(3, 4), engine="reference", batch_first=True),
    "a gradient method": lambda: lp.Recurrent(lp.GRU(3, 4), gradient=lp.Truncated(5, clip_state=1.0)),
    "both directions": lambda: lp.Bidirectional(lp.GRU(3, 4), lp.LSTM(3, hidden=4), batch_first=True),
    "layers": lambda: lp.Layers(lp.Recurrent(lp.GRU(3, 4)), lp.Recurrent(lp.RNN(4, 4)), dropout=0.25),
    "summary": lambda: lp.Summary(lp.LSTM(3, 4), nn.Sequential(nn.LayerNorm(4, eps=0.1), nn.Linear(4, 2, bias=False))),
    "feedback": lambda: lp.Recurrent(lp.Feedback(lp.Stack(lp.GRU(7, 4), lp.GRU(4, 4), dropout=0.1), size=4)),
    "a cell of the user": lambda: lp.Recurrent(Gated(lp.GRU(3, 5), [5, 4], scale=0.25)),
    "a bare cell": lambda: lp.LSTM(3, 4, projection=2),
    "of torch": lambda: lp.from_torch(nn.LSTM(3, 4, 2)),
    "another dtype": lambda: lp.Recurrent(lp.GRU(3, 4)).double(),
    "a batch axis": lambda: lp.Recurrent(lp.GRU(3, 4), batch_axis={"h": 1}),
}


@pytest.mark.parametrize("name", [*EXAMPLES, *MADE_AGAIN])
def test_a_network_is_made_again_from_its_file(name: str, file: Path) -> None:
    net = MADE_AGAIN[name]() if name in MADE_AGAIN else lp.Recurrent(shaken(EXAMPLES[name](), seed=1))
    lp.save(net, file)
    before = torch.get_rng_state()
    again = lp.load(file)
    assert torch.equal(torch.get_rng_state(), before)
    assert again is not net
    assert repr(again) == repr(net)
    assert {path: type(module) for path, module in again.named_modules()} == {
        path: type(module) for path, module in net.named_modules()
    }
    same_numbers(again, numbers(net))
    lp.save(again, file.with_name("twice"))
    assert file.with_name("twice").read_bytes() == file.read_bytes()


def test_a_network_that_was_made_again_computes_the_same(file: Path) -> None:
    net = lp.Summary(Gated(lp.GRU(3, 5), [5, 4]), nn.Linear(4, 2))
    lp.save(net, file)
    inputs = torch.randn(7, 3, 3)
    assert torch.equal(lp.load(file)(inputs)[0], net(inputs)[0])


def test_a_cell_used_twice_is_made_once(file: Path) -> None:
    cell = lp.GRU(4, 4)
    lp.save(lp.Recurrent(lp.Stack(cell, cell)), file)
    again = lp.load(file)
    assert again.cell.cells[0] is again.cell.cells[1]


def test_copies_and_pickles_are_saved_like_the_original(file: Path) -> None:
    net = lp.Recurrent(lp.Stack(lp.GRU(3, 4), lp.GRU(4, 4)))
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        with torch.no_grad():
            other.cell.cells[1].W.add_(1)
        lp.save(other, file)
        same_numbers(lp.load(file), numbers(other))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: lp.Summary(lp.GRU(3, 4), lambda output: output), "Summary: head is "),
        (lambda: lp.Recurrent(lp.Feedback(lp.GRU(4, 4), torch.tanh)), "feed is tanh"),
        (lambda: lp.Summary(lp.GRU(3, 4), WithHead(4)), "Summary: head, WithHead does not say"),
        (lambda: lp.Recurrent(local_cell()()), "cannot be imported"),
        (lambda: nn.ModuleDict({"net": lp.Recurrent(lp.GRU(3, 4))}), "ModuleDict"),
    ],
)
def test_what_no_file_can_hold_is_named_when_it_is_needed(make: Any, why: str, file: Path) -> None:
    net = make()
    lp.save(net, file)
    with pytest.raises(FileMismatch, match="does not say how its network is made") as caught:
        lp.load(file)
    assert why in caught.value.details["came"]
    assert "into=" in caught.value.details["tries"]
    same_numbers(lp.load(file, into=make()), numbers(net))


def local_cell() -> type[lp.Cell]:
    class Local(lp.GRU):
        def __init__(self) -> None:
            super().__init__(3, 4)

    return Local


def test_a_network_that_was_changed_after_its_construction_is_refused(file: Path) -> None:
    def changed() -> nn.Module:
        net = lp.Summary(lp.GRU(4, 4), nn.Linear(4, 4))
        net.head.bias = None
        return net

    net = changed()
    lp.save(net, file)
    same_numbers(lp.load(file), numbers(net))  # torch.nn's modules show what they are now
    net.net.cell.cell = lp.GRU(4, 5)
    lp.save(net, file)
    with pytest.raises(FileMismatch, match="was changed after it was constructed"):
        lp.load(file)


def altered(file: Path, change: Any) -> None:
    with safetensors.safe_open(file, framework="pt") as opened:
        told = json.loads(opened.metadata()["leporello"])
    change(told)
    tensors = safetensors.torch.load_file(file)
    safetensors.torch.save_file(tensors, file, metadata={"leporello": json.dumps(told)})


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("os:system", "is no class of networks"),
        ("builtins:eval", "is no class of networks"),
        ("pathlib:Path", "is no class of networks"),
        ("leporello.nets.files:save", "is no class of networks"),
        ("no_such_module:Cell", "cannot be imported"),
        ("leporello.cells.torch_cells:NoSuchCell", "cannot be imported"),
    ],
)
def test_only_classes_of_networks_are_made(path: str, said: str, saved: Path) -> None:
    altered(saved, lambda told: told["construction"]["modules"][0].update({"class": path}))
    with pytest.raises(FileMismatch, match=said):
        lp.load(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told["construction"].clear(),
        lambda told: told["construction"].update(modules=[]),
        lambda told: told["construction"].update(modules=3),
        lambda told: told["construction"]["modules"][1].update(args=[{"module": 7}]),
        lambda told: told["construction"]["modules"][1].update(options={"engine": {"dtype": "load"}}),
    ],
)
def test_a_strange_construction_is_refused(change: Any, saved: Path) -> None:
    altered(saved, change)
    with pytest.raises(FileMismatch, match="damaged"):
        lp.load(saved)


def test_arguments_that_the_class_does_not_take_any_more_are_named(saved: Path) -> None:
    altered(saved, lambda told: told["construction"]["modules"][0].update(options={"colour": "red"}))
    with pytest.raises(FileMismatch, match="GRU cannot be constructed as it was") as caught:
        lp.load(saved)
    assert "colour" in caught.value.details["says"]


def test_a_file_of_version_1_is_loaded_with_into_alone(saved: Path) -> None:
    def older(told: dict[str, Any]) -> None:
        told["version"] = 1
        del told["construction"], told["versions"]

    altered(saved, older)
    with pytest.raises(FileMismatch, match="parameters alone"):
        lp.load(saved)
    lp.load(saved, into=lp.Recurrent(lp.GRU(3, 4)).double())


@pytest.mark.parametrize(
    "cell", [lp.LSTM(3, 4), lp.Stack(lp.LSTM(3, 4), lp.GRU(4, 2))], ids=["a named tuple", "nested"]
)
def test_states_are_saved_and_loaded_by_torch_without_pickled_code(cell: lp.Cell, tmp_path: Path) -> None:
    state = lp.Recurrent(cell)(torch.randn(5, 2, 3))[1]
    torch.save({"state": lp.detach(state), "step": 7}, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)["state"]
    assert type(loaded) is type(state)
    for one, other in zip(torch.utils._pytree.tree_leaves(loaded), torch.utils._pytree.tree_leaves(state), strict=True):
        assert torch.equal(one, other)
