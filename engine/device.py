"""What MLX runs on: Metal, CUDA or the CPU, and on a Linux CPU the BLAS beneath it.

MLX's Linux wheel carries Netlib's reference BLAS, where a verify of four tokens costs four times one token, so drafting
loses. A real BLAS that is loaded first, with its symbols global, takes its place: [4, 512] x [512, 1536] in f32 goes
from 2.9 ms to 0.3 ms, and four rows cost as much as one.
"""

import ctypes
import ctypes.util
import os
import platform
import shutil
import sys
import tempfile
import threading
from _ctypes import dlclose
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

BLAS_LIBRARIES = ("libopenblasp.so.0", "libopenblas.so.0", "libopenblas.so")
"""Fedora's threaded build has its own name and must come before its serial one; others have only the second."""

OLDEST_KERNELS = "prescott"  # of those for 64 bits, for processors that OpenBLAS does not know

CPU_SHARE = 0.8  # of the memory that a process may use

PACKAGES = ("mtplx-tui", "mlx", "mlx-cuda-13", "mlx-lm", "transformers")


@dataclass(frozen=True, slots=True)
class Blas:
    """The BLAS that was loaded before MLX. `name` is its own description, such as "OpenBLAS 0.3.21 Zen"."""

    name: str
    library: str
    threads: int

    def __str__(self) -> str:
        return f"{self.name}, {self.threads} thread{'' if self.threads == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Device:
    """Where arrays live.

    Attributes:
        name: as the vendor calls it.
        blas: on a Linux CPU the BLAS that serves it; None is MLX's own slow one.
        compile_off: why mx.compile was switched off, or None.
        memory: bytes that models and caches may take: what Metal can keep resident, what was free on a CUDA device
            when we came, most of a CPU's memory, since other programs live there too.
    """

    kind: Literal["metal", "cuda", "cpu"]
    name: str
    blas: Blas | None
    compile_off: str | None
    memory: int

    def __str__(self) -> str:
        return f"{self.kind} ({self.name})"


_lock = threading.Lock()
_device: Device | None = None


def prepare() -> Device:
    """Import MLX as it runs best here; the first call must come before anyone imports mlx.

    Later calls, from any thread, give what the first one found.
    """
    global _device
    with _lock:
        if _device is None:
            blas = _load_blas() if sys.platform == "linux" and "mlx.core" not in sys.modules else None
            _device = _look(blas)
        return _device


def is_cpu() -> bool:
    """True where the model runs on the CPU."""
    return prepare().kind == "cpu"


def is_cuda() -> bool:
    """Whether MLX computes on an NVIDIA GPU."""
    import mlx.core as mx

    return bool(mx.cuda.is_available() and mx.default_device() == mx.gpu)


def device_name() -> str:
    """The device in words, for screens and reports."""
    return str(prepare())


