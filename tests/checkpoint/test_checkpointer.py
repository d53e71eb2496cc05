"""The writer of a run: moments, background, retention on disk, locks."""

import dataclasses
import datetime
import logging
import multiprocessing
import os
import threading
import time

import pytest
import torch

from purestep.checkpoint import Best, Checkpointer, disk, list_checkpoints, load, load_extra, save, write
from purestep.checkpoint import checkpointer as module
from purestep.core import tree
from purestep.core.event import Event
from purestep.core.hook import Stage
from purestep.errors import CheckpointSaveError


def labels(root):
    return [found.manifest.label for found in list_checkpoints(root)]


def event_of(state, stage=Stage.AFTER_BATCH, **fields):
    counters = {name: int(getattr(state.counters, name)) for name in ("batch_count", "epoch_count", "epoch_step_count")}
    return Event(stage=stage, state=state, step_bound=counters["batch_count"], **counters | fields)


def counted(state, batch, step, epoch=0):
    numbers = {"batch_count": batch, "step_count": step, "epoch_count": epoch}
    counters = dataclasses.replace(state.counters, **{name: torch.tensor(value) for name, value in numbers.items()})
    return dataclasses.replace(state, counters=counters)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def async_(request):
    return request.param


# --- by hand ------------------------------------------------------------------------------------------------------


def test_what_is_saved_by_hand_comes_back_from_the_root(tmp_path, make_state, assert_same, async_):
    with Checkpointer(tmp_path / "new" / "root", async_=async_, extra={"spec": "a"}) as writer:
        writer.save(make_state(1), step=5, extra={"position": 3})
        writer.save(make_state(2, batch_count=9))
    assert labels(writer.root) == [5, 9]
    assert_same(load(writer.root, make_state(0)), make_state(2, batch_count=9))
    assert_same(load(writer.root, make_state(0), step=5), make_state(1))
    assert load_extra(writer.root, step=5) == {"spec": "a", "position": 3}


def test_a_save_in_the_background_sees_the_state_at_the_call(tmp_path, make_state, assert_same, monkeypatch):
    gate = threading.Event()
    original = module.write_checkpoint
    monkeypatch.setattr(module, "write_checkpoint", lambda *args, **options: (gate.wait(), original(*args, **options))[1])
    state = make_state(1)
    with Checkpointer(tmp_path) as writer:
        writer.save(state, step=1)
        tree.map(lambda leaf: leaf.zero_(), state)
        gate.set()
    assert_same(load(tmp_path, make_state(0)), make_state(1))


def test_one_save_at_a_time_is_in_flight_and_the_next_waits_or_is_skipped(tmp_path, make_state, monkeypatch):
    gate = threading.Event()
    original = module.write_checkpoint
    monkeypatch.setattr(module, "write_checkpoint", lambda *args, **options: (gate.wait(), original(*args, **options))[1])
    with Checkpointer(tmp_path, on_busy="skip") as writer:
        assert writer.save(make_state(1), step=1)
        assert not writer.save(make_state(2), step=2)
        gate.set()
        writer.wait()
        assert writer.save(make_state(3), step=3)
    assert labels(tmp_path) == [1, 3]


def test_buffers_are_allocated_once(tmp_path, make_state):
    with Checkpointer(tmp_path) as writer:
        writer.prepare(make_state(1))
        before = [buffer.data_ptr() for buffer in writer._buffers]
        writer.save(make_state(1), step=1)
        writer.save(make_state(2), step=2)
        assert [buffer.data_ptr() for buffer in writer._buffers] == before


def test_a_failure_in_the_background_is_logged_at_once_and_raised_once(tmp_path, make_state, monkeypatch, caplog):
    writer = Checkpointer(tmp_path)
    writer.save(make_state(1), step=1)
    writer.wait()

    def full(fd, block):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_all", full)
        writer.save(make_state(2), step=2)
        with pytest.raises(CheckpointSaveError, match="No space left"):
            writer.wait()
    assert "checkpoint 2 was not written" in caplog.text
    writer.save(make_state(3), step=3)
    writer.close()
    assert labels(tmp_path) == [1, 3]
    assert [name for name in os.listdir(tmp_path) if name.startswith(".tmp")] == []


