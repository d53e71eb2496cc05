"""Random changes of the input, from keys: `input_noise` and `random_rotation`."""

import dataclasses
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import rng, tree
from ..core.hook import Hook, Stage, StepContext
from ..core.ranges import NOT_NEGATIVE, check_schedulable
from ..core.schedule import Hyperparam, ScalarOrSchedule, init_hyperparam, next_hyperparam, scalar_like
from ..core.state import TrainState
from ..errors import HookError


class InputNoiseState(NamedTuple):
    """State of `input_noise`."""

    draws: Tensor  # 0-d int64; parts of a cut batch share the count of batches, so each takes a draw of its own
    std: Hyperparam


def input_noise(std: ScalarOrSchedule, fields: str | Sequence[str] = "positions", name: str = "input_noise") -> Hook:
    """Add independent normal noise to fields of each batch, before the forward pass.

    Edges and labels stay those of the input without noise. `evaluate` sees no noise.

    Args:
        std: Standard deviation in the units of the field, in [0, inf); a number (a leaf of the state) or a schedule of the batches so far.
        fields: Paths of leaves of the batch: `"positions"`, `"0"` for the first of a tuple, `""` for a batch that is one tensor.
        name: Of the hook; two of different name draw different noise.

    Raises:
        HookError: At the first call, if the batch has no such leaf, or it is not floating point.
    """
    check_schedulable("input_noise", NOT_NEGATIVE, std=std)
    wanted = (fields,) if isinstance(fields, str) else tuple(fields)
    number = zlib.crc32(name.encode())

    def init(state: TrainState) -> InputNoiseState:
        return InputNoiseState(scalar_like(state.params, 0, torch.int64), init_hyperparam(std, state.params))

    def update(state: InputNoiseState, ctx: StepContext) -> tuple[InputNoiseState, StepContext]:
        leaves, spec = tree.flatten(ctx.batch)
        paths, key = tree.paths(ctx.batch), _key(ctx, number)
        used = next_hyperparam(std, state.std)
        for path in wanted:
            if path not in paths:
                raise HookError(f"hook {name!r}: the batch has no leaf {path!r}; there are {', '.join(map(repr, paths))}")
            i = paths.index(path)
            leaves[i] = _noisy(leaves[i], rng.child_key(key, i), state.draws, used.value, f"hook {name!r}: {path!r}")
        return InputNoiseState(state.draws + 1, used), ctx.replace(batch=tree.unflatten(spec, leaves))

    return Hook(name, frozenset({Stage.BEFORE_FORWARD}), init, update)


def _key(ctx: StepContext, number: int) -> Tensor:
    return rng.child_key(rng.fold_in(ctx.seed, ctx.counters.batch_count, purpose=rng.HOOKS), number)


def _noisy(leaf: Any, key: Tensor, draw: Tensor, std: Tensor, where: str) -> Tensor:
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        got = leaf.dtype if isinstance(leaf, Tensor) else type(leaf).__name__
        raise HookError(f"{where} is {got}; noise needs a floating-point tensor, so leave it out of fields=")
    return leaf + std.to(leaf.dtype) * rng.normal(key, draw, tuple(leaf.shape), leaf.dtype).to(leaf.device)


def random_rotation(name: str = "random_rotation") -> Hook:
    """Turn each structure of a batch of atoms by a random rotation of its own, with all that turns with it.

    `positions` and `forces`, vectors by atom; the rows of `cell`; `stress`, a tensor by graph. The batch is an `AtomicBatch`, or a
    dataclass or mapping with fields of these names and shapes, `batch` and `ptr` among them. Rotations are uniform over all.

    Reference:
        Shoemake, "Uniform random rotations", Graphics Gems III, 1992, page 124 (a random unit quaternion).
    """
    number = zlib.crc32(name.encode())

    def init(state: TrainState) -> Tensor:
        return scalar_like(state.params, 0, torch.int64)

    def update(draws: Tensor, ctx: StepContext) -> tuple[Tensor, StepContext]:
        field = _fields_of(ctx.batch, name)
        turn = _rotations(_key(ctx, number), draws, field["ptr"].shape[-1] - 1).to(field["positions"].device)
        turned: dict[str, Tensor] = {}
        for key in ("positions", "forces"):
            if key in field:
                per_atom = turn.to(field[key].dtype)[field["batch"]]
                turned[key] = (per_atom @ field[key].unsqueeze(-1)).squeeze(-1)
        if "cell" in field:
            turned["cell"] = field["cell"] @ turn.to(field["cell"].dtype).mT
        if "stress" in field:
            matrix = turn.to(field["stress"].dtype)
            turned["stress"] = matrix @ field["stress"] @ matrix.mT
        batch = {**ctx.batch, **turned} if isinstance(ctx.batch, Mapping) else dataclasses.replace(ctx.batch, **turned)
        return draws + 1, ctx.replace(batch=batch)

    return Hook(name, frozenset({Stage.BEFORE_BATCH}), init, update)


def _fields_of(batch: Any, name: str) -> dict[str, Tensor]:
    names = ("positions", "batch", "ptr", "forces", "cell", "stress")
    read = batch.get if isinstance(batch, Mapping) else lambda key: getattr(batch, key, None)
    found = {key: value for key in names if (value := read(key)) is not None}
    if missing := [key for key in names[:3] if key not in found]:
        raise HookError(f"hook {name!r}: the batch, a {type(batch).__name__}, has no {', '.join(missing)}; it turns batches of atoms")
    return found


def _rotations(key: Tensor, draw: Tensor, count: int) -> Tensor:
    """Uniformly random rotation matrices, `(count, 3, 3)`, float64."""
    u = rng.uniform(key, draw, (3, count), torch.float64)
    small, large, first, second = (1.0 - u[0]).sqrt(), u[0].sqrt(), 2.0 * math.pi * u[1], 2.0 * math.pi * u[2]
    x, y, z, w = small * torch.sin(first), small * torch.cos(first), large * torch.sin(second), large * torch.cos(second)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
        (2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
        (2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
    )
    return torch.stack([torch.stack(row, -1) for row in rows], -2)
