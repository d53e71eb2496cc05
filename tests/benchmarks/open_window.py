"""What a batch costs that leaves an accumulation window open: `python -m tests.benchmarks.open_window`.

The window is so long that every batch measured is of this kind. Eager, it is compared with backward into `.grad`, which adds; captured and
donated, with a captured function that does no more than gradient and addition. Contenders take turns in shuffled order in every round;
figures are medians of ratios of CPU times with 95 % bootstrap intervals.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import purestep as ps
from purestep.core.grad import value_and_grad
from purestep.core.module import Skeleton, make_layout, read
from tests.benchmarks.speed.figures import interval
from tests.benchmarks.speed.variants import MAX_NORM
from tests.benchmarks.speed.workloads import WORKLOADS, Workload

Run = Callable[[int], None]


def waiting_step(workload: Workload, *, gates: bool = False, **compile_options: Any) -> Run:
    """Our step in a window that stays open, with or without a gate before `accumulate`."""
    first = [ps.skip_nonfinite()] if gates else []
    tr = ps.Training(
        workload.model(),
        loss=lambda predictions, batch: predictions["loss"],
        forward=lambda model, batch: {"loss": workload.loss(model, batch)},
        optimizer=ps.chain(*first, ps.accumulate(10**9), ps.clip_by_global_norm(MAX_NORM), ps.adamw(1e-3)),
    )
    step = ps.compile(tr.step, **compile_options) if compile_options else lambda state, batch: tr.step.at(state)(state, batch)
    state, batches = tr.init(), workload.batches()

    def run(steps: int) -> None:
        nonlocal state
        for number in range(steps):
            state, _ = step(state, batches[number % len(batches)])

    return run


def backward_into_grad(workload: Workload) -> Run:
    """The plain loop without its optimizer."""
    model, batches = workload.model(), workload.batches()

    def run(steps: int) -> None:
        for number in range(steps):
            workload.loss(model, batches[number % len(batches)]).backward()

    return run


def captured_gradient(workload: Workload) -> Run:
    """Gradient and addition as a pure function, captured and donated like our step."""
    model, batches = workload.model(), workload.batches()
    layout = make_layout(model)
    skeleton, params = Skeleton(model, layout, training=True), read(model, layout, "_parameters")

    def add(carried: tuple, batch: Any) -> tuple:
        params, total = carried
        loss, _, grads, _ = value_and_grad(lambda p: (skeleton.call(workload.loss, p, {}, batch)[0], ()), params)
        return (params, ps.tree.map(torch.add, total, grads)), loss

    step = ps.compile(add, donate=True)
    carried: Any = (params, ps.tree.zeros_like(params))

    def run(steps: int) -> None:
        nonlocal carried
        for number in range(steps):
            carried, _ = step(carried, batches[number % len(batches)])

    return run


CONTENDERS: dict[str, tuple[Callable[[Workload], Run], str]] = {
    "gradient, eager": (backward_into_grad, "gradient, eager"),
    "step, eager": (waiting_step, "gradient, eager"),
    "step behind a gate, eager": (lambda workload: waiting_step(workload, gates=True), "gradient, eager"),
    "gradient, captured": (captured_gradient, "gradient, captured"),
    "step, captured": (lambda workload: waiting_step(workload, donate=True), "gradient, captured"),
    "step behind a gate, captured": (lambda workload: waiting_step(workload, gates=True, donate=True), "gradient, captured"),
}
"""How each is made, and what it is compared with."""


def measure(workload: Workload, rounds: int) -> dict[str, list[float]]:
    """CPU seconds by contender and round."""
    runs = {name: make(workload) for name, (make, _) in CONTENDERS.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run(2)
    for number in range(rounds):
        for name in random.Random(number).sample(sorted(runs), len(runs)):
            began = time.process_time()
            runs[name](workload.steps)
            times[name].append(time.process_time() - began)
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="tiny,schnet")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.workloads.split(","):
        times = measure(WORKLOADS[name], options.rounds)
        print(f"{name}: ratios of CPU time, median and 95 % interval of {options.rounds} rounds")
        for contender, (_, base) in CONTENDERS.items():
            ratios = [own / other for own, other in zip(times[contender], times[base], strict=True)]
            low, high = interval(ratios)
            print(f"  {contender:32} {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}] of {base}")


if __name__ == "__main__":
    main()
