"""Symbols of the elements, by atomic number."""

import numpy as np

from ..errors import DataError

SYMBOLS = (
    "X H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag "
    "Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U "
    "Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og"
).split()
"""Symbols by atomic number; number 0 is no element."""

_NUMBERS = {symbol: number for number, symbol in enumerate(SYMBOLS)}


def atomic_numbers(species: np.ndarray) -> np.ndarray:
    """Atomic numbers of symbols, which may be bytes; numbers come back as they are.

    Raises:
        DataError: If a symbol is unknown.
    """
    species = np.asarray(species)
    if species.dtype.kind not in "SUO":
        return species
    symbols = [symbol.decode() if isinstance(symbol, bytes) else str(symbol) for symbol in species.reshape(-1)]
    if unknown := sorted({symbol for symbol in symbols if symbol not in _NUMBERS}):
        raise DataError(f"unknown elements {unknown}; symbols are like 'H', 'Cl'")
    return np.array([_NUMBERS[symbol] for symbol in symbols]).reshape(species.shape)
