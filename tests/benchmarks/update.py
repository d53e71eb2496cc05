"""Time of an adamw update over 300 leaves, next to other implementations on the same leaves: `python -m tests.benchmarks.update`.

For each size of leaf: median CPU time, and the ratio to `torch.optim.AdamW(foreach=True)` with its 95 % bootstrap interval. Contenders
take turns in shuffled order in every round, so a busy machine slows all of them. Optax takes part where it is installed.
"""

import argparse
import importlib.util
import os
import random
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import torch
from torch import Tensor

import purestep as ps
from tests.benchmarks.speed.figures import interval, versions

LEAVES = 300
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 1e-2
Leaves = dict[str, Tensor]


def torch_update(params: Leaves, grads: Leaves, **options: bool) -> Callable[[], Leaves]:
    theirs = [p.clone().requires_grad_() for p in params.values()]
    for p, g in zip(theirs, grads.values(), strict=True):
        p.grad = g.clone()
    optimizer = torch.optim.AdamW(theirs, LEARNING_RATE, weight_decay=WEIGHT_DECAY, **options)

    def run() -> Leaves:
        optimizer.step()
        return dict(zip(params, theirs, strict=True))

    return run


def our_update(params: Leaves, grads: Leaves, **compile_options: bool) -> Callable[[], Leaves]:
    optimizer = ps.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def update(carried: tuple, grads: Leaves) -> tuple:
        updates, opt_state = optimizer.update(grads, carried[0], carried[1])
        return (opt_state, ps.apply_updates(carried[1], updates)), None

    step = ps.compile(update, **compile_options) if compile_options else update
    carried = [ps.tree.clone((optimizer.init(params), params))]

    def run() -> Leaves:
        carried[0], _ = step(carried[0], grads)
        return carried[0][1]

    return run


def optax_update(params: Leaves, grads: Leaves) -> Callable[[], Leaves]:
    import jax
    import jax.numpy as jnp
    import optax

    optimizer = optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def update(opt_state, params, grads):
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return opt_state, optax.apply_updates(params, updates)

    compiled = jax.jit(update, donate_argnums=(0, 1))
    theirs, gradient = ({name: jnp.array(x.numpy()) for name, x in tree.items()} for tree in (params, grads))
    carried = [optimizer.init(theirs), theirs]

    def run() -> Leaves:
        carried[:] = compiled(*carried, gradient)
        jax.block_until_ready(carried)
        return carried[1]

    return run


CONTENDERS: dict[str, Callable[..., Callable[[], Leaves]]] = {
    "torch, foreach": lambda params, grads: torch_update(params, grads, foreach=True),
    "torch, fused": lambda params, grads: torch_update(params, grads, fused=True),
    "optax, jitted, donated": optax_update,
    "purestep, eager": our_update,
    "purestep, captured, donated": lambda params, grads: our_update(params, grads, donate=True),
}


def seconds(call: Callable[[], Leaves], repeats: int) -> float:
    """CPU time of one call."""
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def compare(size: int, rounds: int, repeats: int) -> dict[str, list[float]]:
    """CPU seconds by round of every contender, for square leaves of this side."""
    gen = torch.Generator().manual_seed(0)
    params, grads = ({f"layer{i}": torch.randn(size, size, generator=gen) for i in range(LEAVES)} for _ in range(2))
    known = {name: make for name, make in CONTENDERS.items() if "optax" not in name or importlib.util.find_spec("optax")}
    calls = {name: make(params, grads) for name, make in known.items()}
    first = {name: torch.tensor(call()["layer7"].tolist()) for name, call in calls.items()}
    for name, leaf in first.items():
        assert torch.allclose(leaf, first["torch, foreach"], rtol=1e-5, atol=1e-6), f"{name} updates otherwise"
    times: dict[str, list[float]] = {name: [] for name in calls}
    shuffler = random.Random(0)
    for number in range(rounds + 1):
        for name in shuffler.sample(list(calls), len(calls)):
            took = seconds(calls[name], repeats)
            times[name] += [took] if number else []  # the first round warms up
    return times


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.update", description=__doc__)
    parser.add_argument("--sizes", default="4,16,64,256", help="sides of the leaves, with commas")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(", ".join(f"{name} {version}" for name, version in versions().items() if name in ("date", "torch", "jax", "optax")))
    for size in map(int, options.sizes.split(",")):
        print(f"{LEAVES} leaves of {size} x {size}")
        times = compare(size, options.rounds, options.repeats)
        for name, values in times.items():
            ratios = [a / b for a, b in zip(values, times["torch, foreach"], strict=True)]
            low, high = interval(ratios)
            cells = f"{statistics.median(values) * 1e6:10.0f} us  {statistics.median(ratios):.2f} [{low:.2f}, {high:.2f}]"
            print(f"  {name:<28}{cells}", flush=True)
