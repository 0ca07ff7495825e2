"""When certificates expire is a metric that follows renewed files, and a warning if they are due at the start."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import prometheus_client
import pytest
from structlog.testing import capture_logs

from podrace import telemetry, tls
from podrace.certificates.expiry import EXPIRY, CertificateFile, watch
from podrace.certificates.folder import CertificateFolder
from podrace.certificates.names import SpiffeName

NOW = datetime(2026, 6, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
ORCHESTRATOR = SpiffeName("orchestrator")


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    folder = CertificateFolder.create(tmp_path / "certs", NOW)
    folder.add(ORCHESTRATOR, ["localhost"], NOW, YEAR)
    return folder


@pytest.fixture
def environ(folder: CertificateFolder) -> Iterator[dict[str, str]]:
    own = folder.path / "orchestrator"
    yield {tls.CERTIFICATE: str(own / "tls.crt"), tls.AUTHORITY: str(own / "ca.crt")}
    EXPIRY.clear()


def exported(certificate: str) -> float | None:
    return prometheus_client.REGISTRY.get_sample_value(
        "podrace_tls_certificate_expiry_time_seconds", {"certificate": certificate}
    )


def test_the_metric_is_the_end_of_each_certificate_and_follows_a_renewal(
    folder: CertificateFolder, environ: dict[str, str]
) -> None:
    watch(environ, NOW.timestamp())
    assert exported("own") == (NOW + YEAR).timestamp()
    assert exported("authority") == (NOW + timedelta(days=3650)).timestamp()
    folder.renew("orchestrator", NOW + YEAR / 2)
    renewed = exported("own")
    assert renewed is not None
    assert renewed > (NOW + YEAR * 1.4).timestamp()


def test_a_file_that_is_missing_while_it_is_replaced_keeps_its_last_value(environ: dict[str, str]) -> None:
    path = Path(environ[tls.CERTIFICATE])
    file = CertificateFile(path, is_bundle=False)
    path.unlink()
    assert file.expiry_seconds() == (NOW + YEAR).timestamp()
    assert math.isnan(CertificateFile(path, is_bundle=False).expiry_seconds())


def test_of_a_chain_the_first_certificate_to_expire_counts_and_of_authorities_the_last(
    environ: dict[str, str], tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join(Path(path).read_bytes() for path in environ.values()))
    first, last = (CertificateFile(both, is_bundle=is_bundle).expiry_seconds() for is_bundle in (False, True))
    assert first == (NOW + YEAR).timestamp() < last


@pytest.mark.parametrize(("part", "warned"), [(0.6, False), (0.7, True), (1.1, True)])
def test_a_certificate_with_less_than_a_third_of_its_lifetime_is_reported_at_the_start(
    environ: dict[str, str], part: float, warned: bool
) -> None:
    with capture_logs() as lines:
        watch(environ, (NOW + YEAR * part).timestamp())
    assert [line["file"] for line in lines] == [environ[tls.CERTIFICATE]] * warned
    assert all(line["log_level"] == "warning" and line["expires"].startswith("2027-06-01") for line in lines)


def test_a_process_exports_it_when_its_telemetry_starts(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    telemetry.start(telemetry.TelemetryConfig(metrics_listen=""), service="orchestrator")
    assert exported("own") == (NOW + YEAR).timestamp()
