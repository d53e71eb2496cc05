"""Predictions of a validation, kept beside the truth, for pictures of errors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.loss import lookup
from ..metrics.atoms import atom_mask, field


class CollectPredictions:
    """Callback of a `Validation` that keeps what was predicted and what is true, on the CPU: `Validation(..., batch_callback=collect)`.

    Each pass begins anew. Values without a label, and padding, are left out.

    Args:
        keys: Key of each quantity among the predictions, by its key in the batch.
    """

    def __init__(self, keys: Mapping[str, str] | None = None):
        self.keys = {"energy": "energy", "forces": "forces"} if keys is None else dict(keys)
        self._pairs: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        self._elements: dict[str, list[np.ndarray]] = {}

    def __call__(self, *, batch: Any, predictions: Any, batch_count: int, **rest: Any) -> None:
        """Keep one batch."""
        if batch_count == 0:
            self._pairs, self._elements = {}, {}
        for target_key, prediction_key in self.keys.items():
            if field(batch, target_key) is not None:
                self._add(
                    target_key, lookup(predictions, prediction_key, "CollectPredictions", "predictions"), field(batch, target_key), batch
                )

    def _add(self, name: str, predicted: Tensor, true: Tensor, batch: Any) -> None:
        numbers = field(batch, "numbers")
        per_atom = numbers is not None and predicted.shape[:-1] == numbers.shape and predicted.shape[-1:] == (3,)
        mask = atom_mask(name, batch, predicted) if per_atom else field(batch, "graph_mask")
        valid = torch.isfinite(true.reshape(predicted.shape))
        if mask is not None and mask.shape[0] == valid.shape[0]:
            valid = valid & mask.reshape(mask.shape + (1,) * (valid.ndim - mask.ndim))
        pair = (_numbers(true.reshape(predicted.shape)[valid]), _numbers(predicted[valid]))
        self._pairs.setdefault(name, []).append(pair)
        if per_atom:
            self._elements.setdefault(name, []).append(_numbers(numbers[..., None].expand(predicted.shape)[valid]).astype(np.int64))

    def panels(self, labels: Mapping[str, str] | None = None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """All `(true, predicted)` of the latest pass, for `parity`, by `labels` or by key."""
        names = {} if labels is None else labels
        return {
            names.get(name, name): (np.concatenate([true for true, _ in pairs]), np.concatenate([predicted for _, predicted in pairs]))
            for name, pairs in self._pairs.items()
        }

    def errors_by_element(self, name: str = "forces") -> dict[str, np.ndarray]:
        """Predicted minus true of a quantity of atoms, by symbol, lightest first; for `error_histograms`.

        Raises:
            KeyError: If nothing of that name was collected for atoms.
        """
        from ..data.elements import SYMBOLS  # loads the readers of data, which the loop does without

        if name not in self._elements:
            raise KeyError(f"no values of atoms were collected for {name!r} (collected: {', '.join(self._elements) or 'nothing'})")
        true, predicted = self.panels()[name]
        numbers = np.concatenate(self._elements[name])
        return {SYMBOLS[number]: (predicted - true)[numbers == number] for number in np.unique(numbers)}


def _numbers(values: Tensor) -> np.ndarray:
    return values.detach().to("cpu", torch.float64).numpy()
