"""A host that is examined: it says what it is, and measures its links when told to."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from shoal.core.errors import ShoalError, UserError
from shoal.launch.doctor.exchange import Exchange
from shoal.launch.doctor.facts import gather
from shoal.launch.doctor.link import LinkServer, measure
from shoal.launch.interfaces import same_host_id

REACH_S = 10.0  # for the examiner to answer
ORDER_S = 60.0  # without an order for so long, the examiner is gone


def attend(exchange: Exchange, address: str, name: str, order_s: float = ORDER_S) -> str:
    """Be examined as the host `name`, with this `address` of it, to the end. Returns the examiner's last word.

    Raises a `UserError` if there is no examiner, or none any more."""
    try:
        number = exchange.arrive(REACH_S)
    except ShoalError:
        raise UserError(
            "nobody examines there: is `shoal doctor --listen` still running, is the key file its own, and is its port "
            "open to this host?"
        ) from None
    token = exchange.get("token", REACH_S)
    if not isinstance(token, str):
        raise UserError("the examiner gave no token: it is another version of Shoal, or has just ended")
    with LinkServer(address, bytes.fromhex(token)) as server:
        facts = dataclasses.replace(gather(address), host=name)
        exchange.put(f"{number}/facts", {"facts": facts.to_json(), "port": server.port, "id": same_host_id()})
        for order_number in range(1 << 20):
            order = exchange.get(f"{number}/order/{order_number}", order_s)
            if order is None:
                raise UserError(f"the examiner gave no order for {order_s:.0f} s: it has ended, or cannot be reached")
            if order["kind"] == "end":
                return str(order["words"])
            exchange.put(f"{number}/answer/{order_number}", _obey(order, bytes.fromhex(token)))
    raise AssertionError("an examination has few orders")


def _obey(order: dict[str, Any], token: bytes) -> dict[str, Any]:
    if order["kind"] == "clock":
        return {"time": time.time()}
    try:
        found = measure(order["address"], order["port"], token, order["seconds"])
    except OSError as error:
        return {"problem": f"cannot be reached ({error.strerror or error})"}
    return {"bytes_per_s": found.bytes_per_s, "latency_s": found.latency_s}
