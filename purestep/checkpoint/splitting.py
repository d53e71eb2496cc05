"""Files of bounded size: which tensor goes into which of several files, and the index by which other tools find weights in them.

Names and index are those of Hugging Face. A tensor is never cut: one that is larger than the limit has a file of its own. A state below
the limit has one file of each kind, and no index.

Reference:
    `split_torch_state_dict_into_shards` and `save_torch_state_dict` of https://github.com/huggingface/huggingface_hub, version 2.4.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from .layout import Placed
from .manifest import FileRecord, Leaf
from .tensorfile import dtype_from_name, num_bytes

MAX_FILE_BYTES = 8 << 30


def check_limit(max_file_bytes: int) -> None:
    """Refuse a limit that is none.

    Raises:
        ValueError: If it is not at least 1.
    """
    if not max_file_bytes >= 1:
        raise ValueError(f"max_file_bytes must be at least 1, got {max_file_bytes}")


def assign_files(file: str, sizes: Mapping[str, int], max_file_bytes: int) -> dict[str, str]:
    """File of each tensor: filled in the given order, a new one begun where the next tensor would go over the limit.

    Args:
        file: The name where one file is enough.
        sizes: Bytes of each tensor.
        max_file_bytes: Limit on the bytes of tensors in one file; the header comes on top.

    Example:
        >>> assign_files("model.safetensors", {"a": 6, "b": 5}, 10)
        {'a': 'model-00001-of-00002.safetensors', 'b': 'model-00002-of-00002.safetensors'}
        >>> assign_files("model.safetensors", {"a": 6, "b": 4}, 10)
        {'a': 'model.safetensors', 'b': 'model.safetensors'}
    """
    numbers: dict[str, int] = {}
    number, filled = 1, 0
    for name, size in sizes.items():
        if filled and filled + size > max_file_bytes:
            number, filled = number + 1, 0
        filled += size
        numbers[name] = number
    if number == 1:
        return dict.fromkeys(sizes, file)
    stem, _, suffix = file.partition(".")
    return {name: f"{stem}-{index:05d}-of-{number:05d}.{suffix}" for name, index in numbers.items()}


def split_placed(placed: Sequence[Placed], max_file_bytes: int) -> list[Placed]:
    """The same leaves, each file that is too large divided into several."""
    sizes: dict[str, dict[str, int]] = {}
    for item in placed:
        if isinstance(item.leaf, Tensor):
            sizes.setdefault(item.file, {})[item.name] = item.leaf.numel() * item.leaf.element_size()
    files = {file: assign_files(file, named, max_file_bytes) for file, named in sizes.items()}
    return [item._replace(file=files[item.file][item.name]) if isinstance(item.leaf, Tensor) else item for item in placed]


# --- the index ----------------------------------------------------------------------------------------------------


def index_text(weight_map: Mapping[str, str], total_size: int) -> bytes:
    """Content of `model.safetensors.index.json`.

    Args:
        weight_map: File of each tensor.
        total_size: Bytes of all tensors.
    """
    index = {"metadata": {"total_size": total_size}, "weight_map": dict(weight_map)}
    return (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()


def index_of(files: Iterable[FileRecord], leaves: Iterable[Leaf]) -> bytes:
    """The index that belongs to the weights of a manifest, to the byte."""
    weights = {record.path for record in files if record.role == "weights"}
    pieces = [(leaf, piece) for leaf in leaves for piece in leaf.pieces if piece.file in weights]
    total = sum(num_bytes(dtype_from_name(leaf.dtype), piece.shape) for leaf, piece in pieces)
    return index_text({piece.tensor: piece.file for _, piece in pieces}, total)
