"""Does a model fit this machine's memory, asked before it is loaded or even downloaded. No mlx."""

import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

from engine import device
from engine.errors import OutOfMemoryError
from engine.memory import STATES, MemoryPlan, RowCost

CONTEXT = 32_768
"""Tokens of prompt and answer that a model is asked to have room for, where nobody says otherwise."""
SAFETY = 1.5
"""Memory that a machine should have for each byte of a publisher's measured peak: other programs run there too."""
SMALL_MAC = 36 << 30
SMALL_SHARE, LARGE_SHARE = 2 / 3, 3 / 4
"""What Metal lets a process keep resident, below and above SMALL_MAC bytes of memory."""
SYSCTL_S = 1.0

Verdict = Literal["yes", "tight", "no", "unknown"]


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a model runs here with `context` tokens of prompt and answer.

    Attributes:
        verdict: yes; tight: it loads, with a shorter context or little room for others; no: it does not load.
        needed: bytes that weights and caches take. memory: bytes that they may take.
        longest: tokens that a conversation can have; None where only a publisher's figure is known.
    """

    verdict: Verdict
    needed: int | None
    memory: int
    context: int
    longest: int | None = None


def fit(weights: int, token: int | None, recurrent: int | None, longest: int | None, context: int, memory: int) -> Fit:
    """The engine's own plan for a checkpoint that is here, asked without loading it.

    Args:
        weights: bytes. token: cache bytes a token at 16 bits a value. recurrent: bytes a row besides.
        longest: tokens that the model was made for. context: tokens to have room for. memory: bytes for all of it.
    """
    if token is None or recurrent is None or longest is None:
        return Fit("unknown" if weights <= memory else "no", None, memory, context)
    native = 2 if sys.platform == "linux" and not cuda_is_used() else 1  # the CPU keeps keys and values in float32
    context = min(context, longest)
    cost = RowCost(token * native, STATES * recurrent)
    try:
        plan = MemoryPlan(memory, weights, cost, longest)
    except OutOfMemoryError:
        return Fit("no", weights, memory, context, 0)
    needed = weights + plan.batch_bytes(1, plan.slots(context, 0))
    most = plan.most_tokens
    return Fit("yes" if most >= context else "tight", needed, memory, context, most)


def fit_by_peak(peak: int, machine: int, context: int) -> Fit:
    """By what its publisher measured, for a model that is not here. `machine`: bytes of the whole machine."""
    verdict: Verdict = "no" if peak > machine else "yes" if peak * SAFETY <= machine else "tight"
    return Fit(verdict, peak, machine, context)


def memory_for_models() -> int:
    """Bytes that models and caches may take here: the engine's own figure where it runs, else what it will be."""
    if "mlx.core" in sys.modules:
        return device.prepare().memory
    memory = device.usable_memory()
    if platform.system() == "Darwin":
        return int(memory * (SMALL_SHARE if memory <= SMALL_MAC else LARGE_SHARE))
    return int(memory * device.CPU_SHARE)


def cuda_is_used() -> bool:
    """Whether the engine that runs here is on a CUDA device; False while none runs."""
    return "mlx.core" in sys.modules and device.prepare().kind == "cuda"


def chip() -> str | None:
    """m1, m2 and so on, or intel; None where this is no Mac or the system does not say."""
    if platform.system() != "Darwin":
        return None
    if platform.machine() == "x86_64":
        return "intel"
    try:
        name = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, timeout=SYSCTL_S
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"Apple (M\d+)", name)
    return found[1].lower() if found else None
