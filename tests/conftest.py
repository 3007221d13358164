"""Loaded before any test: everything that the plugin loads lazily.

pytester's in-process runs forget the modules that they loaded, and extension modules such as NumPy's cannot
be loaded twice in a process. "cannot load module more than once per process" means that one is missing here.
"""

import os
import signal
import tempfile

import httpcore  # noqa: F401
import matplotlib.backends.backend_svg
import matplotlib.figure  # noqa: F401
import numpy.fft
import numpy.random  # noqa: F401
import orjson  # noqa: F401
import psutil  # noqa: F401
import scipy.stats  # noqa: F401
import tiktoken  # noqa: F401
import uvloop  # noqa: F401
import yaml  # noqa: F401

import pytest_llmbench.harness.reporting
import pytest_llmbench.harness.session  # noqa: F401

# A selftest that the developer ran here would add findings of its own to the results under test.
os.environ["PYTEST_LLMBENCH_STATE_DIR"] = tempfile.mkdtemp(prefix="llmbench-tests-")

# A run in the background of a shell without job control inherits an ignored SIGINT, and so would the
# processes that tests start in order to interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
