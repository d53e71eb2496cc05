"""Weights in files of others: safetensors files and directories of them, and `state_dict` files of torch, read without unpickling code."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointFormatError, CheckpointUnsafeError
from . import disk, strictjson, tensorfile
from .manifest import INDEX, MODEL_FILE

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\.safetensors")
_MAX_INDEX_BYTES = 64 << 20


def read_safetensors(path: str | os.PathLike) -> dict[str, Tensor]:
    """All tensors of a safetensors file, copied into memory.

    Raises:
        CheckpointFormatError: If the file is malformed, by stricter rules than the library's.
        CheckpointUnsafeError: If it is no regular file, or larger than the machine's memory.
    """
    directory, name = os.path.split(os.path.abspath(os.fspath(path)))
    where = os.path.join(directory, name)
    with disk.open_regular(directory, name) as fd:
        size = disk.file_size(fd)
        if size > disk.memory_bytes():
            raise CheckpointUnsafeError(f"{where} has {size} bytes, this machine has {disk.memory_bytes()}")
        prefix = bytearray(8)
        got = disk.read_into(fd, memoryview(prefix))
        length = tensorfile.header_length(bytes(prefix[:got]), size, where)
        text = bytearray(length)
        disk.read_into(fd, memoryview(text), 8)
        tensors = {}
        for entry in tensorfile.parse_header(bytes(text), size - 8 - length, where):
            tensor = torch.empty(entry.shape, dtype=tensorfile.dtype_from_stored(entry.dtype))
            if disk.read_into(fd, memoryview(tensorfile.byte_view(tensor).data), 8 + length + entry.begin) != entry.end - entry.begin:
                raise CheckpointFormatError(f"{where}: ends within {entry.name!r}")
            tensors[entry.name] = tensor
    return tensors


def read_directory(directory: str) -> dict[str, Tensor]:
    """Weights of a directory with `model.safetensors`, or with the index of several files.

    Raises:
        CheckpointUnsafeError: If the index names anything but safetensors files beside it.
        CheckpointFormatError: If a tensor is not in the file that the index names.
    """
    if not os.path.lexists(os.path.join(directory, INDEX)):
        return without_wrapper(read_safetensors(os.path.join(directory, MODEL_FILE)))
    try:
        index = strictjson.load(disk.read_small(directory, INDEX, _MAX_INDEX_BYTES))
        weight_map = dict(index["weight_map"])
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointFormatError(f"{directory}: {INDEX} has no weight_map: {error}") from error
    names = sorted({str(file) for file in weight_map.values()})
    for name in names:
        if not _SHARD.fullmatch(name):
            raise CheckpointUnsafeError(f"{directory}: illegal file name {name[:140]!r} in {INDEX}")
    _check_total(directory, names)
    files = {name: read_safetensors(os.path.join(directory, name)) for name in names}
    lost = [name for name, file in weight_map.items() if name not in files[file]]
    if lost:
        raise CheckpointFormatError(f"{directory}: {lost[0]!r} is not in {weight_map[lost[0]]!r}, as {INDEX} says")
    return without_wrapper({name: files[file][name] for name, file in weight_map.items()})


def _check_total(directory: str, names: Sequence[str]) -> None:
    total = 0
    for name in names:
        with disk.open_regular(directory, name) as fd:
            total += disk.file_size(fd)
    if total > disk.memory_bytes():
        raise CheckpointUnsafeError(f"{directory}: {len(names)} files have {total} bytes, this machine has {disk.memory_bytes()}")


def read_state_dict(path: str | os.PathLike, key: str | None = None) -> dict[str, Tensor]:
    """Tensors of a torch file, read with `weights_only`, so that nothing in it is executed.

    Args:
        key: Where in the file the `state_dict` is, if it is not the whole; `"model"`, `"state_dict"`.

    Raises:
        CheckpointFormatError: If torch refuses the file, or it is not a mapping of names to tensors.
    """
    path = os.fspath(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # torch raises whatever its parser stumbles over
        raise CheckpointFormatError(f"{path}: torch does not load it with weights_only: {str(error).splitlines()[0]}") from error
    found = _at_key(content, key, path)
    strange = [name for name, value in found.items() if not (isinstance(name, str) and isinstance(value, Tensor))]
    if strange:
        inner = [name for name, value in found.items() if isinstance(value, Mapping)]
        hint = f"; is it in one of {inner} (key=)?" if inner else ""
        raise CheckpointFormatError(f"{path}: {strange[0]!r} is not a named tensor{hint}")
    return without_wrapper(found)


def without_wrapper(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names as they are without `torch.compile`, which puts `_orig_mod.` into them; left alone if two would become one."""
    plain = {name.replace("_orig_mod.", ""): tensor for name, tensor in tensors.items()}
    return plain if len(plain) == len(tensors) else dict(tensors)


def _at_key(content: Any, key: str | None, path: str) -> Mapping:
    if key is not None and not (isinstance(content, Mapping) and key in content):
        known = list(content)[:20] if isinstance(content, Mapping) else type(content).__name__
        raise CheckpointFormatError(f"{path} has no {key!r}; there is {known}")
    found = content if key is None else content[key]
    if not isinstance(found, Mapping):
        raise CheckpointFormatError(f"{path} holds a {type(found).__name__}, expected a mapping of names to tensors")
    return found


def is_torch_file(path: str) -> bool:
    """Whether a name ends like those of torch's own files."""
    return PurePath(path).suffix in TORCH_SUFFIXES
