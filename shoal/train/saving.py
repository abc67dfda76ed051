"""Law 2 on disk: model state and the record of the samples it has seen are saved and restored together."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.checkpoint.catalog import Catalog
from shoal.checkpoint.format import read
from shoal.checkpoint.mirroring import Mirroring
from shoal.checkpoint.retention import to_remove
from shoal.checkpoint.shards import pack_state, unpack_state
from shoal.checkpoint.writer import Writer
from shoal.comm.group import Group
from shoal.core.arrivals import NOTHING, Instalment
from shoal.core.config import Config
from shoal.core.coverage import Counts, CoverageTotals, EpochCoverage, totals
from shoal.core.cursor import Cursor
from shoal.core.errors import CheckpointError, NonFiniteState, ShoalError
from shoal.core.events import CheckpointSaved, Event, Mirrored, Warned
from shoal.core.order import Indices, digest, digests
from shoal.core.state import Piece, ShardedState
from shoal.launch.rundir import disk_error
from shoal.strategies.base import Span, Strategy
from shoal.train.ledger import Ledger
from shoal.train.live import Live
from shoal.train.mirrored import RunMirror
from shoal.train.record import Account

_COUNTS = "coverage.counts"
_SHOW_S = 1.0  # between two words on how much of a copy is done


class CoverageRecord:
    """How often samples shaped the model, in the current epoch and in finished ones.

    `whole`: every worker records what all of them have computed, as each has stated it with the step, so that nothing
    is lost with one of them. Else each records its own part, and the parts are added up where they are needed.
    """

    def __init__(self, samples: int, whole: bool) -> None:
        self._whole = whole
        self._epoch = EpochCoverage(samples)
        self._finished = CoverageTotals()

    def commit(
        self, own: Indices, spans: Sequence[Span], order: Callable[[int, int], Indices],
        readable: Callable[[Indices], Indices] = lambda indices: indices,
    ) -> None:  # fmt: skip
        """A step is part of the model: `own` samples of this worker, or `spans` of all of them, whose positions `order`
        turns into samples; whoever left some of them out must have had reason to, by what is `readable` to this worker.
        Raises `ShoalError`, on every worker, where one computed others than stand there."""
        if not self._whole:
            self._epoch.commit(own)
            return
        filled = [span for span in spans if span.stop > span.start]
        lists = [order(span.start, span.stop) for span in filled]
        for at, (span, found) in enumerate(zip(filled, digests(lists), strict=True)):
            if found != span.digest:
                lists[at] = readable(lists[at])
                if digest(lists[at]) == span.digest:
                    continue
                raise ShoalError(
                    f"a worker trained on other samples than those at positions {span.start} to {span.stop}: its order "
                    "of samples is not that of this worker"
                )
        if lists:
            self._epoch.commit(np.concatenate(lists))

    def combined(self, group: Group) -> Counts:
        """The group's counts of the current epoch. Collective, unless the record is whole."""
        if self._whole:
            return self._epoch.counts.copy()
        counts = torch.from_numpy(self._epoch.counts.astype(np.int32))
        group.all_reduce(counts, "adding up the coverage")
        clamped: Counts = np.minimum(counts.numpy(), 255).astype(np.uint8)
        return clamped

    def finish_epoch(self, group: Group) -> None:
        """Judge the epoch that has just ended. Collective, unless the record is whole."""
        counts = self.combined(group)
        self._finished += totals(counts, expected=len(counts))
        self._epoch.reset()

    def judge(self, committed_in_epoch: int, group: Group) -> CoverageTotals:
        """The totals up to now, in the middle of an epoch or not. Collective, unless the record is whole."""
        return self._finished + totals(self.combined(group), expected=committed_in_epoch)

    @property
    def finished(self) -> CoverageTotals:
        return self._finished

    def begin(self, samples: int) -> None:
        """An epoch begins that has so many samples, because the data grows."""
        assert not self._epoch.counts.any(), "the epoch before is not finished"
        self._epoch = EpochCoverage(samples)

    def restore(self, counts: Counts, finished: CoverageTotals, first: bool) -> None:
        """Go on from a checkpoint, or from what another worker has: where the record is not whole, the first worker
        takes over what the whole group had computed."""
        self._finished = finished
        if len(counts) != len(self._epoch.counts):
            raise CheckpointError(
                f"the checkpoint was written for a data set of {len(counts)} samples, this one has "
                f"{len(self._epoch.counts)}: use the same data, or another --run-dir"
            )
        self._epoch.counts[:] = counts if first or self._whole else 0


