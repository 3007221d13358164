"""Files of other load generators: their results beside ours, and their lists of loads as tests."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.model.wording import Sentence
from pytest_llmbench.registry import Extra

_HERE = "pytest_llmbench.extras.foreign"

EXTRA = Extra(
    comparisons={"results of other tools": f"{_HERE}.comparing:ForeignComparing.read"},
    result_formats={
        name: f"{_HERE}.result_files:{name.upper()}"
        for name in ("vllm", "sglang", "aiperf", "guidellm", "inference_perf")
    },
    sentences={"foreign": f"{_HERE}:SENTENCES"},
    test_lists={"recipes": f"{_HERE}.imported:register"},
)

SENTENCES: Mapping[str, Sentence] = MappingProxyType(
    {
        "nothing_like_it": Sentence("nothing is compared with {file}: {why}"),
        "beside_file": Sentence(
            "next to {file}, a result of {tool}: [one?1 run, which does not show the noise between runs]"
            "[one!{runs} runs], {load}"
        ),
        "file_does_not_tell": Sentence("that file does not state {untold}"),
        "mean_lengths": Sentence("mean lengths: {lengths:;}"),
        "left_out_of_file": Sentence("left out of that file: {metrics:;}"),
        "metric_defined_otherwise": Sentence("{metric} of {tool} has another definition: {difference}"),
        "lengths_there_and_here": Sentence("{there} {what} tokens a request there, {here} here"),
    }
)
