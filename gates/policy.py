"""PolicySpec: what a mapping change has to show before it ships - claims, margins, error rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from gates.claim import ClaimSpec
from gates.margins import parse_margin, parse_run_effect
from gates.metrics import METRICS
from gates.quality.policy import QualityPolicy
from gates.strata import PromptBin, prompt_bins
from replay import documents
from replay.errors import SpecError
from replay.provenance import digest_document
from replay.toml_lines import locate

SLO_LIMITS = ("ttft_s", "tpot_s", "e2e_s")
ReferenceEffect = Literal["informs", "invalidates"]
WeighedEffect = Literal["informs", "disproves"]
SLO_MARGIN_POINTS = "1 point"
_DEFAULT = Path(__file__).with_name("default_policy.toml")
_SECTIONS = ("blocking", "advisory")


@dataclass(frozen=True, slots=True, kw_only=True)
class SloLimits:
    """Limits that each request should meet; None does not limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftBudget:
    """How far releases may drift together."""

    budget: float
    """Largest worsening of a blocking claim since the anchor, as a fraction."""
    anchor: str | None = None
    """What is counted from: a mapping's digest or its start, or ``git:REF``; None is the baseline of the history's first release."""
    max_gap_days: float | None = None
    """Oldest newest release of the history that may support a decision; None does not limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Representativeness:
    """How far the trace may be from a reference, recent traffic, and what it means where it is further."""

    max_shape_distance: float
    min_coverage_ratio: float
    max_load_ratio: float
    effect: ReferenceEffect


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """A checked policy file; the meaning of each figure is written in ``gates/default_policy.toml``."""

    alpha: float
    replicates: int
    resimulations: int
    max_resimulations: int
    blocks: int
    minimum_beyond: int
    warning_beyond: int
    minimum_windows: int
    allow_synthetic: bool
    max_rejected_ratio: float
    """Largest share of requests that even the baseline may reject; beyond it the trace does not fit the deployment."""
    prompt_bin_edges_tokens: tuple[int, ...]
    claims: tuple[ClaimSpec, ...]
    """Claims asked about every cell, strata written out."""
    representativeness: Representativeness
    quality: QualityPolicy
    layer_claims: tuple[ClaimSpec, ...]
    """Claims asked about every layer type of a cell's model (their own `layer_type` is None)."""
    run_effect_sd: float = 0.0
    """Standard deviation of the log of a latency from one measured run to the next, assumed where a single run per arm cannot show it."""
    slo: SloLimits | None = None
    max_trace_age_days: float | None = None
    """Oldest recording that may support a decision; None does not limit."""
    drift: DriftBudget | None = None
    max_changed_knobs: int | None = None
    """Knobs that one change may change without a word; None does not limit."""
    throttling: WeighedEffect = "informs"
    """What it means that the candidate's clock falls over the run and the baseline's does not."""

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form that is digested: every figure and every claim."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: documents.Document) -> PolicySpec:
        """Return the policy of a JSON form made by `to_document`."""
        fields = dict(document)
        for key in ("claims", "layer_claims"):
            fields[key] = tuple(ClaimSpec(**claim) for claim in fields[key])
        asked = fields["quality"]
        pairs = {name: tuple((metric, margin) for metric, margin in asked[name]) for name in ("margins", "by_prompt_bin")}
        fields["quality"] = QualityPolicy(**{**asked, **pairs})
        for key, kind in (("representativeness", Representativeness), ("slo", SloLimits), ("drift", DriftBudget)):
            fields[key] = None if fields[key] is None else kind(**fields[key])
        fields["prompt_bin_edges_tokens"] = tuple(fields["prompt_bin_edges_tokens"])
        return cls(**fields)

    @property
    def digest(self) -> str:
        """Digest of every figure and claim; spelling and comments of the file do not count."""
        return digest_document(self.to_document())


def default_policy() -> PolicySpec:
    """Return the policy that holds where a project states none."""
    return read_policy(_DEFAULT)


def default_measured_policy() -> PolicySpec:
    """Return the policy that holds for measured runs where nobody states one: claims that benchmarks record figures for."""
    return read_policy(_DEFAULT.with_name("default_measured_policy.toml"))


def read_policy(path: Path) -> PolicySpec:
    """Return the policy in a TOML file.

    Raises:
        SpecError: the file cannot be read or used.
    """
    return parse_policy(documents.decode(documents.read_bytes(path, "a policy file"), str(path), "a policy file"), str(path))


