"""What a run offers to hosts that join: the whole job, and only for the very same script."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.config import Clip, ElasticSettings
from shoal.core.errors import UserError
from shoal.core.length import Length
from shoal.launch.job import Job
from shoal.launch.offer import Offer, job_of, offer_of

pytestmark = pytest.mark.unit


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n")
    return path


def job(script: Path) -> Job:
    layers = (
        ("a file", {"clip": Clip(norm=1.0)}),
        ("the command line", {"eval_every": Length(1, "epochs"), "seed": 3}),
    )
    return Job(2, str(script), ("--data", "x"), layers=layers, elastic=ElasticSettings(lease_s=1.5), threads=1)


def test_the_job_arrives_as_it_was(script: Path) -> None:
    offer = Offer.from_bytes(offer_of(job(script)).to_bytes())
    joined = job_of(offer, script=None)
    assert (joined.workers, joined.script, joined.script_args) == (2, str(script), ("--data", "x"))
    assert (joined.seed, joined.threads, joined.elastic) == (3, 1, ElasticSettings(lease_s=1.5))
    assert dict(joined.layers[0][1]) == {"clip": {"norm": 1.0}}


def test_the_script_may_lie_elsewhere_but_must_be_the_same(script: Path, tmp_path: Path) -> None:
    offer = offer_of(job(script))
    copy = tmp_path / "copy.py"
    copy.write_text(script.read_text())
    assert job_of(offer, copy).script == str(copy)
    copy.write_text("print('goodbye')\n")
    with pytest.raises(UserError, match="is not the script of the run") as refused:
        job_of(offer, copy)
    assert offer.sha256 in str(refused.value)
    assert str(copy) in str(refused.value)
    script.unlink()
    with pytest.raises(UserError, match="--script PATH"):
        job_of(offer, None)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"script": "x"}', b"\xff"])
def test_what_another_version_offers_is_refused(data: bytes) -> None:
    with pytest.raises(UserError, match="another version"):
        Offer.from_bytes(data)


def test_a_notebook_has_nothing_to_offer() -> None:
    with pytest.raises(UserError, match="notebook"):
        offer_of(Job(1, payload=print))


def test_what_is_too_long_is_refused(script: Path) -> None:
    with pytest.raises(UserError, match="too long"):
        offer_of(Job(1, str(script), ("x" * 70000,))).to_bytes()
