"""What a step does beside operations on tensors while it is recorded: numbers that it reads are guarded, what cannot be is refused.

`.item()`, `int()`, `bool()` or a tensor as a size would freeze the number into the graph without a word. Here each read is noted; the
part of the graph that leads to it becomes a guard, which is run before each call and sends the step to another capture when the number
has changed. Operations that look at values by themselves (`equal`, and those whose output shape depends on values: `nonzero`, a boolean
index, `bincount`) are recorded in a form of fixed shape, with what they look at as such a number. Refused are arrays of other libraries,
draws of generators that are not torch's and, by `outside.py`, writes into tensors that the step closes over.
"""

import functools
import operator
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import CaptureError
from .graph import HostRead
from .lines import user_line
from .outside import Outside

aten = torch.ops.aten


class HostReads(TorchDispatchMode):
    """Answer host reads with the real value and note them, refuse writes outside; stands above the mode that records."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[Tensor] = []
        self.reads: list[HostRead] = []
        self.functions = _HostFunctions()
        self.latest: Tensor | None = None
        """The last value that is not empty, for which a recomputed region waits."""
        self._outside = Outside()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default:
            return self.read(args[0])
        self._outside.check_writes(func, args, kwargs)
        if (replaced := _REPLACED.get(func)) is not None:
            return replaced(self, func, *args, **kwargs)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and statically_known_true(result.numel() > 0):
            self.latest = result
        self._outside.note_view(func, args, result)
        return result

    def read(self, tensor: Tensor) -> Any:
        """The number in a tensor of one element, from now on guarded.

        Raises:
            CaptureError: If the tensor is a stand-in without data.
        """
        if isinstance(tensor, FakeTensor):
            raise CaptureError(
                f"dynamic: the step reads a number from a tensor at {user_line()}, which a graph for a range of sizes does not know; "
                "compute with the tensor instead, or capture without dynamic, which guards the number"
            )
        with disable_proxy_modes_tracing():
            value = aten._local_scalar_dense.default(tensor)
        self.tensors.append(tensor.clone())  # as it is now; it may be written to later
        self.reads.append(HostRead(value, user_line()))
        return value


# --- operations that look at values by themselves, in a form of fixed shape -----------------------------------------


def _nonzero(reads: HostReads, func: Any, x: Tensor) -> Tensor:
    return aten.nonzero_static.default(x, size=reads.read((x != 0).sum()))


def _positions(reads: HostReads, indices: Any) -> list[Tensor | None]:
    """Indices with every boolean mask replaced by the positions where it holds."""
    positions: list[Tensor | None] = []
    for index in indices:
        is_mask = isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
        positions.extend(_nonzero(reads, None, index).unbind(1) if is_mask else [index])
    return positions


def _index(reads: HostReads, func: Any, x: Tensor, indices: Any) -> Tensor:
    return func(x, _positions(reads, indices))


def _index_put(reads: HostReads, func: Any, x: Tensor, indices: Any, values: Tensor, *options: Any, **kwargs: Any) -> Tensor:
    # a single value under a mask is a `where`, of fixed shape already
    return func(x, indices if values.numel() == 1 else _positions(reads, indices), values, *options, **kwargs)


def _masked_select(reads: HostReads, func: Any, x: Tensor, mask: Tensor) -> Tensor:
    x, mask = torch.broadcast_tensors(x, mask)
    return aten.index.Tensor(x, _positions(reads, [mask]))


def _bincount(reads: HostReads, func: Any, x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    longest = (x.max() + 1).clamp(min=minlength) if x.numel() else x.new_tensor(minlength).clone()
    values = torch.ones_like(x) if weights is None else weights if weights.is_floating_point() else weights.double()
    return values.new_zeros(reads.read(longest)).index_add(0, x, values)


def _repeat_interleave(reads: HostReads, func: Any, repeats: Tensor, output_size: int | None = None) -> Tensor:
    ends = repeats.cumsum(0)
    total = reads.read(repeats.sum()) if output_size is None else output_size
    return torch.searchsorted(ends, torch.arange(total, device=repeats.device), right=True)


def _equal(reads: HostReads, func: Any, x: Tensor, other: Tensor) -> bool:
    return x.shape == other.shape and bool(reads.read((x == other).all()))


def _allclose(reads: HostReads, func: Any, x: Tensor, other: Tensor, *tolerances: Any, **kwargs: Any) -> bool:
    return bool(reads.read(torch.isclose(x, other, *tolerances, **kwargs).all()))


_REPLACED: dict[Any, Callable[..., Any]] = {
    aten.equal.default: _equal,
    aten.allclose.default: _allclose,
    aten.nonzero.default: _nonzero,
    aten.index.Tensor: _index,
    aten.index_put.default: _index_put,
    aten.index_put_.default: _index_put,
    aten._index_put_impl_.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.masked_select.default: _masked_select,
    aten.bincount.default: _bincount,
    aten.repeat_interleave.Tensor: _repeat_interleave,
}


class _HostFunctions(TorchFunctionMode):
    """Functions that read a tensor's memory without an operation that could be seen.

    `tolist` goes through `item`; a tensor made from a list of tensors is stacked; others are refused.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is Tensor.tolist:
            return _as_list(args[0])
        if func in _FROM_DATA:
            like, *given = args if func is Tensor.new_tensor else (None, *args)
            options = dict(zip(("data", "dtype", "device"), given, strict=False)) | (kwargs or {})
            data = options.get("data", options.get("obj"))
            if _holds_tensors(data):
                return _from_list(_stacked(data), like, options)
        if what := _HIDDEN.get(func):
            raise CaptureError(f"the step {what} at {user_line()}, which a captured graph would freeze; use torch's functions")
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Any:
        self._generators = _generators()
        return super().__enter__()

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        super().__exit__(kind, value, trace)
        if kind is None and _generators() != self._generators:
            raise CaptureError(
                "the step draws from Python's or NumPy's global generator, which a captured graph would freeze; draw by torch.rand(()) in "
                "the forward of a Training, which takes its bits from the state's seed, and choose by torch.where"
            )


