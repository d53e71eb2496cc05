"""Prefetching changes when batches are made, and nothing else; what goes wrong is an error soon, and nothing is left running."""

import multiprocessing
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from purestep.core import tree
from purestep.data import Loader, Prefetched, PreparedFrames, collate, shipped
from purestep.errors import DataError
from tests.data.prefetch_samples import Broken, Deadly, Numbers, Slow


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def test_batches_come_in_order_whatever_time_they_take():
    loader = Loader(Slow(60), 4, seed=1)
    with Prefetched(loader, 4, ahead=8) as ahead:
        assert ids(ahead.epoch(2)) == ids(loader.epoch(2))
        assert ids(ahead.epoch(3, start=7)) == ids(loader.epoch(3))[7:]
        assert len(ahead) == len(loader) and ahead.fingerprint == loader.fingerprint


def test_no_more_batches_are_held_than_asked_for():
    class Counting(Numbers):
        def __getitem__(self, index):
            made.append(index)
            return super().__getitem__(index)

    made = []
    with Prefetched(Loader(Counting(100), 1, shuffle=False), 2, ahead=5) as ahead:
        batches = ahead.epoch(0)
        for taken in range(1, 20):
            next(batches)
            time.sleep(0.005)
            assert len(made) <= taken + 5


def test_an_error_comes_in_its_place_and_names_the_sample():
    with Prefetched(Loader(Broken(40), 4, shuffle=False), 2) as ahead:
        batches = ahead.epoch(0)
        assert ids([next(batches) for _ in range(3)]) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        with pytest.raises(DataError, match=r"sample 13, for batch 3 of epoch 0, cannot be read: RuntimeError: the disk is on fire"):
            next(batches)


def test_an_error_without_workers_names_the_sample_too():
    with pytest.raises(DataError, match="sample 13, for batch 3 of epoch 0"):
        list(Loader(Broken(40), 4, shuffle=False).epoch(0))


def test_threads_end_with_the_loader():
    before = set(threading.enumerate())
    ahead = Prefetched(Loader(Slow(100), 4), 3)
    next(ahead.epoch(0))
    assert len(set(threading.enumerate()) - before) > 0
    ahead.close()
    assert set(threading.enumerate()) - before == set()
    dropped = Prefetched(Loader(Numbers(100), 4), 3)
    next(dropped.epoch(0))
    del dropped
    assert set(threading.enumerate()) - before == set()


@pytest.mark.slow
def test_processes_make_the_same_batches_and_end_with_the_loader():
    store = shipped("g2")
    frames = PreparedFrames(store.split("validation"), 3.0, reference_energies=store.reference_energies)
    loader = Loader(frames, 32, collate=collate)
    with Prefetched(loader, 1, workers="processes") as ahead:
        found = list(ahead.epoch(1))
        again = list(ahead.epoch(1, start=5))
    expected = list(loader.epoch(1))
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(found), tree.leaves(expected), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(again), tree.leaves(expected[5:]), strict=True))
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_a_killed_process_is_an_error_within_seconds():
    with Prefetched(Loader(Deadly(40), 4, shuffle=False), 1, ahead=1, workers="processes") as ahead:
        batches = ahead.epoch(0)
        assert ids([next(batches) for _ in range(3)]) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        start = time.monotonic()
        with pytest.raises(DataError, match="a process that makes batches has died"):
            next(batches)
        assert time.monotonic() - start < 10  # on a machine that is busy with other things
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_an_error_in_a_process_names_the_sample():
    with (
        Prefetched(Loader(Broken(40), 4, shuffle=False), 1, workers="processes") as ahead,
        pytest.raises(DataError, match="sample 13, for batch 3"),
    ):
        list(ahead.epoch(0))


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_too():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False, start_new_session=True
    )
    assert done.returncode == -signal.SIGINT and done.stderr.strip().endswith("KeyboardInterrupt") and done.stderr.count("Traceback") == 1
    assert done.stdout.strip() == "no children"


INTERRUPTED = """
import multiprocessing, os, signal
from purestep.data import Loader, Prefetched
from tests.data.prefetch_samples import Slow

if __name__ == "__main__":
    ahead = Prefetched(Loader(Slow(1000), 4), 1, workers="processes")
    try:
        for number, batch in enumerate(ahead.epoch(0)):
            if number == 3:
                os.killpg(0, signal.SIGINT)  # as a terminal does
    finally:
        ahead.close()
        print("no children" if not multiprocessing.active_children() else "children")
"""


def test_settings_that_cannot_work_are_refused():
    loader = Loader(Numbers(10), 4)
    with pytest.raises(ValueError, match="must be at least 1, got 0 and 8"):
        Prefetched(loader, 0)
    with pytest.raises(ValueError, match="workers must be 'threads' or 'processes'"):
        Prefetched(loader, workers="fibres")


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_pinned_memory_without_a_gpu_is_refused():
    with pytest.raises(DataError, match="needs a CUDA device"):
        Prefetched(Loader(Numbers(10), 4), memory="pinned")


@pytest.mark.gpu
def test_pinned_batches_are_page_locked():
    with Prefetched(Loader(Numbers(10), 4), memory="pinned") as ahead:
        assert all(leaf.is_pinned() for batch in ahead.epoch(0) for leaf in tree.leaves(batch))
