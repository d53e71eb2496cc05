"""The mode that keys a module's randomness: the same bits in every form, the right distribution, or a refusal by name."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from purestep.core.randomness import KeyedRandomness
from purestep.errors import RandomnessError

KEY = torch.tensor(11)
X = torch.linspace(-1.0, 1.0, 24, dtype=torch.float64).view(2, 3, 4)
IMAGE = torch.linspace(-1.0, 1.0, 48, dtype=torch.float64).view(2, 3, 2, 2, 2)
QUERY = torch.linspace(-1.0, 1.0, 40, dtype=torch.float64).sin().view(2, 4, 5)
MASK = torch.ones(4, 4, dtype=torch.bool).tril()


def attention(x):
    eye = torch.eye(4, dtype=torch.float64)
    weight = eye.repeat(3, 1)
    return F.multi_head_attention_forward(x, x, x, 4, 2, weight, None, None, None, False, 0.5, eye, None, training=True)[0]


SUPPORTED = {
    "F.dropout": lambda x: F.dropout(x, 0.5),
    "F.dropout in place": lambda x: F.dropout(x.clone(), 0.5, inplace=True),
    "torch.dropout": lambda x: torch.dropout(x, 0.5, True),
    "F.dropout1d": lambda x: F.dropout1d(x, 0.5),
    "F.dropout2d": lambda x: F.dropout2d(IMAGE[..., 0] + x.sum(), 0.5),
    "F.dropout3d": lambda x: F.dropout3d(IMAGE + x.sum(), 0.5),
    "F.alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "attention, causal": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5, is_causal=True),
    "attention, masked": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=MASK[:3, :3], dropout_p=0.5),
    "F.multi_head_attention_forward": attention,
    "F.gumbel_softmax": lambda x: F.gumbel_softmax(x, hard=False),
    "torch.rand": lambda x: torch.rand(3, 4),
    "torch.rand of a tuple": lambda x: torch.rand((3, 4), dtype=torch.float64),
    "torch.rand of size=": lambda x: torch.rand(size=(3, 4)),
    "torch.randn": lambda x: torch.randn(3, 4, dtype=torch.float64),
    "torch.randint": lambda x: torch.randint(7, (3, 4)),
    "torch.randint with low": lambda x: torch.randint(2, 7, (3, 4)),
    "torch.randperm": lambda x: torch.randperm(9),
    "torch.bernoulli": lambda x: torch.bernoulli(x.abs()),
    "Tensor.bernoulli": lambda x: x.abs().bernoulli(),
    "Tensor.uniform_": lambda x: torch.empty_like(x).uniform_(-1.0, 1.0),
    "Tensor.normal_": lambda x: torch.empty_like(x).normal_(1.0, 2.0),
    "Tensor.exponential_": lambda x: torch.empty_like(x).exponential_(2.0),
    "Tensor.bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.3),
}
HIDDEN_FROM_DYNAMO = {
    "torch.rand_like": torch.rand_like,
    "torch.randn_like": torch.randn_like,
    "torch.randint_like": lambda x: torch.randint_like(x, 7),
    "torch.normal": lambda x: torch.normal(x, 2.0),
    "torch.normal of a size": lambda x: torch.normal(1.0, 2.0, (3, 4)),
}
TABLE = SUPPORTED | HIDDEN_FROM_DYNAMO


def keyed(name):
    """The function of the table as a function of a key and an input."""

    def draw(key, x):
        with KeyedRandomness(lambda: key):
            return TABLE[name](x)

    return draw


def close(one, other):
    # the bits are the same; logarithm, cosine and softmax of a backend may round otherwise
    return torch.allclose(one.double(), other.double(), rtol=1e-6, atol=1e-6)


@pytest.fixture(autouse=True)
def own_generator():
    """Tests here stir the global generator on purpose."""
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.mark.parametrize("name", TABLE)
def test_a_function_takes_its_bits_from_the_key_and_from_nothing_else(name):
    draw = keyed(name)
    first = draw(KEY, X)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert torch.equal(draw(KEY, X), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(draw(KEY + 1, X), first)


@pytest.mark.parametrize("name", TABLE)
def test_a_function_gives_the_same_numbers_eager_traced_and_mapped(name):
    draw, expected = keyed(name), keyed(name)(KEY, X)
    assert close(make_fx(draw)(KEY, X)(KEY, X), expected)
    mapped = torch.func.vmap(draw)(torch.stack([KEY, KEY + 1]), torch.stack([X, X]))
    assert close(mapped[0], expected)
    assert close(mapped[1], draw(KEY + 1, X))


@pytest.mark.skipif(torch.__version__ < "2.13", reason="Dynamo of older torch hides torch.rand and the like; capture='dynamo' refuses them")
@pytest.mark.parametrize("name", SUPPORTED)
def test_a_function_gives_the_same_numbers_under_dynamo(name):
    torch._dynamo.reset()
    draw = keyed(name)
    assert close(torch.compile(draw, fullgraph=True, backend="aot_eager")(KEY, X), draw(KEY, X))


def test_dropout_has_the_same_mask_bit_for_bit_in_every_form():
    torch._dynamo.reset()
    draw = keyed("F.dropout")
    for other in (make_fx(draw)(KEY, X), torch.compile(draw, fullgraph=True, backend="aot_eager")):
        assert torch.equal(other(KEY, X), draw(KEY, X))


def test_two_draws_of_one_forward_differ():
    with KeyedRandomness(lambda: KEY):
        assert torch.all(torch.rand(100) != torch.rand(100))


def test_a_forward_without_randomness_makes_no_key():
    def fail():
        raise AssertionError("the key was made")

    with KeyedRandomness(fail):
        torch.relu(X)
        F.dropout(X, 0.5, training=False)
        F.dropout(X, 0.0)


LARGE = torch.ones(100, 400, dtype=torch.float64)


def test_dropout_keeps_as_many_as_it_says_and_the_mean():
    with KeyedRandomness(lambda: KEY):
        out = F.dropout(LARGE, 0.2)
    # four deviations of 0.4 / sqrt(40,000)
    assert (out == 0).double().mean().item() == pytest.approx(0.2, abs=0.008)
    assert set(out.unique().tolist()) == {0.0, 1.0 / 0.8}


@pytest.mark.parametrize(("p", "expected"), [(0.0, 1.0), (1.0, 0.0)])
def test_dropout_of_nothing_and_of_everything(p, expected):
    with KeyedRandomness(lambda: KEY):
        assert torch.equal(F.dropout(LARGE, p), torch.full_like(LARGE, expected))


def test_dropout_refuses_a_probability_outside_zero_to_one():
    with KeyedRandomness(lambda: KEY), pytest.raises(ValueError, match="probability must lie"):
        F.dropout(X, 1.5)


def test_channel_dropout_drops_whole_channels():
    with KeyedRandomness(lambda: KEY):
        out = F.dropout2d(torch.ones(50, 8, 3, 3), 0.5)
    assert set(out.sum((2, 3)).unique().tolist()) == {0.0, 18.0}


def test_alpha_dropout_keeps_mean_and_variance():
    with KeyedRandomness(lambda: KEY):
        out = F.alpha_dropout(torch.randn(40_000, dtype=torch.float64), 0.3, training=True)
    assert out.mean().item() == pytest.approx(0.0, abs=0.04)
    assert out.var().item() == pytest.approx(1.0, abs=0.04)


def test_attention_without_dropout_gives_the_numbers_of_torch():
    with KeyedRandomness(lambda: KEY):
        for options in ({}, {"is_causal": True}, {"attn_mask": MASK}, {"scale": 0.3}):
            keyed = F.scaled_dot_product_attention(QUERY, QUERY, QUERY, **options)
            with torch._C.DisableTorchFunction():
                assert torch.allclose(keyed, F.scaled_dot_product_attention(QUERY, QUERY, QUERY, **options), rtol=0, atol=1e-14)


def test_attention_dropout_averages_to_attention_without():
    def drawn(key):
        with KeyedRandomness(lambda: key):
            return F.scaled_dot_product_attention(QUERY, QUERY, QUERY, dropout_p=0.3)

    mean = torch.func.vmap(drawn)(torch.arange(20_000)).mean(0)
    assert torch.allclose(mean, F.scaled_dot_product_attention(QUERY, QUERY, QUERY), rtol=0, atol=0.02)


def test_modules_of_torch_with_dropout_inside_are_keyed():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True, dtype=torch.float64)

    def call(key):
        with KeyedRandomness(lambda: key):
            return layer(X)

    assert torch.equal(call(KEY), call(KEY))
    assert not torch.equal(call(KEY), call(KEY + 1))


RATES = torch.tensor([0.5, 0.5])
REFUSED = {
    "multinomial": lambda: torch.multinomial(RATES, 1),
    "poisson": lambda: torch.poisson(RATES),
    "binomial": lambda: torch.binomial(torch.ones(2), RATES),
    "random_": lambda: torch.empty(3).random_(),
    "cauchy_": lambda: torch.empty(3).cauchy_(),
    "log_normal_": lambda: torch.empty(3).log_normal_(),
    "geometric_": lambda: torch.empty(3).geometric_(0.5),
    "feature_dropout": lambda: torch.feature_dropout(X, 0.5, True),
    "feature_alpha_dropout": lambda: F.feature_alpha_dropout(X, 0.5, training=True),
    "native_dropout": lambda: torch.native_dropout(X, 0.5, True),
    "rrelu": lambda: F.rrelu(X, training=True),
    "fractional_max_pool2d": lambda: F.fractional_max_pool2d(IMAGE[..., 0], 1, output_size=1),
    "lstm": lambda: nn.LSTM(4, 4, num_layers=2, dropout=0.5, dtype=torch.float64)(X),
    "gru": lambda: nn.GRU(4, 4, num_layers=2, dropout=0.5, dtype=torch.float64)(X),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_key_controls_is_refused_by_name(name):
    with KeyedRandomness(lambda: KEY), pytest.raises(RandomnessError, match=rf"{name} draws from a global generator"):
        REFUSED[name]()


def test_a_generator_given_inside_a_step_is_refused():
    generator = torch.Generator()
    for draw in (lambda: torch.rand(3, generator=generator), lambda: torch.empty(3).normal_(generator=generator)):
        with KeyedRandomness(lambda: KEY), pytest.raises(RandomnessError, match="generator= inside the step is hidden state"):
            draw()


QUIET = {
    "rrelu in eval": lambda: F.rrelu(X, training=False),
    "feature_alpha_dropout in eval": lambda: F.feature_alpha_dropout(X, 0.5, training=False),
    "lstm without dropout": lambda: nn.LSTM(4, 4, dtype=torch.float64)(X),
    "torch.alpha_dropout in eval": lambda: torch.alpha_dropout(X, 0.5, False),
}


@pytest.mark.parametrize("name", QUIET)
def test_what_draws_only_in_training_is_allowed_where_it_draws_nothing(name):
    with torch.random.fork_rng(devices=[]):
        QUIET[name]()  # modules draw their weights outside
    with KeyedRandomness(lambda: KEY):
        QUIET[name]()
