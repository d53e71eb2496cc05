"""The docstring of every transform and optimizer says what each argument is, and where the method comes from."""

import inspect
import re

import pytest

from purestep.spec.families import describe_arguments
from tests.transform_examples import TABLE

over_the_tables = pytest.mark.parametrize("name", sorted(TABLE))


@over_the_tables
def test_every_argument_is_described_in_the_order_of_the_signature(name):
    _, words = describe_arguments(TABLE[name])
    assert list(words) == list(inspect.signature(TABLE[name]).parameters)


@over_the_tables
def test_the_reference_names_a_paper_with_its_year_or_a_library(name):
    (reference,) = re.findall(r"^Reference:\n((?: {4}.+\n?)+)", inspect.cleandoc(TABLE[name].__doc__), re.MULTILINE)
    assert re.search(r", (19|20)\d\d\b|optax 0\.2\.8|`torch\.|\bOurs\b", reference)
