"""The self-test of exactness: drafting must change nothing but the speed, and here is the evidence."""

from collections.abc import Callable
from dataclasses import replace

from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.prompts import PROMPTS
from engine.request import Request, Sampling
from engine.selftest.check import Check, VerifyReport

DEPTHS = (1, 2, 3, 4)
GREEDY_TOKENS, SEEDED_TOKENS = 64, 32
GREEDY = Sampling(temperature=0.0)
SAMPLED = (Sampling(temperature=1.0), Sampling(temperature=0.7, top_k=20, top_p=0.95))
AGREEMENT_FLOOR = 0.3  # a head below this is not drafting, whatever the other checks say


def verify(config: EngineConfig, progress: Callable[[str], None] = lambda line: None) -> VerifyReport:
    """Load the model on this thread and run every check. Raises what loading raises."""
    progress("loading the model")
    engine = DirectEngine(replace(config, mode="mtp"))
    from engine.selftest.distribution import joint_distribution  # MLX may only be imported once the device is prepared
    from engine.selftest.states import head_cache, partial_accepts

    checks: list[Check] = []

    def add(*made: Check) -> None:
        for check in made:
            checks.append(check)
            progress(f"{'ok  ' if check.passed else 'FAIL'} {check.name}: {check.detail}")

    add(*_greedy(engine))
    add(*(_seeded(engine, sampling) for sampling in SAMPLED))
    add(joint_distribution(engine.loaded, progress))
    add(*partial_accepts(engine.loaded))
    add(head_cache(engine.loaded))
    return VerifyReport(engine.loaded.info.name, all(check.passed for check in checks), tuple(checks))


def _requests(engine: DirectEngine, sampling: Sampling, depth: int, count: int) -> list[Request]:
    render = engine.loaded.chat.render
    return [
        Request(
            render([{"role": "user", "content": prompt}]),
            sampling,
            max_tokens=GREEDY_TOKENS if sampling.temperature == 0 else SEEDED_TOKENS,
            depth=depth,
            seed=None if sampling.temperature == 0 else number,
        )
        for number, prompt in enumerate(PROMPTS[:count])
    ]


def _greedy(engine: DirectEngine) -> list[Check]:
    plain = [engine.run([request])[0] for request in _requests(engine, GREEDY, 0, len(PROMPTS))]
    tokens = sum(len(answer.ids) for answer in plain)
    checks, judged, accepted = [], [0] * max(DEPTHS), [0] * max(DEPTHS)
    for depth in DEPTHS:
        answers = [engine.run([request])[0] for request in _requests(engine, GREEDY, depth, len(PROMPTS))]
        same = sum(a.ids == b.ids for a, b in zip(answers, plain, strict=True))
        detail = f"{same} of {len(plain)} texts ({tokens} tokens) are plain decoding's, token for token"
        checks.append(Check(f"greedy_depth_{depth}", same == len(plain), same / len(plain), detail))
        if depth == max(DEPTHS):
            for answer in answers:
                for place, number in enumerate(answer.stats.drafted_by_depth):
                    judged[place] += number
                    accepted[place] += answer.stats.accepted_by_depth[place]
    shares = [a / j if j else 0.0 for a, j in zip(accepted, judged, strict=True)]
    listed = ", ".join(f"step {i + 1}: {share:.3f} (n={judged[i]})" for i, share in enumerate(shares))
    name = "head_agreement_by_step"
    checks.append(
        Check(name, shares[0] >= AGREEMENT_FLOOR, shares[0], f"greedy drafts that the trunk agreed with, {listed}")
    )
    return checks


def _seeded(engine: DirectEngine, sampling: Sampling) -> Check:
    plain = [engine.run([request])[0] for request in _requests(engine, sampling, 0, 4)]
    same = total = 0
    for depth in (0, *DEPTHS):
        batch = engine.run(_requests(engine, sampling, depth, 4))
        solo = [engine.run([request])[0] for request in _requests(engine, sampling, depth, 4)] if depth else plain
        total += 2 * len(plain)
        same += sum(a.ids == p.ids for a, p in zip((*solo, *batch), (*plain, *plain), strict=True))
    detail = (
        f"{same} of {total} seeded texts, alone and in a ragged batch of 4, at depth 0 to {max(DEPTHS)}, are the same"
    )
    return Check(f"seeded_temperature_{sampling.temperature:g}", same == total, same / total, detail)
