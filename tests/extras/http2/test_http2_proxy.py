"""HTTP/2 through an HTTP proxy."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
from http2_server import hypercorn
from relays import http_proxy

from pytest_llmbench.harness.session import BenchSession
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

DEADLINES = Deadlines(connect_s=5, first_byte_s=10, between_chunks_s=10, total_s=20, drain_s=20)
PLAN = LoadPlan(
    "test", SyntheticWorkload("small", Fixed(32), Fixed(4)), ClosedLoop(2), 6, 1, deadlines=DEADLINES
)


@pytest.mark.parametrize("tls", [False, True])
def test_http2_goes_through_a_tunnel(tmp_path: Path, tls: bool) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    options = ("--certfile", str(certificate), "--keyfile", str(key)) if tls else ()
    with hypercorn(*options, tls=tls) as url, http_proxy() as log:
        session = BenchSession(Settings(endpoint=url, proxy=log.url, workers=1, insecure=tls, http="2"))
        try:
            seen = session.execute(PLAN, url)
        finally:
            session.close()
    assert seen.records.counts()["ok"] == 6
    assert seen.selfcheck.transport == "http/2"
    connects = [line for line in log.asked if line.startswith("CONNECT")]
    assert set(connects) == {f"CONNECT {urlsplit(url).netloc} HTTP/1.1"}
    assert len(connects) >= 2, "the connection that asks for HTTP/2, and the load's"
