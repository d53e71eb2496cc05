"""Run the benchmark: rounds of all variants in shuffled order, a table on stdout, a JSON and a PNG on request."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from .figures import disagreements, picture, table, versions
from .running import measure
from .variants import VARIANTS
from .workloads import WORKLOADS


def measured(workload: str, variants: list[str], rounds: int, out: Path | None) -> dict[str, Any]:
    """Times of a workload, with the versions of what was measured; kept in the folder."""
    found = {"versions": versions(), **measure(workload, variants, rounds)}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{workload}.json").write_text(json.dumps(found, indent=1))
    return found


def _found_in(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def main() -> None:
    """Parse the words, measure or read, print; exit 1 where losses differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.speed", description=__doc__)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--baselines", default="eager_fused", help="names of variants, with commas")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="folder for WORKLOAD.json and speed.png, which shows all workloads found there")
    parser.add_argument("--read", action="store_true", help="measure nothing; show what lies in the folder --out")
    options = parser.parse_args()
    chosen, variants, baselines = (getattr(options, name).split(",") for name in ("workloads", "variants", "baselines"))
    results: dict[str, Any] = {}
    for workload in _found_in(options.out) if options.read else chosen:
        results[workload] = _found_in(options.out)[workload] if options.read else measured(workload, variants, options.rounds, options.out)
        print(", ".join(f"{name} {version}" for name, version in results[workload]["versions"].items()))
        print("\n".join(table(workload, results[workload], baselines)), flush=True)
    if options.out is not None:
        picture(_found_in(options.out), baselines[0], options.out / "speed.png")
    sys.exit(any(disagreements(workload, found) for workload, found in results.items()))


if __name__ == "__main__":
    main()
