"""Which leaf of a state goes into which file under which name.

Parameters and buffers of a training state go into `model.safetensors` under their dotted names, everything else into
`state.safetensors` under the path of the leaf. A tree without `params` goes into `state.safetensors` whole.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from ..core import tree
from ..core.saved_parts import Box
from ..errors import CheckpointSaveError
from . import tensorfile
from .manifest import MODEL_FILE, STATE_FILE, Kind, Schema

SCALARS = (bool, int, float, str)
MODEL_FIELDS = ("params", "buffers")
COUNTERS = ("batch_count", "step_count", "global_step_count", "epoch_count", "epoch_step_count")
SCHEMA_VERSION = 1  # of TrainState; a change of its fields raises it and adds a row to the table of migrations


def whole(shape: Sequence[int]) -> Box:
    """The box that is all of a tensor."""
    return Box((0,) * len(shape), tuple(shape))


def role_of(file: str) -> Literal["weights", "state"]:
    """What a file of tensors holds, from its name."""
    return "weights" if file.startswith(MODEL_FILE.partition(".")[0]) else "state"


class Placed(NamedTuple):
    """A leaf with the file it belongs to and its name there; `box` where it is a part of a sharded leaf."""

    path: str
    leaf: Any
    file: str
    name: str
    box: Box | None = None


def is_training_state(state: Any) -> bool:
    """Whether a tree has weights of its own: an object with `params` and `buffers`."""
    return all(hasattr(state, field) for field in MODEL_FIELDS)


def place(state: Any) -> list[Placed]:
    """Assign a file and a name to each leaf of a state.

    Raises:
        CheckpointSaveError: If a leaf cannot be stored, or two of them would have one name.
    """
    placed = [place_leaf(path, leaf, is_training_state(state)) for path, leaf in tree.items(state)]
    seen: dict[tuple[str, str], str] = {}
    for item in placed:
        other = seen.setdefault((item.file, item.name), item.path)
        if other != item.path:
            raise CheckpointSaveError(f"{other!r} and {item.path!r} would both be {item.name!r} in {item.file}; rename one of them")
    return placed


def has_finite_weights(placed: Sequence[Placed]) -> bool:
    """Whether no leaf that goes into the file of the model holds NaN or infinity."""
    weights = [item.leaf for item in placed if item.file == MODEL_FILE and isinstance(item.leaf, Tensor)]
    return all(bool(torch.isfinite(leaf.float() if leaf.itemsize == 1 else leaf).all()) for leaf in weights)


def place_leaf(path: str, leaf: Any, has_model: bool) -> Placed:
    """Assign a file and a name to one leaf.

    Raises:
        CheckpointSaveError: If it cannot be stored.
    """
    if path.split(".")[-1] == "__metadata__":
        raise CheckpointSaveError(f"leaf {path!r}: the name __metadata__ is reserved by the file format; rename the key")
    problem = tensorfile.name_problem(path) or leaf_problem(leaf)
    if problem:
        raise CheckpointSaveError(f"leaf {path!r} {problem}")
    field, _, rest = path.partition(".")
    # a scalar lives in the manifest, so its file does not matter
    if has_model and field in MODEL_FIELDS and isinstance(leaf, Tensor):
        return Placed(path, leaf, MODEL_FILE, rest or field)
    return Placed(path, leaf, STATE_FILE, path)


def leaf_problem(leaf: Any) -> str | None:
    """Why a leaf cannot be stored, or None."""
    if isinstance(leaf, Tensor):
        if leaf.layout is not torch.strided or leaf.is_quantized or leaf.is_nested or type(leaf) not in (Tensor, torch.nn.Parameter):
            return f"is a {type(leaf).__name__} of layout {leaf.layout}; only dense tensors can be stored"
        if not tensorfile.is_dtype(tensorfile.dtype_name(leaf.dtype)):
            return f"has dtype {leaf.dtype}, which the file format lacks"
        if leaf.device.type == "meta":
            return "is on the meta device and has no values"
        return None
    if type(leaf) not in SCALARS:
        return f"is a {type(leaf).__name__}; a leaf must be a tensor, bool, int, float or str"
    if type(leaf) is str and tensorfile.SURROGATE.search(leaf):
        return "is a text with lone surrogates"
    return None


def kind_of(leaf: Any) -> Kind:
    """The manifest's word for a leaf's type."""
    return "tensor" if isinstance(leaf, Tensor) else cast(Kind, type(leaf).__name__)


def encode_scalar(leaf: Any) -> bool | int | str:
    """A leaf's value in the manifest; floats as hexadecimal text, which is exact."""
    return leaf.hex() if type(leaf) is float else leaf


def decode_scalar(kind: Kind, value: Any) -> Any:
    """The leaf of a manifest's value."""
    return float.fromhex(value) if kind == "float" else value


def aliases_of(state: Any) -> list[list[str]]:
    """Tied names of a state, each with the name of the leaf that holds its values."""
    return [list(pair) for pair in getattr(state, "aliases", ())]


def counters_of(state: Any) -> dict[str, int]:
    """A state's counters as plain integers; empty for a tree without them. Waits for the device."""
    counters = getattr(state, "counters", None)
    return {name: int(getattr(counters, name)) for name in COUNTERS if hasattr(counters, name)}


def label_of(state: Any) -> int:
    """The number of a state's checkpoint: its `batch_count`, 0 for a tree without counters."""
    return counters_of(state).get("batch_count", 0)


def schema_of(state: Any) -> Schema:
    """Name of a state's type and the version of its fields."""
    if is_training_state(state):
        return Schema(name="TrainState", version=SCHEMA_VERSION)
    return Schema(name=f"{type(state).__module__}.{type(state).__qualname__}", version=0)
