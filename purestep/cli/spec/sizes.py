"""How large what a spec trains is. Only its model can say, so this imports and makes it; a plain report does not."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...spec.envelope import Spec

_PARTS = {"params": "parameters", "buffers": "buffers", "opt_state": "optimizer", "hook_state": "hooks"}


def sizes_of(spec: "Spec", trust: Sequence[str]) -> dict[str, Any]:
    """Numbers of parameters, and bytes of the parts of the first state, as plain JSON; the whole state is what a checkpoint holds.

    Args:
        trust: What the command line grants.

    Raises:
        TrustError: If a target is not trusted; nothing has been imported then.
        SpecError: If there is no model, or it cannot be made.
    """
    from ...core import tree
    from ...spec.building import make_model, make_training
    from ...spec.trust import check_names
    from .granting import find_modules_here

    check_names(spec, trust)
    find_modules_here(trust)
    model = make_model(spec, trust)
    training = make_training(spec, model, trust)
    state = training.init(spec.runtime.seed, "cpu")
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return {
        "parameters": {"all": sum(counts.values()), "trained": sum(counts[name] for name in counts if name in training.trainable)},
        "bytes": {words: tree.num_bytes(getattr(state, name)) for name, words in _PARTS.items()} | {"all": tree.num_bytes(state)},
    }


def text_of(sizes: dict[str, Any]) -> str:
    """The sizes for people."""
    from ...core.tree import format_bytes

    counts, parts = sizes["parameters"], dict(sizes["bytes"])
    whole = parts.pop("all")
    listed = ", ".join(f"{words} {format_bytes(size)}" for words, size in parts.items() if size)
    return f"{counts['all']:,} parameters, {counts['trained']:,} trained; state {format_bytes(whole)}: {listed}"
