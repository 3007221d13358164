"""What a test is told when it compares a number that the sample does not give."""

from __future__ import annotations

from plugin_suite import Suite


def test_an_open_end_is_explained_where_it_is_compared(suite: Suite) -> None:
    suite.write("""
        @llmbench.ttft(rate=50, requests=90)
        def test_by_attribute(llm_result):
            assert llm_result.ttft.p99.upper < 500

        @llmbench.ttft(rate=50, requests=90)
        def test_by_name(llm_result):
            assert 0 < llm_result.metrics["ttft.p99_9"].upper

        def test_by_hand(llm_bench):
            result = llm_bench.measure("ttft", rate=50, requests=90)
            assert result.ttft.p99.upper < 500
    """)
    result = suite.measure("replay", scale="standard")
    result.assert_outcomes(failed=3)
    open_end = (
        "E *TypeError: ttft.{}.upper is None: the interval is open, 90 samples give it no upper end, about *"
    )
    result.stdout.fnmatch_lines(
        [
            open_end.format("p99"),
            "test_suite.py:5: TypeError",
            open_end.format("p99_9"),
            open_end.format("p99"),
        ]
    )
    result.stdout.fnmatch_lines(["*are needed ('<' not supported between instances of 'NoneType' and 'int')"])
    assert "about 90 are needed" not in str(result.stdout)


def test_none_stays_none_and_other_mistakes_stay_what_they_are(suite: Suite) -> None:
    suite.write("""
        import dataclasses, json
        @llmbench.ttft(rate=50, requests=90)
        def test_asks_first(llm_result):
            p99 = llm_result.ttft.p99
            assert p99.upper is None
            assert p99.lower is not None
            assert not p99.closed
            assert json.loads(json.dumps(dataclasses.asdict(p99)))["upper"] is None
            assert dataclasses.replace(p99, n=5).upper is None

        @llmbench.ttft(rate=50, requests=90)
        def test_another_mistake(llm_result):
            assert llm_result.ttft.p50.upper > 0
            assert None < 3

        @llmbench.ttft(rate=50, requests=90)
        def test_yet_another(llm_result):
            assert llm_result.ttft.p99.upper is None
            len(3)
    """)
    result = suite.measure("replay", scale="standard")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "E *TypeError: '<' not supported between instances of 'NoneType' and 'int'",
            "E *TypeError: object of type 'int' has no len()",
        ]
    )
