"""What a server's Prometheus metrics tell of its load and its drafts."""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

RUNNING = frozenset({"vllm:num_requests_running", "sglang:num_running_reqs"})
WAITING = frozenset({"vllm:num_requests_waiting", "sglang:num_queue_reqs"})
ROUNDS = "vllm:spec_decode_num_drafts_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
BY_PLACE = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """Figures of a whole server; None where it does not tell them.

    Attributes:
        running, waiting: requests at this moment.
        accepted: share of drafted tokens that held. by_depth: [d] = share of rounds in which the draft at depth d + 1
            held. per_round: tokens a round, the target's own included. All three are since the server was started.
    """

    running: int | None = None
    waiting: int | None = None
    accepted: float | None = None
    by_depth: tuple[float, ...] = ()
    per_round: float | None = None


def figures_of(text: str) -> ServerFigures:
    """The figures in a page of metrics; several engines' are added up. Raises ValueError for what is no such page."""
    sums: dict[str, float] = {}
    places: dict[int, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == BY_PLACE and sample.labels.get("position", "").isdecimal():
                place = int(sample.labels["position"])
                places[place] = places.get(place, 0.0) + sample.value
            else:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    rounds, drafted, accepted = (sums.get(name, 0.0) for name in (ROUNDS, DRAFTED, ACCEPTED))
    return ServerFigures(
        running=_count(sums, RUNNING),
        waiting=_count(sums, WAITING),
        accepted=accepted / drafted if drafted else None,
        by_depth=tuple(places.get(place, 0.0) / rounds for place in range(max(places, default=-1) + 1))
        if rounds
        else (),
        per_round=1 + accepted / rounds if rounds else None,
    )


def _count(sums: dict[str, float], names: frozenset[str]) -> int | None:
    told = [sums[name] for name in names if name in sums]
    return round(sum(told)) if told else None
