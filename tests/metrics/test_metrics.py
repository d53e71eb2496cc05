"""Metrics: laws over the table, and values by hand."""

import math
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from purestep.core import tree
from purestep.data.batch import AtomicBatch
from purestep.errors import LossError
from purestep.metrics import MAE, METRICS, RMSE, Accuracy, EnergyErrors, ForceErrors, ForceErrorsByElement, Metric, Perplexity

NAN = float("nan")
NUM_ATOMS = (3, 1, 4, 2)


class Example(NamedTuple):
    """A metric, and how it gets predictions and a batch out of the data of some samples."""

    metric: Metric
    layout: str


EXAMPLES = {
    "Accuracy": Example(Accuracy(mask_key="mask"), "classes"),
    "MAE": Example(MAE(mask_key="mask"), "rows"),
    "Perplexity": Example(Perplexity(mask_key="mask"), "classes"),
    "RMSE": Example(RMSE(mask_key="mask"), "rows"),
    "EnergyErrors": Example(EnergyErrors(), "atoms"),
    "ForceErrors": Example(ForceErrors(), "atoms"),
    "ForceErrorsByElement": Example(ForceErrorsByElement(elements=(1, 6)), "atoms"),
}
over_the_metrics = pytest.mark.parametrize("name", EXAMPLES)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def collect(layout: str, chosen: list[int], num_padding: int = 0, fill: float = NAN) -> tuple[dict, Any]:
    """Predictions and batch of the chosen ones of four samples; padding holds what would spoil everything."""
    real = torch.tensor([True] * len(chosen) + [False] * num_padding)
    if layout == "rows":
        prediction, target = (_chosen(random(4, 3, seed=seed), chosen, num_padding, fill) for seed in (1, 2))
        return {"prediction": prediction}, {"target": target, "mask": real}
    if layout == "classes":
        labels = torch.tensor([[0, 4, 2], [3, 1, -100], [1, 1, 0], [4, 0, 2]])
        padded = torch.cat([labels[chosen], torch.full((num_padding, 3), 10**6)])
        return {"logits": _chosen(random(4, 3, 5), chosen, num_padding, fill)}, {"labels": padded, "mask": real}
    counts = torch.tensor([*(NUM_ATOMS[i] for i in chosen), *(2 for _ in range(num_padding))])
    of_sample = torch.repeat_interleave(torch.arange(4), torch.tensor(NUM_ATOMS))
    atoms = [int(atom) for i in chosen for atom in (of_sample == i).nonzero()]
    numbers = torch.tensor([1, 6, 1, 8, 6, 1, 1, 8, 6, 6])[atoms]
    index = torch.repeat_interleave(torch.arange(len(counts)), counts)
    batch = AtomicBatch(
        positions=torch.zeros(len(index), 3),
        numbers=torch.cat([numbers, torch.ones(2 * num_padding, dtype=torch.int64)]),
        batch=index,
        ptr=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
        atom_mask=real[index],
        graph_mask=real,
        energy=_chosen(random(4, 1), chosen, num_padding, fill),
        forces=_chosen(random(10, 3), atoms, 2 * num_padding, fill),
    )
    return {"energy": batch.energy + _chosen(random(4, 1, seed=3), chosen, num_padding, fill), "forces": batch.forces.sin()}, batch


def _chosen(rows, chosen, num_padding, fill):
    return torch.cat([rows[chosen], torch.full((num_padding, *rows.shape[1:]), fill, dtype=rows.dtype)])


def result_of(metric, *parts):
    sums = metric.empty()
    for predictions, batch in parts:
        sums = metric.add(sums, predictions, batch)
    return metric.result(sums)


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0, equal_nan=True)  # a few roundings of float64


def test_every_metric_of_the_table_has_an_example():
    assert set(EXAMPLES) == set(METRICS)


@over_the_metrics
@pytest.mark.parametrize("cuts", [[[0], [1], [2], [3]], [[0, 1, 2], [3]], [[3, 1], [2, 0]], [[0, 1, 2, 3]]])
def test_results_do_not_depend_on_the_sizes_and_the_order_of_batches(name, cuts):
    metric, layout = EXAMPLES[name]
    assert_close(result_of(metric, *(collect(layout, cut) for cut in cuts)), result_of(metric, collect(layout, [0, 1, 2, 3])))


@over_the_metrics
def test_merging_sums_is_the_same_as_adding_batches(name):
    metric, layout = EXAMPLES[name]
    one = metric.add(metric.empty(), *collect(layout, [0, 1]))
    other = metric.add(metric.empty(), *collect(layout, [2, 3]))
    both = metric.add(one, *collect(layout, [2, 3]))
    assert_close(metric.merge(one, other), both)
    assert_close(metric.merge(metric.empty(), one), one)