def _generators() -> tuple[Any, ...]:
    """States of the global generators that are not torch's."""
    if "numpy" not in sys.modules:
        return (random.getstate(),)
    state = sys.modules["numpy"].random.get_state(legacy=False)["state"]
    return random.getstate(), state["pos"], state["key"].tobytes()


_HIDDEN: dict[Any, str] = {
    Tensor.numpy: "turns a tensor into an array",
    Tensor.__array__: "turns a tensor into an array",
    Tensor.__dlpack__: "hands a tensor's memory to another library",
    Tensor.data.__set__: "puts other memory into a tensor (x.data = y)",  # type: ignore[attr-defined]
}
_FROM_DATA = {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor}


def _holds_tensors(data: Any) -> bool:
    return isinstance(data, list | tuple) and any(isinstance(x, Tensor) or _holds_tensors(x) for x in data)


def _stacked(data: Any) -> Tensor:
    """A nested list of tensors and numbers as one tensor, of the dtype that torch infers for it."""
    if not isinstance(data, list | tuple):
        return data.detach() if isinstance(data, Tensor) else torch.tensor(data)
    parts = [_stacked(x) for x in data]
    dtype = functools.reduce(torch.promote_types, [part.dtype for part in parts])
    return torch.stack([part.to(dtype) for part in parts])


def _from_list(whole: Tensor, like: Tensor | None, options: dict[str, Any]) -> Tensor:
    device, dtype = (torch.get_default_device(), None) if like is None else (like.device, like.dtype)
    placed = whole.to(device=options.get("device") or device, dtype=options.get("dtype") or dtype)
    return placed.requires_grad_(options.get("requires_grad", False))


def _as_list(x: Tensor) -> Any:
    return x.item() if x.ndim == 0 else [_as_list(part) for part in x.unbind(0)]


def guard_graph(graph: fx.GraphModule, num_guards: int) -> fx.GraphModule:
    """The part of a graph that its last `num_guards` outputs need, with these as the only outputs."""
    small = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    wanted = list(output.args[0])[-num_guards:]
    needed = _ancestors(graph, {node for node in wanted if isinstance(node, fx.Node)})
    for node in graph.graph.nodes:
        if node.op == "placeholder" or node in needed:
            copies[node] = small.node_copy(node, lambda old: copies[old])
    small.output(tuple(copies[node] if isinstance(node, fx.Node) else node for node in wanted))
    return fx.GraphModule(graph, small)


def _ancestors(graph: fx.GraphModule, wanted: set[fx.Node]) -> set[fx.Node]:
    """All nodes that the wanted ones need: their inputs, and every earlier in-place operation on one of these or on a view of it."""
    order = {node: number for number, node in enumerate(graph.graph.nodes)}
    last = max(map(order.__getitem__, wanted), default=0)  # what is given away is written to after that
    needed: set[fx.Node] = set()
    queue = list(wanted)
    while queue:
        node = queue.pop()
        if node in needed:
            continue
        needed.add(node)
        queue.extend(node.all_input_nodes)
        queue.extend(writer for writer in _writers(node) if order[writer] < last)
    return needed


def _writers(node: fx.Node) -> Iterator[fx.Node]:
    """In-place operations on a tensor or on its views."""
    for user in node.users:
        written = _aliased(user, node)
        if written:
            yield user
        elif written is not None:
            yield from _writers(user)


def _aliased(user: fx.Node, node: fx.Node) -> bool | None:
    """Whether an operation writes into an argument; False: it returns a view of it; None: neither."""
    if user.target is operator.getitem:  # one of the views that `split` or `unbind` returns
        return False
    schema = getattr(user.target, "_schema", None)
    found = None
    for argument, value in zip(schema.arguments, user.args, strict=False) if schema is not None else ():
        if argument.alias_info is not None and (value is node or (isinstance(value, list | tuple) and node in value)):
            found = found or argument.alias_info.is_write
    return found
