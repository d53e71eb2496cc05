"""Kills, power loss, errors of the system, damage: a part of each table, and the whole of those that are short.

The whole tables are tried by `python -m tests.checkpoint.reliability`.
"""

import errno
import logging
import os
import signal
import time

import pytest
import torch

from purestep.checkpoint import Checkpointer, disk, load, load_manifest, load_params, read_manifest, save, verify
from purestep.checkpoint.store import scan
from purestep.core.state import TrainState
from purestep.errors import CheckpointSaveError, NoCheckpointError
from tests.checkpoint import matrices
from tests.checkpoint.faults import failing_at, in_child, killing_at, watching
from tests.checkpoint.scenarios import SPLIT, make_root, number_of, small_state

PARTS = [
    (matrices.kill_during_save, {"stride": 7}),
    (matrices.kill_during_save, {"stride": 19, **SPLIT}),
    (matrices.kill_during_replacement, {"stride": 5}),
    (matrices.kill_during_export, {"stride": 3, **SPLIT}),
    (matrices.kill_during_export, {"stride": 3}),
    (matrices.fail_during_save, {"stride": 17}),
    (matrices.fail_while_flushing, {}),
    (matrices.fail_during_replacement, {}),
    (matrices.short_transfers, {}),
    (matrices.lose_power_during_save, {"stride": 5}),
    (matrices.lose_power_during_replacement, {"stride": 5}),
    (matrices.flip_bits, {"stride": 101}),
    (matrices.flip_bits, {"stride": 199, **SPLIT}),
    (matrices.lose_power_during_save, {"stride": 29, **SPLIT}),
    (matrices.cut_files, {"stride": 29}),
]
LONG_PARTS = [
    (matrices.kill_during_save, {"async_": True, "stride": 2}),
    (matrices.kill_twice, {"first_stride": 23, "second_stride": 13}),
    (matrices.flip_bits, {"stride": 5}),
    (matrices.cut_files, {}),
    (matrices.kill_during_replacement, SPLIT),
    (matrices.cut_files, {"stride": 5, **SPLIT}),
]


def name_of(value):
    return value.__name__ if callable(value) else "-".join(f"{key}={number}" for key, number in value.items()) or "all"


def newest_of_root(path):
    return load_manifest(os.path.dirname(path))


def listed(path):
    found = scan(os.path.dirname(path))
    assert found.rejected == []
    (checkpoint,) = found.checkpoints
    return checkpoint.manifest


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("purestep.checkpoint").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("purestep.checkpoint").setLevel(logging.NOTSET)


@pytest.mark.parametrize(("table", "part"), PARTS, ids=name_of)
def test_a_whole_state_is_found_after(scratch, table, part):
    cases = list(table(scratch, **part))
    assert cases
    assert [case for case in cases if case[1]] == []


@pytest.mark.slow
@pytest.mark.parametrize(("table", "part"), LONG_PARTS, ids=name_of)
def test_a_whole_state_is_found_after_many(scratch, table, part):
    test_a_whole_state_is_found_after(scratch, table, part)


def test_the_tables_can_fail(scratch, monkeypatch):
    """A save that flushes nothing must not pass the power-loss table."""
    monkeypatch.setattr(disk, "sync", lambda fd: None)
    monkeypatch.setattr(disk, "sync_dir", lambda path: None)
    assert any(problem for _, problem in matrices.lose_power_during_save(scratch))


def test_files_are_whole_on_the_device_before_the_directory_gets_its_name(scratch):
    sizes = []

    def look(number, name, do, args):
        if name == "fsync":
            sizes.append(os.fstat(args[0]).st_size)
        return do()

    with matrices.FaultyOS(look) as faults:
        path = save(scratch / "one", small_state(1))
    order = [call.name for call in faults.log if call.name in ("fsync", "rename")]
    assert order == ["fsync"] * 5 + ["rename", "fsync"]
    assert sizes[:4] == [
        os.path.getsize(os.path.join(path, name)) for name in ("model.safetensors", "state.safetensors", "manifest.json", "COMMIT")
    ]


def test_a_failed_flush_is_not_tried_again_on_the_same_file(scratch):
    flushed = []

    def fail_once(number, name, do, args):
        if name == "fsync":
            flushed.append(args[0])
            raise OSError(errno.EIO, "Input/output error")
        return do()

    with matrices.FaultyOS(fail_once), pytest.raises(CheckpointSaveError, match="Input/output"):
        save(scratch / "one", small_state(1))
    assert len(flushed) == 1
    assert os.listdir(scratch) == []


