"""Give parts of a chain names of one's own: `named`, `named_chain`."""

from ..core.transform import GradientTransform, chain


def named(name: str, transform: GradientTransform) -> GradientTransform:
    """The same transform under another name, by which the state of a chain and its metrics know it.

    Args:
        name: By which the state of a chain and its metrics know the transform.
        transform: Any transform.

    Reference:
        Ours; in optax 0.2.8 only `named_chain` gives names.
    """
    return transform._replace(name=name)


def named_chain(*parts: tuple[str, GradientTransform]) -> GradientTransform:
    """Chain pairs of name and transform.

    Args:
        parts: Pairs of name and transform, in order; names must differ.

    Raises:
        ValueError: If two parts have one name.

    Reference:
        optax 0.2.8 `named_chain`.
    """
    names = [name for name, _ in parts]
    if len(set(names)) < len(names):
        raise ValueError(f"named_chain: names must differ, got {names}")
    return chain(*(named(name, transform) for name, transform in parts))
