"""Speed of the data layer on one core: frames read at random from a warm store, batches collated, neighbour lists.

`python tests/benchmarks/data.py` prints a line for each. At least 20,000 small frames a second should come from a warm store, and a
training at the demo's size should wait for its batches less than 2 % of its time.
"""

import itertools
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from purestep.cli.demo.pieces import make_pieces
from purestep.cli.demo.recipe import SHORT
from purestep.data import AtomicStore, Loader, Prefetched, PreparedFrames, arrays_from_frames, collate, neighbour_list, shipped, write_store
from purestep.training import Training

REPEATS = 5


def best_rate(call, count: int) -> tuple[float, float]:
    """Median and best number of things a second over some repeats, the first of which only warms up."""
    call()
    rates = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        rates.append(count / (time.perf_counter() - start))
    return statistics.median(rates), max(rates)


def report(name: str, rates: tuple[float, float], unit: str) -> None:
    print(f"{name:52} {rates[0]:10,.0f} {unit}/s (median), {rates[1]:10,.0f} (best)")


def read_at_random(store: AtomicStore, count: int = 20_000) -> None:
    chosen = np.random.default_rng(0).integers(0, len(store), count).tolist()
    for index in range(len(store)):
        store[index]

    def read() -> None:
        for index in chosen:
            store[index]

    report(f"random frames of {len(store):,} ({int(store.ptr[-1]) / len(store):.1f} atoms)", best_rate(read, count), "frames")


def many_frames(path: Path, count: int = 200_000) -> AtomicStore:
    """A store of many small frames, larger than a chunk."""
    store = shipped("g2")
    frames = [store[number % len(store)] for number in range(count)]
    return write_store(path, arrays_from_frames(frames))


def share_of_waiting(feed: Loader | Prefetched, training: Training, steps: int = 150) -> float:
    """The share of the time of eager training in which it waits for the next batch."""
    state, waited = training.init(), 0.0
    batches = itertools.chain.from_iterable(feed.epoch(number) for number in itertools.count())
    next(batches)  # what is started, is started
    began = time.perf_counter()
    for _ in range(steps):
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        state, _ = training.step(state, batch)
    return waited / (time.perf_counter() - began)


if __name__ == "__main__":
    torch.set_num_threads(1)
    molecules = shipped("g2")
    read_at_random(molecules)
    with tempfile.TemporaryDirectory() as directory:
        read_at_random(many_frames(Path(directory) / "many.zarr"))
    prepared = PreparedFrames(molecules.split("train"), 5.0)
    loader = Loader(prepared, 32, collate=collate, last="drop")
    report("batches of 32 prepared frames", best_rate(lambda: list(loader.epoch(0)), len(loader)), "batches")
    positions = [molecules[number]["positions"] for number in range(500)]
    report("neighbour lists of molecules", best_rate(lambda: [neighbour_list(one, 5.0) for one in positions], 500), "lists")
    pieces = make_pieces(SHORT)
    with Prefetched(pieces.batches, num_workers=1) as ahead:
        for name, feed in (("in the loop", pieces.batches), ("one thread ahead", ahead)):
            shares = [share_of_waiting(feed, pieces.training) for _ in range(REPEATS)]
            print(f"waiting for batches made {name:28} {statistics.median(shares):10.2%} of training (median), {max(shares):.2%} (worst)")
