"""What the demo leaves: the weights, errors on molecules that training never saw, pictures."""

import json
import os
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import nn

from ...core import tree
from ...core.state import TrainState
from ...data import AtomicStore, Loader, PreparedFrames, collate, shipped
from ...data.references import sum_of_references
from ...hooks import average
from ...reporting import learning_curves, parity, read_metrics
from .. import documents
from . import layout
from .committee import Committee
from .pieces import EVALUATION_BATCH, model_settings
from .recipe import Recipe

METADATA = "purestep.model"


def write_outcome(run_dir: str, recipe: Recipe, state: TrainState) -> None:
    """Write weights, pictures and `result.json`."""
    store = shipped("g2")
    weights = os.path.join(run_dir, layout.WEIGHTS)
    export(weights, recipe, state, store.reference_energies)
    device = tree.leaves(state.params)[0].device
    found = predict(load_model(weights).to(device), store, recipe.cutoff)
    curve = learning_curves(read_metrics(os.path.join(run_dir, layout.METRICS)), os.path.join(run_dir, layout.LEARNING_CURVE))
    panels = {
        "energy above the free atoms (eV/atom)": (found["energy"], found["predicted_energy"]),
        "force component (eV/Å)": (found["forces"], found["predicted_forces"]),
    }
    title = f"{found['num_frames']} frames of {found['num_molecules']} molecules that training never saw"
    pictures = [curve, parity(panels, os.path.join(run_dir, layout.PARITY), title=title)]
    num_parameters = sum(leaf.numel() for leaf in tree.leaves(state.params))
    documents.write(
        os.path.join(run_dir, layout.RESULT),
        {
            **errors(found),
            "num_test_frames": found["num_frames"],
            "num_test_molecules": found["num_molecules"],
            "num_parameters": num_parameters,
            "num_members": recipe.num_members,
            "num_steps": int(state.counters.step_count),
            "device": str(device),
            "data_fingerprint": store.fingerprint,
            "weights": weights,
            "pictures": pictures,
        },
    )


def export(path: str, recipe: Recipe, state: TrainState, reference_energies: dict[int, float]) -> None:
    """Write the averaged weights as plain safetensors that give total energies, with the arguments of the model beside them."""
    params, buffers = average(state, "ema")
    references = {str(number): value for number, value in sorted(reference_energies.items())}
    model = Committee(recipe.num_members, {**model_settings(recipe), "reference_energies": reference_energies})
    tables = {name: leaf for name, leaf in model.state_dict().items() if name.endswith("reference_table")}
    tensors = {name: leaf.detach().cpu().clone() for name, leaf in {**params, **buffers, **tables}.items()}
    about = {
        "model": "mean of purestep.models.PaiNN, one for each members.<number>",
        "num_members": recipe.num_members,
        "arguments": {**model_settings(recipe), "reference_energies": references},
        "units": {"energy": "eV", "forces": "eV/Angstrom"},
    }
    safetensors.torch.save_file(tensors, path, metadata={METADATA: json.dumps(about)})


def load_model(path: str) -> Committee:
    """The model that a file written by `export` holds."""
    with safetensors.safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()[METADATA])
    references = {int(number): value for number, value in about["arguments"].pop("reference_energies").items()}
    model = Committee(about["num_members"], {**about["arguments"], "reference_energies": references})
    model.load_state_dict(safetensors.torch.load_file(path))
    return model.eval()


def predict(model: nn.Module, store: AtomicStore, cutoff: float) -> dict[str, Any]:
    """True and predicted values on the test molecules: energies per atom above the free atoms `(F,)`, force components `(3 N,)`."""
    test = store.split("test")
    device = next(model.parameters()).device
    energy, forces = [], []
    for batch in Loader(PreparedFrames(test, cutoff), EVALUATION_BATCH, shuffle=False, collate=collate, last="keep"):
        with torch.no_grad():
            out = model(batch.to(device))
        energy.append(out["energy"].double().flatten().cpu().numpy())
        forces.append(out["forces"].double().flatten().cpu().numpy())
    kept = [test[index] for index in range(len(test))]
    sizes = np.array([len(frame["numbers"]) for frame in kept])
    free = np.array([sum_of_references(frame["numbers"], store.reference_energies) for frame in kept])
    return {
        "energy": (np.array([float(frame["energy"]) for frame in kept]) - free) / sizes,
        "predicted_energy": (np.concatenate(energy) - free) / sizes,
        "forces": np.concatenate([frame["forces"].ravel() for frame in kept]),
        "predicted_forces": np.concatenate(forces),
        "num_frames": len(kept),
        "num_molecules": len({int(frame["group"]) for frame in kept}),
    }


def errors(found: dict[str, Any]) -> dict[str, float]:
    """Mean absolute errors of the model, and of predicting the energy of the free atoms and no force."""
    return {
        "energy_mae_mev_per_atom": 1e3 * float(np.abs(found["predicted_energy"] - found["energy"]).mean()),
        "forces_mae_ev_per_angstrom": float(np.abs(found["predicted_forces"] - found["forces"]).mean()),
        "baseline_energy_mae_mev_per_atom": 1e3 * float(np.abs(found["energy"]).mean()),
        "baseline_forces_mae_ev_per_angstrom": float(np.abs(found["forces"]).mean()),
    }
