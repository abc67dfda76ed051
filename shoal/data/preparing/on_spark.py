"""The engine `spark`: each task is a job of one task on a Spark cluster, by default on this machine (``local[N]``).

The package is sent to a cluster; what it needs besides (pyarrow, fsspec, credentials) must be there. On this machine
all ports are on loopback.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from shoal.core.errors import ConfigError
from shoal.data.preparing.attempts import Attempts
from shoal.data.preparing.engine import Engine, NothingEnds, Say
from shoal.data.preparing.local import cores
from shoal.data.preparing.reach import knock
from shoal.data.preparing.task import Result, Task
from shoal.data.preparing.worker import answer, settle_arrow

_PACKAGE = Path(__file__).parents[2]
_ENDS_WITHIN_S = 30.0
_GROUP = "shoal-prepare"
_LOG = "spark.log"


class SparkEngine(Engine):
    """On the cluster of `master`, else on this machine with `processes` workers; `settings` are Spark's own,
    ``spark.…``. A program that has a `SparkContext` keeps it, and it is used.

    Raises `ConfigError` if there is no Spark, no Java, or nobody at `master`.
    """

    name = "spark"

    def __init__(
        self,
        master: str | None = None,
        processes: int | None = None,
        say: Say = lambda words: None,
        settings: Mapping[str, str] | None = None,
        *,
        shared_paths: bool = False,
    ) -> None:
        self._say, self._shared_paths = say, shared_paths
        pyspark = _library()
        with contextlib.ExitStack() as closing:
            if pyspark.SparkContext._active_spark_context is None:
                started = _start(pyspark, master or f"local[{processes or cores()}]", settings or {}, closing)
            else:
                started = pyspark.SparkContext._active_spark_context
            self._context = started
            self._closing = closing.pop_all()

    @property
    def slots(self) -> int:
        return int(self._context.defaultParallelism)

    @property
    def spans_machines(self) -> bool:
        return not str(self._context.master).startswith("local") and not self._shared_paths

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        attempts, waiting = Attempts(tasks, self._say), list(range(len(tasks)))[::-1]
        running: dict[Future[dict[str, Any]], int] = {}
        with ThreadPoolExecutor(self.slots, "shoal-spark") as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < self.slots:
                        number = waiting.pop()
                        running[pool.submit(self._perform, tasks[number])] = number
                    ended = wait(running, self.silence_s, FIRST_COMPLETED).done
                    if not ended:
                        raise NothingEnds((tasks[number] for number in running.values()), self.silence_s)
                    for future in ended:
                        number = running.pop(future)
                        result = attempts.judge(number, future.result())
                        if result is None:
                            waiting.append(number)
                        else:
                            yield number, result
            finally:
                if running:
                    self._context.cancelJobGroup(_GROUP)

    def _perform(self, task: Task) -> dict[str, Any]:
        """In a thread of its own."""
        import cloudpickle
        from py4j.protocol import Py4JError

        try:
            self._context.setJobGroup(_GROUP, task.about, interruptOnCancel=True)
            rows = self._context.parallelize([cloudpickle.dumps(task)], 1)
            heard: dict[str, Any] = rows.mapPartitions(_perform).collect()[0]
        except Py4JError as error:  # its process or its machine has ended
            return {"failed": _cause(error)}
        return heard

    def close(self) -> None:
        self._closing.close()


def _perform(frames: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """On a machine of the cluster."""
    settle_arrow()
    for frame in frames:
        yield answer(frame)


def _library() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it thinks of other libraries
            import pyspark
    except ImportError:
        raise ConfigError("--engine spark needs Spark, which is not installed: pip install 'shoal[spark]'") from None
    return pyspark


def _start(pyspark: Any, master: str, settings: Mapping[str, str], closing: contextlib.ExitStack) -> Any:
    _refuse_without_java()
    folder = Path(tempfile.mkdtemp(prefix="shoal-spark-"))
    closing.callback(shutil.rmtree, folder, ignore_errors=True)
    here = master.startswith("local")
    configuration = pyspark.SparkConf().setMaster(master).setAppName(_GROUP)
    chosen = {
        "spark.local.dir": str(folder),
        "spark.task.maxFailures": "1",  # this engine tries again, and says so
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if here:
        python_path = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        chosen |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.pyspark.python": sys.executable,
            "spark.executorEnv.PYTHONPATH": python_path,
            "spark.executorEnv.OMP_NUM_THREADS": "1",
        }
    for name, value in {**chosen, **settings}.items():
        configuration.set(name, value)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    try:
        knock(master)
    except OSError as error:
        raise _refused(master, str(error)) from None
    gateway = _java(configuration, folder / _LOG)
    closing.callback(_end, gateway)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            context = pyspark.SparkContext(conf=configuration, gateway=gateway)
    except Exception as error:
        raise _refused(master, _cause(error)) from None
    closing.callback(context.stop)
    if not here:
        context.addPyFile(str(_zipped(folder)))
    return context


def _refused(master: str, why: str) -> ConfigError:
    return ConfigError(
        f"Spark cannot be used on {master}: {why}. Check --engine-option master, and that the cluster runs the same "
        "versions of Python and Spark"
    )


def _java(configuration: Any, log: Path) -> Any:
    """The process of Java that leads. What it has to say goes to `log`."""
    from pyspark.java_gateway import launch_gateway

    sys.stderr.flush()
    terminal = os.dup(2)
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        return launch_gateway(configuration)  # type: ignore[no-untyped-call] # it has no types
    except Exception as error:
        said = log.read_text(errors="replace").splitlines()[-5:]
        raise ConfigError("Spark does not start: " + "\n".join([str(error), *said])) from None
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def _end(gateway: Any) -> None:
    """End the process of Java, and let another be started."""
    import pyspark

    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    pyspark.SparkContext._gateway = pyspark.SparkContext._jvm = None


def _zipped(folder: Path) -> Path:
    """The package, as Spark sends it around."""
    file = folder / "shoal.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(_PACKAGE.rglob("*.py")):
            archive.write(path, str(path.relative_to(_PACKAGE.parent)))
    return file


def _refuse_without_java() -> None:
    home = os.environ.get("JAVA_HOME")
    try:
        words = [f"{home}/bin/java" if home else "java", "-version"]
        subprocess.run(words, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        raise ConfigError(
            "--engine spark needs Java 17 or newer, and there is none: install it (Debian: apt-get install "
            "openjdk-17-jre-headless), or set JAVA_HOME"
        ) from None


def _cause(error: Exception) -> str:
    """The line of it that a person wants: Java's own words without where they were said."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    found = causes[-1] if causes else next((line for line in lines if "xception" in line), lines[0] if lines else "")
    return found or type(error).__name__
