"""Ranks that a process starts by itself for one function: they come, fail or hang, and none is left."""

import multiprocessing
import os
import time

import pytest

from purestep.distributed.local_processes import run_on_local_processes
from purestep.errors import DistributedError
from tests.spec import awkward_parts as parts

pytestmark = pytest.mark.distributed


def test_ranks_find_each_other_though_this_process_is_one_of_another_world(tmp_path, monkeypatch, capfd):
    place = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    run_on_local_processes(2, parts.write_place, str(tmp_path), seconds=120)
    assert {name: (tmp_path / name).read_text() for name in os.listdir(tmp_path)} == dict.fromkeys("01", "[2.0, 1.0]")
    printed = capfd.readouterr()
    assert (printed.out, printed.err.count("not the result")) == ("", 2)


def test_a_rank_that_fails_is_named_with_its_words_and_the_other_does_not_wait_for_it():
    began = time.monotonic()
    with pytest.raises(DistributedError, match="rank 1 failed: ValueError: this rank cannot"):
        run_on_local_processes(2, parts.fail_on_rank_one, seconds=300)
    assert time.monotonic() - began < 200
    assert multiprocessing.active_children() == []


def test_ranks_that_hang_are_ended():
    with pytest.raises(DistributedError, match=r"rank 0 and 1 was not done .* after 1 s"):
        run_on_local_processes(2, parts.sleep, seconds=1)
    assert multiprocessing.active_children() == []
