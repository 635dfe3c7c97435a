"""The device is found and, on a Linux CPU, a fast BLAS really serves MLX. Each case needs a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine import device

linux_cpu = pytest.mark.skipif(sys.platform != "linux", reason="BLAS and g++ matter to MLX on Linux only")


def run(code: str, **env: str) -> Any:
    """What the code prints last, as JSON, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


DESCRIBE = "import json; from engine import device; print(json.dumps(device.describe()))"


def test_describe_is_plain_data_with_the_facts_that_a_report_needs() -> None:
    facts = run(DESCRIBE)
    assert facts["kind"] in ("metal", "cuda", "cpu")
    assert facts["name"]
    assert facts["cores"] >= 1
    assert facts["memory_bytes"] > 2**28
    assert facts["versions"]["mlx"]
    assert facts["versions"]["mlx-lm"]


def test_importing_the_module_does_not_import_mlx() -> None:
    assert run("import sys, engine.device; print(str('mlx' in sys.modules).lower())") is False


MATMUL = """
import json, time
from engine import device
{first}
device.prepare()
import mlx.core as mx
a, b = mx.random.normal((256, 512)), mx.random.normal((512, 1024))
mx.eval(a, b)
def once():
    start = time.perf_counter()
    mx.eval(a @ b)
    return time.perf_counter() - start
blas = device.prepare().blas
print(json.dumps([blas is not None, min(once() for _ in range(12))]))
"""


@linux_cpu
def test_the_loaded_blas_is_the_one_that_multiplies() -> None:
    loaded, fast = run(MATMUL.format(first=""))
    if not loaded:
        pytest.skip("no OpenBLAS on this machine")
    late, slow = run(MATMUL.format(first="import mlx.core"))
    assert not late, "a BLAS that comes after mlx changes nothing, so it must not be reported"
    assert fast * 5 < slow


@linux_cpu
def test_one_core_is_left_free_unless_the_shell_says_otherwise() -> None:
    blas = run(DESCRIBE, OPENBLAS_NUM_THREADS="1")["blas"]
    if blas is None:
        pytest.skip("no OpenBLAS on this machine")
    assert blas["threads"] == 1
    facts = run("import os; [os.environ.pop(k, 0) for k in ('OPENBLAS_NUM_THREADS', 'OMP_NUM_THREADS')]\n" + DESCRIBE)
    assert facts["blas"]["threads"] == max(1, facts["cores"] - 1)


FUSED = """
import json
from engine import device
off = device.prepare().compile_off
import mlx.core as mx
print(json.dumps([off, mx.compile(lambda x: mx.cos(x) * x - mx.exp(x) / 3.25)(mx.zeros((2,))).tolist()]))
"""
ANSWER = [pytest.approx(-1 / 3.25)] * 2


def tools(folder: Path, script: str) -> str:
    folder.mkdir()
    (folder / "g++").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "g++").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@linux_cpu
def test_compiling_works_or_is_switched_off_with_a_reason(tmp_path: Path) -> None:
    off, values = run(FUSED, TMPDIR=str(tmp_path))
    assert off is None
    assert values == ANSWER

    (tmp_path / "broken").mkdir()
    path = tools(tmp_path / "bin", '[ "$1" = --version ] && exit 0; echo "cmath: No such file" >&2; exit 1')
    off, values = run(FUSED, TMPDIR=str(tmp_path / "broken"), PATH=path)
    assert "cmath: No such file" in off
    assert values == ANSWER

    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mlx").write_text("a file where MLX wants a folder")
    off, values = run(FUSED, TMPDIR=str(tmp_path / "full"))
    assert "Not a directory" in off
    assert values == ANSWER


@linux_cpu
def test_without_a_compiler_mlx_does_without(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    off, values = run(FUSED, TMPDIR=str(tmp_path), PATH=str(tmp_path / "bin"))
    assert off is None
    assert values == ANSWER


@linux_cpu
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_kernels_of_another_user_are_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "mlx").mkdir()
    os.chown(tmp_path / "mlx", 12345, 12345)
    off, values = run(FUSED, TMPDIR=str(tmp_path))
    assert "belongs to another user" in off
    assert values == ANSWER


def test_openblas_is_told_what_a_processor_newer_than_itself_can_do() -> None:
    haswell, skylake = {"sse4_2", "avx", "avx2", "fma"}, {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}
    assert device.missed_kernels("Prescott", haswell) == "Haswell"
    assert device.missed_kernels("Prescott", haswell | skylake) == "SkylakeX"
    assert device.missed_kernels("Prescott", haswell | skylake - {"avx512vl"}) == "Haswell"
    assert device.missed_kernels("Prescott", {"sse4_2", "avx"}) is None
    assert device.missed_kernels("Zen", haswell) is None


def test_openblas_never_runs_its_oldest_kernels_where_there_are_better_ones() -> None:
    blas = device.prepare().blas
    if blas is None:
        pytest.skip("no BLAS of the system here")
    assert device.missed_kernels(blas.name.split()[-1], device._processor_flags()) is None
