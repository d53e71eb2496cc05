"""Workers as the driver sees them: started, asked, and measured in rounds of shuffled order."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .workloads import WORKLOADS

ROOT = Path(__file__).parents[3]


class Worker:
    """A process of one variant, on one thread.

    Attributes:
        first: Its first answer: `first_calls`, seconds, or `error`.
    """

    def __init__(self, workload: str, variant: str, environment: Mapping[str, str] | None = None):
        chosen = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **(environment or {})}
        chosen["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        command = [sys.executable, "-m", "tests.benchmarks.speed.worker", workload, variant]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, text=True, env=chosen, cwd=ROOT, **pipes)
        self.first = self._read()

    def ask(self, line: str) -> dict[str, Any]:
        """Hand over a line, and wait for the answer."""
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Let it end."""
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=60)

    def _read(self) -> dict[str, Any]:
        return json.loads(self._process.stdout.readline() or '{"error": "the worker ended without a word"}')


def measure(workload: str, variants: list[str], rounds: int) -> dict[str, Any]:
    """Times of all variants in all rounds; workers are set up one after the other, then woken in shuffled order."""
    workers = {variant: Worker(workload, variant) for variant in variants}
    failed = {variant: worker.first["error"] for variant, worker in workers.items() if "error" in worker.first}
    times: dict[str, list[dict[str, float]]] = {variant: [] for variant in variants if variant not in failed}
    steps, shuffler = WORKLOADS[workload].steps, random.Random(0)
    for number in range(rounds + 1):
        for variant in shuffler.sample(list(times), len(times)):
            answer = workers[variant].ask(str(steps))
            if "error" in answer:
                failed[variant] = answer["error"]
                del times[variant]
            elif number:  # the first round warms up
                times[variant].append(answer)
    for worker in workers.values():
        worker.close()
    first = {variant: workers[variant].first["first_calls"] for variant in times}
    return {"times": times, "failed": failed, "first_calls": first, "steps": steps}
