from __future__ import annotations

import numpy as np
import pytest

from pytest_llmbench.metrics.definitions import is_metric
from pytest_llmbench.metrics.input_lengths import EDGES, LABELS, by_input_length
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.model.records import MISSING


def test_labels() -> None:
    assert LABELS == ("0-256", "256-512", "512-1024", "1024-2048", "2048-4096", "4096+")
    assert len(EDGES) == len(LABELS)


def test_buckets_are_half_open() -> None:
    tokens = np.array([0, 255, 256, 511, 512, 1023, 1024, 2047, 2048, 4095, 4096, 1_000_000])
    buckets = by_input_length(np.arange(12.0), tokens)
    assert [bucket.label for bucket in buckets] == list(LABELS)
    assert [bucket.count for bucket in buckets] == [2] * 6
    assert [bucket.metrics[f"ttft[{bucket.label}].min"].point for bucket in buckets] == [0, 2, 4, 6, 8, 10]


def test_empty_buckets_are_left_out_and_order_is_kept() -> None:
    buckets = by_input_length(np.array([5.0, 1.0, 6.0]), np.array([5000, 10, 5000]))
    assert [(bucket.label, bucket.count) for bucket in buckets] == [("0-256", 1), ("4096+", 2)]


def test_a_bucket_is_the_distribution_of_its_samples() -> None:
    random = np.random.default_rng(2)
    samples, tokens = random.lognormal(size=900), random.integers(0, 512, size=900)
    (short, longer) = by_input_length(samples, tokens)
    assert short.metrics == distribution("ttft[0-256]", samples[tokens < 256])
    assert longer.metrics == distribution("ttft[256-512]", samples[tokens >= 256])
    assert all(is_metric(name) for name in short.metrics)


def test_runs_stay_apart() -> None:
    random = np.random.default_rng(2)
    runs = [random.lognormal(size=300), np.array([]), random.lognormal(size=200)]
    tokens = [np.full(len(run), 100) for run in runs]
    (bucket,) = by_input_length(runs, tokens)
    assert bucket.metrics == distribution("ttft[0-256]", runs)


def test_unknown_lengths_belong_nowhere() -> None:
    buckets = by_input_length(np.array([1.0, 2.0]), np.array([MISSING, 300]))
    assert [(bucket.label, bucket.count) for bucket in buckets] == [("256-512", 1)]
    assert by_input_length(np.array([]), np.array([], dtype=np.int64)) == []
    assert by_input_length([], []) == []


def test_lengths_have_to_match() -> None:
    with pytest.raises(ValueError, match="every sample needs its input length"):
        by_input_length(np.array([1.0, 2.0]), np.array([300]))
