"""The first state of a model that no rank can hold: modules on the meta device, filled one after the other, each cut at once.

What a module draws is a function of the seed and of its path, so every world begins with the same weights.
"""

import copy
import hashlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from ..core import tree
from ..core.state import TrainState
from ..core.step import init_state
from ..errors import DistributedError
from ..training import Training
from .local import cuts_of
from .parts import part_of
from .topology import Topology

_RESETS = ("reset_parameters", "_reset_parameters")
Initialise = Callable[[str, Tensor], Tensor]
"""`initialise(path, empty) -> values`: a whole leaf, the same on every rank; `empty` has its shape, dtype and device."""


def init_in_parts(
    training: Training,
    topology: Topology,
    *,
    seed: int = 0,
    device: torch.device | str | None = None,
    initialise: Initialise | None = None,
) -> TrainState:
    """This rank's part of the state before the first batch, of modules that are on the meta device; every rank calls this.

    At most one module's own parameters are whole at a time. Each is drawn by its `reset_parameters`, from torch's generator seeded by
    `seed` and the module's path; the generator is put back.

    Args:
        training: From `data_parallel`, with `shard_state="parameters"`.
        topology: From `init`.
        seed: From which all randomness follows.
        device: Where the state is to be; by default that of the topology.
        initialise: Gives each parameter and buffer, by its path in the state (`params.layer.weight`), in place of `reset_parameters`.

    Raises:
        DistributedError: If a module has no `reset_parameters`, or the optimizer begins with something of whole leaves.
    """
    where = topology.device if device is None else torch.device(device)
    meta = training.init(seed, device="meta")
    cuts, wanted, found = cuts_of(meta), set(tree.paths(meta)), {}
    for path, whole in _leaves(training, where, seed, initialise):
        if path in wanted:  # a tied parameter is one leaf, under its first name
            found[path] = part_of(whole, cuts.get(path), topology.ranks).clone(memory_format=torch.contiguous_format)
        del whole  # before the next is made
    params = tree.map_with_path(lambda path, _: found[f"params.{path}"], meta.params)
    buffers = tree.map_with_path(lambda path, _: found[f"buffers.{path}"], meta.buffers)
    trainable = training._program.split(params)[0]
    begun = init_state(params, training.optimizer, training.hooks, seed, buffers=buffers, trainable=trainable)
    for (path, expected), leaf in zip(tree.items(meta), tree.leaves(begun), strict=True):
        if isinstance(expected, Tensor) and expected.shape != leaf.shape:
            raise DistributedError(
                f"init_in_parts: {path} is made of whole leaves ({tuple(expected.shape)} here, {tuple(leaf.shape)} if made of parts); "
                "use an optimizer that begins with leaves of the form of the parameters, or initialise the model on a device"
            )
    return tree.unflatten(tree.structure(meta), tree.leaves(begun))


def _leaves(training: Training, device: torch.device, seed: int, initialise: Initialise | None) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers of all modules, whole, one module after the other."""
    models = {"": training.models} if isinstance(training.models, nn.Module) else dict(training.models)
    for model, module in models.items():
        for owner, part in module.named_modules():
            kinds = {"params": part._parameters, "buffers": part._buffers}
            names = [(field, name) for field, kept in kinds.items() for name, leaf in kept.items() if leaf is not None]
            if not names:
                continue
            prefix = ".".join(piece for piece in (model, *owner.split(".")) if piece and piece != "_orig_mod")
            filled = None if initialise else _filled(part, prefix, device, seed)
            for field, name in names:
                path = ".".join(piece for piece in (field, prefix, name) if piece)
                if filled is None:
                    assert initialise is not None
                    leaf = kinds[field][name]
                    yield path, initialise(path, torch.empty(leaf.shape, dtype=leaf.dtype, device=device))
                else:
                    yield path, getattr(filled, name).detach()


def _filled(part: nn.Module, path: str, device: torch.device, seed: int) -> nn.Module:
    """A copy of a module with values in its own parameters and buffers; its children stay as they are."""
    reset = next((name for name in _RESETS if callable(getattr(part, name, None))), None)
    if reset is None:
        raise DistributedError(
            f"init_in_parts: {path or 'the module'}, a {type(part).__name__}, has parameters or buffers of its own and no reset_parameters "
            "to give them values; write one, or give initialise="
        )
    fresh = copy.deepcopy(part).to_empty(device=device, recurse=False)
    digest = hashlib.blake2b(f"{seed} {path}".encode(), digest_size=8).digest()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(int.from_bytes(digest, "little") >> 1)
        getattr(fresh, reset)()
    return fresh
