"""A run is continued under the conditions it began with, or refused with the names of what has changed."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from purestep.checkpoint import Checkpointer, load_extra
from purestep.checkpoint.resume import check_same, describe_run
from purestep.data import BudgetBatches, Loader, Prefetched
from purestep.errors import StructureMismatchError

SPEC = {"optimizer": {"learning_rate": 0.1}, "layers": [4, 8]}
ORDER = {"seed": 1, "last": "pad"}


@dataclasses.dataclass(frozen=True)
class Data:
    """Numbers with a name."""

    fingerprint: str = "a1"
    size: int = 24

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return {"x": torch.tensor(index)}


def describe(data=Data(), batch_size=4, spec=SPEC, **order):
    return describe_run(Loader(data, batch_size, **(ORDER | order)), spec=spec)


CHANGES = {
    "other data": ({"data": Data("b2")}, ["data.dataset: saved 'a1', now 'b2'"]),
    "more data": ({"data": Data(size=25)}, ["data.num_samples: saved 24, now 25"]),
    "batch size": ({"batch_size": 8}, ["data.global_batch_size: saved 4, now 8"]),
    "another seed of the order": ({"seed": 2}, ["data.order.seed: saved 1, now 2"]),
    "no shuffling": ({"shuffle": False}, ["data.order.shuffle: saved True, now False"]),
    "another end of the epoch": ({"last": "drop"}, ["data.order.last: saved 'pad', now 'drop'"]),
    "more ranks": ({"world": 2}, ["data.global_batch_size: saved 4, now 8", "world_size: saved 1, now 2"]),
    "more ranks, same batches": ({"world": 2, "batch_size": 2}, ["world_size: saved 1, now 2"]),
    "spec": (
        {"spec": {"optimizer": {"learning_rate": 0.2}, "layers": [4, 8, 8]}},
        ["spec.layers.2: saved absent, now 8", "spec.optimizer.learning_rate: saved 0.1, now 0.2"],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_refused_with_the_fields_that_differ_and_allowed_by_their_names(tmp_path, make_state, name):
    change, lines = CHANGES[name]
    with Checkpointer(tmp_path, extra={"run": describe()}) as writer:
        writer.save(make_state(1))
    saved = load_extra(tmp_path)["run"]
    check_same(saved, describe())
    with pytest.raises(StructureMismatchError) as caught:
        check_same(saved, describe(**change))
    assert str(caught.value).splitlines()[1:-1] == [f"  {line}" for line in lines]
    check_same(saved, describe(**change), allow=[line.partition(":")[0] for line in lines])
    with pytest.raises(StructureMismatchError, match=lines[-1].partition(":")[0]):
        check_same(saved, describe(**change), allow=[line.partition(":")[0] for line in lines[:-1]])


def test_a_description_is_plain_json_and_that_of_the_loader_behind_a_prefetch():
    loader = Loader(Data(), 4, **ORDER)
    assert json.loads(json.dumps(describe_run(loader))) == describe_run(loader)
    with Prefetched(loader) as prefetch:
        assert describe_run(prefetch) == describe_run(loader)


def test_another_plan_of_batches_is_a_change():
    plans = [BudgetBatches(np.array([1, 2, 3, 4]), budget) for budget in (4, 5)]
    one, other = (describe_run(Loader(Data(size=4), plan)) for plan in plans)
    with pytest.raises(StructureMismatchError, match=r"data\.batches"):
        check_same(one, other)
