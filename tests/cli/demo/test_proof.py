import math

import pytest
import torch

import purestep as ps
from purestep.cli import documents
from purestep.cli.demo import layout
from purestep.cli.demo.proof import Comparison, differing_leaves, same_bits
from purestep.core.hook import Stage
from purestep.reporting import ConsoleProgress, JsonlWriter, read_metrics

from ...reporting.events import event


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.nan]), True),
        (torch.tensor(0.0), torch.tensor(-0.0), False),
        (torch.tensor(1.0), torch.tensor(1.0, dtype=torch.float64), False),
        (torch.ones(2), torch.ones(1, 2), False),
        (torch.tensor(1.0), torch.tensor(1.0 + 2**-23), False),
        (torch.tensor(3), torch.tensor(3), True),
    ],
)
def test_bits_are_compared_and_nothing_else(one, other, same):
    assert same_bits(one, other) is same


def test_leaves_that_differ_are_named():
    optimizer = ps.adam(0.1)
    state = ps.init_state({"w": torch.zeros(2), "v": torch.ones(1)}, optimizer)
    step = ps.make_step(lambda params, batch: (params["w"] * batch).sum() + params["v"].sum(), optimizer)
    other, _ = step(state, torch.tensor([1.0, 0.0]))
    assert differing_leaves(state, state) == []
    assert {"params.w", "params.v", "counters.step_count"} <= set(differing_leaves(state, other))


def compare(run_dir, killed_loss, resumed_loss):
    """Put aside what a process knew that was killed after batch 4, and compare one that resumed after batch 2."""
    path = run_dir / layout.METRICS
    run(path, 0, [1.0, 2.0, 3.0, killed_loss])
    (run_dir / layout.PROOF_DIRECTORY).mkdir()
    documents.write(str(run_dir / layout.KILLED_LOG), {"lines": read_metrics(path)})
    ps.save(run_dir / layout.KILLED, event(batch=4).state)
    log = JsonlWriter(path, every_n_batches=1)
    comparison = Comparison(str(run_dir), 4, ConsoleProgress(mode="none"))
    run(path, 2, [3.0, resumed_loss], [log, comparison])
    return documents.read(str(run_dir / layout.PROOF))


def run(path, start, losses, listeners=None):
    """Tell listeners of batches after `start`."""
    hearing = [JsonlWriter(path, every_n_batches=1)] if listeners is None else listeners
    moments = [event(batch=number, metrics={"loss": torch.tensor(loss)}) for number, loss in enumerate(losses, start=start + 1)]
    for moment in [event(Stage.BEFORE_TRAINING, batch=start), *moments]:
        for listener in hearing:
            listener(moment)


def test_a_resumed_process_with_the_state_and_the_log_of_the_killed_one_is_proved_the_same(tmp_path):
    assert compare(tmp_path, killed_loss=4.0, resumed_loss=4.0) == {
        "resumed_after_batch": 2,
        "compared_after_batch": 4,
        "leaves": 7,
        "differing_leaves": [],
        "log_lines": 2,
        "same_log": True,
        "bitwise": True,
    }


def test_one_other_number_in_the_log_is_no_proof(tmp_path):
    proof = compare(tmp_path, killed_loss=4.0, resumed_loss=4.0 + 2**-21)
    assert (proof["same_log"], proof["bitwise"]) == (False, False)
