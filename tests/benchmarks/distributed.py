"""Time of a step on several ranks, against torch's own wrappers doing the same work on the same batches.

    python -m tests.benchmarks.distributed --against ddp
    python -m tests.benchmarks.distributed --against fsdp --width 1024

`ddp` is DistributedDataParallel with fused AdamW, against data-parallel steps; `fsdp` is FSDP2 (`fully_shard` of every layer and of the
whole), against steps whose parameters, gradients and optimizer state are in parts. Each rank runs blocks of both in turn, the order
changing from round to round, so that what else the machine does hits both alike. Printed is the ratio of ours to theirs, of wall time
and of the CPU time of all ranks: the median over rounds, with the interval that holds 95 % of the medians of resampled rounds.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import purestep as ps

Batch = dict[str, torch.Tensor]
RESAMPLES = 2000


class Cost(NamedTuple):
    """Seconds of a step: of the clock, and of the CPUs of all ranks together."""

    wall: float
    cpu: float


def make_model(width: int, depth: int) -> nn.Module:
    torch.manual_seed(0)
    hidden = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(nn.Linear(64, width), nn.GELU(), *hidden, nn.Linear(width, 8))


def ours(model: nn.Module, topology: ps.distributed.Topology, batch: Batch, options: argparse.Namespace) -> Callable[[], None]:
    training = ps.Training(
        model,
        loss=ps.MSELoss(prediction_key="y", target_key="y"),
        optimizer=ps.adamw(1e-3),
        forward=lambda net, batch: {"y": net(batch["x"])},
    )
    shared = ps.distributed.data_parallel(training, topology, shard_state="parameters" if options.against == "fsdp" else "nothing")
    step = shared.step if options.backend == "eager" else ps.compile(shared.step, donate=True, backend=options.backend)
    held = [shared.init()]

    def run() -> None:
        held[0], _ = step(held[0], batch)

    return run


def theirs(model: nn.Module, batch: Batch, against: str) -> Callable[[], None]:
    if against == "ddp":
        wrapped, fused = DistributedDataParallel(model), True
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        wrapped, fused = fully_shard(model, mesh=mesh), False
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3, weight_decay=1e-4, fused=fused)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(wrapped(batch["x"]), batch["y"]).backward()
        optimizer.step()

    return run


def cost_of(run: Callable[[], None], steps: int) -> Cost:
    """Of one step; the clock is that of the slowest rank."""
    torch.distributed.barrier()
    began, began_cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        run()
    wall = torch.tensor((time.perf_counter() - began) / steps, dtype=torch.float64)
    cpu = torch.tensor((time.process_time() - began_cpu) / steps, dtype=torch.float64)
    torch.distributed.all_reduce(wall, op=torch.distributed.ReduceOp.MAX)
    torch.distributed.all_reduce(cpu)
    return Cost(float(wall), float(cpu))


def ratio_with_interval(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Median of the ratios of paired rounds, and the interval of 95 % of the medians of resampled rounds."""
    ratios = np.array(ours) / np.array(theirs)
    drawn = np.random.default_rng(0).choice(ratios, (RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(drawn, 1), (0.025, 0.975))
    return {"ratio": float(np.median(ratios)), "low": float(low), "high": float(high)}


def work(rank: int, store: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    topology = ps.distributed.init(rank=rank, world_size=options.ranks, method=f"file://{store}", device="cpu", timeout_seconds=300)
    torch.manual_seed(rank)
    batch = {"x": torch.randn(options.batch, 64), "y": torch.randn(options.batch, 8)}
    runs = {
        "ours": ours(make_model(options.width, options.depth), topology, batch, options),
        "theirs": theirs(make_model(options.width, options.depth), batch, options.against),
    }
    for run in runs.values():
        cost_of(run, options.warmup)
    costs: dict[str, list[Cost]] = {name: [] for name in runs}
    for number in range(options.rounds):
        for name in sorted(runs, reverse=bool(number % 2)):
            costs[name].append(cost_of(runs[name], options.steps))
    if rank == 0:
        kinds = {kind: {name: [getattr(cost, kind) for cost in found] for name, found in costs.items()} for kind in Cost._fields}
        report = {kind: ratio_with_interval(seconds["ours"], seconds["theirs"]) for kind, seconds in kinds.items()}
        medians = {kind: {name: statistics.median(values) for name, values in seconds.items()} for kind, seconds in kinds.items()}
        print(json.dumps({**vars(options), "torch": torch.__version__, "seconds": medians, **report}))
    torch.distributed.barrier()  # nobody closes connections that another still uses
    ps.distributed.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("ranks", 2), ("width", 512), ("depth", 2), ("batch", 64), ("steps", 20), ("warmup", 5), ("rounds", 30)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--against", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--backend", choices=("eager", "aot_eager", "inductor"), default="inductor")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(work, (f"{folder}/store", options), nprocs=options.ranks, start_method="spawn")