@over_the_metrics
@pytest.mark.parametrize("fill", [NAN, 7.0])  # NaN alone might be taken for a missing label
def test_padding_changes_nothing(name, fill):
    metric, layout = EXAMPLES[name]
    assert_close(result_of(metric, collect(layout, [0, 1, 2], num_padding=2, fill=fill)), result_of(metric, collect(layout, [0, 1, 2])))


@over_the_metrics
def test_no_sample_at_all_gives_nan(name):
    metric, layout = EXAMPLES[name]
    results = result_of(metric, collect(layout, [0], num_padding=1))
    assert metric.result(metric.empty()).keys() == results.keys()
    assert all(value.isnan() for value in metric.result(metric.empty()).values())


@over_the_metrics
def test_sums_are_float64_and_results_0d(name):
    metric, layout = EXAMPLES[name]
    predictions, batch = collect(layout, [0, 1])
    sums = metric.add(metric.empty(), tree.cast(predictions, torch.float32), tree.cast(batch, torch.float32))
    assert {value.dtype for value in sums.values()} == {torch.float64}
    assert {(value.dtype, value.ndim) for value in metric.result(sums).values()} == {(torch.float64, 0)}


@over_the_metrics
def test_inputs_stay_as_they_are_and_no_graph_is_kept(name, untouched_globals):
    metric, layout = EXAMPLES[name]
    predictions, batch = collect(layout, [0, 1])
    predictions = {key: value.requires_grad_() for key, value in predictions.items()}
    sums = metric.empty()
    before = tree.clone((sums, predictions, batch))
    after = metric.add(sums, predictions, batch)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves((sums, predictions, batch)), tree.leaves(before), strict=True))
    assert not any(value.requires_grad for value in after.values())


@over_the_metrics
def test_tracing_and_compiling_give_the_eager_numbers(name):
    metric, layout = EXAMPLES[name]
    predictions, batch = collect(layout, [0, 1, 2])
    eager = metric.add(metric.empty(), predictions, batch)
    torch._dynamo.reset()
    compiled = torch.compile(metric.add, fullgraph=True, backend="aot_eager")
    assert_close(compiled(metric.empty(), predictions, batch), eager)
    assert_close(make_fx(lambda p: metric.count(p, batch))(predictions)(predictions), metric.count(predictions, batch))


@over_the_metrics
def test_sums_go_to_the_device_of_the_batch(name):
    metric, layout = EXAMPLES[name]
    predictions, batch = tree.map(lambda leaf: leaf.to("meta"), collect(layout, [0, 1]))
    sums = metric.add(metric.empty(), predictions, batch)
    assert {value.device.type for value in (*sums.values(), *metric.result(sums).values())} == {"meta"}


@over_the_metrics
def test_a_missing_prediction_is_refused_with_what_is_there(name):
    metric, layout = EXAMPLES[name]
    with pytest.raises(LossError, match=rf"metric {name}: no prediction '{metric.prediction_key}'; there are \['other'\]"):
        metric.add(metric.empty(), {"other": torch.zeros(1)}, collect(layout, [0])[1])


@over_the_metrics
def test_shapes_that_would_have_to_be_broadcast_are_refused(name):
    metric, layout = EXAMPLES[name]
    predictions, batch = collect(layout, [0, 1, 2])
    with pytest.raises(LossError, match=rf"metric {name}: "):
        metric.add(metric.empty(), {key: value[:1] for key, value in predictions.items()}, batch)


# --- values -------------------------------------------------------------------------------------------------------


def test_errors_are_pooled_over_batches_of_different_sizes():
    parts = [({"prediction": torch.tensor(rows)}, {"target": torch.zeros(len(rows))}) for rows in ([10.0], [0.0, 0.0, 0.0, 0.0])]
    assert result_of(MAE(), *parts) == {"prediction/mae": 2.0}
    assert result_of(RMSE(), *parts) == {"prediction/rmse": math.sqrt(20)}  # a mean of roots would give 5


def test_a_missing_target_counts_in_no_mean():
    part = ({"prediction": torch.tensor([1.0, 3.0])}, {"target": torch.tensor([NAN, 0.0])})
    assert result_of(MAE(), part) == {"prediction/mae": 3.0}


def test_a_prediction_that_is_not_finite_shows():
    assert result_of(MAE(), ({"prediction": torch.tensor([NAN, 3.0])}, {"target": torch.zeros(2)}))["prediction/mae"].isnan()


def test_a_metric_bears_the_name_it_is_given():
    part = ({"charge": torch.tensor([1.0])}, {"charge": torch.tensor([0.0])})
    keys = {"prediction_key": "charge", "target_key": "charge"}
    assert set(result_of(MAE(**keys), part)) == {"charge/mae"}
    assert set(result_of(MAE(**keys, name="mine"), part)) == {"mine"}


