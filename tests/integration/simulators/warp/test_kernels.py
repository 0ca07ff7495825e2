"""Compiles kernels for GPUs without one; that a GPU loads them was not tried."""

import json
from pathlib import Path

import pytest

from simulators.warp.kernel_cache import provide_kernels
from simulators.warp.kernels import ModuleVariants, compile_kernels, main, needed_modules


@pytest.fixture(scope="module")
def ant() -> ModuleVariants:
    return needed_modules([("ant", "gymnasium")])


def test_the_modules_of_a_step_are_found_without_launching_anything(ant: ModuleVariants) -> None:
    modules = {module.name for module, _ in ant}
    assert {"mujoco_warp._src.smooth", "mujoco_warp._src.constraint"} <= modules
    assert any("solver" in name or "linesearch" in name for name in modules)
    # On a GPU a block has more than one thread, so the names differ from those on the processor.
    assert sum(block_dim > 1 for _, block_dim in ant) > 20
    assert ant.names() == needed_modules([("ant", "gymnasium")]).names()


def test_a_module_is_compiled_once_and_others_are_deleted(ant: ModuleVariants, tmp_path: Path) -> None:
    module, block_dim = next(pair for pair in ant if pair[0].name == "mujoco_warp._src.constraint")
    few = ModuleVariants({(module, block_dim): None})
    (tmp_path / "wp_old_1234567").mkdir()
    assert compile_kernels(few, tmp_path, [80, 90]) == 2
    name = module.get_module_identifier(block_dim)
    files = {file.name: file.stat().st_mtime_ns for file in (tmp_path / name).iterdir()}
    # The names that Warp looks for on GPUs of these architectures.
    assert files.keys() == {f"{name}.sm80.cubin", f"{name}.sm90.cubin", f"{name}.meta"}
    assert [folder.name for folder in tmp_path.iterdir()] == [name]
    assert json.loads((tmp_path / name / f"{name}.meta").read_text())
    assert compile_kernels(few, tmp_path, [80, 90]) == 2
    assert files == {file.name: file.stat().st_mtime_ns for file in (tmp_path / name).iterdir()}


def test_an_unknown_architecture_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "kernels"), "--architectures", "90", "12"]) == 2
    assert "cannot compile for 12" in capsys.readouterr().err


def test_compiled_kernels_are_provided_to_an_empty_cache_and_own_ones_are_kept(tmp_path: Path) -> None:
    compiled, cache = tmp_path / "image" / "wp_a_1", tmp_path / "cache"
    compiled.mkdir(parents=True)
    (compiled / "wp_a_1.sm90.cubin").write_text("code")
    (compiled / "wp_a_1.meta").write_text("{}")
    (cache / "wp_own_2").mkdir(parents=True)
    assert [provide_kernels(cache, tmp_path / "image") for _ in range(2)] == [1, 0]
    assert (cache / "wp_a_1" / "wp_a_1.sm90.cubin").read_text() == "code"
    # Warp replaces it when it compiles the module for another GPU.
    (cache / "wp_a_1" / "wp_a_1.meta").write_text("other")
    assert (compiled / "wp_a_1.meta").read_text() == "{}"
    assert {folder.name for folder in cache.iterdir()} == {"wp_a_1", "wp_own_2"}
    assert not list(cache.glob("*/.*"))


def test_a_machine_without_compiled_kernels_provides_none(tmp_path: Path) -> None:
    assert provide_kernels(tmp_path / "cache", tmp_path / "absent") == 0
    assert not (tmp_path / "cache").exists()
