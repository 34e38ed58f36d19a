"""Mooncake traces: JSON Lines with millisecond arrivals and the hash of every 512-token prefix block."""

from __future__ import annotations

import pyarrow as pa

from replay.ingress.parsed import ParsedRows, unused_note
from replay.ingress.records import GatheredRows, Line, ListColumn, read_lines, whole
from replay.ingress.source import Encoding, TraceSource

BLOCK_TOKENS = 512
NS_PER_MILLISECOND = 1_000_000
LARGEST_MILLISECONDS = 10**12


class MooncakeReader:
    """Reads ``{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}``."""

    label = "Mooncake JSON Lines"
    encodings: tuple[Encoding, ...] = ("json_lines",)
    required: tuple[str, ...] = ("timestamp", "input_length", "output_length")

    def read(self, source: TraceSource) -> ParsedRows:
        """Return the rows; `hash_ids` become prefix blocks and must be one for each started block of the prompt."""
        rows, blocks = GatheredRows(), ListColumn()
        used = (*self.required, "hash_ids")
        for line in read_lines(source):
            line.require(self.required)
            rows.add(line, milliseconds_ns(line), prompt_key="input_length", output_key="output_length")
            blocks.append(line, "hash_ids")
            _check_blocks(line, rows.prompts_tokens[-1], blocks.lengths[-1])
            rows.note_unused(line.record, used)
        return ParsedRows(
            table=pa.table({**rows.to_arrow(), "prefix_blocks": blocks.to_arrow()}),
            format_name=self.label,
            kind="recorded",
            place=rows.places.__getitem__,
            prefix_block_tokens=BLOCK_TOKENS if blocks.values else None,
            notes=("timestamps were milliseconds", *unused_note(list(rows.unused))),
        )


def milliseconds_ns(line: Line) -> int:
    """Return a row's `timestamp`, whole milliseconds from the start of the trace, in nanoseconds."""
    milliseconds = whole(line.record["timestamp"])
    if milliseconds is None or not 0 <= milliseconds <= LARGEST_MILLISECONDS:
        raise line.bad("timestamp", f"whole milliseconds from 0 to {LARGEST_MILLISECONDS}")
    return milliseconds * NS_PER_MILLISECOND


def _check_blocks(line: Line, prompt_tokens: int, blocks_count: int | None) -> None:
    blocks_wanted = -(-prompt_tokens // BLOCK_TOKENS)
    if blocks_count is not None and blocks_count != blocks_wanted:
        raise line.bad_value("the number of hash_ids", blocks_count, f"{blocks_wanted}, one for each {BLOCK_TOKENS} tokens of the prompt")