def test_accuracy_leaves_out_ignored_labels():
    logits = torch.tensor([[3.0, 1.0], [0.0, 2.0], [0.0, 2.0], [5.0, 0.0]])
    assert result_of(Accuracy(), ({"logits": logits}, {"labels": torch.tensor([0, 1, 0, -100])})) == {"accuracy": pytest.approx(2 / 3)}


def test_classes_of_images_are_on_the_axis_given():
    logits, labels = random(2, 5, 3), torch.tensor([[0, 4, 2], [3, 1, 1]])
    expected = (logits.argmax(1) == labels).double().mean()
    assert_close(result_of(Accuracy(class_axis=1), ({"logits": logits}, {"labels": labels}))["accuracy"], expected)


def test_perplexity_is_the_exponential_of_the_mean_over_all_tokens():
    logits, labels = random(5, 4), torch.tensor([0, 3, 1, 2, 2])
    parts = [({"logits": logits[cut]}, {"labels": labels[cut]}) for cut in (slice(0, 1), slice(1, 5))]
    assert_close(result_of(Perplexity(), *parts)["perplexity"], F.cross_entropy(logits, labels).exp())


def test_energy_errors_are_per_atom_and_every_graph_counts_once():
    part = ({"energy": torch.tensor([[1.0], [8.0]])}, {"energy": torch.zeros(2, 1), "num_nodes_per_graph": torch.tensor([1, 4])})
    expected = {"energy/mae_ev_per_atom": 1.5, "energy/rmse_ev_per_atom": math.sqrt(2.5)}
    assert result_of(EnergyErrors(), part) == pytest.approx(expected, rel=1e-15)


def test_energy_errors_leave_out_graphs_outside_the_mask():
    batch = {"energy": torch.zeros(2, 1), "num_nodes_per_graph": torch.tensor([1, 4]), "graph_mask": torch.tensor([True, False])}
    assert result_of(EnergyErrors(), ({"energy": torch.tensor([[1.0], [8.0]])}, batch))["energy/mae_ev_per_atom"] == 1.0


def test_energy_errors_say_what_the_batch_lacks():
    with pytest.raises(LossError, match="so the batch needs num_nodes_per_graph"):
        result_of(EnergyErrors(), ({"energy": torch.zeros(2, 1)}, {"energy": torch.zeros(2, 1)}))


FORCES = ({"forces": torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 1.0]])}, {"forces": torch.zeros(2, 3), "numbers": torch.tensor([1, 6])})


def test_force_errors_name_components_axes_and_vectors():
    expected = {"mae": 8 / 6, "rmse": math.sqrt(26 / 6), "vector_mae": 3.0, "vector_rmse": math.sqrt(13)}
    expected |= {"mae_x": 1.5, "mae_y": 2.0, "mae_z": 0.5, "rmse_x": math.sqrt(4.5), "rmse_y": math.sqrt(8), "rmse_z": math.sqrt(0.5)}
    found = result_of(ForceErrors(), FORCES)
    assert found == pytest.approx({f"forces/{name}_ev_per_angstrom": value for name, value in expected.items()}, rel=1e-15)
    assert found["forces/vector_rmse_ev_per_angstrom"] / found["forces/rmse_ev_per_angstrom"] == pytest.approx(math.sqrt(3), rel=1e-15)


def test_force_errors_by_element_leave_out_the_others():
    found = result_of(ForceErrorsByElement(elements=(6, 1, 8)), FORCES)
    assert found["forces/mae_ev_per_angstrom/1"] == pytest.approx(7 / 3, rel=1e-15)
    assert found["forces/rmse_ev_per_angstrom/6"] == pytest.approx(math.sqrt(1 / 3), rel=1e-15)
    assert found["forces/mae_ev_per_angstrom/8"].isnan()


def test_padded_forces_give_the_errors_of_dense_ones():
    padded = ({"forces": F.pad(FORCES[0]["forces"][:, None], (0, 0, 0, 1), value=NAN)}, {"forces": torch.zeros(2, 2, 3)})
    expected = result_of(ForceErrors(), FORCES)
    for told in ({"num_nodes_per_graph": torch.tensor([1, 1])}, {"atom_mask": torch.tensor([[True, False], [True, False]])}):
        assert result_of(ForceErrors(), (padded[0], padded[1] | told)) == expected
    with pytest.raises(LossError, match=r"padded forces \(2, 2, 3\) need atom_mask \(2, 2\)"):
        result_of(ForceErrors(), padded)


@pytest.mark.parametrize("elements", [(), (1, 1)])
def test_elements_must_be_told_apart(elements):
    with pytest.raises(LossError, match="elements must be atomic numbers, each once"):
        ForceErrorsByElement(elements=elements)
