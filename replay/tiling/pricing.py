"""Pricer: the cost of any kernel of a plan under a mapping - the one place that tells kinds of kernels apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from replay.lowering.kernel_plan import Decision, Kernel
from replay.lowering.op_graph import CollectiveShape, WaitShape
from replay.specs.mapping import MappingSpec
from replay.tiling.attention import AttentionPricer
from replay.tiling.bins import AttentionBin, ProductBin
from replay.tiling.library import AUTO, Cost, KernelLibrary
from replay.tiling.memory import weights_on_host
from replay.tiling.movement import COLLECTIVE_FAMILIES, price_collective, price_stream, stream_families
from replay.tiling.products import ProductChoice, price_experts, price_product
from replay.tiling.spatial_kernels import SpatialAttention, SpatialKernels
from replay.tiling.terms import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricer:
    """Prices kernels on one device under one mapping."""

    library: KernelLibrary
    mapping: MappingSpec

    def product(self, kernel: Kernel, rows: Array, bin_: ProductBin) -> ProductChoice:
        """Return what runs of a matrix multiply or of experts for each row count [rows], at least 1.

        Weights that the mapping keeps on the host cross the link in each call, on a stream of their own: the kernel reads them from there
        while it computes, and link and device memory add up (`placement.copy_overlap`); else the copy comes first, and nothing hides it.
        """
        if self.library.device.spatial is not None:
            kernels = SpatialKernels(device=self.library.device)
            choice = kernels.product(kernel, rows) if kernel.is_dense else kernels.experts(kernel, rows)
        else:
            price = price_product if kernel.is_dense else price_experts
            choice = price(kernel, rows, bin_, self.library, self.stack(kernel))
        if not weights_on_host(kernel, self.mapping):
            return choice
        copy_s, cost = kernel.weights_bytes / self.library.device.host_link_bytes_per_s, choice.cost
        if self.mapping.value("placement.copy_overlap", layer=kernel.layer_type):
            terms = cost.terms.with_memory(copy_s)
        else:
            terms = cost.terms.with_memory_after(copy_s, 0.0, cost.overlap_exponent)
        return replace(choice, cost=cost.unmeasured(terms))

    def movement(self, kernel: Kernel, rows: Array) -> Cost:
        """Return the cost of a stream or a collective for each row count [rows], at least 1."""
        stack = self.stack(kernel)
        if isinstance(kernel.shape, CollectiveShape):
            return price_collective(kernel, rows, self.mapping.count("all_reduce.one_shot_max_bytes"), self.library, stack)
        if self.library.device.spatial is not None:
            return SpatialKernels(device=self.library.device).stream(kernel, rows)
        return price_stream(kernel, rows, self.library, stack)

    def attention(self, kernel: Kernel, bin_: AttentionBin, window: float) -> AttentionPricer | SpatialAttention:
        """Return what prices an attention kernel where one tile and split hold; `window` are the keys a query sees at most."""
        if self.library.device.spatial is not None:
            return SpatialAttention(kernel=kernel, device=self.library.device, window=window)
        return AttentionPricer(kernel=kernel, bin_=bin_, window=window, library=self.library, stack=self.stack(kernel))

    def stack(self, kernel: Kernel) -> str:
        """Return the software stack whose kernels run; empty where the device has no calibration of the kind."""
        return self.library.stack(_families(kernel), str(self.mapping.value("kernels.stack", layer=kernel.layer_type)))

    def stack_decisions(self, kernels: tuple[Kernel, ...]) -> Iterator[Decision]:
        """Yield a decision for each layer type whose stack is asked for; of its kernels the first that does not get it stands."""
        found: dict[str, Decision] = {}
        for kernel in kernels:
            asked, stack = str(self.mapping.value("kernels.stack", layer=kernel.layer_type)), self.stack(kernel)
            knob = f"kernels.stack@{kernel.layer_type}"
            if asked == AUTO or (knob in found and found[knob].reason):
                continue
            kind = " or ".join(_families(kernel))
            reason = None if stack == asked else f"no {kind} kernels are calibrated under it for {self.library.device.name}"
            found[knob] = Decision(knob=knob, requested=asked, effective=stack or "datasheet", reason=reason, stage="lowering")
        yield from found.values()


def _families(kernel: Kernel) -> tuple[str, ...]:
    """Return the kernel families that a kernel may be priced by."""
    if kernel.phase is not None:
        return (str(kernel.axis),)
    if kernel.backends:
        return ("gemm", "vector_gemm") if kernel.is_dense else ("experts",)
    if isinstance(kernel.shape, WaitShape):
        return ("experts",)
    return COLLECTIVE_FAMILIES if isinstance(kernel.shape, CollectiveShape) else stream_families(kernel)
