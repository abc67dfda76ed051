"""A whole model on one worker: what data-parallel strategies share, whatever way they synchronise."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from shoal.checkpoint.model_state import dump_model, load_model
from shoal.checkpoint.optimizer_state import dump_optimizer, load_optimizer
from shoal.core.config import Clip
from shoal.core.errors import ConfigError
from shoal.core.order import digest
from shoal.core.seeds import grain_seed, step_seed
from shoal.core.state import Piece, ShardedState
from shoal.strategies import fused
from shoal.strategies.base import Pass, Runtime, Span, Sums, Work
from shoal.strategies.batch_statistics import BatchStatistics
from shoal.strategies.buffers import RunningBuffers
from shoal.strategies.drawing import SampleDrawing
from shoal.strategies.memory import arrange
from shoal.strategies.objective import Batch, LossSum
from shoal.strategies.program import Program


@dataclass
class Gradient:
    """What the passes of a worker gave: sums over its samples. The gradient itself is in the parameters."""

    loss_sum: float = 0.0
    weight: float = 0.0


_PASSING = "passing."  # before the names of buffers that are not kept


class ModelReplica:
    """The module, its optimizer and its running statistics, with the computing that law 1 asks for."""

    def __init__(self, program: Program, runtime: Runtime) -> None:
        self.program = program
        self.runtime = runtime
        self.module: nn.Module = program.model.to(runtime.world.device)
        self.module.train()
        if runtime.layout == "channels_last":
            self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in the stubs
        self.optimizer = program.build_optimizer()
        fused.choose_fused(self.optimizer)
        self.initial_learning_rates = tuple(float(group["lr"]) for group in self.optimizer.param_groups)
        self.parameters = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        self.buffers = RunningBuffers(self.module)
        self.statistics: BatchStatistics | None = None  # of the whole global batch, where that is asked for
        self.exchanged_s = {"forward": 0.0, "backward": 0.0}  # of this step, waiting for those of others
        self._drawing = SampleDrawing(self.module, runtime.draws) if runtime.draws is not None else None
        self._differentiates = False  # the loss does, when it is evaluated
        self._tables = {
            id(part.weight)
            for part in self.module.modules()
            if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse
        }

    def dense(self, parameter: Tensor) -> Tensor:
        """The gradient of `parameter`, of all rows where an embedding makes it sparse."""
        grad = parameter.grad
        assert grad is not None
        if grad.is_sparse and id(parameter) in self._tables:
            return grad.to_dense()
        refuse_sparse(grad)
        return grad

    def meet(self, runtime: Runtime) -> None:
        """Look at batches together with the workers of a view, where that is asked for. Collective."""
        together = runtime.statistics == "global" and runtime.view.size > 1
        self.statistics = BatchStatistics(self.module, runtime) if together else None

    def compute(self, work: Work, before_last: Callable[[Gradient], None]) -> Gradient:
        """Run the passes, each with `collect` after its backward.

        `before_last` is called once, between forward and backward of the last pass (or without any pass), with the
        loss and weight of all passes: from then on gradients become final one after the other.
        """
        gradient = Gradient()
        control, seat, spans = self.runtime.control, self.runtime.world.seat, self.runtime.spans
        step = work.batch.cursor.step
        for _, parameter in self.parameters:
            parameter.grad = None
        self.buffers.begin()
        statistics, self.exchanged_s = self.statistics, {"forward": 0.0, "backward": 0.0}
        if statistics is not None:
            statistics.begin()
        passes = [one for one in work.passes if one.samples]  # samples that cannot be read may be left out
        for at, one in enumerate(passes):
            control.enter(seat, step, "forward")
            with spans("forward"), self._sums_out_of_reach():
                with self._drawn(one, step):
                    loss = self._forward(one.batch)
                share = one.samples / work.batch.samples
                self.buffers.after_pass(statistics.share(share) if statistics is not None else share)
                gradient.loss_sum += float(loss.total.detach())
                gradient.weight += loss.weight
            self._note_exchanged("forward")
            if at == len(passes) - 1:
                before_last(gradient)
            control.enter(seat, step, "backward")
            with spans("backward"):
                with self._looking(), self._drawn_again():
                    self.backward(loss)
                self.collect()
        if statistics is not None:
            with spans("backward" if passes else "reduce"):
                if passes:
                    statistics.end()
                else:
                    statistics.attend()
            self._note_exchanged("backward")
        if not passes:
            before_last(gradient)
        return gradient

    @contextlib.contextmanager
    def _sums_out_of_reach(self) -> Iterator[None]:
        """A forward that computes gradients itself, and forgets them by ``zero_grad()``, forgets no earlier pass."""
        held = [(parameter, parameter.grad) for _, parameter in self.parameters if parameter.grad is not None]
        for parameter, _ in held:
            parameter.grad = None
        yield
        for parameter, grad in held:
            parameter.grad = grad if parameter.grad is None else grad + parameter.grad

    def backward(self, loss: LossSum) -> None:
        """Add the gradient of a pass to what is in the parameters."""
        loss.backward()

    def _note_exchanged(self, phase: str) -> None:
        if self.statistics is not None:
            self.exchanged_s[phase] = self.statistics.take_waited_s()

    def computed_s(self, phase: str) -> float:
        """Seconds that this step has spent in "forward" or "backward" without waiting for what others look at."""
        return self.runtime.spans.recent(phase) - self.exchanged_s[phase]

    def is_nonfinite(self, gradient: Gradient) -> bool:
        """Whether the loss is no number, and not because of what another worker has looked at."""
        return not math.isfinite(gradient.loss_sum) and (self.statistics is None or self.statistics.is_suspect)

    def collect(self) -> None:
        """A pass has left its gradient in the parameters. By default it stays there and the next one adds to it."""

    def _drawn(self, one: Pass, step: int) -> contextlib.AbstractContextManager[None]:
        """What the model draws in this pass depends on (seed, step, sample), or on (seed, step, grain) where it cannot
        be told apart by sample."""
        if self._drawing is not None:
            return self._drawing.forward(one.indices, step_seed(self.runtime.seed, step))
        seed = grain_seed(self.runtime.seed, step, one.grains[0].number)
        torch.default_generator.manual_seed(seed)
        if self.runtime.world.device.startswith("cuda"):
            torch.cuda.manual_seed(seed)
        return contextlib.nullcontext()

    def _drawn_again(self) -> contextlib.AbstractContextManager[None]:
        """The same pass goes backward, and may run parts of the model again."""
        return self._drawing.backward() if self._drawing is not None else contextlib.nullcontext()

    def _forward(self, batch: Batch) -> LossSum:
        self.buffers.before_pass()
        with self._autocast(), self._looking():
            return self.program.objective(self.module, self._place(batch))

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        """What looks at its batch looks at that of all workers, where that is asked for: also where backward runs parts
        of the model again (activation checkpointing)."""
        if self.statistics is None:
            yield
            return
        with self.statistics.shared(), self.statistics.checked():
            yield

    def _place(self, batch: Batch) -> Batch:
        return arrange(to_device(batch, self.runtime.world.device), self.runtime.layout)

    def _autocast(self) -> contextlib.AbstractContextManager[None]:
        if self.runtime.precision == "bf16":
            return torch.autocast(self.runtime.world.device.split(":")[0], dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def update(self, learning_rates: tuple[float, ...], buffer_change: Tensor) -> None:
        """Apply the gradient that is in the parameters, and the group's change of the running statistics."""
        clip_gradients(self.runtime.clip, [p for _, p in self.parameters])
        self._set_rates(learning_rates)
        fused.step(self.optimizer)
        clip_weights(self.runtime.clip, [p for _, p in self.parameters])
        self.buffers.commit(buffer_change)

    def _set_rates(self, learning_rates: tuple[float, ...]) -> None:
        for group, learning_rate in zip(self.optimizer.param_groups, learning_rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(learning_rate)
            else:
                group["lr"] = learning_rate

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Sums:
        """Loss and metrics of `batch` in evaluation mode, as sums and weights."""
        was_training = self.module.training
        self.module.eval()
        try:
            batch = self._place(batch)
            loss = self._evaluated(batch)
            sums: Sums = {"loss": (float(loss.total.detach()), loss.weight)}
            for name, metric in self.program.metrics.items():
                given = (self.module, batch) if loss.output is None else (loss.output, loss.target)
                value = metric(*given)
                if isinstance(value, tuple):
                    sums[name] = (float(value[0]), float(value[1]))
                else:
                    sums[name] = (float(value.double().sum()), float(value.numel()))
            return sums
        finally:
            self.module.train(was_training)

    def _evaluated(self, batch: Batch) -> LossSum:
        """The loss of `batch`. A loss that differentiates, such as one with a gradient penalty, needs a graph for it;
        that costs time and memory, so only those get one that have failed without."""
        failed: RuntimeError | None = None
        if not self._differentiates:
            try:
                with self._autocast():
                    return self.program.objective(self.module, batch)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                failed = error
        try:
            with torch.enable_grad(), self._autocast():
                loss = self.program.objective(self.module, batch)
        except RuntimeError:
            if failed is None:
                raise
            raise failed from None  # it was no lack of a graph
        self._differentiates = True
        return loss

    def discard(self) -> None:
        """The step under way is broken off: no gradient, no draw and no statistic of it is left."""
        self.buffers.rollback()
        for _, parameter in self.parameters:
            parameter.grad = None

    def state(self) -> ShardedState:
        tensors, aliases = dump_model(self.module)
        names = {parameter: name for name, parameter in self.module.named_parameters()}
        optimizer, values = dump_optimizer(self.optimizer, names)
        whole = {name: Piece.whole(tensor) for name, tensor in {**tensors, **optimizer}.items()}
        return ShardedState(whole, {"optimizer": values, "aliases": aliases})

    def live_state(self) -> ShardedState:
        """The state, and the buffers that no checkpoint holds: a newcomer must begin with those of the others, too."""
        state, persistent = self.state(), self.module.state_dict(keep_vars=True)
        passing = {
            f"{_PASSING}{name}": Piece.whole(buffer)
            for name, buffer in self.module.named_buffers()
            if name not in persistent
        }
        return ShardedState({**state.pieces, **passing}, state.values)

    @torch.no_grad()
    def load(self, state: ShardedState) -> None:
        for name, buffer in self.module.named_buffers():
            if (piece := state.pieces.get(f"{_PASSING}{name}")) is not None:
                buffer.copy_(piece.tensor)
        tensors = {name: piece.tensor for name, piece in state.pieces.items()}
        load_model(self.module, tensors)
        names = {parameter: name for name, parameter in self.module.named_parameters()}
        load_optimizer(self.optimizer, names, tensors, state.values["optimizer"])


def refuse_sparse(grad: Tensor) -> None:
    """Raise `ConfigError` where a gradient is sparse: sums over grains and workers are dense."""
    if grad.is_sparse:
        raise ConfigError(
            "the model makes sparse gradients for a parameter that is not the weight of an nn.Embedding or "
            "nn.EmbeddingBag that says sparse=True: use one of these, or sparse=False"
        )


def committed_indices(work: Work) -> npt.NDArray[np.int64]:
    """The samples that went through the model in this step on this worker."""
    if not work.passes:
        return np.empty(0, dtype=np.int64)
    return np.concatenate([one.indices for one in work.passes])


def span_of(work: Work) -> Span:
    """What this worker computed in this step."""
    if not work.passes:
        return Span(0, 0, 0)
    return Span(work.passes[0].grains[0].start, work.passes[-1].grains[-1].stop, digest(committed_indices(work)))


def to_device(batch: Batch, device: str) -> Batch:
    """Move all tensors of a batch to `device`."""
    if device == "cpu":
        return batch
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def clip_gradients(clip: Clip, parameters: list[nn.Parameter]) -> None:
    """Clip the gradient of the global batch, by value first and by global norm then. Of a sparse one, its rows."""
    dense = [_with_rows(parameter) for parameter in parameters]
    if clip.value is not None:
        nn.utils.clip_grad_value_(dense, clip.value)
    if clip.norm is not None:
        nn.utils.clip_grad_norm_(dense, clip.norm)


def _with_rows(parameter: nn.Parameter) -> Tensor:
    """The parameter; where its gradient is sparse, a tensor whose gradient is the rows of that one, in its memory:
    PyTorch clips no sparse tensors."""
    if parameter.grad is None or not parameter.grad.is_sparse:
        return parameter
    parameter.grad = parameter.grad.coalesce()
    rows = parameter.grad.values()
    stand_in = torch.empty_like(rows)
    stand_in.grad = rows
    return stand_in


@torch.no_grad()
def clip_weights(clip: Clip, parameters: list[nn.Parameter]) -> None:
    """Keep trained weights within a range."""
    if clip.weights is not None:
        for parameter in parameters:
            parameter.clamp_(*clip.weights)
