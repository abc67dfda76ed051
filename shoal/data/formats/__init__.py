"""Formats of raw files: Parquet, CSV, JSON lines, NumPy, image folders, WebDataset tar."""

from shoal.data.formats import arrays, csv_lines, images, json_lines, parquet, tars  # noqa: F401 - they register
from shoal.data.formats.base import BadRecord, Format, FormatError, OnBad, Split, format_named, formats
from shoal.data.formats.listing import Found, find, read_all

__all__ = [
    "BadRecord",
    "Format",
    "FormatError",
    "Found",
    "OnBad",
    "Split",
    "find",
    "format_named",
    "formats",
    "read_all",
]
