"""Checkpoints of every released format stay readable; states whose fields changed are migrated by a table."""

from pathlib import Path

import pytest
import torch

from purestep.checkpoint import layout, load, load_extra, save, verify
from purestep.core import tree
from purestep.errors import CheckpointVersionError, StructureMismatchError
from tests.checkpoint.golden.make import golden_state

GOLDEN = sorted((Path(__file__).parent / "golden").glob("format-*"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_a_checkpoint_of_every_released_format_loads(path, assert_same):
    verify(path)
    assert_same(load(path, tree.map(torch.zeros_like, golden_state())), golden_state())
    assert load_extra(path) == {"data": {"epoch": 1, "batch": 2}}


def rename_moments(leaves):
    """1 -> 2: `mu` was `first_moment`."""
    return {path.replace("first_moment", "mu"): leaf for path, leaf in leaves.items()}


def drop_clock(leaves):
    """2 -> 3: no clock any more."""
    return {path: leaf for path, leaf in leaves.items() if path != "opt_state.clock"}


TABLE = {("TrainState", 1): rename_moments, ("TrainState", 2): drop_clock}


@pytest.fixture
def old_and_new(tmp_path, make_state):
    state = make_state(1)
    old = type(state)(state.params, {}, {"first_moment": torch.ones(2), "clock": torch.tensor(5)}, {}, state.counters, state.seed)
    new = type(state)(state.params, {}, {"mu": torch.ones(2)}, {}, state.counters, state.seed)
    return save(tmp_path / "one", old), new


def test_migrations_lead_from_version_to_version(old_and_new, monkeypatch, assert_same):
    path, new = old_and_new
    with pytest.raises(StructureMismatchError, match="3 differences"):
        load(path, new)
    monkeypatch.setattr(layout, "SCHEMA_VERSION", 3)
    assert_same(load(path, new, migrations=TABLE), new)


def test_a_missing_step_is_named(old_and_new, monkeypatch):
    path, new = old_and_new
    monkeypatch.setattr(layout, "SCHEMA_VERSION", 4)
    with pytest.raises(CheckpointVersionError, match="TrainState 1 -> 4: no migration 3 -> 4"):
        load(path, new, migrations=TABLE)


def test_fields_from_the_future_are_refused(old_and_new, monkeypatch):
    path, new = old_and_new
    monkeypatch.setattr(layout, "SCHEMA_VERSION", 0)
    with pytest.raises(CheckpointVersionError, match="newer than"):
        load(path, new)
