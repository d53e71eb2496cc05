"""The page about potentials of one's own structures: its commands run from top to bottom, and the weights that come out fit the model."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import purestep as ps
from purestep.cli import main

pytest.importorskip("ase")
import ase.build
import ase.io
from ase.calculators.emt import EMT

PAGE = (Path(__file__).parents[2] / "docs/potentials.md").read_text(encoding="utf-8")


def write_structures(path, count=60):
    found = []
    for seed in range(count):
        atoms = ase.build.bulk("Cu", cubic=True)
        atoms.rattle(0.05, seed=seed)
        atoms.calc = EMT()
        labels = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        atoms.calc = None
        atoms.info["REF_energy"], atoms.arrays["REF_forces"] = labels["energy"], labels["forces"]
        found.append(atoms)
    ase.io.write(path, found)


def test_the_commands_of_the_page_lead_from_a_file_to_weights(tmp_path, monkeypatch, restored_settings):
    monkeypatch.chdir(tmp_path)
    write_structures("own.extxyz")
    lines = [line for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) for line in block.splitlines()]
    done = [CliRunner().invoke(main, shlex.split(line.removeprefix("$ purestep "))) for line in lines]
    assert [result.exit_code for result in done] == [0] * 8, [result.output for result in done if result.exit_code]
    store = ps.data.AtomicStore("own.zarr")
    assert {"energy", "forces"} <= store.levels.keys() and np.isfinite(store.column("energy")).all()
    model = ps.models.PaiNN()
    model.load_state_dict(ps.checkpoint.load_weights("exported"))
    assert store.reference_energies.keys() == {29}
