"""The plan of an optimizer as text."""

import pytest
import torch

from purestep import schedules
from purestep.core.transform import chain
from purestep.optimizers import OPTIMIZERS, adam, adamw, describe, muon, schedule_free_sgd, sgd
from purestep.transforms import accumulate, at_least_2d, clip_by_global_norm, partition, scale_by_adam, scale_by_sophia, skip_nonfinite
from tests.transform_examples import example, example_params

PARAMS = {f"blocks.{i}.{name}": torch.zeros(*shape) for i in range(12) for name, shape in (("weight", (8, 4)), ("bias", (8,)))}
PARAMS |= {"head.weight": torch.zeros(2, 8)}


def lines(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_parts_are_listed_in_order_of_execution_with_their_bytes():
    # numbers: 400 elements twice in float32, a count; 8 bytes for each hyperparameter
    assert lines(describe(adamw(1e-3, weight_decay=0.1), PARAMS)) == [
        "adamw 3.9 KiB 25 leaves: blocks.*.bias (12), blocks.*.weight (12), head.weight",
        "scale_by_adam 3.9 KiB",
        "add_decayed_weights 8 B weight_decay 0.1",
        "scale_by_learning_rate 8 B learning_rate 0.001",
    ]


def test_a_mask_shows_the_leaves_that_decay():
    text = describe(adamw(1e-3, weight_decay=0.1, mask=at_least_2d), PARAMS)
    assert "masked_add_decayed_weights 8 B 13 of 25 leaves" in lines(text)
    assert "add_decayed_weights 8 B 13 leaves: blocks.*.weight (12), head.weight; weight_decay 0.1" in lines(text)


def test_each_leaf_of_muon_is_under_its_part():
    text = lines(describe(muon(0.02, muon_weight_dimension_numbers={"head*": None}), PARAMS))
    assert any(line.startswith("matrices") and line.endswith("12 leaves: blocks.*.weight (12)") for line in text)
    assert any(line.startswith("others") and line.endswith("13 leaves: blocks.*.bias (12), head.weight") for line in text)


def test_partitions_show_labels():
    text = lines(describe(partition({"slow": sgd(0.1), "fast": adam(0.2)}, {"head*": "fast", "*": "slow"}), PARAMS))
    assert "slow 8 B 24 leaves: blocks.*.bias (12), blocks.*.weight (12)" in text
    assert text.count("scale_by_learning_rate 8 B learning_rate 0.2") == 1


def test_values_of_a_schedule_are_shown_through_the_run():
    optimizer = sgd(schedules.linear(1.0, 0.0, 100))
    assert lines(describe(optimizer, PARAMS, num_steps=101))[1].endswith(
        "learning_rate by a schedule: 1 at 0, 0.75 at 25, 0.5 at 50, 0.25 at 75, 0 at 100"
    )
    assert lines(describe(optimizer, PARAMS))[1].endswith("learning_rate by a schedule from 1")


def test_a_schedule_behind_gates_is_shown_too():
    optimizer = chain(skip_nonfinite(), accumulate(4), clip_by_global_norm(1.0), adam(schedules.linear(1.0, 0.0, 100)))
    assert "1 at 0, 0.75 at 25, 0.5 at 50" in describe(optimizer, PARAMS, num_steps=101)


def test_an_inner_chain_is_shown_below_its_wrapper():
    text = lines(describe(schedule_free_sgd(0.5), PARAMS))
    assert [line.split()[0] for line in text] == ["schedule_free_sgd", "schedule_free", "base", "scale_by_learning_rate"]


def test_an_optimizer_that_asks_for_more_than_a_step_has_is_described_without_running_it():
    optimizer = chain(scale_by_sophia(), sgd(schedules.linear(1.0, 0.0, 100)))
    assert "learning_rate by a schedule from 1" in describe(optimizer, PARAMS, num_steps=100)


def test_nothing_but_shapes_is_needed():
    meta = {path: torch.empty_like(leaf, device="meta") for path, leaf in PARAMS.items()}
    assert describe(adamw(1e-3), meta) == describe(adamw(1e-3), PARAMS)


def test_a_chain_that_climbs_and_a_late_clipping_are_noted():
    assert "note: the updates point along the gradient" in describe(chain(clip_by_global_norm(1.0), scale_by_adam()), PARAMS)
    late = describe(chain(adamw(1e-3), clip_by_global_norm(1.0)), PARAMS)
    assert "note: clip_by_global_norm runs after the learning rate" in late and "along" not in late
    assert "note" not in describe(chain(accumulate(2), clip_by_global_norm(1.0), adamw(1e-3)), PARAMS)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_no_optimizer_of_the_package_gets_a_note(name):
    assert "note:" not in describe(example(f"optimizers.{name}"), example_params())
