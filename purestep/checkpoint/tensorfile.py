"""The safetensors layout: dtypes, how a header is made, and a parser stricter than the library's.

A file is the header's length (8 bytes, little endian), a JSON header padded with spaces to a multiple of 8, and the tensors' bytes.
Headers made here are byte for byte those of the safetensors library with the metadata `{"format": "pt"}`.

Reference:
    Format description of https://github.com/huggingface/safetensors, version 0.8.
"""

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointFormatError
from .strictjson import unique_keys

# in the order in which the library sorts tensors of equal rank: last ones first, so that wide elements stay aligned
_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_RANKS = {name: rank for rank, name in enumerate(_NAMES.values())}
# what the format lacks is stored as pairs of real numbers
_PAIRS = {torch.complex128: torch.float64, torch.complex32: torch.float16}
_BY_TORCH_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in (*_NAMES, *_PAIRS)}

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
SURROGATE = re.compile(r"[\ud800-\udfff]")
MAX_HEADER_BYTES = 8 << 20
METADATA = {"format": "pt"}


class Entry(NamedTuple):
    """One tensor of a file: its name, stored dtype and shape, and its byte range after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def dtype_name(dtype: torch.dtype) -> str:
    """The name a manifest gives to a dtype, `float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def is_dtype(name: str) -> bool:
    """Whether a manifest's name is that of a dtype that can be stored."""
    return name in _BY_TORCH_NAME


def dtype_from_name(name: str) -> torch.dtype:
    """The dtype of a manifest's name."""
    return _BY_TORCH_NAME[name]


def dtype_from_stored(name: str) -> torch.dtype:
    """The dtype of a safetensors name."""
    return _DTYPES[name]


def stored_form(dtype: torch.dtype, shape: Iterable[int]) -> tuple[str, tuple[int, ...]]:
    """The safetensors dtype and shape under which a tensor is stored."""
    shape = tuple(shape)
    if dtype in _PAIRS:
        return _NAMES[_PAIRS[dtype]], (*shape, 2)
    return _NAMES[dtype], shape


def num_bytes(dtype: torch.dtype, shape: Iterable[int]) -> int:
    """Bytes of a dense tensor, in Python integers that cannot overflow."""
    return math.prod(shape) * dtype.itemsize


def byte_view(tensor: Tensor) -> np.ndarray:
    """The bytes of a dense, contiguous CPU tensor as uint8, sharing its memory."""
    flat = tensor.detach().reshape(-1)
    if flat.numel() == 1 and flat.stride() != (1,):  # torch calls it contiguous, and refuses to view it
        flat = flat.as_strided((1,), (1,))
    return flat.view(torch.uint8).numpy()


def make_header(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> tuple[bytes, list[Entry]]:
    """Lay tensors out in a file.

    Args:
        tensors: Stored dtype and shape of each name.

    Returns:
        The first bytes of the file, length and padding included, and the entries in file order.
    """
    ordered = sorted(tensors, key=lambda name: (-_RANKS[tensors[name][0]], name))
    entries, position = [], 0
    for name in ordered:
        dtype, shape = tensors[name]
        end = position + num_bytes(_DTYPES[dtype], shape)
        entries.append(Entry(name, dtype, shape, position, end))
        position = end
    fields: dict[str, Any] = {"__metadata__": METADATA}
    fields |= {e.name: {"dtype": e.dtype, "shape": list(e.shape), "data_offsets": [e.begin, e.end]} for e in entries}
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, entries


def header_length(prefix: bytes, file_bytes: int, where: str) -> int:
    """Read and check the first eight bytes of a file.

    Raises:
        CheckpointFormatError: If they are missing, or announce more than the file or our limit can hold.
    """
    if len(prefix) < 8:
        raise CheckpointFormatError(f"{where}: {file_bytes} bytes are too few for a safetensors file")
    length = int.from_bytes(prefix, "little")
    if length > file_bytes - 8:
        raise CheckpointFormatError(f"{where}: header length {length} exceeds file size {file_bytes}")
    if length > MAX_HEADER_BYTES:
        raise CheckpointFormatError(f"{where}: header length {length} exceeds the limit of {MAX_HEADER_BYTES} bytes")
    return length


def parse_header(text: bytes, data_bytes: int, where: str) -> list[Entry]:
    """Parse a header, refusing everything that has no single meaning.

    The library accepts duplicate names, NUL in names, unknown fields and leading spaces; this does not.

    Args:
        text: The header without its length.
        data_bytes: Bytes of the file after the header.
        where: How errors call the file.

    Returns:
        Entries in file order; they tile the data without hole or overlap.
    """
    if not text.startswith(b"{"):
        raise CheckpointFormatError(f"{where}: the header does not start with '{{'")
    try:
        fields = json.loads(text.decode(), object_pairs_hook=unique_keys, parse_float=_no_float, parse_constant=_no_float)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise CheckpointFormatError(f"{where}: header is not valid JSON: {error}") from error
    metadata = fields.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointFormatError(f"{where}: __metadata__ must map strings to strings")
    entries = sorted((_parse_entry(name, field, where) for name, field in fields.items()), key=lambda e: (e.begin, e.end))
    position = 0
    for entry in entries:
        if entry.begin != position:
            raise CheckpointFormatError(f"{where}: {entry.name!r} begins at byte {entry.begin}, expected {position} (hole or overlap)")
        position = entry.end
    if position != data_bytes:
        raise CheckpointFormatError(f"{where}: tensors end at byte {position}, the data has {data_bytes} bytes (truncated?)")
    return entries


def _no_float(text: str) -> Any:
    raise ValueError(f"{text} is not an integer")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0  # bool is an int, and not wanted


def _parse_entry(name: str, field: Any, where: str) -> Entry:
    problem = name_problem(name)
    if problem:
        raise CheckpointFormatError(f"{where}: tensor name {name[:80]!r} {problem}")
    if not isinstance(field, dict) or set(field) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointFormatError(f"{where}: {name!r} must have exactly the fields dtype, shape, data_offsets")
    dtype, shape, offsets = field["dtype"], field["shape"], field["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise CheckpointFormatError(f"{where}: {name!r} has unknown dtype {dtype!r:.40}")
    if not isinstance(shape, list) or len(shape) > 64 or not all(map(_is_count, shape)):
        raise CheckpointFormatError(f"{where}: {name!r} has a malformed shape {shape!r:.80}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)) or offsets[0] > offsets[1]:
        raise CheckpointFormatError(f"{where}: {name!r} has malformed offsets {offsets!r:.80}")
    begin, end = offsets
    expected = num_bytes(_DTYPES[dtype], shape)
    if end - begin != expected:
        raise CheckpointFormatError(f"{where}: {name!r} is {dtype}{shape} of {expected} bytes, its offsets span {end - begin}")
    return Entry(name, dtype, tuple(shape), begin, end)


def name_problem(name: str) -> str | None:
    """Why a name cannot be stored, or None."""
    if not name:
        return "is empty"
    if name == "__metadata__":
        return "is reserved by the format"
    if _CONTROL.search(name):
        return "has control characters"
    if SURROGATE.search(name):
        return "has lone surrogates"
    return None
