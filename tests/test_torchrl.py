"""`leporello.torchrl`: the same numbers in both modes, resets, TorchRL's environments and losses. In make check-all,
which installs torchrl; here it is imported by each test."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

import leporello as lp
from leporello import errors

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # torchrl warns about itself


@pytest.fixture(params=[(1, 1), (3, 7)], ids=["1x1", "3x7"])
def sizes(request: pytest.FixtureRequest) -> tuple[int, int]:
    """Rows and steps."""
    return request.param


def trajectories(rows: int, steps: int, features: int = 3) -> Any:
    """A TensorDict of observations, whose rows begin anew here and there."""
    from tensordict import TensorDict

    is_init = torch.rand(rows, steps, 1) < 0.3
    is_init[:, 0] = True
    return TensorDict({"observation": torch.randn(rows, steps, features), "is_init": is_init}, [rows, steps])


class Learned(lp.Cell):
    """Two leaves of different shapes, one of which is learned at the beginning and not zero."""

    def __init__(self) -> None:
        super().__init__(h=4, m=(2, 2), learned=True)
        self.U = nn.Linear(3, 4)
        nn.init.normal_(self.initial["h"])

    def forward(self, x: Any, state: Any) -> Any:
        h = torch.tanh(self.U(x) + 0.5 * state.h)
        return h, (h, 0.9 * state.m + h.unflatten(-1, (2, 2)))


CELLS = {
    "gru": lambda: lp.GRU(3, 4),
    "lstm": lambda: lp.LSTM(3, 4),
    "stack": lambda: lp.Stack(lp.LSTM(3, 4), lp.GRU(4, 5)),
    "learned": Learned,
}


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_whole_trajectories_give_what_single_steps_give(name: str, batch_first: bool, sizes: tuple[int, int]) -> None:
    from torchrl.modules import set_recurrent_mode

    from leporello.torchrl import RecurrentModule

    module = RecurrentModule(
        lp.Recurrent(CELLS[name](), batch_first=batch_first), in_key="observation", out_key="features"
    )
    data = trajectories(*sizes)
    state_keys = module.in_keys[1:-1]
    with set_recurrent_mode(True):
        whole = module(data.clone())
    before: dict[Any, Any] = {}
    for t in range(sizes[1]):
        one = data[:, t].clone().update(before)
        one = module(one)
        for key in module.out_keys:
            torch.testing.assert_close(one[key], whole[key][:, t])
        before = {key: one["next", key] for key in state_keys}
    assert {key: whole["next", key].shape[2:] for key in state_keys} == {
        key: value.shape[1:] for key, value in before.items()
    }


def test_a_trajectory_goes_on_from_the_state_in_it() -> None:
    from torchrl.modules import set_recurrent_mode

    from leporello.torchrl import RecurrentModule

    module = RecurrentModule(lp.GRU(3, 4), in_key="observation", out_key="features", default_recurrent_mode=True)
    data = trajectories(3, 8)
    data["is_init"][:, 4] = False
    whole = module(data.clone())
    later = data[:, 4:].clone()
    later["recurrent_state_h"] = whole["next", "recurrent_state_h"][:, 3:7]  # as a collector has it
    torch.testing.assert_close(module(later)["features"], whole["features"][:, 4:])
    with set_recurrent_mode(False):
        assert module(data[:, 0].clone())["features"].shape == (3, 4)


def test_outputs_are_those_of_torchrls_own_module() -> None:
    from torchrl.modules import GRUModule, set_recurrent_mode

    from leporello.torchrl import RecurrentModule

    theirs = GRUModule(3, 4, in_key="observation", out_key="features")
    ours = RecurrentModule(lp.from_torch(theirs.gru), in_key="observation", out_key="features")
    data = trajectories(3, 7)
    with set_recurrent_mode(True):
        torch.testing.assert_close(ours(data.clone())["features"], theirs(data.clone())["features"])


def test_any_batch_shape_and_none_at_all() -> None:
    from tensordict import TensorDict

    from leporello.torchrl import RecurrentModule

    module = RecurrentModule(lp.LSTM(3, 4), in_keys=["x", "h", "c"], out_keys=["y", ("next", "h"), ("next", "c")])
    for shape in ((), (1,), (2, 3)):
        data = TensorDict({"x": torch.randn(*shape, 3), "is_init": torch.ones(*shape, 1, dtype=torch.bool)}, shape)
        assert module(data)["next", "c"].shape == (*shape, 4)


def environment() -> Any:
    """Repeat what was seen in the step before: an environment that needs a memory. An episode has five steps."""
    from tensordict import TensorDict
    from torchrl.data import Bounded, Composite, Unbounded
    from torchrl.envs import EnvBase

    class Repeat(EnvBase):
        def __init__(self) -> None:
            super().__init__(batch_size=[6])
            self.observation_spec = Composite(observation=Unbounded((6, 1)), shape=[6])
            self.action_spec = Bounded(-2, 2, (6, 1))
            self.reward_spec = Unbounded((6, 1))
            self.steps, self.last = 0, torch.zeros(6, 1)

        def _reset(self, tensordict: Any = None, **options: Any) -> Any:
            self.steps, self.last = 0, torch.randn(6, 1)
            return TensorDict({"observation": self.last}, [6])

        def _step(self, tensordict: Any) -> Any:
            self.steps += 1
            reward = -(tensordict["action"] - self.last).square()
            self.last = torch.randn(6, 1)
            done = torch.full((6, 1), self.steps >= 5)
            return TensorDict({"observation": self.last, "reward": reward, "done": done, "terminated": done}, [6])

        def _set_seed(self, seed: Any) -> None:
            pass

    return Repeat()


def test_a_policy_runs_in_an_environment_and_a_loss_trains_it() -> None:
    from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
    from torchrl.envs import InitTracker, TransformedEnv
    from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator, get_primers_from_module
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    from leporello.torchrl import RecurrentModule

    memory = RecurrentModule(lp.LSTM(1, 8), in_key="observation", out_key="features")
    head = nn.Sequential(nn.Linear(8, 2), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictSequential(memory, TensorDictModule(head, in_keys=["features"], out_keys=["loc", "scale"])),
        in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True,
    )  # fmt: skip
    critic = TensorDictSequential(memory, ValueOperator(nn.Linear(8, 1), in_keys=["features"]))
    env = TransformedEnv(environment(), InitTracker()).append_transform(get_primers_from_module(actor))
    loss = ClipPPOLoss(actor, critic)
    advantage = GAE(gamma=0.9, lmbda=0.9, value_network=critic, deactivate_vmap=True)  # as for LSTMModule
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-2)
    with torch.no_grad():
        data = env.rollout(10, actor, break_when_any_done=False)
    assert data["is_init"].sum() == 12
    assert torch.equal(data["recurrent_state_h"][:, 1:5], data["next", "recurrent_state_h"][:, :4])
    losses = []
    for _ in range(10):
        with torch.no_grad():
            advantage(data)
        parts = loss(data)
        total = parts["loss_objective"] + parts["loss_critic"] + parts["loss_entropy"]
        optimizer.zero_grad()
        total.backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in memory.parameters())
        optimizer.step()
        losses.append(float(parts["loss_critic"].detach()))
    assert losses[-1] < losses[0]


def test_what_does_not_fit_is_refused_in_words() -> None:
    from tensordict import TensorDict

    from leporello.torchrl import RecurrentModule

    with pytest.raises(errors.ArgumentError, match="'in_key' and 'in_keys'"):
        RecurrentModule(lp.GRU(3, 4), out_key="y")
    with pytest.raises(errors.ArgumentError, match="the entry and 2 for the state"):
        RecurrentModule(lp.LSTM(3, 4), in_keys=["x", "h"], out_key="y")
    module = RecurrentModule(lp.GRU(3, 4), in_keys=["x", "h"], out_keys=["y", "h2"])
    with pytest.raises(errors.ArgumentError, match="is not written where the next step reads it"):
        module.make_tensordict_primer()
    with pytest.raises(errors.ArgumentError, match=r"no entry 'is_init'(.|\n)*InitTracker"):
        module(TensorDict({"x": torch.zeros(2, 3)}, [2]))
    whole = RecurrentModule(lp.GRU(3, 4), in_key="x", out_key="y", default_recurrent_mode=True)
    with pytest.raises(errors.ArgumentError, match="no steps to read"):
        whole(TensorDict({"x": torch.zeros(3), "is_init": torch.ones(1, dtype=torch.bool)}, []))


def test_without_torchrl_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "leporello.torchrl", raising=False)
    monkeypatch.setitem(sys.modules, "tensordict", None)
    with pytest.raises(errors.MissingPackage, match=r"pip install 'leporello\[rl\]'"):
        import leporello.torchrl  # noqa: F401