def test_a_failure_is_raised_by_close_but_does_not_hide_the_error_of_the_run(tmp_path, make_state, monkeypatch):
    def broken(fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk, "sync", broken)
    with pytest.raises(CheckpointSaveError, match="Input/output error"), Checkpointer(tmp_path / "a") as writer:
        writer.save(make_state(1), step=1)
    with pytest.raises(KeyError, match="from the run") as caught, Checkpointer(tmp_path / "b") as writer:
        writer.save(make_state(1), step=1)
        raise KeyError("from the run")
    assert "was not written" in caught.value.__notes__[0]


def test_a_closed_writer_says_so(tmp_path, make_state):
    writer = Checkpointer(tmp_path)
    writer.close()
    writer.close()
    with pytest.raises(CheckpointSaveError, match="closed"):
        writer.save(make_state(1), step=1)


def test_a_label_may_be_written_again_but_never_an_older_one(tmp_path, make_state, assert_same):
    with Checkpointer(tmp_path) as writer:
        writer.save(make_state(1), step=5)
        writer.save(make_state(2), step=5)
        with pytest.raises(CheckpointSaveError, match="newer than label 4"):
            writer.save(make_state(3), step=4)
    assert_same(load(tmp_path, make_state(0)), make_state(2))


def test_a_fresh_run_does_not_mix_with_an_old_one(tmp_path, make_state):
    with Checkpointer(tmp_path) as writer:
        writer.save(make_state(1), step=100)
    with Checkpointer(tmp_path) as writer, pytest.raises(CheckpointSaveError, match="newer than label 10"):
        writer.save(make_state(2), step=10)
    with Checkpointer(tmp_path) as writer, pytest.raises(CheckpointSaveError, match="newer than label 0"):
        writer(event_of(counted(make_state(1), 0, 0), Stage.BEFORE_TRAINING))
    assert labels(tmp_path) == [100]


def test_a_damaged_newer_one_is_set_aside_not_deleted(tmp_path, make_state, assert_same, caplog):
    with Checkpointer(tmp_path) as writer:
        for label in (1, 2, 3):
            writer.save(make_state(label), step=label)
    for label in (2, 3):
        file = tmp_path / f"step-{label:010d}" / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
    with Checkpointer(tmp_path) as writer:
        writer.save(make_state(5), step=2)
    assert_same(load(tmp_path, make_state(0)), make_state(5))
    assert sorted(name[:23] for name in os.listdir(tmp_path) if "damaged" in name) == ["step-0000000003.damaged"]
    assert "set aside" in caplog.text


def test_runs_in_one_root_go_on_under_one_id(tmp_path, make_state):
    for label in (1, 2):
        with Checkpointer(tmp_path) as writer:
            writer.save(make_state(label), step=label)
    first, second = (found.manifest for found in list_checkpoints(tmp_path))
    assert first.run_id == second.run_id
    assert (first.parent_id, second.parent_id) == (None, first.checkpoint_id)


# --- retention on disk --------------------------------------------------------------------------------------------


def test_the_last_and_the_best_and_every_tenth_stay(tmp_path, make_state, async_):
    state = make_state(1)
    with Checkpointer(tmp_path, keep_last=2, keep_best="val/loss", keep_every=10, async_=async_) as writer:
        for step in range(1, 15):
            writer.save(counted(state, step, step), metrics={"val/loss": abs(step - 4.0) if step != 5 else float("nan")})
    assert labels(tmp_path) == [4, 10, 13, 14]
    assert os.readlink(tmp_path / "latest") == "step-0000000014"
    assert os.readlink(tmp_path / "best") == "step-0000000004"
    assert [name for name in os.listdir(tmp_path) if name.startswith((".trash", ".tmp"))] == []


def test_hours_are_those_at_which_checkpoints_were_written_not_those_of_whoever_cleans_up(tmp_path, make_state, monkeypatch):
    clock = [datetime.datetime(2025, 7, 1, 12, tzinfo=datetime.UTC)]
    monkeypatch.setattr(write, "now", lambda: clock[0])
    for step in range(1, 7):
        with Checkpointer(tmp_path, keep_last=1, keep_every_hours=1) as writer:
            writer.save(make_state(1), step=step)
        clock[0] += datetime.timedelta(minutes=20)
    clock[0] += datetime.timedelta(days=99)
    with Checkpointer(tmp_path, keep_last=1, keep_every_hours=1) as writer:
        writer.save(make_state(1), step=9)
        writer.save(make_state(1), step=10)
    assert labels(tmp_path) == [1, 4, 9, 10]


