"""The shards of a data set as a person looks at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.data.manifest import Manifest

_BAR = 24
_SHOWN = 40  # of more shards, the first and the last, and the extremes between them


def shard_table(manifest: Manifest) -> Any:
    """A table with a bar for each shard: its rows, and what plain hashing would have given it. The longest of all bars
    is the whole width."""
    from rich.table import Table

    from shoal.data.partition.plan import Plan
    from shoal.data.preparing.sizes import show_size

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("shard", justify="right")
    table.add_column("rows", justify="right")
    table.add_column("bytes", justify="right")
    table.add_column("of mean", justify="right")
    table.add_column("rows")
    plain = Plan.of(manifest).plain_rows if manifest.partition else ()
    if plain:
        table.add_column("by plain hashing")
    largest = max((*(shard.rows for shard in manifest.shards), *plain), default=0)
    mean = manifest.rows / max(1, len(manifest.shards))
    shown = _chosen([shard.rows for shard in manifest.shards])
    for place, number in enumerate(shown):
        if place and number != shown[place - 1] + 1:
            table.add_row("…")
        shard = manifest.shards[number]
        table.add_row(
            str(number),
            f"{shard.rows:,}",
            show_size(shard.bytes),
            f"{shard.rows / mean:.2f}" if mean else "",
            bar(shard.rows, largest),
            *([f"{bar(plain[number], largest)} {plain[number]:,}"] if plain else []),
        )
    return table


def _chosen(rows: list[int]) -> list[int]:
    if len(rows) <= _SHOWN:
        return list(range(len(rows)))
    extremes = {rows.index(max(rows)), rows.index(min(rows))}
    return sorted({*range(_SHOWN // 2), *range(len(rows) - _SHOWN // 2, len(rows)), *extremes})


def bar(value: float, largest: float, width: int = _BAR) -> str:
    """In eighths of a character."""
    eighths = round(8 * width * value / largest) if largest else 0
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


def skew_words(manifest: Manifest) -> str:
    """The skew, beside what plain hashing would have given."""
    from shoal.data.partition.plan import Plan

    words = f"skew {manifest.skew:.2f} (largest shard over the mean)"
    plan = Plan.of(manifest) if manifest.partition else None
    if plan is not None and plan.plain_skew is not None:
        words += f", plain hashing {plan.plain_skew:.2f}"
    return words
