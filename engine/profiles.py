"""Named ways to run the engine, as data."""

from dataclasses import dataclass, replace
from typing import Literal

from engine.request import AcceptRule


@dataclass(frozen=True, slots=True)
class Profile:
    """What the engine trades for what.

    Attributes:
        products: `calibrated` runs each quantised product of a verify step by the way that was fastest on this
            machine, `stock` by MLX's own kernel.
        accept: the rule for requests without a seed that name none.
        copy: also draft what the context says after the last few tokens, while that pays.
        small_draft_head: draft from the frequent tokens alone, where the model's folder lists them.
        chunk: prompt tokens read at once while no other row waits.
        stall_s: seconds that running rows may wait for a chunk of somebody's prompt.
        frugal: give freed memory back to the system after every chunk, for prompts that fill the machine.
    """

    name: str
    products: Literal["calibrated", "stock"] = "calibrated"
    accept: AcceptRule = "rejection"
    copy: bool = True
    small_draft_head: bool = True
    chunk: int = 512
    stall_s: float = 0.25
    frugal: bool = False


TURBO = Profile("turbo")
PROFILES = {
    profile.name: profile
    for profile in (
        TURBO,
        replace(TURBO, name="sustained", chunk=1024, frugal=True),
        replace(TURBO, name="burst", accept="block", chunk=2048, stall_s=1.0),
        replace(TURBO, name="exact", products="stock", accept="coupled", copy=False, small_draft_head=False),
        replace(TURBO, name="stock", products="stock"),
    )
}
