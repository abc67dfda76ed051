"""Futures made of futures: what is done when several things are done, or one after the other. Nothing here waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")


def done(value: T) -> Future[T]:
    """One that is done."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


def after(first: Future[S], function: Callable[[S], T]) -> Future[T]:
    """The result of `function`, called with that of `first`; it must not wait."""
    future: Future[T] = Future()

    def step(_: Future[S]) -> None:
        try:
            future.set_result(function(first.result()))
        except BaseException as error:
            future.set_exception(error)

    first.add_done_callback(step)
    return future


def chain(first: Future[S], function: Callable[[S], Future[T]]) -> Future[T]:
    """The future that `function` begins when `first` is done."""
    future: Future[T] = Future()

    def pass_on(second: Future[T]) -> None:
        error = second.exception()
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(second.result())

    def step(_: Future[S]) -> None:
        try:
            function(first.result()).add_done_callback(pass_on)
        except BaseException as error:
            future.set_exception(error)

    first.add_done_callback(step)
    return future


def gather(futures: Sequence[Future[Any]], combine: Callable[[list[Any]], T]) -> Future[T]:
    """`combine` of all results, once all are done; the first error, if there is one, once all are done."""
    future: Future[T] = Future()
    left, lock = [len(futures)], threading.Lock()

    def finish() -> None:
        try:
            future.set_result(combine([one.result() for one in futures]))
        except BaseException as error:
            future.set_exception(error)

    def step(_: Future[Any]) -> None:
        with lock:
            left[0] -= 1
            last = left[0] == 0
        if last:
            finish()

    if not futures:
        finish()
    for one in futures:
        one.add_done_callback(step)
    return future
