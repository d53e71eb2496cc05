"""Overlays: one document laid over another, as deep as their objects go."""

import copy
from typing import Any

_TAGS = ("kind", "cls_path")


def merge(document: Any, overlay: Any) -> Any:
    """A document in which the values of an overlay take the place of its own.

    Objects are merged field by field; everything else is replaced, lists too. An object that says with another `kind` or `cls_path`
    that it is something else is replaced as a whole, since the arguments of the old one mean nothing to it.

    Example:
        >>> merge({"strategy": {"num_steps": 5, "hooks": [1, 2]}}, {"strategy": {"hooks": []}})
        {'strategy': {'num_steps': 5, 'hooks': []}}
    """
    if not (isinstance(document, dict) and isinstance(overlay, dict)) or _is_something_else(document, overlay):
        return copy.deepcopy(overlay)
    merged = copy.deepcopy(document)
    for key, value in overlay.items():
        merged[key] = merge(document[key], value) if key in document else copy.deepcopy(value)
    return merged


def _is_something_else(document: dict[str, Any], overlay: dict[str, Any]) -> bool:
    return any(tag in overlay and tag in document and overlay[tag] != document[tag] for tag in _TAGS)
