"""run(trace, model, hardware, mapping) -> Run: the only file that sees all stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from replay.assembly.assemble import Assembly, assemble
from replay.assembly.headline import Headline, headline_of, headline_of_sums
from replay.assembly.store_pieces import write_pieces
from replay.execution.engine import has_sums, replay, replay_sums
from replay.execution.step_costs import price_kernels
from replay.execution.stream import PIECE_REQUESTS, replay_pieces
from replay.lowering.select import plan_kernels
from replay.provenance import digest_document
from replay.tiling.library import SOURCES, Source, weakest_needed
from replay.tiling.schedule import Schedule, schedule
from replay.tiling.table_bytes import pack, unpack

if TYPE_CHECKING:
    from replay.assembly.run import Run
    from replay.documents import Document
    from replay.execution.tables import Replay
    from replay.ingress.streamed import StreamedTrace
    from replay.ingress.trace import Trace
    from replay.specs.hardware import HardwareSpec
    from replay.specs.mapping import MappingSpec
    from replay.specs.model import ModelSpec
    from replay.specs.routing import ExpertLoad
    from replay.tiling.step_table import StepTable


Kept = TypeVar("Kept")
Say = Callable[[int, int], None]


class TableCache(Protocol):
    """Keeps tabulated mappings from one process to the next."""

    @property
    def edition(self) -> str:
        """What decides a table beside its inputs: the code that makes it and what that computes with."""
        ...

    def read(self, key: str) -> bytes | None:
        """Return what was written under a key (a digest), or None; it need not be intact."""
        ...

    def write(self, key: str, data: bytes) -> None:
        """Keep bytes under a key as long as there is room."""
        ...


def compile_mapping(
    model: ModelSpec,
    hardware: HardwareSpec,
    mapping: MappingSpec,
    *,
    routing: ExpertLoad | None = None,
    cache: TableCache | None = None,
) -> Schedule:
    """Return the schedule of a mapping: stages 2 and 3. A cache changes nothing but the time that takes.

    `routing` is how often the trace chooses the model's experts, where that is known.

    Raises:
        SpecError: the mapping's ranks or stages do not divide the model, or they share its experts and nothing says how those are chosen.
    """
    there = mapping.only_on(hardware.name)
    plan = plan_kernels(model, hardware, there, routing)
    if cache is None:
        return schedule(plan, model, hardware, there)
    chosen = None if routing is None or model.experts is None else routing.digest
    key = digest_document([cache.edition, model.digest, hardware.digest, there.digest, chosen])
    data = cache.read(key)
    kept = None if data is None else unpack(key, data)
    if kept is not None:
        return Schedule(plan=plan, table=kept[0], decisions=kept[1])
    fresh = schedule(plan, model, hardware, there)
    cache.write(key, pack(key, fresh.table, fresh.decisions))
    return fresh


def run(trace: Trace, model: ModelSpec, hardware: HardwareSpec, mapping: MappingSpec, *, seed: int) -> Run:
    """Return what would have happened had `trace` been served by `model` on `hardware` under `mapping`.

    Raises:
        TraceError: the trace has no arrival times.
        SpecError: the mapping cannot be lowered for the model.
    """
    return Replayer(trace=trace, model=model, hardware=hardware, seed=seed).run(mapping)


def trusted_source(replayer: Replayer, mapping: MappingSpec) -> Source:
    """Return the weakest source that is needed to cost most of the device time of a mapping's run."""
    return weakest_needed(source_seconds(replayer, mapping))


def source_seconds(replayer: Replayer, mapping: MappingSpec) -> dict[Source, float]:
    """Return the device time of a mapping's run by what its costs rest on, the most trusted first."""
    table, steps = replayer.table(mapping), replayer.run(mapping).steps
    seconds = dict.fromkeys(SOURCES, 0.0)
    for kernel, source in zip(price_kernels(table, steps), table.kernels["source"].to_pylist(), strict=True):
        time_s = kernel.weight * kernel.time_s
        seconds["measured"] += float((time_s * kernel.measured_ratio)[kernel.row].sum())
        seconds[source] += float((time_s * (1.0 - kernel.measured_ratio))[kernel.row].sum())
    return seconds


