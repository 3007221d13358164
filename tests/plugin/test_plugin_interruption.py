"""Whose signals a session takes, and that it gives them back."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from pytest_llmbench.plugin.failures import Interruption


@pytest.fixture
def handlers() -> Iterator[None]:
    """The usual ones, and afterwards those that were there."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def interruption(pytestconfig: pytest.Config, handlers: None) -> Iterator[Interruption]:
    made = Interruption(pytestconfig)
    yield made
    made.remove()


def test_a_session_that_cannot_begin_gives_them_back(handlers: None, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): ...")
    ran = pytester.runpytest_inprocess("--llm-endpoint=replay", "--llm-compare=nobody")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_the_first_signal_is_an_interruption(interruption: Interruption, number: signal.Signals) -> None:
    interruption.install()
    interruption.install()
    with pytest.raises(KeyboardInterrupt, match=number.name):
        signal.raise_signal(number)
    interruption.forget()  # a test swallowed it, and the next one begins
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


def test_the_handlers_of_before_are_there_again(interruption: Interruption) -> None:
    interruption.install()
    interruption.remove()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_handlers_of_the_suite_are_left_alone(interruption: Interruption) -> None:
    def own(_number: int, _frame: FrameType | None) -> None: ...

    signal.signal(signal.SIGTERM, own)
    interruption.install()
    assert signal.getsignal(signal.SIGTERM) is own
    interruption.remove()
    assert signal.getsignal(signal.SIGTERM) is own


def test_without_an_endpoint_nothing_is_taken(handlers: None, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import signal

        def test_x():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_a_session_that_ends_before_its_first_result_says_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from pytest_llmbench import llmbench

        @pytest.fixture
        def llm_sut():
            raise KeyboardInterrupt

        @llmbench.ttft(rate=20)
        def test_one(): ...

        @llmbench.ttft(rate=20)
        def test_two(): ...
        """
    )
    ran = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--llm-report=out", no_reraise_ctrlc=True)
    told = "*INCOMPLETE: the session was interrupted. Begun, and without a result: *_one. Not begun: *_two."
    ran.stdout.fnmatch_lines([told])
