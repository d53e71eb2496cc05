"""A run that a spec describes is the run that Python describes."""

import torch

import purestep as ps
from purestep.core import tree
from purestep.data import Joined, Loader, PreparedFrames, collate, shipped
from purestep.metrics import EnergyErrors
from purestep.models import PaiNN
from purestep.schedules import warmup_cosine_decay
from purestep.spec.building import absolute, build, missing_paths
from purestep.spec.reading import check_text
from purestep.testing import assert_trees_equal
from tests.spec.examples import GOOD, changed, text_of


def written_in_python():
    store = shipped("g2")
    frames, held_back = (
        PreparedFrames(store.split(part), 3.0, reference_energies=store.reference_energies) for part in ("validation", "test")
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = PaiNN(8, 1, cutoff=3.0)
    optimizer = ps.chain(
        ps.skip_nonfinite(), ps.clip_by_global_norm(2.0), ps.adamw(warmup_cosine_decay(0.0, 0.01, 2, 10), weight_decay=0.01)
    )
    loss = ps.EnergyMAELoss() + ps.LinearWeight(1, 2, 9) * ps.ForceL2NormLoss()
    training = ps.Training(model, loss=loss, optimizer=optimizer, hooks=(ps.hooks.ema(0.9, debias=True),))
    validation = ps.Validation(
        Loader(held_back, 64, shuffle=False, collate=collate, last="keep"), every_n_epochs=1, metrics=(EnergyErrors(),)
    )
    batches = Loader(frames, 4, seed=3, collate=collate, last="drop")
    return ps.fit(training, batches, num_steps=3, validation=validation, seed=3)


def test_a_spec_and_python_give_bitwise_the_same_state_and_history():
    spec = check_text(text_of(GOOD)).spec
    pieces = build(spec)
    run = ps.fit(pieces.training, pieces.batches, num_steps=3, validation=pieces.validation, state=pieces.training.init(3, "cpu"))
    other = written_in_python()
    assert_trees_equal(run.state, other.state)
    assert run.history == other.history


def test_building_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    build(check_text(text_of(GOOD)).spec)
    assert torch.equal(torch.get_rng_state(), before)


def test_several_stores_stand_one_after_the_other():
    pieces = build(check_text(text_of(changed(**{"dataset/paths": ["shipped:g2", "shipped:g2"]}))).spec)
    assert isinstance(pieces.batches.dataset, Joined)
    assert len(pieces.batches.dataset) == 2 * len(shipped("g2").split("validation"))


def test_double_precision_reaches_frames_and_weights():
    pieces = build(check_text(text_of(changed(**{"dataset/dtype": "float64"}))).spec)
    leaves = [*tree.leaves(pieces.training.init(0).params), pieces.batches.batch(0, 0).positions]
    assert {leaf.dtype for leaf in leaves} == {torch.float64}


def test_relative_paths_begin_beside_the_spec():
    spec = absolute(check_text(text_of(changed(**{"dataset/paths": ["a.zarr", "/b.zarr", "shipped:g2"]}))).spec, "/specs")
    assert spec.dataset.paths == ("/specs/a.zarr", "/b.zarr", "shipped:g2")
    assert spec.output.run_dir == "/specs/run"


def test_a_file_of_structures_in_the_place_of_a_store_is_told_how_to_become_one(tmp_path):
    file = tmp_path / "mine.extxyz"
    file.write_text("")
    absent = str(tmp_path / "absent.zarr")
    spec = check_text(text_of(changed(**{"dataset/paths": [str(file), absent]}))).spec
    first, second = (problem.text() for problem in missing_paths(spec))
    command = f"make one of it: purestep data convert {file} {tmp_path / 'mine.zarr'}"
    assert first == f"PS304 /dataset/paths/0: {file} is a file, not the directory of a store; {command}"
    assert second == f"PS304 /dataset/paths/1: there is no {absent}"
