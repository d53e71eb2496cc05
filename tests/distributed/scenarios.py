"""Small trainings that ranks run; each returns what a test compares."""

import functools
import warnings
import weakref

import torch
from torch import nn

import purestep as ps
from purestep.core import tree
from purestep.distributed.collective import watched
from purestep.distributed.local import cuts_of
from purestep.distributed.parts import cut_of, gather_parts, part_of, scatter_sum


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


# --- state in parts -----------------------------------------------------------------------------------------------


class Parted(nn.Module):
    """A net with what is awkward to cut: a scalar, tied and frozen parameters, one that the loss does not reach, odd sizes."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.first, self.second = nn.Linear(3, 7), nn.Linear(7, 7)
            self.last = nn.Linear(7, 1)
            self.frozen, self.unused, self.tied = nn.Linear(7, 7), nn.Linear(2, 5), nn.Linear(7, 7)
        self.tied.weight = self.second.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.norm = nn.LayerNorm(7)
        self.double()

    def forward(self, batch):
        hidden = self.norm(torch.tanh(self.first(batch["x"])))
        hidden = self.frozen(torch.tanh(self.tied(torch.tanh(self.second(hidden)))))
        return {"a": self.scale * self.last(hidden)}


STAGED = {
    "adamw": lambda: ps.chain(ps.clip_by_global_norm(0.1), ps.adamw(0.05)),
    "muon": lambda: ps.muon(0.02),
    "lamb": lambda: ps.chain(ps.skip_nonfinite(), ps.skip_spikes(), ps.skip_spikes("grad_norm"), ps.lamb(0.02)),
    "masked": lambda: ps.adamw(0.05, mask=lambda params: tree.map(lambda p: p.ndim > 1, params)),
    "window": lambda: ps.chain(ps.accumulate(2), ps.clip_by_global_norm(0.1), ps.adamw(0.05)),
    "gated window": lambda: ps.chain(ps.dynamic_loss_scale(), ps.skip_nonfinite(), ps.accumulate(2), ps.adam(0.05)),
    "inner window": lambda: ps.chain(ps.chain(ps.skip_nonfinite(), ps.accumulate(2), name="window"), ps.sgd(0.05, momentum=0.9)),
}
STAGES = ("nothing", "optimizer", "gradients", "parameters")


def staged_training(name, **changes):
    return ps.Training(
        Parted(),
        loss=ps.MSELoss(prediction_key="a", target_key="a", mask_key="known_a"),
        optimizer=STAGED[name](),
        hooks=(ps.hooks.ema(0.9), ps.hooks.penalty(lambda params: sum(p.square().sum() for p in tree.leaves(params)) * 1e-3, "l2")),
        trainable=("first.*", "second.*", "last.*", "unused.*", "tied.*", "scale", "norm.*"),
        **changes,
    )


def whole_state(state, ranks):
    """The state with whole leaves, on every rank."""
    cuts = cuts_of(state)
    return tree.map_with_path(lambda path, leaf: gather_parts([leaf], [cuts.get(path)], ranks)[0] if path in cuts else leaf, state)


def staged(topology, name, shard_state, changes, backend=None):
    """Four steps; the state, whole, the metrics, and the bytes that this rank holds of parameters, optimizer state and averages."""
    shared = ps.distributed.data_parallel(staged_training(name, **changes), topology, shard_state=shard_state)
    step = shared.step if backend is None else ps.compile(shared.step, **backend)
    shares = [(12 * rank // topology.world_size) + (rank == 1) for rank in range(topology.world_size)] + [12]
    batches = [part(samples(12, seed), *shares[topology.rank : topology.rank + 2]) for seed in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the parameters that are not reached
        state, metrics = run_steps(step, shared.init(), batches)
    held = [tree.num_bytes(kept) for kept in (state.params, state.opt_state, state.hook_state)]
    return plain(whole_state(state, topology.ranks)), metrics, held


def parts_of_dtypes(topology):
    """Leaves gathered out of their parts, and parts of sums over ranks; each with what it must be."""
    ranks = topology.ranks
    numbers = [((5,), torch.complex64), ((4, 2), torch.bfloat16), ((2, 3, 4), torch.float32), ((), torch.float64), ((1, 1), torch.float32)]
    leaves = [torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape).to(dtype) for shape, dtype in numbers]
    cuts = [cut_of(leaf, 3) for leaf in leaves]
    gathered = gather_parts([part_of(leaf, cut, ranks) for leaf, cut in zip(leaves, cuts, strict=True)], cuts, ranks)
    summed = scatter_sum([leaf * (topology.rank + 1) for leaf in leaves], cuts, ranks)
    expected = [part_of(leaf * 6, cut, ranks) for leaf, cut in zip(leaves, cuts, strict=True)]
    return [tree.clone(found) for found in (gathered, leaves, summed, expected)]


def held_by_stages(topology):
    """Bytes that this rank holds after a step on a model of usual shapes, with a window open."""
    held = {}
    for stage in STAGES:
        own = wide_training("window").replace(hooks=(ps.hooks.ema(0.9),))
        shared = ps.distributed.data_parallel(own, topology, shard_state=stage)
        state, _ = shared.step(shared.init(), part(samples(12), topology.rank, 8))
        window, moments = state.opt_state["accumulate"], state.opt_state["adamw"]
        kept = {"params": state.params, "averages": state.hook_state, "moments": moments, "window": window}
        held[stage] = {name: tree.num_bytes(part) for name, part in kept.items()}
    return held


def by_dynamo(topology):
    """Parameters after two steps with gradients in parts: eagerly, and captured by Dynamo."""
    shared = ps.distributed.data_parallel(wide_training("clipped"), topology, shard_state="gradients")
    captured = ps.compile(shared.step, capture="dynamo", backend="aot_eager")
    batches = [part(samples(12, seed), 6 * topology.rank, 6 * topology.rank + 6) for seed in range(2)]
    return [dict(tree.items(run_steps(step, shared.init(), batches)[0].params)) for step in (shared.step, captured)]


def staged_all(topology, cases):
    return [staged(topology, *case) for case in cases]


def training_on_meta(topology, optimizer):
    with torch.device("meta"):
        layers = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 1)).double()
    own = ps.Training(
        layers,
        loss=ps.MSELoss(prediction_key="a", target_key="a"),
        optimizer=optimizer,
        hooks=(ps.hooks.ema(0.9),),
        forward=lambda model, batch: {"a": model(batch["x"])},
    )
    return ps.distributed.data_parallel(own, topology, batch_norm="synchronised", shard_state="parameters")


def begun_on_meta(topology):
    """A state whose model was never whole, and the same after two steps; gathered."""
    shared = training_on_meta(topology, ps.muon(0.02))
    state = ps.distributed.init_in_parts(shared, topology, seed=7)
    size = 12 // topology.world_size
    batches = [part(samples(12, seed), size * topology.rank, size * (topology.rank + 1)) for seed in range(2)]
    after, _ = run_steps(shared.step, state, batches)
    return plain(whole_state(state, topology.ranks)), dict(tree.items(whole_state(after, topology.ranks).params))


def leaves_alive_while_beginning(topology):
    """How many whole leaves were alive at once, and how many numbers of parameters are held, of leaves of how many."""
    with torch.device("meta"):
        layers = nn.ParameterList([nn.Parameter(torch.empty(16, 4)) for _ in range(6)])
    own = ps.Training(layers, loss=lambda predictions, batch: predictions["y"], optimizer=ps.sgd(0.1), forward=lambda model, batch: {})
    shared = ps.distributed.data_parallel(own, topology, shard_state="parameters")
    alive, most = [], []

    def initialise(path, empty):
        most.append(1 + sum(reference() is not None for reference in alive))
        filled = torch.ones_like(empty)
        alive.append(weakref.ref(filled))
        return filled

    state = ps.distributed.init_in_parts(shared, topology, initialise=initialise)
    return max(most), sum(leaf.numel() for leaf in tree.leaves(state.params)), 64


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
    held, seen = {}, {}
    for choice in STAGES:
        shared = ps.distributed.data_parallel(own, simulated, shard_state=choice)
        state = shared.init()
        seen[choice] = []
        with watched(functools.partial(note, seen[choice])):
            state, _ = shared.step(state, {"x": torch.ones(2, 8), "y": torch.zeros(2, 4096)})
        held[choice] = tree.num_bytes(state.params), tree.num_bytes(state.opt_state)
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
