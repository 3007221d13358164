"""Loaded before any test: everything that the plugin loads lazily.

pytester's in-process runs forget the modules that they loaded, and extension modules such as NumPy's cannot
be loaded twice in a process. "cannot load module more than once per process" means that one is missing here.
"""

import httpcore
import matplotlib.backends.backend_svg
import matplotlib.figure
import numpy.fft
import numpy.random
import psutil
import scipy.stats
import tiktoken
import uvloop
import yaml  # noqa: F401

import pytest_llmbench.harness.reporting
import pytest_llmbench.harness.session  # noqa: F401
