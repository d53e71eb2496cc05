"""Plain weights for others: one safetensors file, or several with an index, and a configuration beside them if there is one."""

import os
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import CheckpointFormatError, CheckpointSaveError
from . import disk, layout, strictjson, tensorfile
from .manifest import INDEX, MODEL_FILE
from .read import Verify
from .restore import with_checkpoint
from .splitting import MAX_FILE_BYTES, assign_files, check_limit, index_text
from .staging import make_root
from .store import Checkpoint
from .weights import read_leaves, weight_leaves
from .write import saving, write_tensors

CONFIG = "config.json"
Tied = Literal["copied", "once"]


def export(
    path: str | os.PathLike,
    to: str | os.PathLike,
    *,
    weights: str = "raw",
    dtype: torch.dtype | None = None,
    config: Mapping[str, Any] | None = None,
    tied: Tied = "copied",
    max_file_bytes: int = MAX_FILE_BYTES,
    step: int | str = "latest",
    verify: Verify = "crc",
) -> str:
    """Write the weights of a checkpoint as `model.safetensors` into a new directory.

    Args:
        path: A checkpoint or a root.
        to: The directory; must not exist, or be empty.
        weights: `"raw"`, or the name of a hook that keeps an average, such as `"ema"`.
        dtype: Convert floating-point weights to this.
        config: Plain JSON for `config.json` beside them.
        tied: Tied names `"copied"`, so that `load_state_dict` finds all of them, or stored `"once"`, under the holder's name.
        max_file_bytes: Above this the weights are spread over several files, with `model.safetensors.index.json` beside them.
        step: Which checkpoint of a root.

    Returns:
        The absolute path of the directory.

    Raises:
        CheckpointFormatError: If the checkpoint has no such weights.
        CheckpointSaveError: If the directory is not empty, or cannot be written.
    """
    check_limit(max_file_bytes)
    to = os.path.abspath(os.fspath(to))
    if os.path.lexists(to) and (not os.path.isdir(to) or os.listdir(to)):
        raise CheckpointSaveError(f"{to} exists and is not an empty directory; export to a new one")

    def read(checkpoint: Checkpoint) -> dict[str, Tensor]:
        found = _weights(checkpoint, weights, verify)
        copies = {name: found[holder] for name, holder in checkpoint.manifest.aliases if tied == "copied" and holder in found}
        return {name: _cast(tensor, dtype) for name, tensor in (found | copies).items()}

    tensors = with_checkpoint(path, read, step=step)
    with saving(to):
        make_root(to)
        if config is not None:
            disk.write_file(os.path.join(to, CONFIG), [strictjson.dump(dict(config))])
        _write(to, tensors, max_file_bytes)
    return to


def _write(to: str, tensors: Mapping[str, Tensor], max_file_bytes: int) -> None:
    """Write the weights so that those who look for them find all or none: what they look for first gets its name last."""
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}
    files = assign_files(MODEL_FILE, sizes, max_file_bytes)
    entry = MODEL_FILE if MODEL_FILE in files.values() else INDEX
    for file in sorted(set(files.values())):
        write_tensors(os.path.join(to, _draft(file, entry)), {name: tensor for name, tensor in tensors.items() if files[name] == file})
    if entry == INDEX:
        disk.write_file(os.path.join(to, _draft(INDEX, entry)), [index_text(files, sum(sizes.values()))])
    disk.sync_dir(to)
    disk.rename(os.path.join(to, _draft(entry, entry)), os.path.join(to, entry))
    disk.sync_dir(to)


def _draft(file: str, entry: str) -> str:
    return f".{file}.tmp" if file == entry else file


def _weights(checkpoint: Checkpoint, weights: str, verify: Verify) -> dict[str, Tensor]:
    raw = weight_leaves(checkpoint.manifest, layout.MODEL_FIELDS)
    if weights == "raw":
        chosen = raw
    else:
        prefixes = [f"hook_state.{weights}.{field}" for field in layout.MODEL_FIELDS]
        chosen = weight_leaves(checkpoint.manifest, prefixes)
        params = weight_leaves(checkpoint.manifest, prefixes[:1])
        if set(params) != set(weight_leaves(checkpoint.manifest, ("params",))):
            raise CheckpointFormatError(f"{checkpoint.path} holds no average of all parameters called {weights!r} {_averages(checkpoint)}")
        chosen = {name: chosen.get(name, leaf) for name, leaf in raw.items()}  # buffers that are not averaged go out as they are
    if not chosen:
        raise CheckpointFormatError(f"{checkpoint.path} holds no weights; it was not saved from a training state")
    read = read_leaves(checkpoint, chosen, verify)
    kept = {name: tensorfile.dtype_from_name(leaf.dtype) for name, leaf in raw.items()}
    return {name: tensor.to(kept[name]) for name, tensor in read.items()}


def _averages(checkpoint: Checkpoint) -> str:
    paths = [leaf.path.split(".") for leaf in checkpoint.manifest.leaves]
    names = sorted({parts[1] for parts in paths if len(parts) > 3 and parts[0] == "hook_state" and parts[2] == "params"})
    return f"(it has {', '.join(names) or 'none'})"


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
