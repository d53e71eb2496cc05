"""Use a trained potential in ASE: structures of one's own, a store, a short training, and a calculator for relaxations and dynamics.

A real potential is trained by `purestep spec run`, and its weights come out of `purestep ckpt export` (docs/potentials.md); then
`Potential(model, store.reference_energies)` is all that is needed, with `model.load_state_dict(ps.checkpoint.load_weights("exported"))`.
Here ASE's own EMT stands for the calculation that gave the energies and forces.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ase.build
import ase.io
import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from ase.calculators.emt import EMT

import purestep as ps
from purestep.data import HashSplit, Loader, PreparedFrames, collate, convert, prepare


class Potential(Calculator):
    """A model of energy and forces for ASE, in the precision of its weights.

    Args:
        model: Such as `ps.models.PaiNN`, built as it was trained.
        reference_energies: Of the store that it was trained on, eV by atomic number: the model learnt the energies above them.
    """

    implemented_properties = ["energy", "forces"]  # noqa: RUF012 - ASE's name and type

    def __init__(self, model: torch.nn.Module, reference_energies: Mapping[int, float]):
        super().__init__()
        self.model, self.reference_energies = model.eval(), reference_energies

    def calculate(self, atoms: Atoms | None = None, properties: Any = ("energy",), system_changes: Any = all_changes) -> None:
        """ASE calls this where atoms, cell or elements have changed."""
        super().calculate(atoms, properties, system_changes)
        frame = {"numbers": atoms.numbers, "positions": atoms.positions, "cell": np.array(atoms.cell), "pbc": atoms.pbc}
        dtype = np.float64 if next(self.model.parameters()).dtype == torch.float64 else np.float32
        found = self.model(collate([prepare(frame, self.model.cutoff, dtype=dtype)]))
        alone = sum(self.reference_energies[int(number)] for number in atoms.numbers)
        self.results = {"energy": found["energy"].item() + alone, "forces": found["forces"].detach().numpy()}


def crystals(count: int) -> list[Atoms]:
    """Copper cells that are strained and rattled, with energies and forces."""
    rng, found = np.random.default_rng(0), []
    for seed in range(count):
        atoms = ase.build.bulk("Cu", cubic=True)
        atoms.set_cell(atoms.cell * rng.normal(1, 0.02), scale_atoms=True)
        atoms.rattle(0.08, seed=seed)
        atoms.calc = EMT()
        atoms.get_forces()
        found.append(atoms)
    return found


def main() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        ase.io.write(Path(folder) / "own.extxyz", crystals(64))
        split = HashSplit(validation=0.0, test=0.2, by="content")
        store, report = convert(Path(folder) / "own.extxyz", Path(folder) / "own.zarr", split=split)
        print(report)
        torch.manual_seed(0)
        model = ps.models.PaiNN(hidden_size=16, num_layers=1, cutoff=4.0)
        frames = PreparedFrames(store.split("train"), model.cutoff, reference_energies=store.reference_energies)
        training = ps.Training(
            model,
            loss=ps.EnergyMAELoss() + ps.ForceL2NormLoss(),
            optimizer=ps.chain(ps.skip_nonfinite(), ps.clip_by_global_norm(10.0), ps.adamw(1e-2)),
            hooks=[ps.hooks.ema(0.95, debias=True)],
        )
        result = ps.fit(training, Loader(frames, 8, collate=collate, last="drop"), num_steps=150)
        params, buffers = ps.hooks.average(result.state)
        model.load_state_dict({**params, **buffers})  # training never touched the module: this is how weights come into it
        potential = Potential(model, store.reference_energies)
        held_out = [crystal for crystal, part in zip(crystals(64), store.column("split"), strict=True) if part == 2]
        wrong, size = [], []
        for crystal in held_out:
            atoms = Atoms(crystal, calculator=potential)
            wrong.append(np.abs(atoms.get_forces() - crystal.get_forces()).mean())
            size.append(np.abs(crystal.get_forces()).mean())
        energy = Atoms(crystal, calculator=potential).get_potential_energy() - crystal.get_potential_energy()
    print(f"mean force error {np.mean(wrong):.3f} eV/A of {np.mean(size):.3f} on {len(held_out)} crystals that training never saw")
    return {"share_of_forces": float(np.mean(wrong) / np.mean(size)), "energy_per_atom": abs(energy) / len(crystal)}


if __name__ == "__main__":
    main()
