"""Raw files to prepare."""

from __future__ import annotations

from pathlib import Path

import pyarrow.csv as pc
import pytest
from prepared_rows import PART, ROWS, table


@pytest.fixture(scope="session")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three CSV files."""
    folder = tmp_path_factory.mktemp("ratings")
    whole = table()
    for number, start in enumerate(range(0, ROWS, PART)):
        pc.write_csv(whole.slice(start, PART), folder / f"{number}.csv")
    return folder
