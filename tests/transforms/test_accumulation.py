"""Windows: sums over sums, what ends one, and what becomes of the last."""

import pytest
import torch

from purestep.core import tree
from purestep.core.transform import apply_updates, chain
from purestep.optimizers import adamw, sgd
from purestep.transforms import accumulate, clip_by_global_norm


def w(*values, dtype=torch.float64):
    return {"w": torch.tensor(values, dtype=dtype)}


def feed(transform, batches, state=None, **each):
    """What comes out for each batch, and the state in the end."""
    params = w(*[0.0] * len(batches[0]))
    state = transform.init(params) if state is None else state
    out = []
    for i, values in enumerate(batches):
        extra = {name: torch.tensor(series[i], dtype=torch.float64) for name, series in each.items()}
        updates, state = transform.update(w(*values), state, params, **extra)
        out.append(updates.updates["w"].tolist() if updates.apply else None)
    return out, state


def test_the_mean_of_a_window_leaves_at_its_end():
    out, _ = feed(accumulate(2), [[1.0], [3.0], [5.0], [9.0]])
    assert out == [None, [2.0], None, [7.0]]


def test_ragged_batches_weigh_by_their_denominators():
    out, state = feed(accumulate(2), [[3.0], [1.0]], denominator=[3.0, 1.0], value=[6.0, 2.0])
    assert out == [None, [2.5]]
    assert float(state.metrics["update/loss"]) == 5.0


def test_a_window_without_any_weight_is_let_go():
    out, state = feed(accumulate(2), [[0.0], [0.0], [1.0], [3.0]], denominator=[0.0, 0.0, 1.0, 1.0])
    assert out == [None, None, None, [2.0]]
    assert int(state.windows) == 1


def test_the_sum_is_plain():
    out, _ = feed(accumulate(3, reduction="sum"), [[1.0], [2.0], [3.0]], denominator=[5.0, 1.0, 1.0])
    assert out == [None, None, [6.0]]


def test_the_length_of_a_window_may_depend_on_the_windows_so_far():
    out, _ = feed(accumulate(lambda windows: windows + 1), [[1.0], [2.0], [4.0], [3.0], [6.0], [9.0]])
    assert out == [[1.0], None, [3.0], None, None, [6.0]]


def test_an_epochs_end_emits_what_is_there():
    gate = accumulate(4)
    _, state = feed(gate, [[1.0], [3.0]])
    out, after = feed(gate, [[0.0]], state.end_epoch(), denominator=[0.0])
    assert out == [[2.0]]
    assert int(after.micro_step) == 0
    assert int(after.windows) == 1


def test_a_batch_that_follows_an_epochs_end_opens_a_window_of_its_own():
    gate = accumulate(2)
    _, state = feed(gate, [[1.0]])
    out, _ = feed(gate, [[10.0], [20.0], [4.0], [6.0]], state.end_epoch())
    assert out == [[1.0], [15.0], None, [5.0]]


def test_an_epochs_end_between_windows_changes_nothing():
    gate = accumulate(2)
    _, state = feed(gate, [[1.0], [3.0]])
    out, _ = feed(gate, [[5.0], [7.0]], state.end_epoch())
    assert out == [None, [6.0]]


def test_an_epochs_end_may_drop_the_window_or_carry_it_on():
    dropped, carried = accumulate(2, last="drop"), accumulate(2, last="carry")
    after_drop = feed(dropped, [[1.0], [3.0], [5.0]])[1].end_epoch()
    after_carry = feed(carried, [[1.0], [3.0], [5.0]])[1].end_epoch()
    assert feed(dropped, [[7.0], [9.0]], after_drop)[0] == [None, [8.0]]
    assert feed(carried, [[7.0], [9.0]], after_carry)[0] == [[6.0], None]


def test_decay_momentum_and_counts_run_once_per_window():
    params = w(1.0, 2.0, 3.0)
    gen = torch.Generator().manual_seed(0)
    grads = [torch.randn(3, generator=gen, dtype=torch.float64) for _ in range(12)]
    whole, cut = adamw(0.1, weight_decay=0.1), chain(accumulate(4), adamw(0.1, weight_decay=0.1))
    expected, state = params, whole.init(params)
    for i in range(3):
        updates, state = whole.update({"w": sum(grads[4 * i : 4 * i + 4]) / 4}, state, expected)
        expected = apply_updates(expected, updates)
    actual, state = params, cut.init(params)
    for grad in grads:
        updates, state = cut.update({"w": grad}, state, actual)
        actual = apply_updates(actual, updates)
    # sums are taken in another order
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_clipping_after_accumulation_sees_the_mean():
    optimizer, params = chain(accumulate(2), clip_by_global_norm(1.0), sgd(1.0)), w(0.0, 0.0)
    state = optimizer.init(params)
    for grad in ([3.0, 0.0], [0.0, 4.0]):
        updates, state = optimizer.update(w(*grad), state, params)
    assert apply_updates(params, updates)["w"].tolist() == pytest.approx([-0.6, -0.8])


def test_bfloat16_gradients_are_summed_in_float32():
    gate, params = accumulate(1000), w(0.0, dtype=torch.bfloat16)
    state = gate.init(params)
    for _ in range(1000):
        updates, state = gate.update(w(1e-3, dtype=torch.bfloat16), state, params)
    # the bfloat16 nearest to 1e-3, which a bfloat16 sum would have stopped adding at 0.25
    assert float(updates.updates["w"]) == pytest.approx(float(torch.tensor(1e-3, dtype=torch.bfloat16)), rel=1e-5)


def test_waiting_leaves_parameters_and_later_state_bitwise():
    optimizer, params = chain(accumulate(3), adamw(0.1)), w(-0.0, 1.5)
    state = optimizer.init(params)
    updates, new = optimizer.update(w(1.0, 1.0), state, params)
    assert [str(x) for x in apply_updates(params, updates)["w"].tolist()] == ["-0.0", "1.5"]
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(new["adamw"]), tree.leaves(state["adamw"]), strict=True))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"every": 0}, "at least 1"), ({"every": 2, "last": "x"}, "'carry'"), ({"every": 2, "reduction": "x"}, "'sum'")],
)
def test_wrong_arguments_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        accumulate(**arguments)
