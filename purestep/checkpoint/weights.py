"""Weights without the rest: reading them from any source, and putting them into a new state."""

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..errors import CheckpointFormatError, NoCheckpointError, StructureMismatchError
from . import foreign, layout
from .manifest import INDEX, MODEL_FILE, Leaf, Manifest
from .match import MAX_LINES, PathMap, prefix_function
from .read import Request, Verify, check_memory, new_tensor, read_all
from .restore import with_checkpoint
from .store import Checkpoint, candidates, is_checkpoint
from .tensorfile import dtype_from_name, dtype_name, num_bytes


class Report(NamedTuple):
    """What became of each weight, by its name in the state: loaded, left as it was; and names of the source that nobody asked for.

    `converted` are those among the loaded whose floating-point dtype changed.
    """

    loaded: tuple[str, ...]
    kept: tuple[str, ...]
    unused: tuple[str, ...]
    converted: tuple[str, ...]


class Pretrained(NamedTuple):
    """A new state with weights from elsewhere, and the report."""

    state: Any
    report: Report


def load_weights(
    path: str | os.PathLike, *, step: int | str = "latest", verify: Verify = "crc", key: str | None = None
) -> dict[str, Tensor]:
    """Parameters and buffers by dotted name, on the host; a tied name gives the same tensor as its holder.

    Args:
        path: A checkpoint, a root, a `.safetensors` file, a directory of these, or a torch `state_dict` file (`.pt`, `.pth`, `.bin`,
            `.ckpt`; read with `weights_only`).
        step: Which checkpoint of a root.
        key: Where in a torch file the `state_dict` is.
    """
    path = os.path.abspath(os.fspath(path))
    if os.path.isfile(path):
        return (
            foreign.read_state_dict(path, key) if foreign.is_torch_file(path) else foreign.without_wrapper(foreign.read_safetensors(path))
        )
    if is_checkpoint(path) or (os.path.isdir(path) and candidates(path)):
        return with_checkpoint(path, lambda checkpoint: read_weights(checkpoint, verify), step=step)
    if any(os.path.lexists(os.path.join(path, name)) for name in (INDEX, MODEL_FILE)):
        return foreign.read_directory(path)
    raise NoCheckpointError(f"{path} is neither a checkpoint, nor a root of them, nor a file or directory of weights")


def load_params(path: str | os.PathLike, *, step: int | str = "latest", verify: Verify = "crc") -> dict[str, Tensor]:
    """The parameters alone of a checkpoint, by dotted name; neither buffers nor optimizer state are read.

    Args:
        path: A checkpoint or a root.
    """

    def read(checkpoint: Checkpoint) -> dict[str, Tensor]:
        return read_weights(checkpoint, verify, fields=("params",))

    return with_checkpoint(path, read, step=step)


def read_weights(checkpoint: Checkpoint, verify: Verify = "crc", fields: Sequence[str] = layout.MODEL_FIELDS) -> dict[str, Tensor]:
    """Read the leaves of some fields of an open checkpoint, by the name they have within the field."""
    leaves = weight_leaves(checkpoint.manifest, fields)
    if not leaves:
        raise CheckpointFormatError(f"{checkpoint.path} holds no {' or '.join(fields)}; it was not saved from a training state")
    weights = read_leaves(checkpoint, leaves, verify)
    return weights | {tied: weights[holder] for tied, holder in checkpoint.manifest.aliases if holder in weights}


def weight_leaves(manifest: Manifest, prefixes: Sequence[str]) -> dict[str, Leaf]:
    """Tensor leaves whose path begins with one of the prefixes and a dot, by the rest of the path."""
    named = {}
    for leaf in manifest.leaves:
        for prefix in prefixes:
            if leaf.kind == "tensor" and leaf.path.startswith(f"{prefix}."):
                named[leaf.path.removeprefix(f"{prefix}.")] = leaf
    return named


def read_leaves(checkpoint: Checkpoint, leaves: Mapping[str, Leaf], verify: Verify) -> dict[str, Tensor]:
    """Read tensor leaves into new host memory."""
    check_memory(checkpoint.manifest, sum(num_bytes(dtype_from_name(leaf.dtype), leaf.shape) for leaf in leaves.values()), checkpoint.path)
    memory = {name: new_tensor(leaf, leaf.shape) for name, leaf in leaves.items()}
    read_all(checkpoint, [Request(leaf, layout.whole(leaf.shape), memory[name]) for name, leaf in leaves.items()], verify)
    return memory


# --- into a new state ---------------------------------------------------------------------------------------------


