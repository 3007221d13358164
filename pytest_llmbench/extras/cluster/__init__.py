"""Several embedded engines behind a router: replicas, or prefill and decode apart."""

from __future__ import annotations

from pytest_llmbench.registry import Extra

EXTRA = Extra(
    deployments=dict.fromkeys(
        (
            "replicas",
            "router",
            "router_max_lead",
            "prefill_workers",
            "decode_workers",
            "decode_router",
            "kv_transfer_gb_per_s",
            "kv_transfer_latency_us",
        ),
        "pytest_llmbench.extras.cluster.engines:ClusterOptions",
    )
)
