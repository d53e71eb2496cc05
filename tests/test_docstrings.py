"""The docstring of every transform, optimizer and schedule says what each argument is, and where the method comes from."""

import inspect
import re

import pytest

from purestep.schedules import SCHEDULES
from purestep.spec.families import describe_arguments
from tests.transform_examples import TABLE

PARTS = TABLE | {f"schedules.{name}": make for name, make in SCHEDULES.items()}
over_the_tables = pytest.mark.parametrize("name", sorted(PARTS))


@over_the_tables
def test_every_argument_is_described_in_the_order_of_the_signature(name):
    _, words = describe_arguments(PARTS[name])
    assert list(words) == list(inspect.signature(PARTS[name]).parameters)


@over_the_tables
def test_the_reference_names_a_paper_with_its_year_or_a_library(name):
    (reference,) = re.findall(r"^Reference:\n((?: {4}.+\n?)+)", inspect.cleandoc(PARTS[name].__doc__), re.MULTILINE)
    assert re.search(r", (19|20)\d\d\b|optax 0\.2\.8|`torch\.|\bOurs\b", reference)
