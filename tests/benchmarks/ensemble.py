"""What training eight small networks by one mapped step takes of eight steps' time: `python -m tests.benchmarks.ensemble`.

Measured as `tests.benchmarks.speed` measures: a process each, rounds in shuffled order, CPU time, bootstrap intervals; both must end at the
same mean loss.
"""

import argparse
import sys

from tests.benchmarks.speed.ensembles import ENSEMBLES
from tests.benchmarks.speed.figures import disagreements, table, versions
from tests.benchmarks.speed.running import measure


def main() -> None:
    """Measure and print; exit 1 where losses differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ensemble", description=__doc__)
    parser.add_argument("--workloads", default="tiny,mlp")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print(", ".join(f"{name} {version}" for name, version in versions().items() if version != "missing"))
    differ = []
    for workload in options.workloads.split(","):
        found = measure(workload, list(ENSEMBLES), options.rounds)
        print("\n".join(table(workload, found, ["apart"])), flush=True)
        differ += [*disagreements(workload, found), *found["failed"]]
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
