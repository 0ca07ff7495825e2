"""Builds the released contracts: a Python distribution, an npm package and a descriptor set. `make contracts` runs it.

    python deploy/contracts.py [FOLDER]          # default: build/contracts

The version is that of podrace. The templates of the packages are in protos/packages.
"""

import gzip
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from importlib import resources
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PROTOS = REPOSITORY / "protos"
TEMPLATES = PROTOS / "packages"
RUNTIME = ("grpcio", "protobuf")
"""Requirements of the generated modules, as pyproject.toml states them."""
ERROR_PROTOS = ("status.proto", "error_details.proto")
"""Protos of google.rpc in which the details of errors are written."""
VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


def main(folder: Path) -> None:
    """Builds everything into a folder, and prints what was built."""
    folder.mkdir(parents=True, exist_ok=True)
    (version,) = VERSION.findall((REPOSITORY / "podrace/__init__.py").read_text())
    descriptors = folder / f"podrace-contracts-{version}.binpb"
    write_descriptor_set(descriptors)
    built = [descriptors, python_wheel(folder, version, descriptors), npm_package(folder, version, descriptors)]
    for path in built:
        print(f"{path}  {path.stat().st_size:,} bytes")


def proto_files() -> list[Path]:
    """Returns all contracts, relative to their root."""
    return sorted(path.relative_to(PROTOS) for path in PROTOS.rglob("*.proto"))


def write_descriptor_set(target: Path) -> None:
    """Writes all contracts with their comments and the files that they import."""
    options = ["--include_imports", "--include_source_info", f"--descriptor_set_out={target}"]
    compiler = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(PROTOS)]
    run(*compiler, *options, *map(str, proto_files()), cwd=PROTOS)


def run(*command: str, cwd: Path) -> None:
    """Runs a command.

    Raises:
        SystemExit: It fails.
    """
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: `{' '.join(command)}` failed\n{done.stdout}")


def copy_protos(target: Path) -> None:
    """Copies the contracts and the files of google.rpc into a folder that serves as an import path."""
    for path in proto_files():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PROTOS / path, target / path)
    (target / "google/rpc").mkdir(parents=True)
    for name in ERROR_PROTOS:
        (target / "google/rpc" / name).write_bytes(resources.files("google.rpc").joinpath(name).read_bytes())


def copy_documents(target: Path) -> None:
    """Copies the license and the changelog."""
    shutil.copyfile(REPOSITORY / "LICENSE", target / "LICENSE")
    shutil.copyfile(PROTOS / "CHANGELOG.md", target / "CHANGELOG.md")


def requirements() -> list[str]:
    """Returns the requirements of the generated modules."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return [line for line in project["dependencies"] if re.split(r"[<>=~!\[ ]", line)[0] in RUNTIME]


def python_wheel(folder: Path, version: str, descriptors: Path) -> Path:
    """Builds the Python distribution and returns its wheel."""
    with tempfile.TemporaryDirectory(prefix="podrace-contracts-") as temporary:
        project = Path(temporary) / "project"
        shutil.copytree(TEMPLATES / "python", project, ignore=shutil.ignore_patterns("__pycache__"))
        contents = project / "contents"
        for path in sorted((REPOSITORY / "podrace").rglob("*_pb2*.py*")):
            if path.suffix != ".pyc":
                target = contents / path.relative_to(REPOSITORY)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        (contents / "podrace/py.typed").touch()
        (contents / "VERSION").write_text(f"{version}\n")
        shutil.copyfile(descriptors, contents / "contracts.binpb")
        copy_protos(contents / "protos")
        copy_documents(project)
        (project / "requirements.txt").write_text("\n".join(requirements()) + "\n")
        # Without build isolation, so that it works without a network.
        options = ["--quiet", "--no-isolation", "--wheel", "--outdir", str(folder)]
        run(sys.executable, "-m", "build", *options, ".", cwd=project)
    return folder / f"podrace_contracts-{version}-py3-none-any.whl"


def npm_package(folder: Path, version: str, descriptors: Path) -> Path:
    """Builds the npm package, which is an archive whose root is the folder `package`; npm is not needed."""
    target = folder / f"podrace-contracts-{version}.tgz"
    with tempfile.TemporaryDirectory(prefix="podrace-contracts-") as temporary:
        package = Path(temporary) / "package"
        shutil.copytree(TEMPLATES / "npm", package)
        description = json.loads((package / "package.json").read_text()) | {"version": version}
        (package / "package.json").write_text(json.dumps(description, indent=2) + "\n")
        shutil.copyfile(descriptors, package / "contracts.binpb")
        copy_protos(package / "protos")
        copy_documents(package)
        with gzip.GzipFile(target, "wb", mtime=0) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
            for path in sorted(path for path in package.rglob("*") if path.is_file()):
                entry = tarfile.TarInfo(path.relative_to(temporary).as_posix())
                content = path.read_bytes()
                entry.size, entry.mode = len(content), 0o644
                archive.addfile(entry, io.BytesIO(content))
    return target


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else REPOSITORY / "build/contracts").resolve())
