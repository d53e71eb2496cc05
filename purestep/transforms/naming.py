"""Give parts of a chain names of one's own: `named`, `named_chain`."""

from ..core.transform import GradientTransform, chain


def named(name: str, transform: GradientTransform) -> GradientTransform:
    """The same transform under another name, by which the state of a chain and its metrics know it."""
    return transform._replace(name=name)


def named_chain(*parts: tuple[str, GradientTransform]) -> GradientTransform:
    """Chain pairs of name and transform.

    Raises:
        ValueError: If two parts have one name.
    """
    names = [name for name, _ in parts]
    if len(set(names)) < len(names):
        raise ValueError(f"named_chain: names must differ, got {names}")
    return chain(*(named(name, transform) for name, transform in parts))
