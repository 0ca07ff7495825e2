"""The chart library in the package is the published one."""

import importlib.util
from pathlib import Path
from types import ModuleType

PROGRAM = Path(__file__).parents[4] / "deploy/vendor_assets.py"


def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vendor_assets", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_chart_library_has_the_recorded_digests_and_its_licence():
    vendor = program()
    assert vendor.differences(vendor.FOLDER) == []
    assert "MIT" in (vendor.FOLDER / "LICENSE").read_text()


def test_a_changed_or_missing_file_is_found(tmp_path: Path):
    vendor = program()
    for path in vendor.FOLDER.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "uPlot.esm.js").write_text("export default 1;")
    (tmp_path / "LICENSE").unlink()
    assert vendor.differences(tmp_path) == ["LICENSE: missing", "uPlot.esm.js: differs from the published file"]
