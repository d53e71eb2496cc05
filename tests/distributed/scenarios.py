"""Small trainings that ranks run; each returns what a test compares."""

import functools

import torch
from torch import nn

import purestep as ps
from purestep.core import tree
from purestep.distributed.collective import watched


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 4, dtype=torch.float64)
        self.head = nn.Linear(4, 1, dtype=torch.float64)

    def forward(self, batch):
        features = torch.tanh(self.inner(batch["x"]))
        return {"a": self.head(features), "b": features.sum(-1, keepdim=True)}


def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return TwoHeads()


def samples(number: int = 12, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(number, size, dtype=torch.float64, generator=generator) for name, size in (("x", 3), ("a", 1), ("b", 1))}
    known = torch.rand(2, number, generator=generator) > 0.3
    known[1, : number // 2] = False  # labels of one component are missing in half of the samples
    return {**drawn, "known_a": known[0], "known_b": known[1]}


def part(batch: dict[str, torch.Tensor], begin: int, end: int) -> dict[str, torch.Tensor]:
    return {name: field[begin:end] for name, field in batch.items()}


def loss():
    one = ps.MSELoss(prediction_key="a", target_key="a", mask_key="known_a", name="A")
    return 1.0 * one + 3.0 * ps.MSELoss(prediction_key="b", target_key="b", mask_key="known_b", name="B")


OPTIMIZERS = {
    "adamw": lambda: ps.adamw(0.1),
    "gated": lambda: ps.chain(ps.skip_nonfinite(), ps.skip_spikes(), ps.clip_by_global_norm(0.5), ps.adamw(0.05)),
    "scaled": lambda: ps.chain(ps.dynamic_loss_scale(), ps.skip_nonfinite(), ps.clip_by_global_norm(0.5), ps.sgd(0.1, momentum=0.9)),
    "window": lambda: ps.chain(ps.accumulate(2), ps.clip_by_global_norm(0.5), ps.adamw(0.05)),
    "gated window": lambda: ps.chain(ps.skip_nonfinite(), ps.accumulate(2), ps.skip_spikes("grad_norm"), ps.adamw(0.05)),
}


def training(optimizer: str = "adamw", **changes) -> ps.Training:
    return ps.Training(model(), **{"loss": loss(), "optimizer": OPTIMIZERS[optimizer](), "hooks": (ps.hooks.ema(0.9),), **changes})


def run_steps(step, state, batches):
    metrics = []
    for batch in batches:
        state, reported = step(state, batch)
        metrics.append({name: value.detach().clone() for name, value in reported.items()})
    return state, metrics


def plain(state) -> dict[str, torch.Tensor]:
    return dict(tree.items(state))


def train_on_splits(topology, optimizer, splits, changes, backend=None):
    """Steps on one batch after the other, of which this rank has `splits[i][rank] = (begin, end)`."""
    shared = ps.distributed.data_parallel(training(optimizer, **changes), topology)
    options = {"capture": "dynamo", "backend": "aot_eager"} if backend == "dynamo" else {"backend": backend}
    step = shared.step if backend is None else ps.compile(shared.step, on_recompile="ignore", **options)
    batches = [part(samples(12, seed), *split[topology.rank]) for seed, split in enumerate(splits)]
    state, metrics = run_steps(step, shared.init(), batches)
    return plain(state), metrics


def train_many(topology, cases):
    return [train_on_splits(topology, *case) for case in cases]


def sharded(topology, name, shard_state):
    """Three steps with each optimizer, the state of it in parts or not; parameters, metrics and what the optimizer holds in bytes."""
    own = wide_training(name)
    shared = ps.distributed.data_parallel(own, topology, shard_state=shard_state)
    batches = [
        part(samples(12, seed), 12 * topology.rank // topology.world_size, 12 * (topology.rank + 1) // topology.world_size)
        for seed in range(3)
    ]
    state, metrics = run_steps(shared.step, shared.init(), batches)
    return dict(tree.items(state.params)), metrics, tree.num_bytes(state.opt_state)


SHARDABLE = {
    "adamw": lambda: ps.adamw(0.05),
    "clipped": lambda: ps.chain(ps.skip_nonfinite(), ps.clip_by_global_norm(0.1), ps.adamw(0.05, mask="*.weight")),
    "lion": lambda: ps.lion(0.01),
    "momentum": lambda: ps.sgd(0.1, momentum=0.9),
    "window": lambda: ps.chain(ps.accumulate(2), ps.adamw(0.05)),
    "gated window": lambda: ps.chain(ps.skip_nonfinite(), ps.accumulate(2), ps.adamw(0.05)),
}


def wide_training(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(3, 130), nn.Tanh(), nn.Linear(130, 64), nn.Tanh(), nn.Linear(64, 1)).double()
    return ps.Training(
        layers,
        loss=ps.MSELoss(prediction_key="a", target_key="a", mask_key="known_a"),
        optimizer=SHARDABLE[name](),
        forward=lambda model, batch: {"a": model(batch["x"])},
    )


def sharded_all(topology, shard_state):
    return {name: sharded(topology, name, shard_state) for name in SHARDABLE}


def note(seen, operation, x):
    seen.append((operation, x.numel() * x.element_size()))


def traffic_of(topology, name, changes, num_steps, options):
    """Collectives and bytes of each step, as `(operation, bytes)`."""
    shared = ps.distributed.data_parallel(wide_training(name).replace(**changes), topology, **options)
    state, steps = shared.init(), []
    for seed in range(num_steps):
        steps.append([])
        with watched(functools.partial(note, steps[-1])):
            state, _ = shared.step.at(state)(state, part(samples(12, seed), topology.rank, 8))
    return steps


def in_a_simulated_world(topology, world_size):
    """What the last rank of a large world sends in a step, and holds of a model of two leaves, 4096 rows of 8 and 4096 numbers."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=world_size - 1, world_size=world_size, store=FakeStore())
    simulated = ps.distributed.Topology(rank=world_size - 1, world_size=world_size)
    own = ps.Training(
        nn.Linear(8, 4096),
        loss=ps.MSELoss(prediction_key="y", target_key="y"),
        optimizer=ps.adamw(0.1),
        forward=lambda model, batch: {"y": model(batch["x"])},
    )
    held, seen = {}, []
    for choice in ("nothing", "optimizer"):
        shared = ps.distributed.data_parallel(own, simulated, shard_state=choice)
        state = shared.init()
        with watched(functools.partial(note, seen)):
            state, _ = shared.step(state, {"x": torch.ones(2, 8), "y": torch.zeros(2, 4096)})
        held[choice] = tree.num_bytes(state.opt_state)
    return held, seen


def mixed_dtypes(topology):
    """The sum over ranks of leaves of several dtypes, and how it travelled."""
    updates = {
        "complex": torch.full((2,), 1 + 2j, dtype=torch.complex64),
        "half": torch.full((3,), 0.1, dtype=torch.bfloat16),
        "scalar": torch.tensor(float(topology.rank), dtype=torch.float64),
        "single": torch.ones(2, 2),
    }
    transform, seen = ps.distributed.sum_over_ranks(topology.ranks), []
    with watched(functools.partial(note, seen)):
        summed, state = transform.update(updates, transform.init(updates))
    return tree.clone(summed), seen, float(state.metrics["update/grad_norm"])
