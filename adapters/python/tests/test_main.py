"""The command `python -m ferroattn`, in this process and in processes of its own."""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
from array import array
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ferroattn import __main__ as command
from ferroattn import _library

# Where the package is, installed or not.
FOLDER = _library.PATH.parent.parent


def run(*arguments: str, without: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process that cannot import some packages."""
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(FOLDER)!r}); sys.modules |= dict.fromkeys({without!r}); "
        f"sys.argv = ['ferroattn', *{arguments!r}]; runpy.run_module('ferroattn', run_name='__main__')"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)


def table(text: str) -> dict[str, str]:
    """The lines by the name in front."""
    return {line[:14].strip(): line[14:] for line in text.split("\n\n")[0].splitlines()}


def test_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--no-check"]) == 0
    output = capsys.readouterr().out
    rows = table(output)
    assert rows["ferroattn"] == "0.1.0"
    assert rows["binary"].startswith(str(_library.PATH)) and rows["binary"].endswith(" MB")
    assert "driver" in rows
    assert any(name.startswith("GPU") for name in rows)
    assert ("operators registered" in rows["PyTorch"]) == (find_spec("torch") is not None)
    for name in ("NumPy", "JAX", "transformers"):
        assert (rows[name] == "not installed") == (find_spec(name.lower()) is None)
    assert "largest error" not in output
    assert all(len(line) < 140 for line in output.splitlines())


def test_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    head, *lines = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert head.split() == ["largest", "error", *command.RESULTS]
    assert lines[0].startswith("CPU, float32")
    assert all(line.endswith("  ok") for line in lines)


@pytest.mark.parametrize("without", [("torch",), ("torch", "numpy")], ids="+".join)
def test_without_packages(without: tuple[str, ...]) -> None:
    done = run(without=without)
    assert (done.returncode, done.stderr) == (0, "")
    assert table(done.stdout)["PyTorch"] == "not installed"
    assert done.stdout.splitlines()[-1].startswith("CPU, float32") and done.stdout.endswith("  ok\n")


def computations() -> list[Any]:
    """What computes on the CPU, with all that is installed."""
    library = _library.load()
    found: list[Any] = [lambda case: command.by_interface(case, library)]
    if find_spec("numpy"):
        found.append(command.by_numpy)
    if find_spec("torch"):
        import torch

        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            found.append(lambda case, dtype=dtype: command.by_torch(case, "cpu", dtype))
    return found


def test_each_computation() -> None:
    case = command.draw()
    expected = command.reference(case)
    for compute in computations():
        for found, values in zip(compute(case), expected, strict=True):
            assert command.largest_error(found, values) < command.TOLERANCE["bfloat16"] * max(1.0, *map(abs, values))
    for compute in computations()[:3]:
        for found, values in zip(compute(case), expected, strict=True):
            assert command.largest_error(found, values) < command.TOLERANCE["float32"] * max(1.0, *map(abs, values))


def test_numbers_of_the_case_are_those_of_every_type() -> None:
    for rows in command.draw():
        for number in command.flat(rows):
            bits = array("I", array("f", [number]).tobytes())[0]
            assert bits & 0xFFFF == 0 and array("f", [number])[0] == number


@pytest.mark.parametrize("result", range(5), ids=command.RESULTS)
@pytest.mark.parametrize("wrong", [1e-3, math.nan, math.inf], ids=str)
def test_a_wrong_result(result: int, wrong: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def compute(case: command.Case) -> command.Results:
        results = command.reference(case)
        results[result][-1] += wrong
        return results

    def checks(*_: Any) -> list[command.Check]:
        return [("CPU", "float32", compute), ("CPU", "float32", command.reference)]

    monkeypatch.setattr(command, "checks", checks)
    assert command.main([]) == 1
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first.endswith("  FAILED") and second.endswith("  ok")


def test_a_device_that_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def compute(case: command.Case) -> command.Results:
        raise RuntimeError("the device is gone\nand more")

    monkeypatch.setattr(command, "checks", lambda *_: [("GPU 0", "float16", compute)])
    assert command.main([]) == 1
    assert capsys.readouterr().out.endswith("  FAILED: the device is gone\n")


def test_each_gpu_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    checks = list(command.checks(_library.load(), True))
    assert [check[:2] for check in checks] == [
        ("CPU", "float32"), ("GPU 0", "float16"), ("GPU 0", "bfloat16"), ("GPU 1", "float16"), ("GPU 1", "bfloat16"),
    ]  # fmt: skip
    keywords = [compute.keywords for _, _, compute in checks[1:] if isinstance(compute, partial)]
    devices = [(each["device"], each["dtype"]) for each in keywords]
    types = [torch.float16, torch.bfloat16]
    assert devices == [(f"cuda:{index}", dtype) for index in range(2) for dtype in types]


class Library:
    """A binary on a machine with some GPUs, of which some do not open."""

    def __init__(self, gpus: list[str | None]) -> None:
        self.opened: list[str] = []
        self.ferroattn_device_name = lambda device: self.opened[-1].encode()
        self.ferroattn_close = lambda device: None

        def last_error() -> bytes:
            return b"too old" if self._index < len(gpus) else f"there is no CUDA device {self._index}".encode()

        def open_cuda(index: int, device: Any) -> int:
            self._index = index
            name = gpus[index] if index < len(gpus) else None
            if name is not None:
                self.opened.append(name)
            return 0 if name is not None else 2

        self.ferroattn_open_cuda, self.ferroattn_last_error = open_cuda, last_error


@pytest.mark.parametrize(
    "gpus, expected",
    [
        ([], [("GPU", "there is no CUDA device 0")]),
        (["A"], [("GPU 0", "A")]),
        (["A", "B"], [("GPU 0", "A"), ("GPU 1", "B")]),
        (["A", None, "B"], [("GPU 0", "A"), ("GPU 1", "too old")]),
        ([None, "B"], [("GPU", "too old")]),
    ],
)
def test_gpus_by_name(gpus: list[str | None], expected: list[tuple[str, str]]) -> None:
    library: Any = Library(gpus)
    assert command.find_gpus(library) == expected


def test_a_binary_that_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(_library, "PATH", tmp_path / "libferroattn.so")
    _library.load.cache_clear()
    try:
        assert command.main([]) == 1
    finally:
        _library.load.cache_clear()
    output = capsys.readouterr().out
    assert "cannot open shared object file" in table(output)["binary"]
    assert "largest error" not in output


def test_operators_that_do_not_register(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "ferroattn.operators", None)
    monkeypatch.delattr("ferroattn.operators", raising=False)
    assert command.main([]) == 1
    output = capsys.readouterr().out
    assert ", no operators: " in table(output)["PyTorch"]
    # NumPy or the C interface takes their place.
    assert output.splitlines()[-1].endswith("  ok")


@pytest.mark.parametrize(
    "error, expected",
    [
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "not installed"),
        (ModuleNotFoundError("No module named 'sympy'", name="sympy"), "does not load: No module named 'sympy'"),
        (OSError("libtorch.so: no such file\nand more"), "does not load: libtorch.so: no such file"),
    ],
    ids=["missing", "incomplete", "broken"],
)
def test_a_pytorch_that_does_not_load(error: Exception, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "torch":
                raise error

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    assert command.find_torch() == (expected, None)


@pytest.mark.parametrize("number, expected", [(12080, "CUDA 12.8"), (13000, "CUDA 13.0")])
def test_the_drivers_version(number: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def __init__(self, name: str) -> None:
            assert name == "libcuda.so.1"

        def cuDriverGetVersion(self, to: Any) -> int:
            to._obj.value = number
            return 0

    monkeypatch.setattr(ctypes, "CDLL", Driver)
    assert command.find_driver() == expected


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, status in [(["--help"], 0), (["--what"], 2)]:
        with pytest.raises(SystemExit) as caught:
            command.main(arguments)
        assert caught.value.code == status
    assert "python -m ferroattn" in capsys.readouterr().out
