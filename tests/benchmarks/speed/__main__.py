"""Run the benchmark: rounds of all variants in shuffled order, a table on stdout, a JSON and a PNG on request."""

import argparse
import importlib.metadata
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from .variants import VARIANTS
from .workloads import WORKLOADS

ROOT = Path(__file__).parents[3]
PACKAGES = ("torch", "lightning", "accelerate", "jax", "optax")


def start(workload: str, variant: str) -> subprocess.Popen:
    """A worker on one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    command = [sys.executable, "-m", "tests.benchmarks.speed.worker", workload, variant]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)


def ask(worker: subprocess.Popen, steps: int) -> dict[str, float]:
    """Let a worker run steps, and wait for its answer."""
    worker.stdin.write(f"{steps}\n")
    worker.stdin.flush()
    return json.loads(worker.stdout.readline())


def measure(workload: str, variants: list[str], rounds: int) -> dict[str, Any]:
    """Times of all variants in all rounds; workers are set up one after the other, then woken in shuffled order."""
    workers, failed, first = {}, {}, {}
    for variant in variants:
        worker = start(workload, variant)
        answer = json.loads(worker.stdout.readline() or '{"error": "the worker ended without a word"}')
        if "error" in answer:
            failed[variant] = answer["error"]
        else:
            workers[variant], first[variant] = worker, answer["first_calls"]
    times: dict[str, list[dict[str, float]]] = {variant: [] for variant in workers}
    steps, shuffler = WORKLOADS[workload].steps, random.Random(0)
    for number in range(rounds + 1):
        for variant in shuffler.sample(list(workers), len(workers)):
            answer = ask(workers[variant], steps)
            if number:  # the first round warms up
                times[variant].append(answer)
    for worker in workers.values():
        worker.stdin.close()
        worker.wait(timeout=60)
    return {"times": times, "failed": failed, "first_calls": first, "steps": steps}


def interval(ratios: list[float], draws: int = 2000) -> tuple[float, float]:
    """Bootstrap interval of the median, 95 %."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def table(workload: str, found: dict[str, Any], baseline: str) -> list[str]:
    """Lines of a table: CPU and wall time a step, ratio to the baseline with its interval, first calls, last loss."""
    lines = [f"\n{workload}: {len(found['times'][baseline])} rounds of {found['steps']} steps, ratios of CPU time to {baseline}"]
    lines.append(f"{'variant':<20}{'cpu/step us':>14}{'wall/step us':>14}{'ratio':>8}  {'95 %':<16}{'first calls s':>14}{'last loss':>12}")
    for variant, rows in found["times"].items():
        ratios = [row["cpu"] / base["cpu"] for row, base in zip(rows, found["times"][baseline], strict=True)]
        low, high = interval(ratios)
        cpu, wall = (statistics.median(row[kind] for row in rows) / found["steps"] * 1e6 for kind in ("cpu", "wall"))
        lines.append(
            f"{variant:<20}{cpu:>14.1f}{wall:>14.1f}{statistics.median(ratios):>8.3f}  [{low:.3f}, {high:.3f}]"
            f"{found['first_calls'][variant]:>14.1f}{rows[-1]['loss']:>12.6f}"
        )
    lines += [f"{variant:<20}left out: {why}" for variant, why in found["failed"].items()]
    return lines


def versions() -> dict[str, str]:
    """Versions of the packages that were measured."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def picture(results: dict[str, Any], baseline: str, path: Path) -> None:
    """Bars of the median ratios, one panel a workload."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(results), 4), layout="constrained")
    for axes, (workload, found) in zip(figure.subplots(1, len(results), squeeze=False)[0], results.items(), strict=True):
        base = found["times"][baseline]
        medians = {
            variant: statistics.median(row["cpu"] / other["cpu"] for row, other in zip(rows, base, strict=True))
            for variant, rows in found["times"].items()
        }
        axes.barh(list(medians), list(medians.values()))
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set(title=workload, xlabel=f"CPU time / {baseline}")
        axes.invert_yaxis()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Parse the words, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="tiny,lm,schnet,painn,leaves,accumulate")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--baseline", default="eager_fused")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="folder for speed.json and speed.png")
    options = parser.parse_args()
    results = {}
    print(", ".join(f"{name} {version}" for name, version in versions().items()))
    for workload in options.workloads.split(","):
        results[workload] = measure(workload, options.variants.split(","), options.rounds)
        print("\n".join(table(workload, results[workload], options.baseline)), flush=True)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "speed.json").write_text(json.dumps({"versions": versions(), "results": results}, indent=1))
        picture(results, options.baseline, options.out / "speed.png")


if __name__ == "__main__":
    main()
