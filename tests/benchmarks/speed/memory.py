"""Peak memory of a step: `python -m tests.benchmarks.speed.memory --workloads lm --variants eager_fused,purestep_donated`."""

import argparse

from . import peak
from .running import Worker
from .workloads import WORKLOADS

NAMES = "eager,eager_fused,compiled_model,purestep_eager,purestep,purestep_donated"


def peaks(workload: str, variants: list[str], rounds: int) -> dict[str, list[int] | str]:
    """Peak bytes by round of each variant, one process after the other; or why there are none."""
    steps, found = str(2 * WORKLOADS[workload].accumulate), {}
    for variant in variants:
        worker = Worker(workload, variant, peak.ENVIRONMENT)
        answers = [worker.first] if "error" in worker.first else [worker.ask(f"memory {steps}") for _ in range(rounds)]
        found[variant] = next((answer["error"] for answer in answers if "error" in answer), None) or [one["peak"] for one in answers]
        worker.close()
    return found


def table(workload: str, found: dict[str, list[int] | str], baseline: str) -> list[str]:
    """Lines of a table: the largest peak in MiB, and its ratio to that of the baseline."""
    base = found.get(baseline)
    lines = [f"\n{workload}: {'peak MiB':>24}{'/ ' + baseline:>16}"]
    for variant, peaks in found.items():
        ratio = f"{max(peaks) / max(base):16.3f}" if isinstance(peaks, list) and isinstance(base, list) else ""
        lines.append(f"{variant:<22}" + (f"{max(peaks) / 2**20:>12.2f}{ratio}" if isinstance(peaks, list) else f"left out: {peaks}"))
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.speed.memory", description=__doc__)
    parser.add_argument("--workloads", default="lm,leaves,schnet")
    parser.add_argument("--variants", default=NAMES)
    parser.add_argument("--baseline", default="eager_fused")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for name in options.workloads.split(","):
        print("\n".join(table(name, peaks(name, options.variants.split(","), options.rounds), options.baseline)), flush=True)
