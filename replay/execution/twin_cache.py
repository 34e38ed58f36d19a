"""Cache blocks of the plain replay: objects in dictionaries and lists."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Block:
    """A cache block; equal only to itself."""

    key: Hashable = None
    users: int = 0


class Pool:
    """The blocks of one replica."""

    def __init__(self, count: int) -> None:
        self.never_used = count
        self.count = count
        self.free: dict[Block, None] = {}
        """Those that were used and are free, longest free first."""
        self.found: dict[Hashable, list[Block]] = {}
        """Blocks by key, oldest first."""

    @property
    def free_count(self) -> int:
        """Blocks that nobody uses."""
        return self.never_used + len(self.free)

    def take(self) -> Block:
        """Return a block for one user; it forgets what it held."""
        if self.never_used:
            self.never_used -= 1
            return Block(users=1)
        block = next(iter(self.free))
        del self.free[block]
        if block.key is not None:
            self.found[block.key].remove(block)
            block.key = None
        block.users = 1
        return block

    def give_back(self, blocks: list[Block]) -> None:
        """End one use of each block, the last one first."""
        for block in reversed(blocks):
            block.users -= 1
            if not block.users:
                self.free[block] = None

    def keep(self, block: Block, key: Hashable) -> None:
        """Let a block be found by what it holds."""
        block.key = key
        self.found.setdefault(key, []).append(block)

    def beginning(self, keys: list[Hashable]) -> list[Block]:
        """Return the blocks found for the first keys, up to one that is not found."""
        blocks = []
        for key in keys:
            if not self.found.get(key):
                break
            blocks.append(self.found[key][0])
        return blocks

    def use_again(self, blocks: list[Block]) -> None:
        """Add a user to each block."""
        for block in blocks:
            self.free.pop(block, None)
            block.users += 1
