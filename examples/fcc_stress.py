"""Train a potential for crystals on energies, forces and stresses: from a file that ASE reads to errors on held-out structures.

`python examples/fcc_stress.py SOURCE.extxyz` converts the file to a store, trains, and prints the errors on the test part next to
those of the baseline that knows the composition alone and predicts no force. The file holds energies, forces, stresses, and for each
structure a `name` and its part, `split=train|val|test`. It takes about half a minute on one core.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import purestep as ps
from purestep.data import AtomicStore, Loader, PreparedFrames, collate, convert

CUTOFF, BATCH_SIZE = 4.2, 16


def errors(state: ps.TrainState, training: ps.Training, frames: PreparedFrames) -> dict[str, float]:
    """Mean absolute errors of the averaged weights: meV/atom, eV/Angstrom, meV/Angstrom^3."""
    params, buffers = ps.hooks.average(state, "ema")
    found: dict[str, list[torch.Tensor]] = {"energy": [], "forces": [], "stress": []}
    for batch in Loader(frames, 32, shuffle=False, collate=collate, last="keep"):
        predictions, _ = training.evaluate(state, batch, params=params, buffers=buffers)
        found["energy"].append((predictions["energy"] - batch.energy).abs().flatten() / batch.num_nodes_per_graph * 1e3)
        found["forces"].append((predictions["forces"] - batch.forces).abs().flatten())
        found["stress"].append((predictions["stress"] - batch.stress).abs().flatten() * 1e3)
    return {name: float(torch.cat(values).mean()) for name, values in found.items()}


def baseline(frames: PreparedFrames) -> dict[str, float]:
    """The same errors of predicting the references, no force and no stress."""
    size = {"energy": 1e3, "forces": 1.0, "stress": 1e3}
    per_atom = {"energy": [np.abs(frame["energy"]).reshape(1) / len(frame["numbers"]) for frame in frames]}
    per_atom |= {key: [np.abs(frame[key]).reshape(-1) for frame in frames] for key in ("forces", "stress")}
    return {key: float(np.concatenate(values).mean() * size[key]) for key, values in per_atom.items()}


def make_training(num_steps: int, seed: int = 0) -> ps.Training:
    """A small PaiNN with a stress, and the three losses."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ps.models.PaiNN(hidden_size=32, num_layers=2, num_radial=12, cutoff=CUTOFF, stress=True)
    loss = 10.0 * ps.EnergyMSELoss(per_atom=True) + 1.0 * ps.ForceMSELoss() + 100.0 * ps.StressMSELoss()
    rate = ps.schedules.warmup_cosine_decay(0.0, 5e-3, min(50, num_steps // 4), num_steps, 5e-5)
    optimizer = ps.chain(ps.skip_nonfinite(), ps.clip_by_global_norm(10.0), ps.adamw(rate, weight_decay=0.01))
    return ps.Training(model, loss=loss, optimizer=optimizer, hooks=(ps.hooks.ema(0.99),))


def train(store: AtomicStore, num_steps: int, seed: int = 0) -> tuple[ps.TrainState, ps.Training]:
    """Train on the training part of a store."""
    frames = PreparedFrames(store.split("train"), CUTOFF, reference_energies=store.reference_energies)
    batches = Loader(frames, min(BATCH_SIZE, len(frames)), seed=seed, collate=collate, last="drop")
    training = make_training(num_steps, seed)
    return ps.fit(training, batches, num_steps=num_steps, seed=seed).state, training


def main(arguments: list[str] | None = None) -> dict[str, dict[str, float]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="extended XYZ or another file that ASE reads")
    parser.add_argument("--steps", type=int, default=500, help="batches to train on")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        store, report = convert(given.source, Path(directory) / "crystals.zarr", keys={"group": "name"})
        print(report)
        start = time.perf_counter()
        state, training = train(store, given.steps)
        print(f"{given.steps} steps in {time.perf_counter() - start:.0f} s")
        held_out = PreparedFrames(store.split("test"), CUTOFF, reference_energies=store.reference_energies)
        result = {"model": errors(state, training, held_out), "baseline": baseline(held_out)}
    for name, found in result.items():
        print(f"{name:8}  " + "  ".join(f"{key} {value:.4g}" for key, value in found.items()) + "  (meV/atom, eV/A, meV/A^3)")
    return result


if __name__ == "__main__":
    main()
