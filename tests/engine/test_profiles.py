"""What a profile changes, and what it never does."""

from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.profiles import PROFILES
from engine.request import Request, Sampling

RULES = {"turbo": "rejection", "sustained": "rejection", "burst": "block", "exact": "coupled", "stock": "rejection"}
PROMPT = (7, 8, 9, 10, 11, 12, 13, 14) * 4  # repeats itself, so that copies are drafted where a profile lets them


@pytest.mark.parametrize("name", PROFILES)
def test_a_seeded_text_is_that_of_plain_decoding_and_the_rule_of_others_is_the_profiles(
    name: str, small: DirectEngine
) -> None:
    engine = DirectEngine(replace(EngineConfig(), profile=PROFILES[name]), loaded=small.loaded)
    request = Request(PROMPT, Sampling(temperature=1.0), max_tokens=24, seed=3, ignore_eos=True)
    seeded, own, plain = engine.run(
        [request, replace(request, id="own", seed=None), replace(request, id="plain", depth=0)]
    )
    assert seeded.ids == plain.ids
    assert own.stats.accept_rule == RULES[name]
    engine.close()


def test_every_profile_is_looked_at() -> None:
    assert RULES.keys() == PROFILES.keys()
