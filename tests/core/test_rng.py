"""Bits from keys: known answers, independent streams, distributions, and the same bits in every form."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from purestep.core import rng

# counter, key and result of Philox4x32-10 from the file kat_vectors of Random123
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
KEY = torch.tensor(20240229)
DRAWS = {
    "bits": lambda key: rng.bits(key, 1, (7, 3)),
    "uniform": lambda key: rng.uniform(key, 1, (7, 3)),
    "uniform float64": lambda key: rng.uniform(key, 1, (7, 3), torch.float64),
    "uniform bfloat16": lambda key: rng.uniform(key, 1, (7, 3), torch.bfloat16),
    "integers": lambda key: rng.integers(key, 1, -3, 9, (7, 3)),
    "permutation": lambda key: rng.permutation(key, 1, 21),
    "fold_in": lambda key: rng.fold_in(key, 5),
}
every_draw = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(counter, key, expected):
    words = rng.philox([torch.tensor(word) for word in counter], (torch.tensor(key[0]), torch.tensor(key[1])))
    assert tuple(word.item() for word in words) == expected


def test_the_bits_of_a_key_are_those_of_its_two_words_at_counters_from_zero():
    low, high = 0xA4093822, 0x299F31D0
    expected = rng.philox((torch.arange(3), 0, 9, 0), (torch.tensor(low), torch.tensor(high)))
    assert torch.equal(rng.bits(torch.tensor(low | high << 32), 9, (12,)), torch.cat(expected))


@every_draw
def test_traced_compiled_and_mapped_draws_have_the_eager_bits(draw):
    torch._dynamo.reset()
    expected = draw(KEY)
    assert torch.equal(make_fx(draw)(KEY)(KEY), expected)
    assert torch.equal(torch.compile(draw, fullgraph=True, backend="aot_eager")(KEY), expected)
    mapped = torch.func.vmap(draw)(torch.stack([KEY, KEY + 1]))
    assert torch.equal(mapped[0], expected)
    assert torch.equal(mapped[1], draw(KEY + 1))


def test_normal_numbers_agree_between_forms_to_the_last_place():
    draw = lambda key: rng.normal(key, 1, (50,), torch.float64)  # noqa: E731
    torch._dynamo.reset()
    for other in (make_fx(draw)(KEY), torch.compile(draw, fullgraph=True, backend="aot_eager")):
        # logarithm and cosine of a backend may round otherwise
        assert torch.allclose(other(KEY), draw(KEY), rtol=0, atol=1e-14)


@every_draw
def test_a_draw_touches_no_global_generator(draw, untouched_globals):
    draw(KEY)


@pytest.mark.parametrize("change", [{"data": 1}, {"rank": 1}, {"purpose": rng.HOOKS}, {"key": KEY + 1}])
def test_another_key_step_rank_or_purpose_is_another_stream(change):
    where = {"key": KEY, "data": 0} | change
    one, other = rng.bits(rng.fold_in(KEY, 0), 0, (1000,)), rng.bits(rng.fold_in(**where), 0, (1000,))
    assert (one == other).sum() == 0  # by chance 1000 / 2^32


def test_another_draw_from_a_key_is_another_stream():
    assert (rng.bits(KEY, 0, (1000,)) == rng.bits(KEY, 1, (1000,))).sum() == 0


@pytest.mark.parametrize("neighbour", [KEY + 1, KEY ^ (1 << 32), KEY - 1])
def test_streams_of_neighbouring_keys_are_not_shifted_copies(neighbour):
    one, other = set(rng.bits(KEY, 0, (5000,)).tolist()), set(rng.bits(neighbour, 0, (5000,)).tolist())
    assert len(one & other) < 3  # by chance 5000^2 / 2^32, about 0.006


def test_streams_of_neighbouring_steps_are_not_shifted_copies():
    streams = [set(rng.bits(rng.fold_in(KEY, step), 0, (2000,)).tolist()) for step in range(5)]
    assert all(len(streams[0] & other) < 3 for other in streams[1:])


def test_masks_of_four_ranks_agree_as_often_as_chance_has_it():
    masks = [rng.uniform(rng.fold_in(KEY, 7, rank), 1, (1000,)) < 0.5 for rank in range(4)]
    agreements = [(masks[i] == masks[j]).double().mean().item() for i in range(4) for j in range(i)]
    # 0.5 with a deviation of 0.016
    assert all(0.40 < agreement < 0.60 for agreement in agreements)


def test_a_rank_draws_the_same_again_and_otherwise_in_the_next_step():
    mask = lambda step: rng.uniform(rng.fold_in(KEY, step, 3), 1, (1000,)) < 0.5  # noqa: E731
    assert torch.equal(mask(7), mask(7))
    assert not torch.equal(mask(7), mask(8))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_uniform_numbers_fill_zero_to_one_and_never_reach_it(dtype):
    numbers = rng.uniform(KEY, 0, (100_000,), dtype)
    assert numbers.dtype == dtype
    assert 0.0 <= numbers.min() < 0.01
    assert 0.99 <= numbers.max() < 1.0
    # the deviation of the mean is 0.29 / sqrt(100,000); bfloat16 numbers are rounded down by 1/512 on average
    assert numbers.double().mean().item() == pytest.approx(0.5, abs=0.005)


def test_normal_numbers_have_mean_zero_deviation_one_and_the_tails_of_a_normal():
    numbers = rng.normal(KEY, 0, (100_000,), torch.float64)
    assert numbers.mean().item() == pytest.approx(0.0, abs=0.013)  # four deviations of 1 / sqrt(100,000)
    assert numbers.std().item() == pytest.approx(1.0, abs=0.009)
    assert (numbers.abs() > 2.0).double().mean().item() == pytest.approx(0.0455, abs=0.003)


def test_integers_fill_their_range_evenly():
    counts = torch.bincount(rng.integers(KEY, 0, 5, 9, (40_000,)) - 5)
    assert counts.shape == (4,)
    assert (counts - 10_000).abs().max() < 400  # four deviations of 87


@pytest.mark.parametrize(("low", "high"), [(3, 3), (0, 2**31 + 1)])
def test_integers_refuse_an_impossible_range(low, high):
    with pytest.raises(ValueError, match="between 1 and 2\\^31"):
        rng.integers(KEY, 0, low, high, (3,))


def test_a_permutation_holds_every_number_once():
    order = rng.permutation(KEY, 0, 1000)
    assert torch.equal(order.sort().values, torch.arange(1000))
    assert not torch.equal(order, torch.arange(1000))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (2, 3)])
def test_shapes_of_any_size_can_be_drawn(shape):
    assert rng.uniform(KEY, 0, shape).shape == shape
    assert rng.normal(KEY, 0, shape, torch.float64).shape == shape


def test_a_longer_draw_begins_with_the_bits_of_the_same_counters():
    words = rng.bits(KEY, 0, (4 * 3,)).view(4, 3)
    assert torch.equal(rng.bits(KEY, 0, (4 * 5,)).view(4, 5)[:, :3], words)


def test_seeds_beyond_32_bits_and_below_zero_are_streams_of_their_own():
    seeds = [torch.tensor(seed) for seed in (1, 1 + 2**32, -1, 2**63 - 1)]
    first = [rng.bits(rng.fold_in(seed, 0), 0, (100,)) for seed in seeds]
    assert len({tuple(words.tolist()) for words in first}) == 4
