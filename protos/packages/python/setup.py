"""Adds the folder `contents` and podrace_contracts.pth to the wheel.

The file makes the package `podrace` in that folder importable. Setuptools would take the folder for a package that the
project forgot to list, so it is copied here.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithContents(build_py):
    """Copies the contents into the package, and the file to the root of the wheel."""

    def run(self) -> None:
        """Builds as usual, then copies."""
        super().run()
        shutil.copytree("contents", Path(self.build_lib, "podrace_contracts"), dirs_exist_ok=True)
        shutil.copy("podrace_contracts.pth", self.build_lib)


setup(cmdclass={"build_py": BuildWithContents})