class Compiler:
    """Compiles mappings for one trace, model and accelerator; remembers what it did, by the mapping's digest."""

    KEPT = 2

    def __init__(
        self,
        *,
        trace: Trace | StreamedTrace,
        model: ModelSpec,
        hardware: HardwareSpec,
        seed: int,
        cache: TableCache | None = None,
    ) -> None:
        self.model, self.hardware, self.seed, self._routing, self._cache = model, hardware, seed, trace.expert_load, cache
        self._schedules: dict[str, Schedule] = {}

    def schedule(self, mapping: MappingSpec) -> Schedule:
        """Return the mapping's schedule."""
        return self._schedules.get(mapping.digest) or self._remember(
            self._schedules,
            mapping.digest,
            compile_mapping(self.model, self.hardware, mapping, routing=self._routing, cache=self._cache),
        )

    def table(self, mapping: MappingSpec) -> StepTable:
        """Return the mapping's step table."""
        return self.schedule(mapping).table

    def _remember(self, memory: dict[str, Kept], digest: str, result: Kept) -> Kept:
        while len(memory) > self.KEPT:
            memory.popitem()
        memory[digest] = result
        return result


class Replayer(Compiler):
    """Replays mappings on one trace, model and accelerator; remembers what it did, by the mapping's digest.

    Runs are large (one row per step), so beside the first `KEPT` - a gate's two arms - only the latest one is kept.
    """

    def __init__(self, *, trace: Trace, model: ModelSpec, hardware: HardwareSpec, seed: int, cache: TableCache | None = None) -> None:
        super().__init__(trace=trace, model=model, hardware=hardware, seed=seed, cache=cache)
        self.trace = trace
        self._runs: dict[str, Run] = {}

    def run(self, mapping: MappingSpec) -> Run:
        """Return the mapping's run."""
        known = self._runs.get(mapping.digest)
        return known or self._remember(self._runs, mapping.digest, self.run_on(self.trace, mapping))

    def headline(self, trace: Trace, mapping: MappingSpec, kernel_factors: Mapping[str, float], *, by_layer: bool) -> Headline:
        """Return what a mapping's run on other traffic adds up to, with each kernel's whole time scaled; nothing of it is remembered.

        Sums by layer type are there with `by_layer`, and where steps of several replicas or stages overlap.
        """
        return self.headline_under(self.table(mapping), trace, kernel_factors, by_layer=by_layer)

    def headline_under(
        self, table: StepTable, trace: Trace, kernel_factors: Mapping[str, float] | None = None, *, by_layer: bool
    ) -> Headline:
        """Return the same under any step table, which need not be a mapping's."""
        if by_layer or not has_sums(trace, table):
            return headline_of(self._run_under(table, trace, kernel_factors, mapping_digest=""))
        requests, sums = replay_sums(trace, table, kernel_factors=kernel_factors or {})
        return headline_of_sums(requests, sums, table)

    def run_on(self, trace: Trace, mapping: MappingSpec, kernel_factors: Mapping[str, float] | None = None) -> Run:
        """Return a mapping's run on other traffic, with each kernel's whole time scaled; it is not remembered."""
        return self._run_under(self.table(mapping), trace, kernel_factors, mapping_digest=mapping.digest)

    def _run_under(self, table: StepTable, trace: Trace, kernel_factors: Mapping[str, float] | None, *, mapping_digest: str) -> Run:
        return assemble(
            trace=trace,
            table=table,
            replayed=replay(trace, table, kernel_factors=kernel_factors or {}),
            model=self.model.name,
            hardware=self.hardware.name,
            mapping_digest=mapping_digest,
            seed=self.seed,
            kernel_factors=kernel_factors or {},
        )


class PieceReplayer(Compiler):
    """Replays mappings on a trace that is read in pieces, straight into run directories; keeps no run."""

    def __init__(
        self, *, trace: StreamedTrace, model: ModelSpec, hardware: HardwareSpec, seed: int, cache: TableCache | None = None
    ) -> None:
        super().__init__(trace=trace, model=model, hardware=hardware, seed=seed, cache=cache)
        self.trace = trace

    def write(
        self, mapping: MappingSpec, folder: Path, manifest: Document, *, rows: int = PIECE_REQUESTS, say: Say | None = None
    ) -> Document:
        """Write the run directory of a mapping, `rows` requests at a time, and return its `run.json`.

        `say` is told the requests that are done and their number, after each piece.

        Raises:
            SpecError: the folder cannot be written, or what `replay.execution.stream` refuses.
            TraceError: see there.
        """
        table = self.table(mapping)
        assembly = Assembly(
            trace=self.trace,
            table=table,
            model=self.model.name,
            hardware=self.hardware.name,
            mapping_digest=mapping.digest,
            seed=self.seed,
        )
        pieces = replay_pieces(self.trace.pieces(rows), table, self.trace.provenance.load)
        return write_pieces(assembly, self._told(pieces, say), folder, manifest)

    def _told(self, pieces: Iterable[Replay], say: Say | None) -> Iterator[Replay]:
        done = 0
        for piece in pieces:
            yield piece
            done += piece.requests.num_rows
            if say is not None:
                say(done, self.trace.requests_count)