def test_too_little_space_is_noticed_before_any_work(scratch, monkeypatch):
    monkeypatch.setattr(disk, "free_bytes", lambda path: 10)
    with watching() as faults, pytest.raises(CheckpointSaveError, match="10 bytes are free"):
        save(scratch / "one", small_state(1))
    assert [call.name for call in faults.log if call.name in ("mkdir", "open")] == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENAMETOOLONG], ids=errno.errorcode.get)
def test_a_root_that_cannot_be_made_is_a_failed_save(scratch, code):
    with failing_at(0, code, {"mkdir"}), pytest.raises(CheckpointSaveError, match=os.strerror(code)):
        Checkpointer(scratch / "new")
    with failing_at(0, code, {"mkdir"}), pytest.raises(CheckpointSaveError, match=os.strerror(code)):
        save(scratch / "new" / "one", small_state(1))


def test_a_root_deleted_in_mid_run_is_a_failed_save(scratch):
    root = make_root(scratch / "root")
    with pytest.raises(CheckpointSaveError), Checkpointer(root) as writer:
        matrices.shutil.rmtree(root)
        writer.save(small_state(3), step=3)
        writer.wait()
    with pytest.raises(NoCheckpointError):
        load(root, small_state(0))


def test_a_reader_never_fails_while_checkpoints_come_and_go(scratch):
    root = make_root(scratch / "root", numbers=(1,))

    def write():
        with Checkpointer(root, keep_last=1, async_=False) as writer:
            for number in range(2, 10**6):
                writer.save(small_state(number), step=number)

    numbers = seen_beside(write, lambda: number_of(load(root, small_state(0))), different=4)
    assert numbers == sorted(numbers)


def test_a_reader_never_fails_while_a_checkpoint_is_replaced(scratch):
    path = save(scratch / "step-0000000001", small_state(1))
    numbers = seen_beside_a_writer(path, lambda: number_of(load(path, small_state(0))), different=4)
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("look", [verify, read_manifest, newest_of_root, listed, load_params], ids=lambda look: look.__name__)
def test_whoever_only_looks_sees_no_damage_while_a_checkpoint_is_replaced(scratch, look):
    """Manifest of one checkpoint and files of the next must not be taken for damage."""
    path = save(scratch / "step-0000000001", small_state(1), **SPLIT)
    seen_beside_a_writer(path, lambda: look(path), different=2, seconds=0.5, **SPLIT)


def seen_beside_a_writer(path, look, *, different, seconds=1.5, **options):
    """What a reader sees while another process replaces a checkpoint over and over."""

    def write():
        for number in range(2, 10**6):
            save(path, small_state(number), **options)

    return seen_beside(write, look, different=different, seconds=seconds)


def seen_beside(write, look, *, different, seconds=1.5):
    """What a reader sees while another process writes; so long that it sees `different` things, a minute at most."""
    pid = os.fork()
    if pid == 0:
        write()
        os._exit(0)
    try:
        seen, kinds, began = [], set(), time.monotonic()
        while time.monotonic() < began + seconds or (len(kinds) < different and time.monotonic() < began + 60.0):
            seen.append(look())
            kinds.add(str(seen[-1]))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert len(kinds) >= different
    return seen


# --- a run that is killed at any time -----------------------------------------------------------------------------

NUM_STEPS = 60


def step(state: TrainState) -> TrainState:
    """A deterministic map with memory, standing for a training step."""
    number = state.seed + 1
    moment = (state.opt_state["m"] * 6364136223846793005 + 1442695040888963407) ^ number
    return TrainState(
        {"w": state.params["w"] * 0.9 + moment.to(torch.float32).sum() * 1e-19}, state.buffers, {"m": moment}, {}, state.counters, number
    )


def run(root, acknowledge=lambda number: None):
    """Train from the newest checkpoint to the end, with a checkpoint every other step in the background."""
    with Checkpointer(root, keep_last=2) as writer:
        try:
            state = load(root, small_state(0))
        except NoCheckpointError:
            state = small_state(0)
        while int(state.seed) < NUM_STEPS:
            state = step(state)
            if int(state.seed) % 2 == 0:
                writer.save(state, step=int(state.seed))
        acknowledge(NUM_STEPS)
    return state


# some fifty processes for each seed, forked off one that may have grown large by then
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 8), marks=pytest.mark.slow)], ids=str)
def test_a_run_killed_at_random_times_ends_as_if_it_had_not_been(scratch, assert_same, seeds):
    expected = run(scratch / "whole")
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        root, kills = scratch / f"run-{seed}", 0
        while in_child(
            lambda acknowledge, root=root: run(root, acknowledge), killing_at(int(torch.randint(900, (), generator=generator)))
        ).killed:
            kills += 1
        assert kills
        assert_same(load(root, small_state(0)), expected)
