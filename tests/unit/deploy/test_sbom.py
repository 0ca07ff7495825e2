"""Bills of materials: from which locks, and what they describe."""

import importlib.util
import json
import re
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "deploy/sbom.py"
_spec = importlib.util.spec_from_file_location("podrace_sbom", SCRIPT)
sbom = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = sbom
_spec.loader.exec_module(sbom)


def test_every_image_of_the_dockerfile_that_is_published_has_a_bill():
    stages = set(re.findall(r" AS (\S+)$", (SCRIPT.parent / "Dockerfile").read_text(), re.MULTILINE))
    assert set(sbom.IMAGES) <= stages
    assert all((sbom.LOCKS / f"{name}.txt").exists() for names in sbom.IMAGES.values() for name in names)


def test_a_package_of_several_locks_is_listed_once_with_its_hashes():
    first = "# Made\na==1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\nb==2 \\\n    --hash=sha256:cc\n"
    second = "# Made\nb==2 \\\n    --hash=sha256:cc\nc==3 \\\n    --hash=sha256:dd\n"
    assert sbom.joined([first, second]) == first.partition("\n")[2] + "c==3 \\\n    --hash=sha256:dd\n"


def test_a_bill_names_its_image_and_version():
    bill = {"bomFormat": "CycloneDX", "metadata": {"component": {"name": "podrace", "type": "application"}}}
    found = json.loads(sbom.described(json.dumps(bill), "agentpod", "0.2.0"))
    assert found["metadata"]["component"] == {"name": "podrace/agentpod", "version": "0.2.0", "type": "container"}
