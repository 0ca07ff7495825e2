"""A scan passes only if it examined packages, every one of them, and found nothing."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "deploy/audit.py"
_spec = importlib.util.spec_from_file_location("podrace_audit", SCRIPT)
audit = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = audit
_spec.loader.exec_module(audit)

CLEAN = {"name": "click", "version": "8.5.1", "vulns": []}
SKIPPED = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited: torch (2.13.0)"}
FLAW = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["1.1"], "description": "..."}
VULNERABLE = {"name": "old", "version": "1.0", "vulns": [FLAW]}


@pytest.mark.parametrize(
    ("dependencies", "result", "words"),
    [
        ([CLEAN], "PASSED", "1 packages examined"),
        ([], "SKIPPED", "nothing was found"),
        ([SKIPPED], "SKIPPED", "no package was examined: torch"),
        ([CLEAN, SKIPPED], "INCOMPLETE", "1 packages examined, 1 not: torch"),
        ([CLEAN, VULNERABLE], "FAILED", "1 vulnerabilities"),
        ([SKIPPED, VULNERABLE], "FAILED", "1 vulnerabilities"),
        ([CLEAN] + [SKIPPED] * 9, "INCOMPLETE", "torch, torch, torch, torch, torch, ..."),
    ],
)
def test_only_a_complete_scan_without_findings_passes(dependencies, result, words):
    found, reason = audit.verdict(audit.of_pip_audit({"dependencies": dependencies}))
    assert found == result
    assert words in reason


def test_every_result_has_its_own_status_and_only_passed_is_success():
    assert len(set(audit.STATUS.values())) == len(audit.STATUS)
    assert [name for name, status in audit.STATUS.items() if status == 0] == ["PASSED"]


def test_a_finding_names_package_and_remedy():
    (line,) = audit.of_pip_audit({"dependencies": [VULNERABLE]}).vulnerabilities
    assert line == "old 1.0: PYSEC-1, CVE-1; fixed in 1.1"


IMAGE = {
    "Results": [
        {"Packages": [{"Name": "libc6"}, {"Name": "zlib1g"}], "Vulnerabilities": None},
        {
            "Packages": [{"Name": "click"}],
            "Vulnerabilities": [
                {"PkgName": "click", "InstalledVersion": "1", "VulnerabilityID": "CVE-2", "Severity": "HIGH"}
            ],
        },
    ]
}


def test_an_image_without_packages_was_not_examined():
    assert audit.verdict(audit.of_trivy("a", {"Results": None}))[0] == "SKIPPED"
    clean = {"Results": IMAGE["Results"][:1]}
    assert audit.verdict(audit.of_trivy("a", clean)) == ("PASSED", "2 packages examined")
    both = audit.together([audit.of_trivy("a", clean), audit.of_trivy("b", {})])
    assert audit.verdict(both)[0] == "INCOMPLETE"


def test_vulnerabilities_of_an_image_are_listed():
    found = audit.of_trivy("a", IMAGE)
    assert found.packages == 3
    assert found.vulnerabilities == ["a: click 1: CVE-2 (HIGH); fixed in no version"]


def program(folder: Path, text: str) -> str:
    path = folder / "scanner"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return str(path)


def test_every_version_of_every_lock_is_examined_once(tmp_path):
    locks = tmp_path / "locks"
    locks.mkdir()
    (locks / "a.txt").write_text("# Made\nclick==8 \\\n    --hash=sha256:aa\nrich==1 \\\n    --hash=sha256:bb\n")
    (locks / "b.txt").write_text("click==8 \\\n    --hash=sha256:aa\nrich==2 \\\n    --hash=sha256:cc\n")
    fake = program(
        tmp_path,
        "import json, sys\n"
        "lines = open(sys.argv[sys.argv.index('--requirement') + 1]).read().splitlines()\n"
        "pins = [line.split()[0].split('==') for line in lines if not line.startswith(' ')]\n"
        "assert len({name for name, _ in pins}) == len(pins)\n"
        "print(json.dumps({'dependencies': [{'name': n, 'version': v, 'vulns': []} for n, v in pins]}))\n",
    )
    assert audit.packages(locks, fake) == audit.Examined(3, [], [])


def test_a_scanner_that_fails_is_no_pass(tmp_path):
    broken = program(tmp_path, "import sys; sys.exit(1)\n")
    assert audit.verdict(audit.images(["podrace/agentpod"], broken)) == (
        "SKIPPED",
        "no package was examined: podrace/agentpod (trivy failed, see above)",
    )
    result, reason = audit.verdict(audit.packages(audit.LOCKS, broken))
    assert result == "SKIPPED"
    assert "pip-audit failed" in reason


def test_without_a_scanner_the_scan_of_images_is_skipped_with_its_own_status(tmp_path):
    command = [sys.executable, str(SCRIPT), "images", "podrace/agentpod"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 77
    assert done.stdout == "SKIPPED: no package was examined: there is no `trivy` on this machine\n"


def test_the_scanner_on_the_path_is_used(tmp_path):
    fake = program(tmp_path, f"print({json.dumps(json.dumps(IMAGE))})\n")
    Path(fake).rename(tmp_path / "trivy")
    command = [sys.executable, str(SCRIPT), "images", "a"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "CVE-2" in done.stdout
