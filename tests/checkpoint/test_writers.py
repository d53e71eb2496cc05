"""What else can happen to files: two writers of one path, pages that come back as zeros, a clock that goes back."""

import datetime
import os
import resource
import signal
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import purestep as ps
from purestep.checkpoint import Checkpointer, load, load_weights, save, write
from purestep.errors import CheckpointError, CheckpointSaveError
from tests.checkpoint.faults import in_child
from tests.checkpoint.scenarios import SPLIT, number_of, small_state


def save_over_and_over(path, numbers):
    """Fork a process that saves states in turn, and says with its exit code whether anything but a refusal went wrong."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for number in numbers:
                try:
                    save(path, small_state(number))
                except CheckpointSaveError:
                    time.sleep(0.001)
            code = 0
        finally:
            os._exit(code)
    return pid


def test_two_processes_that_write_to_one_path_leave_a_whole_state_of_one_of_them(scratch):
    path = save(scratch / "one", small_state(1))
    pids = [save_over_and_over(path, range(begin, begin + 200, 2)) for begin in (2, 3)]
    seen = {number_of(load(path, small_state(0))) for _ in range(100)}
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0]
    assert number_of(load(path, small_state(0))) in {200, 201}
    assert len(seen) > 1
    save(path, small_state(5))
    assert os.listdir(scratch) == ["one"]


def test_a_writer_that_is_stopped_in_the_middle_does_not_keep_others_from_the_path(scratch):
    path = save(scratch / "one", small_state(1))
    pid = save_over_and_over(path, range(10**6))
    time.sleep(0.05)
    os.kill(pid, signal.SIGSTOP)
    try:
        save(path, small_state(7))
        assert number_of(load(path, small_state(0))) == 7
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("limit", [0, 7, 100, 600])
def test_files_that_the_system_does_not_let_grow_are_a_failed_save_and_cost_nothing(scratch, limit):
    """The kernel itself refuses here, after part of a write."""
    path = save(scratch / "one", small_state(1))

    def save_under_limit(acknowledge):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(CheckpointSaveError, match="File too large"):
            save(path, small_state(2))
        acknowledge(2)

    assert in_child(save_under_limit).acknowledged == [2]
    assert number_of(load(path, small_state(0))) == 1
    assert os.listdir(scratch) == ["one"]


@pytest.mark.parametrize("options", [{}, SPLIT], ids=["one file of each kind", "several"])
@pytest.mark.parametrize("length", [8, 64, 4096])
def test_bytes_that_came_back_as_zeros_are_found_wherever_they_are(scratch, options, length):
    path = Path(save(scratch / "one", small_state(7), **options))
    for file in sorted(path.iterdir()):
        content = file.read_bytes()
        for begin in range(0, len(content), length):
            damaged = content[:begin] + bytes(len(content[begin : begin + length])) + content[begin + length :]
            if damaged != content:
                file.write_bytes(damaged)
                with pytest.raises(CheckpointError):
                    load(path, small_state(0))
        file.write_bytes(content)
    assert number_of(load(path, small_state(0))) == 7


def test_a_clock_that_goes_back_does_not_change_which_is_newest(tmp_path, make_state, assert_same, monkeypatch):
    with Checkpointer(tmp_path, keep_last=2, every_seconds=1.0) as writer:
        for step, year in ((1, 2030), (2, 2020), (3, 2025)):
            moment = datetime.datetime(year, 1, 1, tzinfo=datetime.UTC)
            monkeypatch.setattr(write, "now", lambda moment=moment: moment)
            writer.save(make_state(step), step=step)
            writer.wait()
    assert_same(load(tmp_path, make_state(0)), make_state(3))
    assert_same(load(tmp_path, make_state(0), step=2), make_state(2))


def test_a_compiled_run_writes_the_names_and_bits_of_the_eager_one(tmp_path, assert_same):
    def trained(wrap):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
        loss = lambda predictions, batch: predictions.square().mean()  # noqa: E731
        training = ps.Training(module, loss=loss, optimizer=ps.adamw(0.1), forward=lambda model, batch: model(batch["x"]))
        batches = [{"x": torch.ones(4, 2).double().cumsum(0)}] * 2
        return ps.fit(training, batches, num_epochs=1, step=wrap(training.step)).state, module

    eager, module = trained(lambda step: step)
    compiled, _ = trained(lambda step: ps.compile(step, backend="aot_eager"))
    paths = [save(tmp_path / name, state) for name, state in (("eager", eager), ("compiled", compiled))]
    names = [set(safetensors.torch.load_file(Path(path) / "model.safetensors")) for path in paths]
    assert names == [set(module.state_dict())] * 2
    assert_same(load_weights(paths[1]), load_weights(paths[0]))
