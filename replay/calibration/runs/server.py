"""The serving rules of a vLLM replica from the meta file beside its request log: what decides how steps are composed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from replay import documents
from replay.errors import SpecError
from replay.tiling.step_table import StepLimits

BLOCK_TOKENS = 16
"""vLLM's default where the meta file states none."""
FIRST_V1, FIRST_ASYNC, FIRST_WHOLE_PROMPT = (0, 8), (0, 14), (0, 19)
"""vLLM versions since which the V1 engine, asynchronous scheduling, and room for the whole prompt at admission are the default."""
LARGEST_CAPTURED = 512
_WANTED_META = 'a JSON object {"model": ..., "vllm_version": ..., "engine_kwargs": {"max_num_seqs": ..., "max_num_batched_tokens": ...}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One replica: its name and the rules that its steps are composed by."""

    model: str
    software: str
    hardware: str | None
    limits: StepLimits
    blocks_count: int
    """Usable blocks of the cache."""
    block_tokens: int
    captured_sizes: tuple[int, ...]
    """Token counts of captured graphs, ascending; a larger step runs as it is."""
    notes: tuple[str, ...] = ()
    """What the meta file leaves open, and what was assumed."""

    def to_document(self) -> dict[str, Any]:
        """Return the rules as plain values."""
        rules = {name: value for name, value in asdict(self.limits).items() if name != "max_delay_s"}
        return rules | {
            "blocks_count": self.blocks_count,
            "block_tokens": self.block_tokens,
            "captured_sizes": list(self.captured_sizes),
        }


def meta_path(log: Path) -> Path:
    """Return where the meta file of a log is looked for: `x_meta.json` beside `x_requests.jsonl`, `meta.json` beside any other."""
    name = log.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix("requests")
    return log.with_name(f"{name}meta.json" if name != log.name and name.endswith(("_", "-", ".")) else "meta.json")


def read_server(path: Path, *, longest_request_tokens: int) -> Server:
    """Return the server that a meta file describes.

    Settings are what the engine resolved (`resolved_config`, `kv_cache`) where the file has it, else what it was asked for
    (`engine_kwargs`), else vLLM's default for the version. A context limit that nothing states is set to the longest request
    (prompt plus output) of the log, and a number of cache blocks that nothing states to one that never runs short; both are noted.

    Raises:
        SpecError: the file is missing or is no such object, a setting is no number, or the server follows rules that the replay
            does not know (V0, several replicas, no chunked prefill, speculation, priorities).
    """
    try:
        meta = documents.read_json_object(path, "the meta file of a run")
    except SpecError as error:
        raise SpecError(error.where, error.got, _WANTED_META, "write it beside the log, or name it with --meta") from error
    settings = _Settings(meta, str(path))
    settings.refuse_other_rules()
    notes: list[str] = []
    limits = _limits(settings, longest_request_tokens, notes)
    blocks_count, block_tokens = _pool(settings, limits, longest_request_tokens, notes)
    return Server(
        model=str(meta.get("model") or "not stated"),
        software=f"vllm {meta['vllm_version']}",
        hardware=settings.section("hardware").get("device_name"),
        limits=limits,
        blocks_count=blocks_count,
        block_tokens=block_tokens,
        captured_sizes=_captured_sizes(settings, limits),
        notes=tuple(notes),
    )


