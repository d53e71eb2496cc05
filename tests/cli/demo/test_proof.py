import math

import pytest
import torch

import purestep as ps
from purestep.cli.demo.proof import differing_leaves, lines_of_both, same_bits
from purestep.core.hook import Stage
from purestep.reporting import JsonlWriter

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


def write(path, start, losses):
    log = JsonlWriter(path, every_n_batches=1)
    log(event(Stage.BEFORE_TRAINING, batch=start))
    for number, loss in enumerate(losses, start=start + 1):
        log(event(batch=number, metrics={"loss": torch.tensor(loss)}))


@pytest.mark.parametrize(("again", "same"), [([3.0, 4.0], True), ([3.0, 4.5], False), ([3.0], False)])
def test_the_lines_of_the_killed_process_and_of_the_resumed_one_are_compared(tmp_path, again, same):
    path = tmp_path / "metrics.jsonl"
    write(path, 0, [1.0, 2.0, 3.0, 4.0])
    write(path, 2, again)
    before, after = lines_of_both(str(path), 4)
    assert [line["batch"] for line in before] == [3, 4]
    assert (before == after) is same
