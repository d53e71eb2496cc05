"""Time of saving and loading a state, next to raw writes and reads, `torch.save`, and torch.distributed.checkpoint, in one run.

    python tests/benchmarks/checkpoint.py [--mebibytes 1024] [--rounds 5] [--directory /tmp]

Every contender takes part in every round, in an order that turns from round to round, so that a busy machine slows all of them and no
one always goes first. Ratios are medians over rounds. Aims:

- a synchronous save takes at most 1.1 times a raw write with fsync of the same bytes;
- a save in the background blocks at most 1.2 times a copy of the state into memory that is there already;
- a load takes at most 1.2 times a raw read of the same bytes with a checksum;
- save and load are faster than `torch.save` with `torch.load(weights_only=True)`, and than torch.distributed.checkpoint.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import numpy as np
import torch
import torch.distributed.checkpoint as dcp

from purestep.checkpoint import Checkpointer, load, save
from purestep.core import tree

BLOCK = 8 << 20


def make_state(mebibytes: int) -> dict[str, torch.Tensor]:
    """Sixteen float32 matrices of random numbers, of so many MiB together."""
    rows = mebibytes * (1 << 20) // (16 * 4 * 4096)
    return {f"layer{index}": torch.randn(rows, 4096) for index in range(16)}


def bytes_of(leaf: torch.Tensor) -> np.ndarray:
    return leaf.reshape(-1).view(torch.uint8).numpy()


def raw_write(state, directory: Path) -> None:
    fd = os.open(directory / "raw", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    for leaf in state.values():
        data = bytes_of(leaf)
        for begin in range(0, len(data), BLOCK):
            os.write(fd, data[begin : begin + BLOCK])
    os.fsync(fd)
    os.close(fd)


def raw_read(state, directory: Path) -> None:
    """Read into new memory that stays, with the checksum that each tensor gets."""
    new = tree.map(torch.empty_like, state)
    with open(directory / "raw", "rb", buffering=0) as file:
        for leaf in new.values():
            data, checksum = bytes_of(leaf), 0
            for begin in range(0, len(data), BLOCK):
                file.readinto(data[begin : begin + BLOCK])
                checksum = google_crc32c.extend(checksum, data[begin : begin + BLOCK])


def torch_save(state, directory: Path) -> None:
    with open(directory / "torch.pt", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def torch_load(state, directory: Path) -> None:
    torch.load(directory / "torch.pt", weights_only=True)


def dcp_save(state, directory: Path) -> None:
    dcp.save(state, checkpoint_id=directory / "dcp", no_dist=True)


def dcp_load(state, directory: Path) -> None:
    dcp.load(tree.map(torch.empty_like, state), checkpoint_id=directory / "dcp", no_dist=True)


def our_save(state, directory: Path) -> None:
    save(directory / "ours", state)


def our_hashed_save(state, directory: Path) -> None:
    save(directory / "hashed", state, hash="sha256")


def our_load(state, directory: Path) -> None:
    load(directory / "ours", state)


def our_full_load(state, directory: Path) -> None:
    load(directory / "hashed", state, verify="full")


GROUPS: dict[str, dict[str, Callable]] = {
    "save": {
        "raw write + fsync": raw_write,
        "purestep": our_save,
        "purestep, hash='sha256'": our_hashed_save,
        "torch.save + fsync": torch_save,
        "torch.distributed.checkpoint": dcp_save,
    },
    "load": {
        "raw read + checksum": raw_read,
        "purestep": our_load,
        "purestep, verify='full'": our_full_load,
        "torch.load(weights_only=True)": torch_load,
        "torch.distributed.checkpoint": dcp_load,
    },
}
STALE = {"save": ("raw", "ours", "hashed", "torch.pt", "dcp"), "load": ()}


def seconds_of(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def clear(directory: Path, names: tuple[str, ...]) -> None:
    """Every save writes new files; nothing is left to be flushed."""
    for name in names:
        shutil.rmtree(directory / name, ignore_errors=True)
        (directory / name).unlink(missing_ok=True)
    os.sync()


def compare(state, directory: Path, group: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each contender in each round."""
    names = list(GROUPS[group])
    times: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds):
        clear(directory, STALE[group])
        for name in names[index % len(names) :] + names[: index % len(names)]:
            times[name].append(seconds_of(lambda name=name: GROUPS[group][name](state, directory)))
            os.sync()
    return times


def blocked(state, directory: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of a copy into memory that is there already, and of the part of a background save that blocks."""
    buffers = tree.map(torch.clone, state)
    times: dict[str, list[float]] = {"copy into preallocated memory": [], "purestep, in the background": []}
    with Checkpointer(directory / "root", keep_last=1) as writer:
        writer.prepare(state)
        for index in range(rounds):
            times["copy into preallocated memory"].append(seconds_of(lambda: tree.map(lambda new, old: new.copy_(old), buffers, state)))
            times["purestep, in the background"].append(seconds_of(lambda index=index: writer.save(state, step=index)))
            writer.wait()
    return times


def report(title: str, times: dict[str, list[float]]) -> None:
    reference, *_ = times.values()
    print(f"\n{title}")
    for name, seconds in times.items():
        ratio = statistics.median(mine / raw for mine, raw in zip(seconds, reference, strict=True))
        print(f"  {name:<32} {statistics.median(seconds):8.3f} s   {ratio:5.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare saving and loading a state with other ways, in one run.")
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # torch.distributed.checkpoint warns that there is one process
    torch.set_num_threads(1)
    state = make_state(options.mebibytes)
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        directory = Path(scratch)
        for group in GROUPS:
            report(f"{group} {options.mebibytes} MiB (median, and ratio to the first)", compare(state, directory, group, options.rounds))
        report("blocked by a background save", blocked(state, directory, options.rounds))


if __name__ == "__main__":
    main()
