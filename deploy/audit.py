"""Looks for known vulnerabilities, in the locks and in images, and never counts what was not examined as passed.

    python deploy/audit.py packages            # every package of deploy/locks, by pip-audit
    python deploy/audit.py images IMAGE...     # everything in these images, by trivy

The last line starts with the result, which is also the exit status:

    PASSED      0   every package was examined, and none is known to be vulnerable
    FAILED      1   a package is known to be vulnerable
    SKIPPED    77   no package was examined: there is no network, no scanner, no engine or no image
    INCOMPLETE 78   no package is known to be vulnerable, but some were not examined

pip-audit reports success if it could examine nothing, for instance without a network.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOCKS = Path(__file__).parent / "locks"
SCAN_SECONDS = 1800.0
STATUS = {"PASSED": 0, "FAILED": 1, "SKIPPED": 77, "INCOMPLETE": 78}
LISTED = 5
"""Names of packages that a line lists."""
BLOCK = re.compile(r"^(?=[A-Za-z0-9])", re.MULTILINE)


@dataclass(frozen=True)
class Examined:
    """What a scanner reported."""

    packages: int = 0
    """Number of packages that were examined."""
    skipped: Sequence[str] = ()
    """What was not examined."""
    vulnerabilities: Sequence[str] = ()
    """One line for each vulnerability of a package."""


def verdict(examined: Examined) -> tuple[str, str]:
    """Returns the result and its reason."""
    count = f"{examined.packages} packages examined"
    names = ", ".join([*examined.skipped[:LISTED], *(["..."] if len(examined.skipped) > LISTED else [])])
    if examined.vulnerabilities:
        return "FAILED", f"{len(examined.vulnerabilities)} vulnerabilities; {count}, {len(examined.skipped)} not"
    if not examined.packages:
        return "SKIPPED", f"no package was examined: {names or 'nothing was found to examine'}"
    if examined.skipped:
        return "INCOMPLETE", f"{count}, {len(examined.skipped)} not: {names}"
    return "PASSED", count


def of_pip_audit(report: Mapping[str, Any]) -> Examined:
    """Reads a report of pip-audit."""
    examined = [each for each in report["dependencies"] if "skip_reason" not in each]
    found = [
        f"{each['name']} {each['version']}: {', '.join([one['id'], *one.get('aliases', [])])};"
        f" fixed in {', '.join(one.get('fix_versions', [])) or 'no version'}"
        for each in examined
        for one in each["vulns"]
    ]
    skipped = [each["name"] for each in report["dependencies"] if "skip_reason" in each]
    return Examined(len(examined), skipped, found)


def of_trivy(image: str, report: Mapping[str, Any]) -> Examined:
    """Reads a report of trivy about an image, which lists all packages."""
    results = report.get("Results") or []
    found = [
        f"{image}: {one['PkgName']} {one['InstalledVersion']}: {one['VulnerabilityID']} ({one.get('Severity', '?')});"
        f" fixed in {one.get('FixedVersion') or 'no version'}"
        for each in results
        for one in each.get("Vulnerabilities") or []
    ]
    count = sum(len(each.get("Packages") or []) for each in results)
    return Examined(count, [] if count else [f"{image} (no packages found)"], found)


def together(parts: Sequence[Examined]) -> Examined:
    """Joins reports."""
    return Examined(
        sum(each.packages for each in parts),
        [name for each in parts for name in each.skipped],
        [line for each in parts for line in each.vulnerabilities],
    )


def output(command: Sequence[str]) -> str:
    """Runs a scanner and returns its report; empty if it failed. Its exit status also reports findings."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=SCAN_SECONDS).stdout.strip()


def packages(locks: Path, program: str) -> Examined:
    """Examines each package of the locks once."""
    blocks = {}
    for path in sorted(locks.glob("*.txt")):
        for block in BLOCK.split(path.read_text()):
            if block and not block.startswith("#"):
                blocks[block.split()[0]] = block
    with tempfile.TemporaryDirectory(prefix="podrace-audit-") as folder:
        # Two locks may have different versions of a package, which one file may not.
        reports = []
        while blocks:
            chosen = {pin.partition("==")[0]: pin for pin in blocks}
            path = Path(folder) / "requirements.txt"
            path.write_text("".join(blocks.pop(pin) for pin in chosen.values()))
            options = ("--disable-pip", "--format", "json", "--progress-spinner", "off")
            report = output([program, "--requirement", str(path), *options])
            failed = Examined(skipped=[f"{len(chosen)} packages (pip-audit failed, see above)"])
            reports.append(of_pip_audit(json.loads(report)) if report else failed)
    return together(reports)


def images(names: Sequence[str], program: str) -> Examined:
    """Examines images of the local engine."""
    parts = []
    for name in names:
        command = [program, "image", "--quiet", "--format", "json", "--list-all-pkgs", "--scanners", "vuln", name]
        report = output(command)
        failed = Examined(skipped=[f"{name} (trivy failed, see above)"])
        parts.append(of_trivy(name, json.loads(report)) if report else failed)
    return together(parts)


def main(arguments: Sequence[str]) -> int:
    """Runs a scan; returns the exit status."""
    if arguments[:1] == ["packages"]:
        examined = packages(LOCKS, str(Path(sys.executable).with_name("pip-audit")))
    elif arguments[:1] == ["images"]:
        trivy = shutil.which("trivy")
        names = arguments[1:]
        examined = images(names, trivy) if trivy else Examined(skipped=["there is no `trivy` on this machine"])
    else:
        raise SystemExit((__doc__ or "").rstrip())
    for line in examined.vulnerabilities:
        print(line)
    result, reason = verdict(examined)
    print(f"{result}: {reason}")
    return STATUS[result]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
