"""An `nn.Module`, or several by name, as a pure function of its parameters and buffers.

A skeleton is a private copy of the modules that holds no weights. For a call, the tensors of a state are put into its slots and taken
out again, so the user's modules are never touched. A slot is a place in a module that holds a tensor: tied parameters and shared
modules have several names but one leaf.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import ModuleError

Models = nn.Module | Mapping[str, nn.Module]


class Slot(NamedTuple):
    """One place in a skeleton where a leaf goes."""

    kind: str  # "_parameters" or "_buffers"
    owner: str  # dotted path of the module that holds it, below its model
    name: str  # its name there
    model: str | None  # None: a single model
    leaf: str  # dotted name of the leaf, below its model
    leaf_model: str | None  # differs from `model` when two models share a tensor


class Layout(NamedTuple):
    """What leaves the modules have, and where each goes; made once, from the user's modules."""

    slots: tuple[Slot, ...]
    aliases: tuple[tuple[str, str], ...]  # (tied name, name of the leaf)
    single: bool


def _join(*parts: str | None) -> str:
    return ".".join(part for part in parts if part)


def _named(models: Models) -> dict[str | None, nn.Module]:
    if not isinstance(models, nn.Module) and not (isinstance(models, Mapping) and all(isinstance(name, str) for name in models)):
        raise ModuleError(f"models: expected an nn.Module or a mapping from names to modules, got {type(models).__name__}")
    named = {None: models} if isinstance(models, nn.Module) else {**models}
    # a module that torch.compile has wrapped is trained as what it wraps, under the same names: the step is captured whole anyway
    return {model: getattr(module, "_orig_mod", module) for model, module in named.items()}


def make_layout(models: Models) -> Layout:
    """Find every parameter and buffer, once each, with all the places where it is used.

    Raises:
        ModuleError: If a parameter is not registered (kept in a plain list, say), is not materialised, or a name is unusable.
    """
    slots: list[Slot] = []
    aliases: list[tuple[str, str]] = []
    holders: dict[int, tuple[str | None, str]] = {}
    done: set[tuple[int, str, str]] = set()
    for model, module in _named(models).items():
        if not isinstance(module, nn.Module):
            raise ModuleError(f"models: {model!r} is a {type(module).__name__}, expected an nn.Module")
        for owner, part in module.named_modules(remove_duplicate=False):
            for kind in ("_parameters", "_buffers"):
                for name, tensor in getattr(part, kind).items():
                    if tensor is None:
                        continue
                    full = _join(*(part for part in owner.split(".") if part != "_orig_mod"), name)
                    if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
                        raise ModuleError(f"{_join(model, full)} has no shape yet; run one batch through the module before training it")
                    holder = holders.setdefault(id(tensor), (model, full))
                    if holder != (model, full):
                        aliases.append((_join(model, full), _join(*holder)))
                    if (id(part), kind, name) not in done:  # a shared module is filled once
                        done.add((id(part), kind, name))
                        slots.append(Slot(kind, owner, name, model, holder[1], holder[0]))
        _check_registered(module, model, set(holders))
        _check_writes_nothing(module, model)
    return Layout(tuple(slots), tuple(aliases), isinstance(models, nn.Module))


def _check_registered(module: nn.Module, model: str | None, known: set[int]) -> None:
    for owner, part in module.named_modules():
        for attribute, value in vars(part).items():
            if attribute in ("_parameters", "_buffers", "_modules"):
                continue
            inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
            if any(isinstance(x, Tensor) and x.requires_grad and x.is_leaf and id(x) not in known for x in inside):
                raise ModuleError(
                    f"{_join(model, owner, attribute)} holds a parameter that the module has not registered, so it would never be trained; "
                    "use nn.Parameter as an attribute, or nn.ParameterList / nn.ParameterDict"
                )


def _check_writes_nothing(module: nn.Module, model: str | None) -> None:
    for owner, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None:
            raise ModuleError(
                f"{_join(model, owner)} has max_norm={part.max_norm}, which writes into its weight during the forward; "
                "leave it out, and bound the rows by a transform or torch.nn.utils.parametrizations"
            )


def read(models: Models, layout: Layout, kind: str, device: torch.device | str | None = None) -> dict[str, Any]:
    """Copies of the parameters (`"_parameters"`) or buffers (`"_buffers"`) that the modules hold now, as a tree of the state's shape."""
    found: dict[str, Any] = {} if layout.single else {str(model): {} for model in _named(models)}
    for slot in layout.slots:
        into = found if layout.single else found[str(slot.leaf_model)]
        if slot.kind == kind and slot.leaf not in into:
            owner = _named(models)[slot.model].get_submodule(slot.owner)
            tensor = getattr(owner, kind)[slot.name].detach()
            into[slot.leaf] = tensor.to(device, copy=True) if device is not None else tensor.clone()
    return found


def frozen_by_user(models: Models, layout: Layout) -> frozenset[str]:
    """Full dotted names of parameters that cannot or shall not be differentiated: `requires_grad` False, or not floating point."""
    return frozenset(
        _join(slot.leaf_model, slot.leaf)
        for slot in layout.slots
        if slot.kind == "_parameters" and not _named(models)[slot.model].get_submodule(slot.owner)._parameters[slot.name].requires_grad
    )