def parse_policy(text: str, where: str) -> PolicySpec:
    """Return the policy of a TOML text; keys that are not written have the default's values.

    Raises:
        SpecError: it is not TOML, has an unknown key, or asks for something impossible.
    """
    written = documents.parse_toml(text, where)
    documents.check(written, "policy.v1", where, text)
    return _Policy(where=where, text=text, written=written).build()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Policy:
    """One policy text while it is read, with what is needed to name the line of a fault."""

    where: str
    text: str
    written: documents.Document

    def build(self) -> PolicySpec:
        default = _default_document()
        figures = {**default, **self.written}
        if any(section in self.written for section in _SECTIONS):
            figures = {key: value for key, value in figures.items() if key not in _SECTIONS or key in self.written}
        self._check_figures(figures)
        bins = prompt_bins(figures["prompt_bin_edges_tokens"])
        claims = [claim for section in _SECTIONS for claim in self._section(figures, section, bins)]
        layer_claims = [claim for section in _SECTIONS for claim in self._layers(figures, section)]
        slo, slo_claims = self._slo(figures.get("slo"))
        claims += slo_claims
        self._check_claims(claims, layer_claims)
        if slo is None and any(claim.metric == "goodput_per_s" for claim in claims):
            fix = "add [slo] with a limit, or remove the claim"
            raise SpecError(self.where, "it claims goodput_per_s and states no limits", "the limits that a good request meets", fix)
        scalars = ("alpha", "replicates", "resimulations", "max_resimulations", "blocks", "minimum_beyond", "warning_beyond")
        return PolicySpec(
            **{key: figures[key] for key in (*scalars, "minimum_windows", "allow_synthetic")},
            prompt_bin_edges_tokens=tuple(figures["prompt_bin_edges_tokens"]),
            claims=tuple(claims),
            layer_claims=tuple(layer_claims),
            slo=slo,
            max_rejected_ratio=float(figures["max_rejected_ratio"]),
            run_effect_sd=parse_run_effect(figures["run_effect_sd"], self._at(("run_effect_sd",))),
            max_trace_age_days=figures.get("max_trace_age_days"),
            drift=self._drift(figures.get("drift")),
            throttling=figures["throttling"],
            max_changed_knobs=figures.get("max_changed_knobs"),
            representativeness=Representativeness(**{**default["representativeness"], **figures["representativeness"]}),
            quality=self._quality(default["quality"]),
        )

    def _section(self, figures: dict[str, Any], section: str, bins: tuple[PromptBin, ...]) -> Iterator[ClaimSpec]:
        content, blocking = figures.get(section, {}), section == "blocking"
        for name, asked in content.items():
            if name in METRICS:
                yield from self._metric((section, name), asked, blocking)
        for name, asked in content.get("by_prompt_bin", {}).items():
            for one_bin in bins:
                yield from self._metric((section, "by_prompt_bin", name), asked, blocking, one_bin.stratum)

    def _layers(self, figures: dict[str, Any], section: str) -> Iterator[ClaimSpec]:
        for name, asked in figures.get(section, {}).get("by_layer_type", {}).items():
            yield from self._metric((section, "by_layer_type", name), asked, section == "blocking")

    def _metric(self, keys: tuple[str, ...], asked: Any, blocking: bool, stratum: str = "all") -> Iterator[ClaimSpec]:
        name = keys[-1]
        by_percentile = asked if isinstance(asked, dict) else {None: asked}
        for key, written in by_percentile.items():
            path = keys if key is None else (*keys, key)
            if name == "window_drift_ratio":
                margin = parse_margin(written, METRICS[name], self._at(path), ".".join(path))
                yield ClaimSpec(metric=name, margin=margin, blocking=blocking, of=key)
                continue
            margin = parse_margin(written, METRICS[name], self._at(path), ".".join(path))
            yield ClaimSpec(metric=name, margin=margin, blocking=blocking, percentile=self._percentile(key, path), stratum=stratum)

    def _percentile(self, key: str | None, path: tuple[str, ...]) -> float | None:
        if key is None:
            return None
        percentile = float(key[1:])
        if not percentile > 0:
            raise SpecError(self._at(path), f"{'.'.join(path)} asks for the percentile 0", "above 0 and below 100", "write p95 or p99")
        return int(percentile) if percentile.is_integer() else percentile

    def _slo(self, written: dict[str, Any] | None) -> tuple[SloLimits | None, list[ClaimSpec]]:
        if written is None:
            return None, []
        limits = {name: float(written[name]) for name in SLO_LIMITS if name in written}
        if not limits:
            raise SpecError(self._at(("slo",)), "slo states no limit", "one of " + ", ".join(SLO_LIMITS), "add a limit, or remove [slo]")
        for name, limit_s in limits.items():
            if not 0 < limit_s < float("inf"):
                raise SpecError(self._at(("slo", name)), f"slo.{name} is {limit_s}", "seconds above 0", "correct the limit")
        margin_text = written.get("margin", SLO_MARGIN_POINTS)
        margin = parse_margin(margin_text, METRICS["slo_attainment_ratio"], self._at(("slo", "margin")), "slo.margin")
        claim = ClaimSpec(metric="slo_attainment_ratio", margin=margin, blocking=written.get("blocking", True))
        return SloLimits(**limits), [claim]

    def _quality(self, default: dict[str, Any]) -> QualityPolicy:
        """Return what is asked of quality: margins that are written replace the default's, one by one."""
        written = self.written.get("quality", {})
        figures = {**default, **written}
        bins = {**default["by_prompt_bin"], **written.get("by_prompt_bin", {})}

        def margins(asked: dict[str, Any], keys: tuple[str, ...]) -> tuple[tuple[str, float], ...]:
            paths = {name: (*keys, name) for name in asked if name in METRICS}
            return tuple((name, parse_margin(asked[name], METRICS[name], self._at(path), ".".join(path))) for name, path in paths.items())

        return QualityPolicy(
            margins=margins(figures, ("quality",)),
            by_prompt_bin=margins(bins, ("quality", "by_prompt_bin")),
            min_traffic_ratio=float(figures["min_traffic_ratio"]),
            unknown_lengths_to_tokens=figures["unknown_lengths_to_tokens"],
        )

    def _drift(self, written: dict[str, Any] | None) -> DriftBudget | None:
        if written is None:
            return None
        if "budget" not in written:
            raise SpecError(self._at(("drift",)), "drift states no budget", 'budget = "5 %"', "add the budget, or remove [drift]")
        budget = parse_margin(written["budget"], METRICS["ttft_s"], self._at(("drift", "budget")), "drift.budget")
        if budget >= 1:
            raise SpecError(self._at(("drift", "budget")), f"drift.budget is {written['budget']!r}", "less than 100 %", 'write "5 %"')
        return DriftBudget(**{**written, "budget": budget})

    def _check_figures(self, figures: dict[str, Any]) -> None:
        edges = figures["prompt_bin_edges_tokens"]
        if sorted(set(edges)) != edges:
            place = self._at(("prompt_bin_edges_tokens",))
            raise SpecError(place, f"prompt_bin_edges_tokens is {edges}", "ascending whole numbers, each once", "sort the edges")
        if not 0 < figures["alpha"] <= 0.25:
            raise SpecError(self._at(("alpha",)), f"alpha is {figures['alpha']}", "above 0 and at most 0.25", "write 0.05")
        if not 0 <= figures["max_rejected_ratio"] < 1:
            got = f"max_rejected_ratio is {figures['max_rejected_ratio']}"
            raise SpecError(self._at(("max_rejected_ratio",)), got, "a fraction of the requests from 0 and below 1", "write 0.01 for 1 %")
        if figures["max_resimulations"] < figures["resimulations"]:
            got = f"max_resimulations is {figures['max_resimulations']} and resimulations is {figures['resimulations']}"
            raise SpecError(self._at(("max_resimulations",)), got, "max_resimulations >= resimulations", "raise max_resimulations")
        if figures["warning_beyond"] < figures["minimum_beyond"]:
            got = f"warning_beyond is {figures['warning_beyond']} and minimum_beyond is {figures['minimum_beyond']}"
            raise SpecError(self._at(("warning_beyond",)), got, "warning_beyond >= minimum_beyond", "raise warning_beyond")

    def _check_claims(self, claims: list[ClaimSpec], layer_claims: list[ClaimSpec]) -> None:
        seen: set[str] = set()
        for key in [claim.key for claim in claims] + [f"{claim.key} by layer type" for claim in layer_claims]:
            if key in seen:
                raise SpecError(self.where, f"{key} is claimed twice", "each claim blocking or advisory", "remove one of the two")
            seen.add(key)
        if not any(claim.blocking for claim in [*claims, *layer_claims]):
            fix = 'move what must hold under [blocking], for example ttft_s = { p99 = "3 %" }'
            raise SpecError(self.where, "it has no blocking claim", "at least one, as nothing could be released otherwise", fix)

    def _at(self, path: tuple[str, ...]) -> str:
        line = locate(self.text, path)
        return f"{self.where}:{line}" if line else self.where


def _default_document() -> documents.Document:
    return documents.read_toml(_DEFAULT, "the default policy")
