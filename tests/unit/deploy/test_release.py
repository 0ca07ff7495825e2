"""The decisions and texts of `make release`."""

import datetime
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
SCRIPT = REPOSITORY / "deploy/release.py"
_spec = importlib.util.spec_from_file_location("podrace_release", SCRIPT)
release = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = release
_spec.loader.exec_module(release)

DAY = datetime.date(2026, 12, 24)
NOTES = "### Added\n\n- A thing."
CHANGES = f"# Changelog\n\nIntroduction.\n\n## Unreleased\n\n{NOTES}\n\n## 0.1.0 - 2026-11-22\n\nThe first version.\n"
READY = release.Checkout(branch="main", changes=(), tags=("v0.1.0",), version="0.1.0", changelog=CHANGES)


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.1.1", "0.2.0", "0.10.0", "1.0.0"])
def test_a_greater_version_of_a_clean_main_is_released(version):
    assert release.refusal(version, READY) == ""


@pytest.mark.parametrize("version", ["", "1", "1.2", "1.2.3.4", "v1.2.3", "1.02.3", "1.2.3rc1", "one"])
def test_a_version_is_three_numbers(version):
    assert "expected three numbers" in release.refusal(version, READY)


@pytest.mark.parametrize("branch", ["work", ""])
def test_only_main_is_released(branch):
    assert "main" in release.refusal("0.2.0", replace(READY, branch=branch))


def test_a_changed_or_unknown_file_prevents_a_release_and_is_named():
    assert "new.txt" in release.refusal("0.2.0", replace(READY, changes=["?? new.txt"]))


def test_no_tag_is_used_twice():
    assert "v0.2.0 exists" in release.refusal("0.2.0", replace(READY, tags=("v0.2.0",)))


@pytest.mark.parametrize("version", ["0.0.9", "0.1.0"])
def test_a_version_is_greater_than_the_source_states(version):
    assert "not greater than 0.1.0" in release.refusal(version, replace(READY, tags=()))


def test_a_version_is_greater_than_every_tag_and_numbers_are_compared_as_numbers():
    tagged = replace(READY, tags=("v0.9.0", "v0.10.0", "very-old"))
    assert "not greater than 0.10.0" in release.refusal("0.9.1", tagged)
    assert release.refusal("0.10.1", tagged) == ""


@pytest.mark.parametrize("changelog", ["", "# Changelog\n\n## Unreleased\n\n## 0.1.0 - 2026-11-22\n\nThe first.\n"])
def test_a_release_without_described_changes_is_refused(changelog):
    assert "Unreleased" in release.refusal("0.2.0", replace(READY, changelog=changelog))


# --- texts ------------------------------------------------------------------------------------------------------


def test_unreleased_changes_move_under_the_version_and_leave_an_empty_section():
    released = release.released_changelog(CHANGES, release.Version(0, 2, 0), DAY)
    assert released == CHANGES.replace("## Unreleased\n", "## Unreleased\n\n## 0.2.0 - 2026-12-24\n")
    assert release.section(released, "Unreleased") == ""
    assert release.section(released, "0.2.0") == NOTES
    assert release.section(released, "0.1.0") == "The first version."


def test_only_the_version_of_the_source_changes():
    source = 'import os\n\n__version__ = "0.1.0"\n\nOTHER = "0.1.0"\n'
    changed = release.with_version(source, release.Version(0, 2, 0))
    assert changed == source.replace('__version__ = "0.1.0"', '__version__ = "0.2.0"')
    assert release.current_version(changed) == "0.2.0"


def test_image_tags_are_found_in_the_files_that_name_them_and_return_unchanged():
    """It runs during a release as well, when the files name the version and not the tag of development."""
    for name in release.IMAGE_TAGS:
        text = (REPOSITORY / name).read_text()
        found = release.IMAGE_TAG.search(text)
        assert found, name
        tagged = release.with_image_tag(text, "98.76.54")
        assert tagged.count("98.76.54") == (3 if "k8s/base" in name else 1)
        assert release.with_image_tag(tagged, found[0].removeprefix(found["key"])) == text


def test_every_manifest_that_names_a_tag_of_an_image_of_this_project_gets_the_tag_of_the_release():
    """Except the overlay `local`, which uses images that were built on the machine."""
    named = set()
    for path in (REPOSITORY / "deploy/k8s").rglob("*.yaml"):
        text = path.read_text()
        if "overlays/local" not in str(path) and release.IMAGE_TAG.search(text):
            named.add(str(path.relative_to(REPOSITORY)))
    assert named == {name for name in release.IMAGE_TAGS if "k8s" in name}


def test_this_project_states_its_version_and_its_changes_where_the_script_looks():
    version = release.current_version((REPOSITORY / release.VERSION_FILE).read_text())
    assert release.Version.parse(version)
    assert release.section((REPOSITORY / release.CHANGELOG).read_text(), version)
