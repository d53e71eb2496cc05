"""Data that comes from stores round-trips; anything else is refused with the reason."""

import json

import numpy as np
import pytest

from purestep.data import Joined, Loader, PreparedFrames, collate, shipped
from purestep.data.store import Subset
from purestep.errors import SpecError
from purestep.spec.recipes import check_rebuildable, from_spec, to_spec

STORE = shipped("g2")
PART = STORE.split("validation")


def frames(dataset=PART, cutoff=3.0, **settings):
    return PreparedFrames(dataset, cutoff, **settings)


def loader(dataset, batch_size=4, **settings):
    return Loader(dataset, batch_size, **({"collate": collate, "seed": 3, "last": "drop"} | settings))


@pytest.mark.parametrize(
    "batches",
    [
        loader(frames()),
        loader(frames(STORE, dtype=np.float64), shuffle=False, last="keep"),
        loader(frames(reference_energies=STORE.reference_energies)),
        loader(Joined(frames(), frames())),
    ],
    ids=["part", "whole store", "references", "joined"],
)
def test_batches_that_come_back_are_the_same_batches(batches):
    spec = json.loads(json.dumps(check_rebuildable(batches)))
    again = from_spec(spec, "dataset")
    assert again.fingerprint == batches.fingerprint
    assert to_spec(again) == spec


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (Loader([1, 2, 3], 2), "purestep.data.collate"),
        (loader([1, 2, 3], 2), "PreparedFrames of stores, got int|got list"),
        (loader(frames(Subset(STORE, np.arange(8)))), "no part that the store names"),
        (loader(frames(reference_energies={1: 0.0, 6: 0.0})), "not those of the store"),
        (loader(Joined(frames(), frames(cutoff=4.0))), "one cutoff for all stores, got 3.0, 4.0"),
    ],
    ids=["collate", "list", "subset", "references", "cutoffs"],
)
def test_data_that_a_spec_does_not_hold_is_refused(batches, message):
    with pytest.raises(SpecError, match=message):
        to_spec(batches)
