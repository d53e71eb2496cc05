"""One variant of one workload in a process of its own: `python -m tests.benchmarks.speed.worker WORKLOAD VARIANT`.

Answers on stdout, one line of JSON each: first that it is ready (or why not), then for every line read from stdin. `12` runs 12 steps
and answers with times and the last loss; `memory 12` answers with the peak of memory during 12 steps.
"""

import json
import sys
import time
import warnings

import torch

from .ensembles import ENSEMBLES
from .peak import peak_bytes
from .variants import VARIANTS
from .workloads import WORKLOADS


def main(workload_name: str, variant: str) -> None:
    """Set up, then run what is asked for until stdin ends."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    workload = WORKLOADS[workload_name]
    answer = sys.stdout
    sys.stdout = sys.stderr  # peers print
    try:
        began = time.perf_counter()
        run = {**VARIANTS, **ENSEMBLES}[variant](workload)
        run(2 * workload.accumulate)
        print(json.dumps({"first_calls": time.perf_counter() - began}), file=answer, flush=True)
        for line in sys.stdin:
            print(json.dumps(_answer(run, line.split())), file=answer, flush=True)
    except Exception as error:  # a peer that is missing or cannot do this workload is a line in the table
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:200]}), file=answer, flush=True)


def _answer(run, words: list[str]) -> dict[str, float]:
    if words[0] == "memory":
        return {"peak": peak_bytes(run, int(words[1]))}
    wall, cpu = time.perf_counter(), time.process_time()
    loss = run(int(words[0]))
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "loss": loss}


if __name__ == "__main__":
    main(*sys.argv[1:])