def describe() -> dict[str, Any]:
    """The device, the machine and the versions, as plain data for reports."""
    device = prepare()
    return {
        "kind": device.kind,
        "name": device.name,
        "blas": asdict(device.blas) if device.blas else None,
        "compile_off": device.compile_off,
        "compiler": shutil.which("g++"),
        "cores": usable_cores(),
        "memory_bytes": usable_memory(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions(PACKAGES),
    }


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Those of the packages that are installed, by name."""
    found = {}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def usable_cores() -> int:
    """Cores that this process may use: the machine's, less what affinity or a container's quota takes away."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = (_cgroup("cpu.max") or "max").partition(" ")
    if quota != "max":
        cores = min(cores, max(1, int(quota) // int(period or 100_000)))
    return cores


def usable_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or a container's limit where that is lower."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _cgroup("memory.max") or "max"
    return memory if limit == "max" else min(memory, int(limit))


def limit_memory(limit: int) -> None:
    """Let MLX's allocator keep a twentieth of the limit, 4 GiB at most, for its next arrays; it would keep all.

    On Metal the limit is wired as well, so that the system does not compress weights that rest between two requests.
    """
    import mlx.core as mx

    mx.set_cache_limit(min(limit // 20, 4 << 30))
    if prepare().kind == "metal":
        mx.set_wired_limit(min(limit, prepare().memory))


def _load_blas() -> Blas | None:
    for name in (*BLAS_LIBRARIES, None):
        # find_library starts compilers and linkers to look, so it comes last
        found = name or ctypes.util.find_library("openblas")
        try:
            library = _open_blas(found) if found else None
        except OSError:
            continue
        if library is not None and found is not None:
            return Blas(_blas_name(library), found, _limit_threads(library))
    return None


def _open_blas(name: str) -> ctypes.CDLL:
    """OpenBLAS with the kernels of this processor.

    It takes those of 2004 for a processor that is newer than itself: 0.3.21 read a prompt in 3.1 s on an Emerald
    Rapids, and in 1.0 s once it was told that this is like a Skylake. It can only be told before it is loaded.
    """
    library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    kernels = missed_kernels(_core(library), _processor_flags())
    if kernels is None or "OPENBLAS_CORETYPE" in os.environ:
        return library
    dlclose(library._handle)
    os.environ["OPENBLAS_CORETYPE"] = kernels
    return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)


def missed_kernels(core: str, flags: Collection[str]) -> str | None:
    """The better kernels that OpenBLAS has for a processor with these flags, where it took its oldest; else None."""
    if core.lower() != OLDEST_KERNELS or not {"avx2", "fma"} <= set(flags):
        return None
    return "SkylakeX" if {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"} <= set(flags) else "Haswell"


def _processor_flags() -> frozenset[str]:
    """What the processor can do, in Linux's words; nothing where that is not told."""
    with suppress(OSError), Path("/proc/cpuinfo").open() as told:  # written as it is read: a part for each core
        for line in told:
            if line.startswith("flags"):
                return frozenset(line.partition(":")[2].split())
    return frozenset()


def _blas_name(library: ctypes.CDLL) -> str:
    library.openblas_get_config.restype = ctypes.c_char_p
    product, number, *_ = library.openblas_get_config().decode().split()
    return f"{product} {number} {_core(library)}"


def _core(library: ctypes.CDLL) -> str:
    library.openblas_get_corename.restype = ctypes.c_char_p
    return str(library.openblas_get_corename().decode())


def _limit_threads(library: ctypes.CDLL) -> int:
    """Leave one core to Python and the screen, unless the shell says how many threads it wants.

    Measured on 2 cores with the 13M model at depth 3, tok/s with 1 and with 2 threads: 150 and 150 on an idle machine,
    128 and 104 beside a load the size of a drawing screen, 108 and 20 to 60 beside a busy program: a thread that spins
    for its turn waits for a core that somebody else has. With the 135M model, idle: 21 and 17.
    """
    if not {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"} & os.environ.keys():
        library.openblas_set_num_threads(max(1, usable_cores() - 1))
    return int(library.openblas_get_num_threads())


def _look(blas: Blas | None) -> Device:
    import mlx.core as mx

    info = mx.device_info()
    name = str(info["device_name"])
    if mx.metal.is_available():
        return Device("metal", name, None, None, int(info["max_recommended_working_set_size"]))
    if mx.cuda.is_available():
        return Device("cuda", name, None, None, int(info["free_memory"]))
    problem = _compile_problem()
    if problem is not None:
        mx.disable_compile()
    return Device("cpu", name, blas, problem, int(usable_memory() * CPU_SHARE))


def _compile_problem() -> str | None:
    """Why mx.compile can not be used on this CPU, or None.

    MLX builds its fused CPU kernels with g++ into a folder of the temporary directory and loads them from there. It
    does without where there is no g++, but raises in the middle of a computation where g++ or the folder does not work,
    and it would load what another user of the machine put there.
    """
    import mlx.core as mx

    folder = Path(tempfile.gettempdir()) / "mlx"
    try:
        if folder.exists() and folder.stat().st_uid != os.geteuid():
            return f"{folder}, where MLX keeps its compiled kernels, belongs to another user"
        mx.eval(mx.compile(lambda x: mx.exp(x) * x + 1)(mx.zeros((1,))))
    except (OSError, RuntimeError) as error:
        return f"MLX can not compile kernels here: {str(error).strip().splitlines()[-1]}"
    return None


def _cgroup(name: str) -> str | None:
    try:
        return (Path("/sys/fs/cgroup") / name).read_text().strip()
    except OSError:
        return None
