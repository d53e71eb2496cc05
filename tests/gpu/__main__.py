"""All checks of a CUDA device in one table: `python -m tests.gpu`; `--rehearse` runs what a CPU can run of them.

After 8 minutes no further check is begun, and what is left is said to have not run. Exit 1 unless all passed.
"""

import argparse
import sys
import time

import torch

from .checks import CHECKS, CUDA, REHEARSAL, Machine, Skipped


def outcome(name: str, machine: Machine) -> tuple[str, str]:
    """One of passed, failed, skipped; and a line about it."""
    try:
        return "passed", CHECKS[name](machine)
    except Skipped as reason:
        return "skipped", str(reason)
    except Exception as error:  # the other checks shall still run
        return "FAILED", f"{type(error).__name__}: {error}".splitlines()[0][:200]


def main(words: list[str]) -> int:
    """Run and print; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, nothing compiled")
    parser.add_argument("--seconds", type=float, default=480.0)
    options = parser.parse_args(words)
    if not options.rehearse and not torch.cuda.is_available():
        print("there is no CUDA device here; --rehearse runs on the CPU what can run there")
        return 1
    machine, began, bad = REHEARSAL if options.rehearse else CUDA, time.monotonic(), 0
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if machine.has_cuda else 'CPU'}")
    for name in CHECKS:
        start = time.monotonic()
        late = start - began > options.seconds
        result, found = ("NOT RUN", "out of time") if late else outcome(name, machine)
        bad += result in ("FAILED", "NOT RUN") or (result == "skipped" and machine.has_cuda)
        print(f"{name:<28}{result:<9}{time.monotonic() - start:>7.1f} s  {found}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
