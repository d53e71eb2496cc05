"""Time of a step on several ranks, against DistributedDataParallel doing the same work.

    python tests/benchmarks/distributed.py --ranks 2 --width 512

Each rank runs blocks of both in turn, so that what else the machine does hits both alike; the ratio of medians over blocks is printed.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import purestep as ps


def make_model(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 8))


def ours(model: nn.Module, topology: ps.distributed.Topology, batch: dict[str, torch.Tensor], backend: str) -> Callable[[], None]:
    training = ps.Training(
        model,
        loss=ps.MSELoss(prediction_key="y", target_key="y"),
        optimizer=ps.adamw(1e-3),
        forward=lambda net, batch: {"y": net(batch["x"])},
    )
    shared = ps.distributed.data_parallel(training, topology)
    step = shared.step if backend == "eager" else ps.compile(shared.step, donate=True, backend=backend)
    held = [shared.init()]

    def run() -> None:
        held[0], _ = step(held[0], batch)

    return run


def theirs(model: nn.Module, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3, fused=True)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(wrapped(batch["x"]), batch["y"]).backward()
        optimizer.step()

    return run


def seconds_of(run: Callable[[], None], steps: int) -> float:
    torch.distributed.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        run()
    return (time.perf_counter() - began) / steps


def work(rank: int, store: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    topology = ps.distributed.init(rank=rank, world_size=options.ranks, method=f"file://{store}", device="cpu", timeout_seconds=300)
    batch = {"x": torch.randn(options.batch, 64), "y": torch.randn(options.batch, 8)}
    runs = {"purestep": ours(make_model(options.width), topology, batch, options.backend), "ddp": theirs(make_model(options.width), batch)}
    for run in runs.values():
        seconds_of(run, 5)
    times = {name: [] for name in runs}
    for _ in range(options.blocks):
        for name, run in runs.items():
            times[name].append(seconds_of(run, options.steps))
    if rank == 0:
        medians = {name: statistics.median(values) for name, values in times.items()}
        print(json.dumps({**vars(options), "seconds": medians, "ratio": medians["purestep"] / medians["ddp"]}))
    ps.distributed.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("ranks", 2), ("width", 512), ("batch", 64), ("steps", 20), ("blocks", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--backend", choices=("eager", "aot_eager", "inductor"), default="inductor")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(work, (f"{folder}/store", options), nprocs=options.ranks, start_method="spawn")
