"""Stopping after any batch and continuing from the checkpoint in another run equals never stopping, bit for bit."""

import dataclasses

import pytest
import torch
from torch import nn

import purestep as ps
from purestep.checkpoint import Checkpointer, list_checkpoints, load
from purestep.core.event import Stop
from purestep.core.hook import Stage
from purestep.data.loader import Loader
from tests.checkpoint.faults import in_child

NUM_EPOCHS, NUM_BATCHES = 2, 7


class Model(nn.Module):
    """Dropout and batch normalization between two linear layers."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.ReLU(), nn.Linear(4, 1)).double()

    def forward(self, batch):
        return {"y": self.body(batch["x"].flatten(0, 1)).unflatten(0, batch["x"].shape[:2])}


def mean_square(predictions, batch):
    return (predictions["y"] - batch["y"]).square().mean()


def make_run():
    optimizer = ps.chain(
        ps.dynamic_loss_scale(initial_scale=8.0, growth_interval=3),
        ps.accumulate(3),
        ps.clip_by_global_norm(1.0),
        ps.adamw(0.05, weight_decay=0.1),
        ps.reduce_on_plateau(factor=0.5, patience=1, driven_by="validation"),
    )
    training = ps.Training(Model(), loss=mean_square, optimizer=optimizer, hooks=[ps.hooks.ema(0.8)])
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(25, 2, 3, generator=generator, dtype=torch.float64)
    data = [{"x": row, "y": row.sum(1, keepdim=True), "index": torch.tensor(index)} for index, row in enumerate(x)]
    batches = Loader(data, 4, seed=5, last="keep")
    return training, batches, ps.Validation([{"x": x[:6], "y": x[:6].sum(2, keepdim=True)}], every_n_steps=2)


class Log:
    """Sample numbers and losses of every batch, and the summaries of validations, by place."""

    def __init__(self):
        self.lines = []

    def __call__(self, event):
        if event.stage is Stage.AFTER_BATCH:
            numbers = {name: float(value).hex() for name, value in event.metrics.items()}
            self.lines.append(("batch", event.batch_count, event.batch["index"].tolist(), numbers, event.validation))


def stop_after(batch_count):
    def listener(event):
        return Stop("asked") if event.stage is Stage.AFTER_BATCH and event.batch_count == batch_count else None

    return listener


def run(root, *others, **cadence):
    """Train from the newest checkpoint of a root, or from the beginning."""
    training, batches, validation = make_run()
    log = Log()
    with Checkpointer(root, keep_last=99, **cadence) as writer:
        begun = list_checkpoints(root)
        state = load(root, training.init(3)) if begun else None
        result = ps.fit(
            training, batches, state=state, num_epochs=NUM_EPOCHS, seed=3, validation=validation, listeners=[log, writer, *others]
        )
    return result.state, log.lines


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole") / "root")


@pytest.mark.parametrize("stop", range(1, NUM_EPOCHS * NUM_BATCHES + 1))
def test_stopping_after_any_batch_changes_nothing(tmp_path, whole, assert_same, stop):
    """Batches in the middle of a window, before and after a validation, at the end of an epoch, the last."""
    _, first = run(tmp_path, stop_after(stop))
    state, second = run(tmp_path)
    assert_same(state, whole[0])
    assert first + second == whole[1]


def test_stopping_three_times_changes_nothing(tmp_path, whole, assert_same):
    lines = []
    for stop in (2, 3, 9, None):
        state, more = run(tmp_path, stop_after(stop))
        lines += more
    assert_same(state, whole[0])
    assert lines == whole[1]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_every_checkpoint_of_a_run_leads_to_the_same_end(tmp_path, whole, assert_same, every):
    run(tmp_path / "root", every_n_steps=every)
    training, batches, validation = make_run()
    found = list_checkpoints(tmp_path / "root")
    assert len(found) > 1
    for checkpoint in found:
        state = load(checkpoint.path, training.init(3))
        assert_same(ps.fit(training, batches, state=state, num_epochs=NUM_EPOCHS, validation=validation).state, whole[0])


def test_a_finished_run_does_nothing_when_it_is_run_again(tmp_path, whole, assert_same):
    run(tmp_path)
    before = [checkpoint.manifest for checkpoint in list_checkpoints(tmp_path)]
    state, lines = run(tmp_path)
    assert_same(state, whole[0])
    assert lines == []
    assert [checkpoint.manifest for checkpoint in list_checkpoints(tmp_path)] == before


def test_a_new_process_goes_on_where_the_killed_one_was(tmp_path, whole, assert_same):
    def killed(acknowledge):
        def die(event):
            if event.stage is Stage.AFTER_BATCH and event.batch_count == 9:
                raise KeyboardInterrupt

        run(tmp_path, die, every_n_steps=1)

    in_child(killed)
    state, _ = run(tmp_path)
    assert_same(state, whole[0])


def test_the_sample_log_of_a_whole_run_has_every_sample_once_an_epoch(whole):
    order = [index for _, _, indices, *_ in whole[1] for index in indices]
    assert sorted(order[:25]) == sorted(order[25:]) == list(range(25))
    assert order[:25] != order[25:]


def test_the_state_of_the_run_holds_all_that_it_should(whole):
    state = whole[0]
    assert {"ema"} == set(state.hook_state)
    assert int(state.counters.batch_count) == NUM_EPOCHS * NUM_BATCHES
    assert dataclasses.is_dataclass(state)
