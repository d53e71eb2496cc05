"""Learn energies, forces and stresses of crystals of which most have an energy only.

A missing label is NaN. With `ignore_nonfinite=True` it leaves numerator and denominator of its term alike, so a term is the mean over
what is labelled, whatever else is in the batch; a batch without any label of a kind gives exactly 0 and no gradient for it.
"""

import numpy as np
import torch
from torch import nn

import purestep as ps
from purestep.data import AtomicBatch, Loader, collate, prepare
from purestep.models.atoms import edge_vectors, sum_of_atoms
from purestep.models.forces import energy_and_forces

CUTOFF = 4.0


class Morse(nn.Module):
    """The truth: a pair potential with its minimum at 2.6 Angstrom, smoothly cut off."""

    def forward(self, batch: AtomicBatch) -> dict[str, torch.Tensor]:
        """Energy, forces and stress."""

        def energy(positions, cell):
            lengths = edge_vectors(batch, positions, cell).norm(dim=-1)
            bond = 0.5 * ((1 - torch.exp(-1.5 * (lengths - 2.6))).square() - 1) * torch.cos(0.5 * torch.pi * lengths / CUTOFF).square()
            per_atom = torch.zeros_like(positions[:, 0]).index_add(0, batch.edge_index[0], 0.5 * bond)
            return sum_of_atoms(per_atom.unsqueeze(-1), batch)

        return energy_and_forces(energy, batch, (), stress=True)


def crystals(count: int, seed: int, labelled_every: int = 1) -> list[dict[str, np.ndarray]]:
    """Strained, rattled cells of four copper atoms; of `labelled_every` only one has forces and a stress."""
    rng = np.random.default_rng(seed)
    corners = np.array([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]])
    frames = []
    for number in range(count):
        cell = 3.7 * (np.eye(3) + 0.05 * rng.normal(size=(3, 3)))
        positions = corners @ cell + 0.1 * rng.normal(size=(4, 3))
        frame = {"numbers": np.full(4, 29), "positions": positions, "cell": cell, "pbc": np.ones(3, dtype=bool)}
        prepared = prepare(frame, CUTOFF)
        truth = Morse()(collate([prepared]))
        prepared |= {"energy": truth["energy"][0, 0].numpy(), "forces": truth["forces"].numpy(), "stress": truth["stress"][0].numpy()}
        if number % labelled_every:
            prepared |= {key: np.full_like(prepared[key], np.nan) for key in ("forces", "stress")}
        frames.append(prepared)
    return frames


def main() -> dict[str, float]:
    torch.manual_seed(0)
    model = ps.models.PaiNN(hidden_size=16, num_layers=2, num_radial=8, cutoff=CUTOFF, max_number=29, stress=True)
    loss = (
        ps.EnergyMSELoss(per_atom=True, ignore_nonfinite=True)
        + 1.0 * ps.ForceMSELoss(ignore_nonfinite=True)
        + 100.0 * ps.StressMSELoss(ignore_nonfinite=True)
    )
    optimizer = ps.chain(ps.skip_nonfinite(), ps.clip_by_global_norm(1.0), ps.adamw(ps.schedules.cosine_decay(1e-2, 200)))
    training = ps.Training(model, loss=loss, optimizer=optimizer)
    batches = Loader(crystals(64, seed=1, labelled_every=4), 16, collate=collate)
    held_out = ps.Validation([collate(crystals(32, seed=2))], metrics=(ps.metrics.ForceErrors(),))

    before = ps.fit(training, batches, num_steps=1, validation=held_out).history[-1]
    result = ps.fit(training, batches, num_steps=200, validation=held_out)
    after = result.history[-1]

    unlabelled = collate([frame for frame in crystals(8, seed=3, labelled_every=99)][1:])
    _, metrics = training.step(result.state, unlabelled)
    found = {
        "force_loss_before": before["validation/loss/ForceMSELoss/unweighted"],
        "force_loss_after": after["validation/loss/ForceMSELoss/unweighted"],
        "stress_loss_before": before["validation/loss/StressMSELoss/unweighted"],
        "stress_loss_after": after["validation/loss/StressMSELoss/unweighted"],
        "force_loss_without_labels": float(metrics["loss/ForceMSELoss/unweighted"]),
        "updates": float(result.state.counters.step_count),
    }
    print("  ".join(f"{name} {value:.3g}" for name, value in found.items()))
    return found


if __name__ == "__main__":
    main()
