"""The user's optimizer on servers: the same bits as on the whole tensor in one process, and clear words where not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn, optim

from shoal.core.errors import ConfigError
from shoal.store.answers import Done, Found, Pulled, Refused, UpdaterState
from shoal.store.keys import DenseKey, SparseKey
from shoal.store.operations import Declare, GetState, Holding, Pull, Push, Set, SetState, Update, Wanted
from shoal.store.placement import place
from shoal.store.shard import Shard
from shoal.strategies.described import Described, describe_optimizer, moves_at_rest
from shoal.strategies.fused import choose_fused
from shoal.strategies.server_state import cut_slice, join_slices, unpack_entries

Factory = Callable[[list[nn.Parameter]], optim.Optimizer]
STEPS = 4
RATES = (0.05, 0.03, 0.03, 0.01)
BY_ELEMENT: dict[str, Factory] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "dampening": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, maximize=True),
    "adam": lambda p: optim.Adam(p, lr=1e-2, weight_decay=0.1, amsgrad=True),
    "adam for-loop": lambda p: optim.Adam(p, lr=1e-2, foreach=False),
    "adam foreach": lambda p: optim.Adam(p, lr=1e-2, foreach=True),
    "adamw": lambda p: optim.AdamW(p, lr=1e-2, betas=(0.8, 0.95)),
    "adamw tensor rate": lambda p: optim.AdamW(p, lr=torch.tensor(0.01)),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1, lr_decay=0.01, initial_accumulator_value=0.1),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "adadelta": optim.Adadelta,
    "adamax": optim.Adamax,
    "nadam": optim.NAdam,
    "radam": lambda p: optim.RAdam(p, decoupled_weight_decay=True, weight_decay=0.1),
    "rprop": optim.Rprop,
    "asgd": lambda p: optim.ASGD(p, t0=2),
}
WHOLE: dict[str, Factory] = {
    "adafactor": lambda p: optim.Adafactor(p, lr=0.05),
    "muon": lambda p: optim.Muon([one for one in p if one.dim() == 2], lr=0.05),
}


@pytest.fixture
def user_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import user_optimizers

    yield user_optimizers
    sys.modules.pop("user_optimizers", None)


class Servers:
    """Shards that hold the parameters of one optimizer, as a fleet does. Each is dumped and loaded after every step."""

    def __init__(self, optimizer: optim.Optimizer, count: int) -> None:
        self.described = describe_optimizer(optimizer)
        self.names = {parameter: f"p{number}" for number, parameter in enumerate(self.described)}
        keys = [
            DenseKey(self.names[p], tuple(p.shape), str(p.dtype).removeprefix("torch."), one.whole)
            for p, one in self.described.items()
        ]
        self.placement = place(keys, count)
        self.shards = [Shard() for _ in range(count)]
        self.sequence = 0
        by_name = {self.names[p]: one for p, one in self.described.items()}
        for shard, slices in zip(self.shards, self.placement.servers, strict=True):
            holdings = [_holding(piece, by_name[piece.key.name]) for piece in slices]
            assert isinstance(shard.do(Declare(tuple(holdings), **self.id())), Done)
        self.set({self.names[p]: p.detach() for p in self.described})

    def id(self) -> dict[str, Any]:
        self.sequence += 1
        return {"client": "test", "sequence": self.sequence}

    def _updates(self, tensors: dict[str, Tensor], server: int) -> tuple[Update, ...]:
        found = []
        for piece in self.placement.servers[server]:
            array = tensors[piece.key.name].reshape(-1).numpy()[piece.start : piece.stop]
            array.flags.writeable = False
            found.append(Update(piece.label, array))
        return tuple(found)

    def set(self, tensors: dict[str, Tensor]) -> None:
        for server, shard in enumerate(self.shards):
            assert isinstance(shard.do(Set(self._updates(tensors, server), **self.id())), Done)

    def push(self, gradients: dict[nn.Parameter, Tensor], rates: tuple[float, ...]) -> None:
        named = {self.names[p]: gradient for p, gradient in gradients.items()}
        for server, shard in enumerate(self.shards):
            assert isinstance(shard.do(Push(self._updates(named, server), rates, **self.id())), Done)
        self.shards = [Shard.load(*shard.dump()) for shard in self.shards]

    def pull(self, parameter: nn.Parameter) -> Tensor:
        parts = [self._found(server, piece.label).values for server, piece in self.placement.of(self.names[parameter])]
        return torch.from_numpy(np.concatenate([part for part in parts if part is not None])).view(parameter.shape)

    def _found(self, server: int, label: str) -> Found:
        answer = self.shards[server].do(Pull((Wanted(label),)))
        assert isinstance(answer, Pulled)
        return answer.found[0]

    def state(self, parameter: nn.Parameter) -> dict[str, Any]:
        slices = []
        for server, piece in self.placement.of(self.names[parameter]):
            answer = self.shards[server].do(GetState(piece.label))
            assert isinstance(answer, UpdaterState)
            slices.append(answer.state)
        return unpack_entries(join_slices(slices, tuple(parameter.shape)))


def _holding(piece: Any, described: Described) -> Holding:
    return Holding(piece, described.updater, described.options, described.group)


def _model(dtype: torch.dtype) -> list[nn.Parameter]:
    made = torch.Generator().manual_seed(0)
    shapes = [(67, 131), (131,), (3, 3, 5, 7), ()]
    return [nn.Parameter(torch.randn(shape, generator=made, dtype=dtype)) for shape in shapes]


def _gradients(parameters: list[nn.Parameter], step: int) -> dict[nn.Parameter, Tensor]:
    made = torch.Generator().manual_seed(step + 1)
    return {p: torch.randn(p.shape, generator=made, dtype=p.dtype) for p in parameters}


def _compare_with_one_process(factory: Factory, dtype: torch.dtype, servers: int) -> Servers:
    parameters = _model(dtype)
    optimizer = factory(parameters)
    choose_fused(optimizer)
    fleet = Servers(optimizer, servers)
    used = list(fleet.described)
    for step in range(STEPS):
        gradients = _gradients(used, step)
        for group in optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(RATES[step])
            else:
                group["lr"] = RATES[step]
        for p in used:
            p.grad = gradients[p].clone()
        optimizer.step()
        fleet.push(gradients, (RATES[step],))
        for p in used:
            assert torch.equal(fleet.pull(p), p), f"step {step}, shape {tuple(p.shape)}"
    for p in used:
        expected, found = optimizer.state[p], fleet.state(p)
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert torch.equal(found[name], value), name
    return fleet


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", BY_ELEMENT)
def test_slices_on_servers_have_the_bits_of_the_whole(name: str, dtype: torch.dtype) -> None:
    fleet = _compare_with_one_process(BY_ELEMENT[name], dtype, servers=3)
    assert len(fleet.placement.of("p0")) > 1, "the large parameter was to be cut"


@pytest.mark.parametrize("name", WHOLE)
def test_what_looks_at_whole_tensors_is_placed_whole(name: str) -> None:
    fleet = _compare_with_one_process(WHOLE[name], torch.float32, servers=3)
    assert all(one.whole for one in fleet.described.values())
    assert all(len(fleet.placement.of(key)) == 1 for key in fleet.names.values())


def test_a_class_of_the_users_own_is_found_by_its_module_and_kept_from_the_gradient(user_module: Any) -> None:
    parameters = _model(torch.float32)
    optimizer = user_module.InPlace(parameters, lr=0.1, decay=0.2)
    fleet = Servers(optimizer, 2)
    for step in range(2):
        gradients = _gradients(parameters, step)
        before = {p: gradient.clone() for p, gradient in gradients.items()}
        fleet.push(gradients, (0.1,))
        assert all(torch.equal(gradients[p], before[p]) for p in parameters), "the pushed array was changed"
        for p in parameters:
            p.grad = gradients[p].clone()
        optimizer.step()
        assert all(torch.equal(fleet.pull(p), p) for p in parameters)
    assert fleet.state(parameters[0])["count"] == 2


def test_groups_have_rates_of_their_own_and_frozen_or_tied_parameters_need_nothing() -> None:
    first, tied, last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 2)
    tied.weight = first.weight
    last.bias.requires_grad_(False)
    inner: dict[str, Any] = {"params": nn.Sequential(first, tied).parameters()}
    described = describe_optimizer(optim.AdamW([inner, {"params": last.parameters(), "weight_decay": 0.5}], lr=0.1))
    assert set(described) == {first.weight, last.weight}
    assert [one.group for one in described.values()] == [0, 1]
    assert [one.options["settings"]["weight_decay"] for one in described.values()] == [0.01, 0.5]


def test_a_changed_rate_does_not_change_the_description() -> None:
    optimizer = optim.SGD([nn.Parameter(torch.zeros(3))], lr=0.1)
    (first,) = describe_optimizer(optimizer, (0.1,)).values()
    optimizer.param_groups[0]["lr"] = 0.01
    (second,) = describe_optimizer(optimizer, (0.1,)).values()
    assert first == second


def test_state_goes_to_other_slices() -> None:
    parameter = nn.Parameter(torch.arange(400.0))
    optimizer = optim.Adam([parameter], lr=0.1)
    two = Servers(optimizer, 2)
    two.push({parameter: torch.ones(400)}, (0.1,))
    (described,) = two.described.values()
    one = Shard()
    (piece,) = place([DenseKey("p", (400,))], 1).servers[0]
    whole = join_slices([_state_of(shard) for shard in two.shards], (400,))
    assert isinstance(one.do(Declare((_holding(piece, described),), client="a", sequence=1)), Done)
    assert isinstance(one.do(SetState(piece.label, cut_slice(whole, 0, 400), client="a", sequence=2)), Done)
    assert _same(_state_of(one), {name: array.reshape(-1) for name, array in whole.items()})


def _state_of(shard: Shard) -> dict[str, Any]:
    (label,) = shard.holdings.held
    answer = shard.do(GetState(label))
    assert isinstance(answer, UpdaterState)
    return answer.state


def _same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return set(one) == set(two) and all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("name", ["momentum", "adam for-loop", "adagrad", "rprop"])
def test_rows_of_a_table_are_updated_and_others_left_alone(name: str) -> None:
    table = nn.Parameter(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)))
    optimizer = BY_ELEMENT[name]([table])
    (described,) = describe_optimizer(optimizer).values()
    shard = Shard()
    (piece,) = place([SparseKey("t", 6, (3,))], 1).servers[0]
    shard.do(Declare((_holding(piece, described),), client="a", sequence=1))
    shard.do(Set((Update(piece.label, table.detach().numpy().copy()),), client="a", sequence=2))
    rows, gradient = np.array([1, 4]), np.ones((2, 3), np.float32)
    for sequence in (3, 4):
        shard.do(Push((Update(piece.label, gradient, rows),), (0.1,), client="a", sequence=sequence))
    few = nn.Parameter(table.detach()[[1, 4]])
    alone = BY_ELEMENT[name]([few])
    alone.param_groups[0]["lr"] = 0.1
    for _ in range(2):
        few.grad = torch.ones(2, 3)
        alone.step()
    answer = shard.do(Pull((Wanted(piece.label),)))
    assert isinstance(answer, Pulled)
    values = answer.found[0].values
    assert values is not None
    assert np.array_equal(values[rows], few.detach().numpy())
    others = [0, 2, 3, 5]
    assert np.array_equal(values[others], table.detach().numpy()[others])
    first = next(array for key, array in _state_of(shard).items() if ":" not in key)
    assert len(first) == 6


# ---- what is refused, before a run starts


class InTheScript(optim.SGD):
    pass


def _in_main(monkeypatch: pytest.MonkeyPatch) -> optim.Optimizer:
    monkeypatch.setattr(InTheScript, "__module__", "__main__")
    return InTheScript([nn.Parameter(torch.zeros(3))], lr=0.1)


def test_a_class_of_the_script_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"InTheScript.*move the class into a module.*or use strategy allreduce"):
        describe_optimizer(_in_main(monkeypatch))


def test_a_class_that_cannot_be_imported_is_refused_here_and_by_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InTheScript, "__module__", "nowhere_to_be_found")
    with pytest.raises(ConfigError, match=r"cannot import nowhere_to_be_found.*strategy allreduce"):
        describe_optimizer(InTheScript([nn.Parameter(torch.zeros(3))], lr=0.1))
    (piece,) = place([DenseKey("p", (3,))], 1).servers[0]
    options = {"optimizer": "nowhere_to_be_found:InTheScript", "settings": {}}
    answer = Shard().do(Declare((Holding(piece, "torch", options),), client="a", sequence=1))
    assert isinstance(answer, Refused)
    assert "cannot import nowhere_to_be_found" in answer.detail


def test_what_is_no_optimizer_is_refused() -> None:
    (piece,) = place([DenseKey("p", (3,))], 1).servers[0]
    for name in ("torch.nn:Linear", "os:system", "torch.optim:Nothing"):
        options: dict[str, Any] = {"optimizer": name, "settings": {}}
        answer = Shard().do(Declare((Holding(piece, "torch", options),), client="a", sequence=1))
        assert isinstance(answer, Refused)
        assert "no optimizer class of that name" in answer.detail


def test_closures_sparse_gradients_and_hooks_are_refused() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    with pytest.raises(ConfigError, match="LBFGS evaluates the model several times"):
        describe_optimizer(optim.LBFGS([parameter]))
    with pytest.raises(ConfigError, match="use Adam"):
        describe_optimizer(optim.SparseAdam([parameter]))
    hooked = optim.SGD([parameter], lr=0.1)
    hooked.register_step_post_hook(lambda *given: None)
    with pytest.raises(ConfigError, match="step hooks"):
        describe_optimizer(hooked)


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("Outside", {"boost": 2.0}, "keeps 'boost' outside of its parameter groups"),
        ("Counting", {}, "changes 'steps'"),
        ("Noisy", {}, "draws random numbers"),
        ("Listing", {}, "keeps 'history', which is a list"),
    ],
)
def test_what_servers_could_not_do_alike_is_refused(
    user_module: Any, kind: str, settings: dict[str, float], words: str
) -> None:
    optimizer = getattr(user_module, kind)([nn.Parameter(torch.zeros(3))], lr=0.1, **settings)
    before = torch.get_rng_state()
    with pytest.raises(ConfigError, match=words):
        describe_optimizer(optimizer)
    assert torch.equal(before, torch.get_rng_state()), "looking at an optimizer draws nothing"


def test_the_same_settings_inside_are_accepted(user_module: Any) -> None:
    (described,) = describe_optimizer(user_module.Outside([nn.Parameter(torch.zeros(3))], lr=0.1)).values()
    assert described.options["optimizer"] == "user_optimizers:Outside"


def test_settings_that_are_objects_are_refused() -> None:
    optimizer = optim.SGD([{"params": [nn.Parameter(torch.zeros(3))], "owner": object()}], lr=0.1)
    with pytest.raises(ConfigError, match=r"'owner'.*holds a object"):
        describe_optimizer(optimizer)


@pytest.mark.parametrize(
    ("make", "moves"),
    [
        (lambda p: optim.SGD(p, lr=0.1), False),
        (lambda p: optim.Adagrad(p, lr=0.1), False),
        (lambda p: optim.SGD(p, lr=0.1, weight_decay=1e-2), True),
        (lambda p: optim.SGD(p, lr=0.1, momentum=0.9), True),
        (lambda p: optim.Adam(p, lr=0.1), True),
        (lambda p: optim.RMSprop(p, lr=0.1), True),
    ],
    ids=["sgd", "adagrad", "decay", "momentum", "adam", "rmsprop"],
)
def test_it_is_known_which_optimizers_move_rows_without_a_gradient(make: Factory, moves: bool) -> None:
    table = nn.Parameter(torch.ones(5, 2))
    assert moves_at_rest(describe_optimizer(make([table]))[table]) is moves
