"""Training from prepared shards: every sample once an epoch, whoever dies, and each byte fetched about once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch
from e2e import Run
from self_hurt import Trials, assert_same, script

from shoal.data.manifest import Manifest
from shoal.data.places import Place
from shoal.data.shard_file import write_shard

pytestmark = pytest.mark.ranks
NORM = "nn.BatchNorm1d(16),"
SAMPLES, ROWS, EPOCHS = 237, 4, 3
SETTINGS = "loader={{'memory_mib': 0.006, 'processes': {processes}, 'corrupt': '{corrupt}'}},"


def write_shards(folder: Path) -> Manifest:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 10, generator=generator)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(inputs.flatten().numpy()), 10)
    table = pa.table({"x": rows, "y": inputs[:, :4].argmax(1).numpy()})
    groups = [table.slice(at, ROWS) for at in range(0, SAMPLES, ROWS)]
    place = Place.of(folder)
    shards = tuple(
        write_shard(place / f"part-{at:03d}.parquet", groups[at : at + 15], table.schema)
        for at in range(0, len(groups), 15)
    )
    packed, fields = Manifest.pack_schema(table.schema)
    manifest = Manifest(
        rows=SAMPLES, bytes=sum(shard.bytes for shard in shards), fields=fields, arrow_schema=packed, shards=shards
    )
    manifest.write(place)
    return manifest


def from_shards(processes: int = 0, corrupt: str = "stop", **hurts: str) -> str:
    text = script(norm=NORM, settings=SETTINGS.format(processes=processes, corrupt=corrupt), **hurts)
    given = "train=data(237, 1)"
    assert given in text
    return text.replace(given, "train=shoal.data.shards.ShardSource('shards')").replace(
        "import shoal\n", "import shoal, shoal.data.shards\n"
    )


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return write_shards(tmp_path / "shards")


def stored_bytes(manifest: Manifest) -> int:
    return sum(group.stop - group.start for shard in manifest.shards for group in shard.row_groups)


def test_a_worker_is_killed_another_comes_and_every_sample_counts_once(trials: Trials, manifest: Manifest) -> None:
    calm = trials.calm(from_shards(), "--workers", "3")
    assert 0.9 <= calm.summary()["bytes_read"] / (EPOCHS * stored_bytes(manifest)) <= 1.3
    done, run = trials.train(from_shards(forward="rank() == 1 and step() == 14 and die()"), "--workers", "3")
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    assert len(run.summary()["faults"]) == 1
    (told,) = [event for event in run.events("decision") if event["what"] == "shuffle"]
    assert "of a full shuffle" in told["why"]


def test_a_dry_run_says_how_well_the_shards_are_mixed(trials: Trials, manifest: Manifest) -> None:
    done, _ = trials.train(from_shards(), "--dry-run")
    assert done.status == 0, done.err
    assert "Shuffle" in done.out
    assert "of a full shuffle" in done.out


KILL_A_LOADER = """
            if rank() == 1 and step() == 14 and once('loader'):
                import multiprocessing
                os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
"""


def test_a_loader_process_is_killed_and_replaced_and_every_sample_counts_once(
    trials: Trials, manifest: Manifest
) -> None:
    calm = trials.calm(from_shards(), "--workers", "3")
    hurt = from_shards(processes=2, forward=KILL_A_LOADER.strip())
    done, run = trials.train(hurt, "--workers", "3")
    assert done.status == 0, done.err
    assert_same(run, calm, 0.0)
    assert run.summary()["faults"] == [], "nobody was lost"
    (told,) = [one["message"] for one in run.events("warning") if "loader process" in one["message"]]
    assert told.startswith("worker 1 on ")
    assert "was killed by signal 9 while it loaded " in told  # perhaps a part without any sample
    assert told in done.err
    assert told in (run.path / "logs" / "worker-1.log").read_text()


def spoil(manifest: Manifest, folder: Path) -> int:
    """Damage a row group; returns its rows."""
    shard = manifest.shards[2]
    group = shard.row_groups[3]
    path = folder / shard.file
    data = bytearray(path.read_bytes())
    data[(group.start + group.stop) // 2] ^= 0xFF
    path.write_bytes(data)
    return group.rows


def test_a_damaged_row_group_ends_the_run_and_is_named(trials: Trials, manifest: Manifest, tmp_path: Path) -> None:
    spoil(manifest, tmp_path / "shards")
    done, _ = trials.train(from_shards(), "--workers", "2")
    assert done.status == 2
    assert "row group 3 of " in done.err
    assert f"{manifest.shards[2].file} is damaged" in done.err
    assert "Traceback" not in done.err


def test_a_damaged_row_group_is_left_out_and_the_coverage_says_so(
    trials: Trials, manifest: Manifest, tmp_path: Path
) -> None:
    rows = spoil(manifest, tmp_path / "shards")
    outcomes = []
    text = from_shards(corrupt="skip").replace(NORM, "")  # which cannot do with one sample, where that is left
    for workers in (1, 3):
        words = ("--workers", str(workers), "--set", "passes=grain")
        done, run = trials.train(text, *words, run=f"run-{workers}")
        assert done.status == 0, done.err
        summary = run.summary()
        expected = EPOCHS * SAMPLES
        missed = EPOCHS * rows
        assert summary["coverage"] == {
            "expected": expected, "once": expected - missed, "missed": missed, "repeated": 0
        }  # fmt: skip
        (told,) = [event["message"] for event in run.events("warning") if "damaged" in event["message"]]
        assert f"row group 3 of {tmp_path / 'shards' / manifest.shards[2].file} is damaged, {rows} samples" in told
        outcomes.append(summary["params_sha256"])
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "words",
    [
        ("--strategy", "incremental", "--workers", "2"),
        ("--strategy", "parameter-server", "--servers", "1", "--workers", "2"),
        ("--strategy", "async", "--servers", "1", "--workers", "2"),
    ],
    ids=lambda words: words[1],
)
def test_every_strategy_trains_from_shards(trials: Trials, manifest: Manifest, words: tuple[str, ...]) -> None:
    done, run = trials.train(from_shards().replace("nn.BatchNorm1d(16),", ""), *words)
    assert done.status == 0, done.err
    assert_all_once(run)


def assert_all_once(run: Run) -> None:
    coverage = run.summary()["coverage"]
    assert coverage == {"expected": EPOCHS * SAMPLES, "once": EPOCHS * SAMPLES, "missed": 0, "repeated": 0}
