"""Builds the wheels, as a build backend of Python's packaging (PEP 517) and as a command.

    python3 backend.py DIST    # DIST/ferroattn-*.whl and DIST/flash-attn/flash_attn-*.whl

It runs cargo for the binary, and needs Python 3.11 and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import tomllib

HERE = Path(__file__).resolve().parent
BINARY = "libferroattn.so"
# Wheels of equal contents are equal files.
EPOCH = (2020, 1, 1, 0, 0, 0)


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    """Writes the wheel of `ferroattn` to a folder, and returns its name."""
    binary = build_binary()
    files = sources(HERE, "ferroattn") | {f"ferroattn/{BINARY}": binary.read_bytes()}
    return write_wheel(Path(wheel_directory), HERE, files, f"py3-none-{platform_tag(binary)}")


def build_flash_attn(wheel_directory: str) -> str:
    """Writes the wheel of `flash-attn`, the module alone, to a folder, and returns its name."""
    folder = HERE / "flash-attn"
    return write_wheel(Path(wheel_directory), folder, sources(folder, "flash_attn"), "py3-none-any")


def build_binary() -> Path:
    """Compiles the binary, kernels included."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE / "target"))
    cargo = os.environ.get("CARGO", "cargo")
    command = [cargo, "build", "--release", "--locked"]
    # Standard output belongs to the frontend.
    subprocess.run(command, cwd=HERE, env=os.environ | {"CARGO_TARGET_DIR": str(target)}, check=True, stdout=sys.stderr)
    return target / "release" / BINARY


def platform_tag(binary: Path) -> str:
    """The oldest glibc that has all functions which the binary asks for."""
    versions = re.findall(rb"GLIBC_2\.(\d+)", binary.read_bytes())
    return f"manylinux_2_{max(map(int, versions))}_{platform.machine()}"


def sources(folder: Path, package: str) -> dict[str, bytes]:
    """The package's files of Python by their paths in the wheel."""
    paths = sorted(path for path in (folder / package).rglob("*") if path.suffix == ".py" or path.name == "py.typed")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def write_wheel(directory: Path, folder: Path, files: dict[str, bytes], tag: str) -> str:
    """Writes a wheel of these files with the metadata of the folder's `pyproject.toml`."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    name = f"{project['name'].replace('-', '_')}-{project['version']}"
    info = f"{name}.dist-info"
    pure = "true" if tag.endswith("-any") else "false"
    wheel = f"Wheel-Version: 1.0\nGenerator: ferroattn\nRoot-Is-Purelib: {pure}\nTag: {tag}\n"
    files = files | {
        f"{info}/METADATA": metadata(project, (folder / project["readme"]).read_text()).encode(),
        f"{info}/WHEEL": wheel.encode(),
    }
    for licence in ("LICENSE-APACHE", "LICENSE-MIT"):
        files[f"{info}/licenses/{licence}"] = (HERE.parent.parent / licence).read_bytes()
    rows = [f"{path},sha256={digest(data)},{len(data)}" for path, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file, data in files.items():
            entry = zipfile.ZipInfo(file, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if file.endswith(".so") else 0o644) << 16
            archive.writestr(entry, data)
    return path.name


def metadata(project: dict[str, Any], readme: str) -> str:
    """The file METADATA, of core metadata 2.4."""
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        "License-File: LICENSE-APACHE",
        "License-File: LICENSE-MIT",
        f"Requires-Python: {project['requires-python']}",
        *(f"Keywords: {','.join(words)}" for words in [project.get("keywords")] if words),
        *(f"Classifier: {classifier}" for classifier in project.get("classifiers", [])),
        *(f"Requires-Dist: {dependency}" for dependency in project["dependencies"]),
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join([*lines, "", readme])


def digest(data: bytes) -> str:
    """SHA-256 as RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: backend.py DIST")
    dist = sys.argv[1]
    for folder, build in ((dist, build_wheel), (os.path.join(dist, "flash-attn"), build_flash_attn)):
        path = Path(folder) / build(folder)
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
