import dataclasses
import struct

import numpy as np
import pytest
import torch

import purestep as ps
from purestep.reporting import CollectPredictions, error_histograms
from purestep.validation import validate
from tests.examples_of_models import molecules, potential

LOSS = 1.0 * ps.EnergyMSELoss() + 1.0 * ps.ForceMSELoss()


def collected(batches, **options):
    collect = CollectPredictions(**options)
    tr = ps.Training(potential("painn"), loss=LOSS, optimizer=ps.sgd(0.1))
    validate(tr, tr.init(), ps.Validation(batches, batch_callback=collect))
    return collect, tr


def test_predictions_of_a_validation_are_kept_beside_the_truth():
    data = [molecules(seed=1), molecules((2, 3), seed=2)]
    collect, tr = collected(data)
    true, predicted = collect.panels({"energy": "energy [eV]"})["energy [eV]"]
    expected = torch.cat([tr.evaluate(tr.init(), batch)[0]["energy"].reshape(-1) for batch in data])
    assert np.array_equal(predicted, expected.numpy())
    assert np.array_equal(true, torch.cat([batch.energy.reshape(-1) for batch in data]).numpy())
    assert len(collect.panels()["forces"][0]) == 3 * (4 + 3 + 2 + 3)


def test_errors_of_forces_are_told_apart_by_element():
    data = [molecules(seed=1)]
    collect, tr = collected(data)
    errors = collect.errors_by_element()
    forces = tr.evaluate(tr.init(), data[0])[0]["forces"]
    carbon = (forces - data[0].forces)[data[0].numbers == 6]
    assert np.array_equal(errors["C"], carbon.reshape(-1).numpy())
    assert sum(len(values) for values in errors.values()) == 3 * 7
    assert list(errors) == sorted(errors, key=["H", "C", "N", "O"].index)


def test_values_without_a_label_are_left_out():
    batch = molecules(seed=1)
    forces = batch.forces.clone()
    forces[2] = float("nan")
    collect, _ = collected([dataclasses.replace(batch, forces=forces)])
    assert len(collect.panels()["forces"][0]) == 3 * 6
    assert all(np.isfinite(values).all() for values in collect.errors_by_element().values())


def test_each_pass_begins_anew():
    collect = CollectPredictions({"y": "y"})
    for _ in range(2):
        collect(batch={"y": torch.ones(3)}, predictions={"y": torch.zeros(3)}, batch_count=0)
    assert len(collect.panels()["y"][0]) == 3


def test_what_was_not_collected_by_atom_has_no_errors_by_element():
    collect, _ = collected([molecules()])
    with pytest.raises(KeyError, match=r"no values of atoms were collected for 'energy' \(collected: forces\)"):
        collect.errors_by_element("energy")


def test_error_histograms_grow_with_the_elements(tmp_path):
    values = np.linspace(-1.0, 1.0, 9)
    one, many = tmp_path / "one.png", tmp_path / "many.png"
    error_histograms({"H": values}, one, unit="[eV/Å]")
    error_histograms({symbol: values for symbol in ("H", "C", "N", "O", "F")}, many)
    sizes = [struct.unpack(">II", path.read_bytes()[16:24]) for path in (one, many)]
    assert sizes[1][0] == 4 * sizes[0][0] and sizes[1][1] > sizes[0][1]


def test_error_histograms_of_nothing_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no finite errors"):
        error_histograms({"H": np.array([np.nan])}, tmp_path / "a.png")