def from_pretrained(
    path: str | os.PathLike,
    like: Any,
    *,
    map: PathMap | None = None,
    patterns: str | Sequence[str] | None = None,
    step: int | str = "latest",
    key: str | None = None,
) -> Pretrained:
    """Put weights into a new state; optimizer, counters and hooks stay as new as they are in `like`.

    Copies of the weights that `init` made (averages, float32 masters) follow the new weights, so that the state is the one that
    training from these weights would begin with.

    Args:
        path: Any source that `load_weights` takes.
        like: A new state, as `Training.init` gives it.
        map: Function from names of the source to names in the state, or a mapping of prefixes.
        patterns: Which weights of the state to load; the others keep the values of `like`. Default: all, and then the source must have
            each of them and nothing else.
        step: Which checkpoint of a root.
        key: Where in a torch file the `state_dict` is.

    Returns:
        The state, and what was loaded, kept and unused.

    Raises:
        StructureMismatchError: If names or shapes do not fit, all differences at once.
        PatternError: If a pattern matches no weight of the state.
    """
    source = _renamed(load_weights(path, step=step, key=key), map)
    targets = {name: leaf for field in layout.MODEL_FIELDS for name, leaf in _named(getattr(like, field), field)}
    wanted = set(targets) if patterns is None else _chosen(patterns, list(targets))
    aliases = dict(layout.aliases_of(like))
    lines = _problems(source, targets, wanted, aliases, strict=patterns is None)
    if lines:
        raise StructureMismatchError(
            f"{len(lines)} differences between {os.fspath(path)} and the state:\n  " + "\n  ".join(lines[:MAX_LINES])
        )
    new = {
        name: source[name].to(leaf.device, leaf.dtype).requires_grad_(leaf.requires_grad)
        for name, leaf in targets.items()
        if name in wanted
    }
    report = Report(
        loaded=tuple(sorted(wanted)),
        kept=tuple(sorted(set(targets) - wanted)),
        unused=tuple(sorted(set(source) - wanted - set(aliases))),
        converted=tuple(sorted(name for name in wanted if source[name].dtype != targets[name].dtype)),
    )
    return Pretrained(_with_weights(like, targets, new), report)


def _named(subtree: Any, field: str) -> list[tuple[str, Tensor]]:
    return [(name or field, leaf) for name, leaf in tree.items(subtree)]


def _renamed(source: Mapping[str, Tensor], path_map: PathMap | None) -> dict[str, Tensor]:
    if path_map is None:
        return dict(source)
    rename: Callable[[str], str] = path_map if callable(path_map) else prefix_function(path_map, list(source))
    renamed: dict[str, Tensor] = {}
    for name, tensor in source.items():
        if rename(name) in renamed:
            raise StructureMismatchError(f"map sends two names of the source to {rename(name)!r}")
        renamed[rename(name)] = tensor
    return renamed


def _chosen(patterns: str | Sequence[str], names: list[str]) -> set[str]:
    listed = [patterns] if isinstance(patterns, str) else list(patterns)
    hits = tree.first_matches(listed, names)
    return {name for name, hit in zip(names, hits, strict=True) if hit is not None}


def _problems(
    source: Mapping[str, Tensor], targets: Mapping[str, Tensor], wanted: set[str], aliases: Mapping[str, str], *, strict: bool
) -> list[str]:
    lines = []
    for name in sorted(wanted):
        if name not in source:
            near = difflib.get_close_matches(name, list(source), n=1, cutoff=0.6)
            lines.append(f"missing in the source: {name}" + (f" (it has {near[0]!r}; map= can rename)" if near else ""))
        elif source[name].shape != targets[name].shape:
            lines.append(f"shape: {name} source {list(source[name].shape)}, state {list(targets[name].shape)}")
        elif source[name].dtype != targets[name].dtype and not (source[name].is_floating_point() and targets[name].is_floating_point()):
            lines.append(f"dtype: {name} source {dtype_name(source[name].dtype)}, state {dtype_name(targets[name].dtype)}")
    for tied, holder in aliases.items():
        if tied in source and holder in source and not torch.equal(source[tied], source[holder]):
            lines.append(f"tie: the state ties {tied} to {holder}, the source has different values for them")
    if strict:
        lines += [f"unexpected in the source: {name}" for name in sorted(set(source) - set(targets) - set(aliases))]
    return lines


# --- copies that init made ----------------------------------------------------------------------------------------


def _with_weights(like: Any, old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> Any:
    fields = {field: _replaced(getattr(like, field), new, field) for field in layout.MODEL_FIELDS}
    followers = {field: _follow(getattr(like, field), old, new) for field in ("opt_state", "hook_state") if hasattr(like, field)}
    return dataclasses.replace(like, **fields, **followers)


def _replaced(subtree: Any, new: Mapping[str, Tensor], field: str) -> Any:
    return tree.map_with_path(lambda path, leaf: new.get(path or field, leaf), subtree)


def _follow(subtree: Any, old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> Any:
    """Replace copies of the old weights in other states.

    A copy is a group of leaves under one prefix, named like weights, that are all bitwise the old weights in their own dtype, and not
    all constant: a group of zero moments is none, though the bias it belongs to is zero too.
    """
    groups: dict[str, list[tuple[str, Tensor, str]]] = {}
    for path, leaf in tree.items(subtree):
        parts = path.split(".")
        name = next((".".join(parts[i:]) for i in range(1, len(parts)) if ".".join(parts[i:]) in old), None)
        if name is not None and isinstance(leaf, Tensor):
            groups.setdefault(path.removesuffix(name), []).append((path, leaf, name))
    copies = {path: name for group in groups.values() if _is_copy(group, old) for path, _, name in group}
    return tree.map_with_path(lambda path, leaf: _converted(new, copies.get(path), leaf), subtree)


def _is_copy(group: list[tuple[str, Tensor, str]], old: Mapping[str, Tensor]) -> bool:
    same = all(leaf.shape == old[name].shape and torch.equal(leaf, old[name].to(leaf.dtype)) for _, leaf, name in group)
    return same and any(leaf.numel() > 1 and bool((leaf != leaf.reshape(-1)[0]).any()) for _, leaf, _ in group)


def _converted(new: Mapping[str, Tensor], name: str | None, leaf: Any) -> Any:
    return leaf if name is None or name not in new else new[name].detach().to(leaf.dtype, copy=True)