@dataclass(frozen=True)
class Resumed:
    """Where a run goes on."""

    path: Path
    live: Live


def _not_finite(state: ShardedState) -> str | None:
    """The name of a tensor of the model that holds NaN or infinity, or None."""
    for name, piece in state.pieces.items():
        tensor = piece.tensor.detach()
        # a sum shows both at the price of one reading, and is wrong only by overflow, which the second look settles
        suspicious = tensor.is_floating_point() and not math.isfinite(float(tensor.sum()))
        if suspicious and not bool(torch.isfinite(tensor).all()):
            return name
    return None


class Saver:
    """Writes checkpoints in the background, on the worker that keeps the record, and reads the newest good one. Where
    there is a `mirror`, they are copied there, and the newest one may come from there."""

    def __init__(self, directory: Path, config: Config, script: str | None, mirror: RunMirror | None) -> None:
        self._directory, self._config, self._script, self._mirror = directory, config, script, mirror
        self._writer: Writer | None = None
        self._mirroring: Mirroring | None = None
        self.last_path: str | None = None

    def settle(self, keeps_record: bool) -> None:
        """Begin to write on this worker, or leave it to another one."""
        if not keeps_record:
            self.close()
        elif self._writer is None:
            kept = self._config.checkpoint
            if self._mirror is not None:
                self._mirroring = self._mirror.start(
                    self._config,
                    self._script,
                    lambda records: to_remove(records, kept.keep_last, kept.keep_best, kept.monitor, kept.mode),
                )
            after = self._mirroring.offer if self._mirroring is not None else lambda path: None
            self._writer = Writer(self._directory, kept.keep_last, kept.keep_best, kept.monitor, kept.mode, after=after)

    def save(
        self, strategy: Strategy[Any], replica: Any, group: Group, coverage: CoverageRecord, account: Account,
        ledger: Ledger,
    ) -> None:  # fmt: skip
        """Copy the state out of the step's way; it is on disk when `poll` says so. Collective.

        Only where the latest evaluation was of this very state do its values say how good the checkpoint is, and stand
        where the choice of the best ones looks for them.
        """
        cursor = ledger.cursor
        shards = self._gather(strategy.state(replica), cursor, group)
        counts = coverage.combined(group)
        if self._writer is None:
            return
        own = ShardedState({**shards[0].pieces, _COUNTS: Piece.whole(torch.from_numpy(counts))}, shards[0].values)
        evaluated = ledger.evaluated == cursor
        meta = {
            **(ledger.values if evaluated else {}),
            "evaluation": ledger.values,
            "evaluated": evaluated,
            "data": ledger.data,
            "coverage": coverage.finished.to_json(),
            "epoch_loss": account.epoch_loss,
            "epoch_weight": account.epoch_weight,
            "due": [what for what in ledger.due if what == "evaluate"],
            **({"arrivals": ledger.arrivals.to_json()} if ledger.arrivals != NOTHING else {}),
        }
        try:
            self._writer.save(f"step-{cursor.step:08d}", [own, *shards[1:]], cursor, meta)
        except OSError as error:
            raise disk_error(self._directory, error) from error

    def _gather(self, state: ShardedState, cursor: Cursor, group: Group) -> list[ShardedState]:
        """The states of all workers, on the first one; most strategies have them there already. Collective."""
        mine = json.dumps([_not_finite(state), bool(state.pieces)]).encode()
        words = [json.loads(word) for word in group.gather_bytes(mine, "agreeing to save")]
        bad = next((name for name, _ in words if name), None)
        if bad is not None:
            raise NonFiniteState(cursor.step, bad)
        if not any(has for _, has in words[1:]):
            return [state]
        first = group.rank == 0
        packed = group.gather_bytes(b"" if first else pack_state(state), "collecting the model")
        return [state, *(unpack_state(part) for part in packed[1:])] if first else [state]

    def poll(self) -> list[Event]:
        """What has been completed since the last call; raises what went wrong in the background."""
        if self._writer is None:
            return []
        try:
            saved = self._writer.poll()
        except OSError as error:
            raise disk_error(self._directory, error) from error
        if saved:
            self.last_path = str(saved[-1].path)
        mirrored = self._mirroring.poll() if self._mirroring is not None else []
        return [*(CheckpointSaved(one.cursor, str(one.path), one.size_bytes, one.seconds) for one in saved), *mirrored]

    def flush(self, deadline_s: float = 120.0) -> list[Event]:
        """Wait until everything is on disk."""
        if self._writer is not None:
            try:
                self._writer.flush(deadline_s)
            except OSError as error:
                raise disk_error(self._directory, error) from error
        return self.poll()

    def follow_mirror(self, deadline_s: float, tick: Callable[[], None]) -> Iterator[Event]:
        """Wait until the last checkpoint is in the mirror; yields how far that is, whenever it has got on. `tick` is
        called at least once a second."""
        mirroring = self._mirroring
        if mirroring is None:
            return
        until_s, told = time.monotonic() + deadline_s, -1.0
        while not mirroring.wait(max(0.0, min(_SHOW_S, until_s - time.monotonic()))):
            tick()
            yield from mirroring.poll()
            under = mirroring.under
            if under is None:
                continue
            if time.monotonic() >= until_s:
                yield Mirrored(under.name, mirroring.place, "left", reason=f"waited {deadline_s:.0f} s for it")
                return
            part = under.moved_bytes / under.total_bytes if under.total_bytes else 0.0
            if part != told:
                told = part
                yield Mirrored(under.name, mirroring.place, "copying", part=round(part, 3))
        yield from mirroring.poll()

    def newest_anywhere(self, tell: Callable[[Event], None]) -> Resumed | None:
        """The newest good checkpoint of run directory and mirror."""
        if self._mirror is not None:
            self._mirror.bring_newest(tell)
        return self.newest(tell)

    def newest(self, tell: Callable[[Event], None]) -> Resumed | None:
        """The newest good checkpoint on disk; what a killed run has left half-written is removed."""
        catalog = Catalog(self._directory)
        catalog.clean()
        found = catalog.newest_valid(lambda words: tell(Warned(words)))
        if found is None:
            return None
        checkpoint = read(found.path)
        pieces = dict(checkpoint.state.pieces)
        counts = pieces.pop(_COUNTS).tensor
        meta = dict(checkpoint.meta)
        cursor = checkpoint.cursor
        ledger = Ledger(
            cursor=cursor,
            data=meta.get("data"),
            values=dict(meta["evaluation"]),
            evaluated=cursor if meta["evaluated"] else None,
            saved=cursor,
            due=list(meta.get("due", ())),
            arrivals=Instalment.from_json(meta["arrivals"]) if "arrivals" in meta else NOTHING,
        )
        self.last_path = str(found.path)
        return Resumed(
            found.path,
            Live(
                ShardedState(pieces, checkpoint.state.values),
                counts,
                CoverageTotals.from_json(meta["coverage"]),
                (meta["epoch_loss"], meta["epoch_weight"]),
                ledger,
            ),
        )

    def close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            try:
                writer.close()
            finally:
                mirroring, self._mirroring = self._mirroring, None
                if mirroring is not None:
                    mirroring.close()
