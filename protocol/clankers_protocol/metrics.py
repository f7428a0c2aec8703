"""Metrics: counters, gauges and histograms of the running daemon."""

from typing import ClassVar, Literal

from msgspec import field

from clankers_protocol.wire import Method, Wire


class Buckets(Wire):
    """A histogram: the number of values up to each bound (not cumulative; the last one has no bound) and their sum."""

    bounds: list[float]
    counts: list[int]
    sum: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """Estimate a quantile: the bound below which this share of the values lies; infinite above every bound."""
        wanted, seen = share * self.count, 0
        for bound, count in zip([*self.bounds, float("inf")], self.counts, strict=True):
            seen += count
            if seen >= wanted:
                return bound
        return float("inf")


class Sample(Wire):
    """One value of a metric. A histogram has `buckets` instead of `value`."""

    labels: dict[str, str] = field(default_factory=dict)
    value: float | None = None
    buckets: Buckets | None = None


class Metric(Wire):
    """All samples of one metric. Names and units follow Prometheus' conventions."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    samples: list[Sample]


class MetricsReport(Wire):
    """The metrics, and the reason why some are missing, if any."""

    metrics: list[Metric]
    problem: str | None = None


class GetMetrics(Method[MetricsReport]):
    """Return counters since the start of the daemon and current sizes: requests, commits, queues, index, files."""

    method: ClassVar[str] = "metrics"


def prometheus_text(report: MetricsReport) -> str:
    """Format metrics in Prometheus' text format, as the node exporter's textfile collector reads it."""
    lines = []
    for metric in report.metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.type}"]
        for sample in metric.samples:
            if sample.buckets is None:
                lines.append(f"{metric.name}{_labels(sample.labels)} {sample.value or 0:.15g}")
                continue
            cumulative = 0
            for bound, count in zip([*sample.buckets.bounds, None], sample.buckets.counts, strict=True):
                cumulative += count
                labels = sample.labels | {"le": "+Inf" if bound is None else f"{bound:g}"}
                lines.append(f"{metric.name}_bucket{_labels(labels)} {cumulative}")
            lines.append(f"{metric.name}_sum{_labels(sample.labels)} {sample.buckets.sum:.15g}")
            lines.append(f"{metric.name}_count{_labels(sample.labels)} {cumulative}")
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    pairs = []
    for name, value in labels.items():
        escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        pairs.append(f'{name}="{escaped}"')
    return "{" + ",".join(pairs) + "}"
