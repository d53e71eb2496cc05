"""Try every case of every table of faults, and write the figures into docs/reliability.md.

    python -m tests.checkpoint.reliability [--twice-stride 41]

Takes twenty to thirty minutes. Exits with 1 if any case broke the promise; these are listed.
"""

import argparse
import contextlib
import io
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.checkpoint import matrices
from tests.checkpoint.conftest import MEMORY
from tests.checkpoint.scenarios import SPLIT

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"
RUNS = "test_a_run_killed_at_random_times_ends_as_if_it_had_not_been"
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->"
TABLES = {
    "SIGKILL before, within or after every system call of a save with retention": (matrices.kill_during_save, {}),
    "the same, written in the background": (matrices.kill_during_save, {"async_": True}),
    "the same, with weights and the rest in several files": (matrices.kill_during_save, SPLIT),
    "SIGKILL at every call of a save over an existing checkpoint": (matrices.kill_during_replacement, {}),
    "SIGKILL at every call of an export into several files: all weights are found, or none": (matrices.kill_during_export, SPLIT),
    "two kills: at every call of a save, then in the save that cleans up after it": (matrices.kill_twice, {}),
    "power loss after every call of a save with retention, in every way of the model": (matrices.lose_power_during_save, {}),
    "the same, with weights and the rest in several files, at every fifth call": (matrices.lose_power_during_save, SPLIT | {"stride": 5}),
    "power loss after every call of a save over an existing checkpoint": (matrices.lose_power_during_replacement, {}),
    "disk full, I/O error, read-only, no permission: at every call, once and from then on": (matrices.fail_during_save, {}),
    "I/O error at every call of a save over an existing checkpoint": (matrices.fail_during_replacement, {}),
    "I/O error from each fsync": (matrices.fail_while_flushing, {}),
    "writes of seven bytes, reads of five": (matrices.short_transfers, {}),
    "every bit of every file flipped": (matrices.flip_bits, {}),
    "every third bit of every file of a checkpoint in several files": (matrices.flip_bits, SPLIT | {"stride": 3}),
    "every file cut to every length, and lengthened by a byte": (matrices.cut_files, {}),
}
SUITES = {
    "made-up files: manifests, seals, headers, links, devices, attacks on memory and time": "test_hostile.py",
    "runs killed at random times until they end: bit for bit the one that was not (4 runs, 25, 25)": f"test_crash.py::{RUNS}",
}


def try_table(table, options) -> tuple[int, list[str]]:
    """Number of cases, and those that broke the promise."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as scratch:
        cases = list(table(Path(scratch), **options))
    return len(cases), [f"{name}: {problem}" for name, problem in cases if problem]


class Counter:
    """Count the tests of a run, and remember those that failed."""

    def __init__(self) -> None:
        self.tried, self.failed = 0, []

    def pytest_runtest_logreport(self, report) -> None:
        self.tried += report.when == "call"
        if report.failed:
            self.failed.append(report.nodeid)


def try_suite(name: str) -> tuple[int, list[str]]:
    """The same for a file of tests."""
    counter = Counter()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["-q", "-p", "no:cacheprovider", str(Path(__file__).parent / name)], plugins=[counter])
    return counter.tried, counter.failed


def rows_of(twice_stride: int) -> Iterator[tuple[str, int, list[str]]]:
    """Try everything: words, number of cases, and those that broke the promise."""
    for words, (table, settings) in TABLES.items():
        more = {"second_stride": twice_stride} if table is matrices.kill_twice else {}
        yield words, *try_table(table, settings | more)
    for words, name in SUITES.items():
        yield words, *try_suite(name)


def main() -> int:
    parser = argparse.ArgumentParser(description="Try every case of every table of faults, and write the figures into docs/reliability.md.")
    parser.add_argument("--twice-stride", type=int, default=41, help="of the second kill of two; 1 tries all pairs, which takes hours")
    options = parser.parse_args()
    os.chdir(DOCUMENT.parents[1])
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    lines, broken = ["| what was done | cases | promise kept |", "|---|---:|---:|"], []
    for words, tried, problems in rows_of(options.twice_stride):
        lines.append(f"| {words} | {tried} | {tried - len(problems)} |")
        broken += problems
        print(lines[-1], *problems[:20], sep="\n  ", flush=True)
    head, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
    DOCUMENT.write_text(head + BEGIN + "\n".join(lines) + "\n" + END + rest.split(END)[1], encoding="utf-8")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
