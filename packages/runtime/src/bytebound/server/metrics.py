"""Figures of a running server for Prometheus, in a registry of their own."""

from collections.abc import Iterator
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bytebound.prompt_reader import PromptReader
from bytebound.results import GenerationStats
from bytebound.server.worker import EngineWorker

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
_SPEEDS = (1, 3, 10, 30, 60, 100, 150, 200, 300, 500, 1000)


class Metrics:
    """What was asked and generated, and how fast. Names begin with ``bytebound_``."""

    def __init__(self, worker: EngineWorker) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.requests = Counter(
            "bytebound_requests",
            "Requests by endpoint and by HTTP status; 499 is a client that left.",
            ("endpoint", "status"),
            registry=registry,
        )
        self._tokens = Counter(
            "bytebound_tokens",
            "Tokens: of prompts, of them cached, generated, guessed and accepted.",
            ("kind",),
            registry=registry,
        )
        self._queued = Histogram(
            "bytebound_queue_seconds",
            "Time that a request waited for its turn.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._prefill = Histogram(
            "bytebound_prefill_seconds",
            "Time from the start of a request to its first token.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._speed = Histogram(
            "bytebound_decode_tokens_per_second",
            "Tokens per second after the first, of each request.",
            buckets=_SPEEDS,
            registry=registry,
        )
        waiting = Gauge("bytebound_queue_depth", "Requests that wait.", registry=registry)
        waiting.set_function(lambda: worker.depth)
        running = Gauge("bytebound_running", "Requests that run: 0 or 1.", registry=registry)
        running.set_function(lambda: int(worker.busy))
        registry.register(_Beginnings(worker.engine.reader))

    def generated(self, stats: GenerationStats, queued_s: float) -> None:
        """Count one request at the engine, whole or not."""
        for kind, count in (
            ("prompt", stats.prompt_tokens),
            ("cached", stats.cached_tokens),
            ("completion", stats.completion_tokens),
            ("drafted", stats.drafted),
            ("accepted", stats.accepted),
        ):
            self._tokens.labels(kind).inc(count)
        self._queued.observe(queued_s)
        self._prefill.observe(stats.prefill_s)
        if stats.completion_tokens > 1:
            self._speed.observe(stats.tok_per_s)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)


class _Beginnings(Collector):
    """What prompts go on from, as their reader counts it."""

    def __init__(self, reader: PromptReader) -> None:
        self._reader = reader

    def collect(self) -> Iterator[Metric]:
        """Called for every scrape, on whatever thread."""
        prompts = CounterMetricFamily(
            "bytebound_prompts",
            "Prompts by what they went on from: the resident conversation, a parked one, nothing.",
            labels=("beginning",),
        )
        for kind, count in asdict(self._reader.beginnings).items():
            prompts.add_metric((kind,), count)
        yield prompts
        parked = self._reader.parked
        held, budget, evictions = (
            (0, 0, 0) if parked is None else (parked.num_bytes, parked.budget, parked.evictions)
        )
        text = "Host memory that parked conversations take."
        yield GaugeMetricFamily("bytebound_parked_bytes", text, value=held)
        text = "The most that parked conversations may take."
        yield GaugeMetricFamily("bytebound_parked_bytes_limit", text, value=budget)
        text = "States of parked conversations that made room for others."
        yield CounterMetricFamily("bytebound_parked_evictions", text, value=evictions)