def frozen_buffers(models: Models, layout: Layout, trainable: frozenset[str]) -> frozenset[str]:
    """Full dotted names of buffers that belong to frozen parts.

    A buffer belongs to the nearest enclosing module that has parameters; it is frozen if none of those is trainable. (A BatchNorm
    without weights inside a frozen backbone is frozen too.) Where there are no parameters at all, it is not.
    """
    params = [
        (slot.model, slot.owner, _join(slot.leaf_model, slot.leaf) in trainable) for slot in layout.slots if slot.kind == "_parameters"
    ]

    def is_frozen(slot: Slot) -> bool:
        parts = slot.owner.split(".") if slot.owner else []
        for depth in range(len(parts), -1, -1):
            prefix = parts[:depth]
            inside = [hit for model, owner, hit in params if model == slot.model and (owner.split(".") if owner else [])[:depth] == prefix]
            if inside:
                return not any(inside)
        return False

    return frozenset(_join(slot.leaf_model, slot.leaf) for slot in layout.slots if slot.kind == "_buffers" and is_frozen(slot))


class Skeleton:
    """Copies of the modules without weights, in one mode, into which the tensors of a state are put for the time of a call.

    Args:
        models: The user's modules; they are read, never changed.
        layout: Of these modules.
        training: The mode of the copies. In training, children that the user has put into eval mode stay there (unless the whole
            module was), and so do modules whose buffers are frozen: their statistics are constants.
        frozen: Full dotted names of frozen buffers; these come back as they were.
    """

    def __init__(self, models: Models, layout: Layout, *, training: bool, frozen: frozenset[str] = frozenset()):
        memo: dict[int, Any] = {}
        for module in _named(models).values():
            for tensor in (*module.parameters(), *module.buffers()):
                memo.setdefault(id(tensor), _placeholder(tensor))
        copies = {model: _copy(module, memo) for model, module in _named(models).items()}
        self.models: Any = copies[None] if layout.single else copies
        self._frozen = frozen
        self._slots = [(slot, copies[slot.model].get_submodule(slot.owner)) for slot in layout.slots]
        self._recurrent = [part for module in copies.values() for part in module.modules() if isinstance(part, nn.RNNBase)]
        for model, module in copies.items():
            if not training or not _named(models)[model].training:
                module.train(training)
        for slot, owner in self._slots:
            if training and slot.kind == "_buffers" and _join(slot.leaf_model, slot.leaf) in frozen:
                owner.training = False
        self._single = layout.single

    def call(self, fn: Callable[..., Any], params: Mapping, buffers: Mapping, *args: Any) -> tuple[Any, Any]:
        """Run `fn(models, *args)` with these tensors in place; returns its result and the buffers, frozen ones left out, as it left them.

        The given buffers are never written to: the modules see copies.
        """
        with self.bound(params, buffers):
            return fn(self.models, *args), self._buffers_now()

    def bound(self, params: Mapping, buffers: Mapping) -> "Bound":
        """A context in which the modules hold these parameters, and copies of these buffers."""
        # a copy of each, always: batch_norm writes its statistics without moving the tensor's version counter
        working = {key: tensor.clone() for key, tensor in self._flat(buffers).items()}
        return Bound(self._slots, self._recurrent, {"_parameters": self._flat(params), "_buffers": working})

    def _flat(self, tensors: Mapping) -> dict[tuple[str | None, str], Tensor]:
        if self._single:
            return {(None, name): tensor for name, tensor in tensors.items()}
        return {(model, name): tensor for model, inside in tensors.items() for name, tensor in inside.items()}

    def _buffers_now(self) -> dict[Any, Any]:
        now: dict[str | None, Any] = {} if self._single else {model: {} for model in self.models}
        for slot, owner in self._slots:
            if slot.kind == "_buffers" and _join(slot.leaf_model, slot.leaf) not in self._frozen:
                (now if self._single else now[slot.leaf_model])[slot.leaf] = owner._buffers[slot.name]
        return now


class Bound:
    """A context in which tensors are in the slots of a skeleton; on leaving, what was there before is back."""

    def __init__(self, slots: list[tuple[Slot, nn.Module]], recurrent: list[nn.RNNBase], given: dict[str, dict]):
        self.slots, self.recurrent, self.given = slots, recurrent, given
        self.before: list[tuple[dict, str, Any]] = []

    def __enter__(self) -> None:
        for slot, _ in self.slots:
            if (slot.leaf_model, slot.leaf) not in self.given[slot.kind]:
                what = slot.kind.strip("_").removesuffix("s")
                raise ModuleError(f"the state has no {what} {_join(slot.leaf_model, slot.leaf)!r}; was it made by another model?")
        for slot, owner in self.slots:
            holder = getattr(owner, slot.kind)
            self.before.append((holder, slot.name, holder[slot.name]))
            holder[slot.name] = self.given[slot.kind][slot.leaf_model, slot.leaf]
        self._refresh_recurrent()

    def __exit__(self, *exception: object) -> None:
        for holder, name, tensor in self.before:
            holder[name] = tensor
        self.before = []
        self._refresh_recurrent()

    def _refresh_recurrent(self) -> None:
        """Recurrent modules keep a list of their weights beside the slots."""
        for part in self.recurrent:
            part._flat_weights = [getattr(part, name) for name in part._flat_weights_names]


def _placeholder(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor, device="meta")
    return nn.Parameter(empty, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def _copy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:  # whatever a user's __deepcopy__ or an uncopyable attribute raises
        raise ModuleError(
            f"{type(module).__name__} cannot be copied ({type(error).__name__}: {error}); purestep works on a copy without weights, "
            "so that your module stays untouched: give the module a __deepcopy__, or take the attribute out of it"
        ) from error
