"""How this host's clock is kept, by what time daemons and the kernel say."""

from __future__ import annotations

import sys

import pytest

from pytest_llmbench.probes.host import (
    CHRONY,
    NTPD,
    Timex,
    ask_kernel,
    of_kernel,
    parse_chrony,
    parse_ntpd,
    parse_pmc,
    parse_timesyncd,
    read_clock_sync,
    run_bounded,
)

TRACKING = (
    "A29FC87B,162.159.200.123,4,1776153600.1,-0.000250000,0.000021,0.000034,"
    "-1.234,0.001,0.015,0.012000000,0.001500000,64.0,Normal\n"
)
TIMESYNC = """\
       Server: 185.125.190.57 (ntp.ubuntu.com)
Poll interval: 34min 8s (min: 32s; max 34min 8s)
         Leap: normal
      Version: 4
      Stratum: 2
    Reference: C944586A
    Precision: 1us (-24)
Root distance: 869us (max: 5s)
       Offset: +1.257ms
        Delay: 28.163ms
       Jitter: 2.178ms
 Packet count: 181
    Frequency: -13.293ppm
"""
PMC = """\
sending: GET CURRENT_DATA_SET
\t507c6f.fffe.0b4e98-0 seq 0 RESPONSE MANAGEMENT CURRENT_DATA_SET
\t\tstepsRemoved     1
\t\toffsetFromMaster -3.0
\t\tmeanPathDelay    1234.0
sending: GET TIME_STATUS_NP
\t507c6f.fffe.0b4e98-0 seq 1 RESPONSE MANAGEMENT TIME_STATUS_NP
\t\tmaster_offset              -3
\t\tingress_time               1633017321438187219
\t\tcumulativeScaledRateOffset +0.000000000
\t\tscaledLastGmPhaseChange    0
\t\tgmTimeBaseIndicator        0
\t\tlastGmPhaseChange          0x0000'0000000000000000.0000
\t\tgmPresent                  true
\t\tgmIdentity                 ec4670.fffe.0a9dd4
"""


SOURCES = {
    parse_chrony: "chronyc tracking",
    parse_ntpd: "ntpq rv",
    parse_pmc: "pmc of ptp4l",
    parse_timesyncd: "timedatectl timesync-status",
}
NTPQ = "leap=00, offset=-0.123, rootdelay=4.000,\nrootdisp=1.5, refid=192.0.2.7\n"


@pytest.mark.parametrize(
    ("parse", "answer", "method", "server", "offset_ms", "accuracy_ms"),
    [
        (parse_chrony, TRACKING, "ntp", "162.159.200.123", -0.25, 0.25 + 1.5 + 6.0),
        # older versions have a column less
        (parse_chrony, TRACKING.replace("162.159.200.123,", ""), "ntp", "A29FC87B", -0.25, 7.75),
        (parse_chrony, TRACKING.replace("162.159.200.123", "PHC0"), "ptp", "PHC0", -0.25, 7.75),
        (parse_ntpd, NTPQ, "ntp", "192.0.2.7", -0.123, 0.123 + 1.5 + 2.0),
        (parse_pmc, PMC, "ptp", "ec4670.fffe.0a9dd4", -3e-6, (3 + 1234) / 1e6),
        (parse_timesyncd, TIMESYNC, "ntp", "185.125.190.57", 1.257, 1.257 + 28.163 / 2 + 0.869),
    ],
)
def test_what_a_time_daemon_says(parse, answer, method, server, offset_ms, accuracy_ms):
    sync = parse(answer)
    assert (sync.method, sync.server, sync.source) == (method, server, SOURCES[parse])
    assert (sync.offset_ms, sync.accuracy_ms) == pytest.approx((offset_ms, accuracy_ms), rel=1e-6, abs=0)


