"""`mtplx-tui verify`: the exactness self-test."""

import dataclasses

from mtplx_tui import exit_codes
from mtplx_tui.commands import common
from mtplx_tui.commands.common import EngineOptions, JsonOption, KvBitsOption, ModelOption, ProfileOption


def verify(
    model: ModelOption = None,
    profile: ProfileOption = "turbo",
    kv_bits: KvBitsOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check on this machine that drafting changes no answer.

    Greedy and seeded texts at each depth against plain decoding, alone and in a batch; the distribution of unseeded
    ones against direct draws; the caches after each number of accepted drafts. Exit code 1 where a check fails.
    """
    from engine.verify import verify as run

    report = run(EngineOptions(model, profile=profile, kv_bits=kv_bits).config(), common.progress)
    if as_json:
        common.print_json(dataclasses.asdict(report))
    else:
        width = max((len(check.name) for check in report.checks), default=0)
        for check in report.checks:
            verdict = "pass" if check.passed else "FAIL"
            print(f"{verdict}  {check.name:{width}}  {check.figure:<8.4g}  {check.detail}")
        print(f"{report.model}: {'all checks passed' if report.passed else 'NOT exact on this machine'}")
    return exit_codes.OK if report.passed else exit_codes.NOT_PASSED
