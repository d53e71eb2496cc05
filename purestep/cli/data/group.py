"""The group `purestep data`."""

from ..program import Program

command = Program(
    {"inspect": "data.inspect", "convert": "data.convert"},
    name="data",
    short_help="Look into data, convert it.",
    help="Look into stores, and make them of other formats.\n\n\b\n  purestep data inspect data/train.zarr\n"
    "  purestep data convert frames.extxyz data/train.zarr --keys energy=REF_energy",
)