class _Settings:
    """Looks settings up where the meta file may state them."""

    def __init__(self, meta: dict[str, Any], where: str) -> None:
        self.meta, self.where = meta, where
        found = re.match(r"(\d+)\.(\d+)", str(meta.get("vllm_version", "")))
        if found is None:
            raise self.bad("vllm_version", meta.get("vllm_version"), "a version such as 0.19.0")
        self.version = (int(found[1]), int(found[2]))

    def bad(self, name: str, value: Any, want: str, fix: str = "correct the meta file") -> SpecError:
        return SpecError(f"{self.where}: {name}", f"it is {value!r}" if value is not None else "it is not stated", want, fix)

    def section(self, *path: str) -> Mapping[str, Any]:
        part: Any = self.meta
        for name in path:
            part = part.get(name) if isinstance(part, dict) else None
        return part if isinstance(part, dict) else {}

    def find(self, name: str, asked: str | None = None) -> Any:
        """Return a setting by the engine's name, or by the one it is asked for with; None where nothing states it."""
        resolved = [("resolved_config", f"{part}_config") for part in ("scheduler", "cache", "model", "parallel", "compilation")]
        for path in (("kv_cache",), *resolved):
            if self.section(*path).get(name) is not None:
                return self.section(*path)[name]
        return self.section("engine_kwargs").get(asked or name)

    def count(self, name: str, asked: str | None = None, *, default: int | None = None) -> int:
        """Return a whole number >= 1."""
        value = self.find(name, asked)
        if value is None and default is not None:
            return default
        if type(value) is not int or value < 1:
            raise self.bad(name, value, "a whole number >= 1")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.find(name)
        if value is not None and type(value) is not bool:
            raise self.bad(name, value, "true or false")
        return default if value is None else value

    def refuse_other_rules(self) -> None:
        """Raise SpecError where the server follows rules that the replay of a log does not know."""
        if self.version < FIRST_V1:
            raise self.bad("vllm_version", self.meta["vllm_version"], "0.8 or newer (the V1 engine)", "record the log with a newer vLLM")
        for name in ("data_parallel_size", "pipeline_parallel_size"):
            if self.count(name, default=1) != 1:
                raise self.bad(name, self.find(name), "1: a log of one replica", "give the log of each replica on its own")
        if not self.flag("enable_chunked_prefill", default=True):
            raise self.bad("enable_chunked_prefill", False, "true", "record the log with chunked prefill")
        if self.find("policy", "scheduling_policy") not in (None, "fcfs"):
            raise self.bad("policy", self.find("policy", "scheduling_policy"), "fcfs", "record the log without priorities")
        speculative = self.section("resolved_config").get("speculative_config") or self.section("engine_kwargs").get("speculative_config")
        if speculative:
            raise self.bad("speculative_config", "set", "no speculative decoding", "record the log without it")


def _limits(settings: _Settings, longest_request_tokens: int, notes: list[str]) -> StepLimits:
    context = settings.count("max_model_len", default=longest_request_tokens)
    if settings.find("max_model_len") is None:
        notes.append(f"max_model_len is not stated: set to the longest request, {longest_request_tokens} tokens")
    whole_prompt = settings.flag("scheduler_reserve_full_isl", default=settings.version >= FIRST_WHOLE_PROMPT)
    return StepLimits(
        max_running=settings.count("max_num_seqs"),
        max_batched_tokens=settings.count("max_num_batched_tokens"),
        max_context_tokens=context,
        attention_window_tokens=context,
        async_scheduling=settings.flag("async_scheduling", default=settings.version >= FIRST_ASYNC),
        prefix_cache=settings.flag("enable_prefix_caching", default=True),
        kv_policy="whole_prompt" if whole_prompt else "on_demand",
    )


def _pool(settings: _Settings, limits: StepLimits, longest_request_tokens: int, notes: list[str]) -> tuple[int, int]:
    """Return usable blocks and tokens a block. vLLM keeps one of the blocks that it reports as its null block."""
    block_tokens = settings.count("block_size", default=BLOCK_TOKENS)
    if settings.find("num_gpu_blocks", "num_gpu_blocks_override") is not None:
        return max(1, settings.count("num_gpu_blocks", "num_gpu_blocks_override") - 1), block_tokens
    notes.append("num_gpu_blocks is not stated: the cache is assumed never to run short")
    return limits.max_running * -(-longest_request_tokens // block_tokens), block_tokens


def _captured_sizes(settings: _Settings, limits: StepLimits) -> tuple[int, ...]:
    """Return the sizes that the file states, else vLLM's: 1, 2, 4, by 8 below 256, by 16 up to twice the sequences or 512."""
    if settings.flag("enforce_eager", default=False):
        return ()
    stated = settings.find("cudagraph_capture_sizes")
    if stated is None:
        largest = min(2 * limits.max_running, LARGEST_CAPTURED)
        return tuple(size for size in (1, 2, 4, *range(8, 256, 8), *range(256, LARGEST_CAPTURED + 1, 16)) if size <= largest)
    if not isinstance(stated, list) or not all(type(size) is int and size > 0 for size in stated):
        raise settings.bad("cudagraph_capture_sizes", stated, "a list of whole numbers >= 1")
    return tuple(sorted(stated))
