"""Two Ray nodes on this machine, in a process of their own: ``python ray_nodes.py DIRECTORY``.

Prints a line of JSON when they are up; a line on stdin takes the second one away; end of stdin ends both.
Ray's own signal handlers and warnings stay out of the test session. All that Ray writes lies in DIRECTORY.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# A node that refuses connections is lost after a second and a half, not fifteen; one that answers late keeps
# the usual ten seconds for each answer. No workers ahead of the actors that are asked for.
os.environ |= {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "300",
    "RAY_enable_worker_prestart": "false",
    "RAY_prestart_worker_first_driver": "false",
}


def main(directory: str) -> None:
    # Cluster notes its address in the default directory, RAY_TMPDIR/ray, whatever temp_dir it is given, and
    # takes for granted that Ray has been used on this machine before: that it exists.
    os.environ["RAY_TMPDIR"] = directory
    (Path(directory) / "ray").mkdir()
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 2, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=options)
    try:
        second = cluster.add_node(wait=True, **options)
        print(json.dumps({"address": cluster.address}), flush=True)
        if sys.stdin.readline():
            cluster.remove_node(second, allow_graceful=False)
            print(json.dumps({"left": 1}), flush=True)
            sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