@pytest.mark.parametrize(
    ("parse", "answer"),
    [
        (parse_chrony, ""),
        (parse_chrony, "506 Cannot talk to daemon"),
        (parse_chrony, TRACKING.replace("Normal", "Not synchronised")),
        (parse_chrony, TRACKING.replace("-0.000250000", "x")),
        (parse_ntpd, ""),
        (parse_ntpd, "ntpq: read: Connection refused"),
        (parse_ntpd, "leap=11, offset=0.0, rootdelay=0.0, rootdisp=0.0"),
        (parse_pmc, "sending: GET CURRENT_DATA_SET\nsending: GET TIME_STATUS_NP\n"),  # no ptp4l there
        (parse_pmc, PMC.replace("stepsRemoved     1", "stepsRemoved     0")),  # it is the grandmaster itself
        (parse_pmc, PMC.replace("gmPresent                  true", "gmPresent                  false")),
        (parse_pmc, PMC.replace("offsetFromMaster -3.0", "offsetFromMaster ?")),
        (parse_timesyncd, "Failed to parse bus message: No such process"),
        (
            parse_timesyncd,
            "  Server: (null) (ntp.ubuntu.com)\nPoll interval: 0 (min: 32s)\n Packet count: 0\n",
        ),
        (parse_timesyncd, TIMESYNC.replace("Leap: normal", "Leap: not synchronized")),
        (parse_timesyncd, TIMESYNC.replace("+1.257ms", "soon")),
        (parse_timesyncd, TIMESYNC.replace("28.163ms", "28.16.3ms")),
    ],
)
def test_a_time_daemon_that_follows_nobody_or_says_nothing_usable(parse, answer):
    assert parse(answer) is None


@pytest.mark.parametrize(
    ("offset", "offset_ms"),
    [("-13us", -0.013), ("+2.5s", 2500.0), ("-1min 2.5s", -62_500.0), ("0", 0.0), ("+1h 3ms", 3_600_003.0)],
)
def test_spans_of_systemd(offset, offset_ms):
    sync = parse_timesyncd(TIMESYNC.replace("+1.257ms", offset))
    assert sync is not None
    assert sync.offset_ms == pytest.approx(offset_ms)


@pytest.mark.parametrize(
    ("status", "offset_ms"),
    [(0x2001, 0.25), (0x0001, 250.0)],  # STA_NANO says that the offset is in ns, not in µs
)
def test_the_kernel_of_a_clock_that_is_kept(status, offset_ms):
    sync = of_kernel(0, Timex(offset=250_000, maxerror=1500, status=status))
    assert sync is not None
    assert (sync.offset_ms, sync.server, sync.source) == (offset_ms, None, "adjtimex")
    assert sync.accuracy_ms == pytest.approx(offset_ms + 1.5)
    assert "clock.ntp_server" not in sync.facts()


@pytest.mark.parametrize(("state", "status"), [(5, 0x2041), (0, 0x2041), (5, 0x2001), (-1, 0)])
def test_the_kernel_of_a_clock_that_is_not_kept(state, status):
    assert of_kernel(state, Timex(maxerror=16_000_000, status=status)) is None


def test_this_kernel_answers_or_does_not():
    assert ask_kernel() is None or ask_kernel().accuracy_ms >= 0


def test_chrony_is_asked_first_and_the_kernel_last():
    asked = []

    def run(command):
        asked.append(command)
        return "leap=00, offset=1.0, rootdelay=0.0, rootdisp=0.0" if command == NTPD else None

    sync = read_clock_sync(run)
    assert asked == [CHRONY, NTPD]
    assert sync is not None
    assert sync.source == "ntpq rv"
    asked.clear()
    kept = Timex(maxerror=900, status=0x2001)
    sync = read_clock_sync(lambda command: asked.append(command[0]), lambda: of_kernel(0, kept))
    assert asked == ["chronyc", "ntpq", "pmc", "timedatectl"]
    assert sync is not None
    assert sync.source == "adjtimex"
    assert read_clock_sync(lambda command: None, lambda: None) is None


def test_commands_are_bounded():
    assert run_bounded((sys.executable, "-c", "print('fine')")) == "fine\n"
    assert run_bounded((sys.executable, "-c", "import time; time.sleep(30)"), limit_s=0.2) is None
    assert run_bounded((sys.executable, "-c", "print('no'); exit(3)")) is None
    assert run_bounded(("no-such-command-here",)) is None
    assert run_bounded((sys.executable, "-c", "import os; os.write(1, b'\\xff')")) is None  # no text
