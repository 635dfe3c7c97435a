"""What a server answered, as its metrics count it."""

from collections import Counter

import httpx
from prometheus_client.parser import text_string_to_metric_families


def answered(address: str) -> Counter[tuple[str, int]]:
    """Answers by route and status; a path that no route has is `none`. Reading this is not counted."""
    counts: Counter[tuple[str, int]] = Counter()
    for family in text_string_to_metric_families(httpx.get(f"{address}/metrics", trust_env=False).text):
        for sample in family.samples:
            if sample.name == "mtplx_http_requests_total" and sample.labels["handler"] != "/metrics":
                counts[sample.labels["handler"], int(sample.labels["status"])] += int(sample.value)
    return counts
