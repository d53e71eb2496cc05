"""Trainings whose branches depend on the batch: what one rank's share reaches, another's may not."""

import random
import warnings

import torch
from torch import nn

import purestep as ps
from tests.distributed import scenarios

FIELDS = ("a", "b", "c", "d")


class Heads(nn.Module):
    """A head for each field that the batch has; the others are not called."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(2)
            self.trunk = nn.Linear(3, 6)
            self.heads = nn.ModuleDict({name: nn.Linear(6, 2) for name in FIELDS})
        self.double()

    def forward(self, batch):
        out = [self.heads[name](torch.tanh(self.trunk(x))) for name, x in batch["x"].items()]
        return {"y": torch.cat(out), "zero": torch.ones(sum(map(len, out)), 2, dtype=torch.float64)}


OPTIMIZERS = {
    "adamw": lambda: ps.adamw(0.05, weight_decay=0.1),
    "momentum": lambda: ps.chain(ps.add_decayed_weights(0.1), ps.sgd(0.05, momentum=0.9)),
    "window": lambda: ps.chain(ps.skip_nonfinite(), ps.accumulate(2), ps.clip_by_global_norm(0.5), ps.adamw(0.05, weight_decay=0.1)),
    "muon": lambda: ps.muon(0.02),
}


def drawn(seed, world_size, num_steps):
    """For each step what each rank has: rows by field, at least one field for each rank; some fields for nobody."""
    generator = random.Random(seed)
    steps = []
    for number in range(num_steps):
        live = generator.sample(FIELDS, generator.randint(1, 3))
        shares = [generator.sample(live, generator.randint(1, len(live))) for _ in range(world_size)]
        rows = torch.Generator().manual_seed(100 * seed + number)
        steps.append([{name: torch.randn(2, 3, dtype=torch.float64, generator=rows) for name in sorted(share)} for share in shares])
    return steps


def joined(shares):
    """The batch of all ranks."""
    return {name: torch.cat([share[name] for share in shares if name in share]) for name in sorted({n for share in shares for n in share})}


def trained(topology, seed, world_size, num_steps, optimizer, stage="nothing", backend=None):
    """The state after some steps, whole; alone on the batches of all, or on this rank's shares."""
    loss = lambda predictions, batch: ps.Sums((predictions["y"] - 1).square().sum(), torch.tensor(predictions["y"].numel()).double())  # noqa: E731
    own = ps.Training(Heads(), loss=loss, optimizer=OPTIMIZERS[optimizer](), hooks=(ps.hooks.ema(0.9),))
    shared = ps.distributed.data_parallel(own, topology, shard_state=stage)
    step = shared.step if backend is None else ps.compile(shared.step, backend=backend, on_recompile="ignore")
    steps = drawn(seed, world_size, num_steps)
    batches = [joined(shares) if topology.world_size == 1 else shares[topology.rank] for shares in steps]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what is not reached
        state, _ = scenarios.run_steps(step, shared.init(), [{"x": batch} for batch in batches])
    return scenarios.plain(scenarios.whole_state(state, topology.ranks))


def trained_all(topology, cases):
    return [trained(topology, *case) for case in cases]
