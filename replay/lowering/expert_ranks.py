"""Expert parallelism: which rank holds which expert, and what the routing of a trace makes of the ranks' loads.

Placements (all layers alike, but for `balanced`):

- `linear`: consecutive experts, the first ranks one more where they do not divide (vLLM 0.11, `determine_expert_map`);
- `round_robin`: expert e on rank e modulo ranks (the same function, `expert_placement_strategy`);
- `balanced`: layer by layer, the most chosen expert left goes to the least loaded rank with a free place (`balanced_packing` of
  DeepSeek's EPLB, without its copies of hot experts).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from replay.errors import SpecError
from replay.lowering.op_graph import LoadGroup, RankLoads
from replay.specs.mapping import MappingSpec
from replay.specs.model import ModelSpec
from replay.specs.routing import ExpertLoad

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
MOST_GROUPS = 32
"""Groups that experts are joined to by load: each stands for a thirty-second of them, by their mean."""
EVEN = 1.0 + 1e-9
"""Busiest over mean rank up to which no rank waits."""


def rank_loads(model: ModelSpec, mapping: MappingSpec, routing: ExpertLoad | None) -> RankLoads | None:
    """Return the loads of the ranks that share the experts of a model; None where one group holds all of them, evenly chosen.

    Raises:
        SpecError: the ranks do not divide the tensor-parallel group or outnumber the experts, routing is needed and not known, or it
            is that of another model.
    """
    if model.experts is None:
        return None
    ranks = _checked_ranks(model, mapping, routing)
    if ranks == 1 and (routing is None or routing.is_uniform):
        return None
    assert routing is not None
    rates = routing.rows_per_token(model)
    placement = str(mapping.value("placement.experts"))
    of_expert = np.array([place_experts(layer, ranks, placement) for layer in rates])
    members = of_expert[:, None, :] == np.arange(ranks)[None, :, None]  # [layers, ranks, experts]
    rows = np.where(members, rates[:, None, :], 0.0).sum(axis=2)
    busiest = rows.argmax(axis=1)
    ratios = rows.max(axis=1) / rows.mean(axis=1)
    waits = bool((ratios > EVEN).any())
    return RankLoads(
        ranks_count=ranks,
        experts_count=int(members.sum(axis=2).max()),
        placement=placement,
        typical=_groups(rates.ravel(), layers_count=len(rates) * ranks),
        busiest=_groups(rates[of_expert == busiest[:, None]], layers_count=len(rates)) if waits else (),
        imbalance_ratios=tuple(float(ratio) for ratio in ratios),
        exchanged=ranks > 1 and mapping.value("parallelism.expert_exchange") == "all_to_all",
    )


def place_experts(rates: Floats, ranks: int, placement: str) -> Counts:
    """Return the rank of each expert of a layer [experts]; ranks hold as many, the first ones one more where they do not divide."""
    count = len(rates)
    sizes = np.full(ranks, count // ranks) + (np.arange(ranks) < count % ranks)
    if placement == "linear":
        return np.repeat(np.arange(ranks), sizes)
    if placement == "round_robin":
        return np.arange(count) % ranks
    rank_of, loads, free = np.zeros(count, dtype=np.int64), np.zeros(ranks), sizes.copy()
    for expert in np.argsort(-rates, kind="stable"):
        rank = int(np.where(free > 0, loads, np.inf).argmin())
        rank_of[expert] = rank
        loads[rank] += rates[expert]
        free[rank] -= 1
    return rank_of


def reached_ratio(groups: tuple[LoadGroup, ...]) -> float:
    """Return the chance that a token chooses any of a rank's experts, each by itself with its own chance."""
    return 1.0 - math.prod(math.pow(1.0 - group.rows_per_token, group.count) for group in groups)


def _checked_ranks(model: ModelSpec, mapping: MappingSpec, routing: ExpertLoad | None) -> int:
    assert model.experts is not None
    tensor, ranks, count = mapping.count("parallelism.tensor"), mapping.count("parallelism.expert"), model.experts.experts_count
    where, fix = "parallelism.expert", "set another parallelism.expert"
    if tensor % ranks:
        raise SpecError(where, f"{ranks} expert-parallel ranks in a group of {tensor}", "a divisor of parallelism.tensor", fix)
    if ranks > count:
        raise SpecError(where, f"{ranks} ranks for the {count} experts of {model.name}", f"at most {count}", fix)
    if ranks > 1 and mapping.value("parallelism.expert_exchange") == "all_to_all" and ranks != tensor:
        want = f"parallelism.expert = {tensor}: an all-to-all takes the whole tensor-parallel group"
        raise SpecError(
            where, f"an all-to-all among {ranks} of {tensor} ranks", want, "set it, or parallelism.expert_exchange = all_reduce"
        )
    if ranks > 1 and routing is None:
        got = f"{ranks} ranks share the experts of {model.name}, and nothing says how often each expert is chosen"
        want = "a trace with its expert load: the most loaded rank decides, and that is not guessed"
        raise SpecError(where, got, want, "import the trace with --expert-load FILE, or --expert-load uniform to state even routing")
    return ranks


def _groups(rates: Floats, *, layers_count: int) -> tuple[LoadGroup, ...]:
    """Return the experts of `layers_count` layers as groups of similar load, most of it first; counts are those of one layer."""
    values, counts = np.unique(rates, return_counts=True)
    if len(values) > MOST_GROUPS:
        parts = np.array_split(np.sort(rates), MOST_GROUPS)
        values, counts = np.array([part.mean() for part in parts]), np.array([len(part) for part in parts])
    pairs = zip(values[::-1].tolist(), (counts[::-1] / layers_count).tolist(), strict=True)
    return tuple(LoadGroup(count=count, rows_per_token=rate) for rate, count in pairs)
