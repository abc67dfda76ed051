"""The engine `ray`: tasks are remote functions of a Ray cluster, a running one or one of this machine alone.

A cluster that is given is left running; the package is sent to it, what it needs besides (pyarrow, fsspec, credentials)
must be there. One that is started here ends with the engine, and its ports ask for a token (which Ray can only be
told before it is imported: a program that has imported it decides that itself).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import ConfigError
from shoal.data.preparing.attempts import Attempts
from shoal.data.preparing.engine import Engine, NothingEnds, Say
from shoal.data.preparing.local import cores
from shoal.data.preparing.reach import knock
from shoal.data.preparing.task import Result, Task
from shoal.data.preparing.worker import answer, settle_arrow

_STORE_BYTES = 80 << 20  # Ray wants this much; tasks pass files to each other, not objects
_AHEAD = 4  # tasks that wait on the cluster for each that runs
_PACKAGE = Path(__file__).parents[2]


class RayEngine(Engine):
    """On the cluster at `address` (``auto``, ``host:port``; default: `RAY_ADDRESS`), else on a cluster that it starts
    here, with `processes` workers. A program that has called `ray.init` itself keeps its connection.

    Raises `ConfigError` if there is no Ray or nobody at the address.
    """

    name = "ray"

    def __init__(
        self,
        address: str | None = None,
        processes: int | None = None,
        say: Say = lambda words: None,
        *,
        shared_paths: bool = False,
    ) -> None:
        self._say, self._shared_paths = say, shared_paths
        address = address or os.environ.get("RAY_ADDRESS") or None
        with contextlib.ExitStack() as closing:
            if address is None and "ray" not in sys.modules:
                closing.enter_context(_environment({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}))
            ray = _library()
            if not ray.is_initialized():
                closing.callback(ray.shutdown)
                _join(ray, address) if address else _start(ray, processes or cores(), closing)
            self._remote = ray.remote(num_cpus=1, max_retries=0)(_perform)
            self._closing = closing.pop_all()

    @property
    def slots(self) -> int:
        return max(1, int(_library().cluster_resources().get("CPU", 1)))

    @property
    def spans_machines(self) -> bool:
        names = {node["NodeManagerHostname"] for node in _library().nodes() if node["Alive"]}
        return len(names) > 1 and not self._shared_paths

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        import cloudpickle

        ray = _library()
        attempts, waiting = Attempts(tasks, self._say), list(range(len(tasks)))[::-1]
        running: dict[Any, int] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.slots * _AHEAD:
                    number = waiting.pop()
                    running[self._remote.remote(cloudpickle.dumps(tasks[number]))] = number
                ended = ray.wait(list(running), timeout=self.silence_s)[0]
                if not ended:
                    raise NothingEnds((tasks[number] for number in running.values()), self.silence_s)
                for reference in ended:
                    number = running.pop(reference)
                    result = attempts.judge(number, _heard(ray, reference))
                    if result is None:
                        waiting.append(number)
                    else:
                        yield number, result
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def close(self) -> None:
        self._closing.close()


def _library() -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError("--engine ray needs Ray, which is not installed: pip install 'shoal[ray]'") from None
    return ray


def _join(ray: Any, address: str) -> None:
    try:
        knock(address)
        ray.init(
            address=address,
            runtime_env={"py_modules": [str(_PACKAGE)], "excludes": ["**/__pycache__"]},
            logging_level="ERROR",
            log_to_driver=False,
        )
    except (OSError, ValueError, RuntimeError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"no Ray cluster can be used at {address}: {said[0]}. Check --engine-option address (or RAY_ADDRESS), and "
            "that the cluster runs the same versions of Python and Ray"
        ) from None


def _start(ray: Any, processes: int, closing: contextlib.ExitStack) -> None:
    """A cluster on loopback for this engine alone; it leaves nothing behind."""
    folder = tempfile.mkdtemp(prefix="shoal-ray-")
    closing.callback(shutil.rmtree, folder, ignore_errors=True)
    closing.callback(ray.shutdown)
    setting = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    closing.enter_context(_environment(setting))
    ray.init(
        num_cpus=processes,
        include_dashboard=False,
        object_store_memory=_STORE_BYTES,
        logging_level="ERROR",
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=folder,
    )


@contextlib.contextmanager
def _environment(setting: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in setting}
    os.environ.update(setting)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _perform(frame: bytes) -> dict[str, Any]:
    """On a node."""
    settle_arrow()
    return answer(frame)


def _heard(ray: Any, reference: Any) -> dict[str, Any]:
    try:
        heard: dict[str, Any] = ray.get(reference)
    except ray.exceptions.RayError as error:  # its process or its node has ended
        return {"failed": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"}
    return heard
