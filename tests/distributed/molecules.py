"""Training of a potential on molecules that ranks share."""

import numpy as np
import torch

import purestep as ps
from purestep.data import collate, prepare
from purestep.models import SchNet
from tests.distributed import scenarios


def frames():
    """Five molecules of different sizes; the energy of two and the forces of one are unknown."""
    rng = np.random.default_rng(0)
    made = []
    for i, count in enumerate((5, 3, 4, 2, 6)):
        energy = float("nan") if i in (3, 4) else rng.normal()
        forces = np.full((count, 3), np.nan) if i == 0 else rng.normal(size=(count, 3))
        frame = {
            "numbers": rng.choice([1, 6, 8], count),
            "positions": rng.normal(size=(count, 3)) * 1.2,
            "energy": energy,
            "forces": forces,
        }
        made.append(prepare(frame, 3.0, dtype=np.float64))
    return made


def trained(topology, split, backend=None):
    """Two steps on the five molecules; this rank has those that `split` names for it."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        potential = SchNet(hidden_size=8, num_layers=1, num_radial=6, cutoff=3.0, max_number=10).double()
    loss = 1.0 * ps.EnergyMSELoss(per_atom=True, ignore_nonfinite=True) + 10.0 * ps.ForceMSELoss(ignore_nonfinite=True)
    own = ps.Training(potential, loss=loss, optimizer=ps.chain(ps.skip_nonfinite(), ps.clip_by_global_norm(1.0), ps.adamw(0.01)))
    shared = ps.distributed.data_parallel(own, topology)
    step = shared.step if backend is None else ps.compile(shared.step, backend=backend)
    molecules = frames()
    batch = collate([molecules[i] for i in split[topology.rank]])
    state, metrics = scenarios.run_steps(step, shared.init(), [batch, batch])
    return scenarios.plain(state), metrics
