"""What results of other load generators say beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.model.wording import Sentence

SENTENCES: Mapping[str, Sentence] = MappingProxyType(
    {
        "nothing_like_it": Sentence("nothing is compared with {file}: {why}"),
        "beside_file": Sentence(
            "beside {file}, a result of {tool}: [one?1 run, which says nothing of the noise between runs]"
            "[one!{runs} runs], {load}"
        ),
        "file_does_not_tell": Sentence("that file does not tell {untold}"),
        "mean_lengths": Sentence("mean lengths: {lengths:;}"),
        "left_out_of_file": Sentence("left out of that file: {metrics:;}"),
        "metric_defined_otherwise": Sentence("{metric} of {tool} is defined otherwise: {difference}"),
        "lengths_there_and_here": Sentence("{there} {what} tokens a request there, {here} here"),
    }
)
