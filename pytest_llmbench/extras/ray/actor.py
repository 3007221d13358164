"""The worker actor of Ray. Imported where Ray is: by the bridge, and on the nodes of the cluster."""

from __future__ import annotations

import importlib
from typing import Any

from pytest_llmbench.extras.ray.worker_actor import WorkerActor

ray: Any = importlib.import_module("ray")

THREADS = {"send": 1, "receive": 1, "clock": 1}
"""One thread each, so that messages arrive in order and nothing waits behind :meth:`WorkerActor.receive`."""


class RayWorkerActor(WorkerActor):
    """The worker actor with the concurrency group of each method.

    The groups are set here and not with each call, since Ray's client (``ray://``) cannot do that.
    """

    begin = ray.method(concurrency_group="send")(WorkerActor.begin)
    send = ray.method(concurrency_group="send")(WorkerActor.send)
    receive = ray.method(concurrency_group="receive")(WorkerActor.receive)
    clock = ray.method(concurrency_group="clock")(WorkerActor.clock)
