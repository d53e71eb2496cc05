"""Seconds until the second step is done, without and with compiled code on disk: `python -m tests.benchmarks.speed.first_calls`.

Each variant starts twice in new processes: with an empty cache folder, then with the one that the first has filled. The time contains
building the model and the batches, but no import of torch.
"""

import argparse
import statistics
import tempfile

from .running import Worker

COMPILING = "compiled_model,purestep_dynamo,purestep,purestep_donated"


def seconds(workload: str, variant: str, cache: str) -> float | str:
    """Time of the first calls in a new process, or why there is none."""
    worker = Worker(workload, variant, {"TORCHINDUCTOR_CACHE_DIR": cache})
    worker.close()
    return worker.first.get("first_calls", worker.first.get("error"))


def cold_and_warm(workload: str, variant: str) -> tuple[float | str, float | str]:
    """Time with an empty cache, and with a full one."""
    with tempfile.TemporaryDirectory() as cache:
        return seconds(workload, variant, cache), seconds(workload, variant, cache)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.speed.first_calls", description=__doc__)
    parser.add_argument("--workload", default="lm")
    parser.add_argument("--variants", default=COMPILING)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    print(f"{options.workload}: {'cold s':>20}{'warm s':>10}{'warm / cold':>13}", flush=True)
    for variant in options.variants.split(","):
        pairs = [cold_and_warm(options.workload, variant) for _ in range(options.rounds)]
        if isinstance(pairs[0][0], str):
            print(f"{variant:<20}left out: {pairs[0][0]}", flush=True)
            continue
        cold, warm = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{variant:<18}{cold:>12.1f}{warm:>10.1f}{warm / cold:>13.2f}", flush=True)