def test_weights_that_are_not_finite_are_never_the_best(tmp_path, make_state):
    good, bad = make_state(1), make_state(2)
    bad.params["layer.weight"][0, 0] = float("inf")
    with Checkpointer(tmp_path, keep_best=Best("loss", "max", count=2), keep_last=1) as writer:
        writer.save(good, step=1, metrics={"loss": 1.0})
        writer.save(bad, step=2, metrics={"loss": 9.0})
        writer.save(good, step=3, metrics={"loss": 0.0})
    assert labels(tmp_path) == [1, 3]
    assert [found.manifest.finite for found in list_checkpoints(tmp_path)] == [True, True]


def test_kept_final_manual_and_foreign_ones_are_never_deleted(tmp_path, make_state):
    state = make_state(1)
    save(tmp_path / "step-0000000001", state, label=1, reason="periodic")
    (tmp_path / "step-0000000002.backup").mkdir()
    with Checkpointer(tmp_path, keep_last=1, run_id="00000000-0000-4000-8000-000000000000") as writer:
        writer.save(state, step=2)
        writer.wait()
        (tmp_path / "step-0000000002" / "KEEP").touch()
        writer.save(state, step=3, reason="final")
        writer.save(state, step=4, reason="manual")
        writer.save(state, step=5)
        writer.save(state, step=6)
    assert labels(tmp_path) == [1, 2, 3, 4, 6]
    assert (tmp_path / "step-0000000002.backup").is_dir()


def test_leftovers_of_dead_writers_are_removed_and_those_of_live_ones_are_not(tmp_path, make_state):
    dead = tmp_path / f".tmp-step-0000000001-{'0' * 32}"
    dead.mkdir()
    (dead / "COMMIT").touch()
    (tmp_path / f".trash-{'1' * 32}").mkdir()
    (tmp_path / ".tmp-mine").mkdir()
    live = tmp_path / f".tmp-step-0000000002-{'2' * 32}"
    live.mkdir()
    (live / "COMMIT").touch()
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    holder = context.Process(target=hold_lock, args=(str(live / "COMMIT"), ready, done))
    holder.start()
    assert ready.wait(60)
    Checkpointer(tmp_path).close()
    found = set(os.listdir(tmp_path))
    done.set()
    holder.join()
    assert found == {".lock", ".tmp-mine", live.name}


def hold_lock(path, ready, done):
    fd = disk.open_existing(path)
    assert disk.try_lock(fd)
    ready.set()
    done.wait(60)


# --- locks --------------------------------------------------------------------------------------------------------


def test_a_second_writer_of_this_process_is_refused(tmp_path):
    with Checkpointer(tmp_path), pytest.raises(CheckpointSaveError, match="locked by another Checkpointer of this process"):
        Checkpointer(os.path.join(tmp_path, "..", tmp_path.name))
    Checkpointer(tmp_path).close()


def test_a_root_that_cannot_be_read_is_not_left_locked(tmp_path, monkeypatch):
    def broken(root, name=None):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch, pytest.raises(CheckpointSaveError, match="Input/output error"):
        patch.setattr(module, "clean", broken)
        Checkpointer(tmp_path)
    Checkpointer(tmp_path).close()


def test_a_second_writer_of_another_process_is_refused_until_the_first_is_dead(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=hold_root, args=(str(tmp_path), ready))
    holder.start()
    assert ready.wait(60)
    with pytest.raises(CheckpointSaveError, match=f"locked by another writer .pid {holder.pid}, host"):
        Checkpointer(tmp_path)
    holder.kill()
    holder.join()
    Checkpointer(tmp_path).close()


def hold_root(root, ready):
    writer = Checkpointer(root)
    ready.set()
    time.sleep(60)
    writer.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every_n_steps": 0}, "every_n_steps must be positive"),
        ({"every_seconds": float("nan")}, "every_seconds must be positive"),
        ({"keep_last": 0}, "keep_last must be at least 1"),
        ({"keep_every": 0}, "keep_every must be at least 1"),
        ({"keep_every_hours": float("nan")}, "keep_every_hours must be positive"),
        ({"on_busy": "drop"}, "on_busy must be"),
    ],
)
def test_bad_options_are_refused_before_anything_is_created(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        Checkpointer(tmp_path / "root", **options)
    assert os.listdir(tmp_path) == []


def test_the_root_logger_and_its_handlers_are_left_alone():
    assert logging.getLogger("purestep.checkpoint").handlers == []
