"""Ranks that a process starts by itself for one function: they come, fail or hang, and none is left."""

import multiprocessing
import os
import time

import pytest
import torch

from purestep.distributed.local_processes import run_on_local_processes
from purestep.errors import DistributedError

pytestmark = pytest.mark.distributed


def write_place(topology, folder):
    print("this is not the result of the program")
    total = topology.ranks.sum(torch.tensor([1.0, topology.rank]))
    with open(f"{folder}/{topology.rank}", "w") as file:
        file.write(str(total.tolist()))


def fail_on_rank_one(topology):
    if topology.rank == 1:
        raise ValueError("this rank cannot")
    topology.ranks.sum(torch.ones(1))


def sleep(topology):
    time.sleep(600)


def test_ranks_find_each_other_though_this_process_is_one_of_another_world(tmp_path, monkeypatch, capfd):
    place = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    run_on_local_processes(2, write_place, str(tmp_path), seconds=120)
    assert {name: (tmp_path / name).read_text() for name in os.listdir(tmp_path)} == dict.fromkeys("01", "[2.0, 1.0]")
    printed = capfd.readouterr()
    assert (printed.out, printed.err.count("not the result")) == ("", 2)


def test_a_rank_that_fails_is_named_with_its_words_and_the_other_does_not_wait_for_it():
    began = time.monotonic()
    with pytest.raises(DistributedError, match="rank 1 failed: ValueError: this rank cannot"):
        run_on_local_processes(2, fail_on_rank_one, seconds=300)
    assert time.monotonic() - began < 200
    assert multiprocessing.active_children() == []


def test_ranks_that_hang_are_ended():
    with pytest.raises(DistributedError, match=r"ranks 0 and 1 did not end within 1 s"):
        run_on_local_processes(2, sleep, seconds=1)
    assert multiprocessing.active_children() == []
