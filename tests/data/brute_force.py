"""Neighbour lists by trying every pair with every cell shift that could bring it within reach: slow, and without cleverness."""

import numpy as np


def brute_force(positions, cutoff, cell, periodic):
    """All directed pairs nearer than the cutoff: rows of sender, receiver and shift, sorted by receiver, sender, shift."""
    box = completed(cell, periodic)
    inverse = np.linalg.inv(box)
    reach = cutoff * np.linalg.norm(inverse, axis=0) + np.ptp(positions @ inverse, axis=0)
    most = np.where(periodic, np.ceil(reach), 0).astype(np.int64)
    ranges = [np.arange(-count, count + 1) for count in most]
    shifts = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, 3)
    vectors = positions[None, :, None] - positions[:, None, None] + shifts @ box  # receiver, sender, shift
    near = np.einsum("rsmx,rsmx->rsm", vectors, vectors) < cutoff * cutoff
    atoms = np.arange(len(positions))
    near[atoms, atoms, np.flatnonzero((shifts == 0).all(axis=1))[0]] = False
    receiver, sender, image = np.nonzero(near)
    return np.concatenate([np.stack([sender, receiver], axis=1), shifts[image]], axis=1)


def completed(cell, periodic):
    """The cell with unit vectors, orthogonal to the periodic ones, in the other directions."""
    box = np.zeros((3, 3))
    box[periodic] = cell[periodic]
    box[~periodic] = np.linalg.svd(cell[periodic])[2][periodic.sum() :] if periodic.any() else np.eye(3)
    return box
