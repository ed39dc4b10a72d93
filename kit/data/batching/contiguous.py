"""The batch plan for truncated backpropagation through time: text is read in order, in several parallel streams."""

import numpy as np

from kit.data.batching.plan import EpochPlan, Padding
from kit.errors import DataError


class ContiguousPlan(EpochPlan):
    """Blocks in the order of the text: row r of each step continues where row r of the step before ended.

    The blocks are divided into as many streams of consecutive blocks as a step has rows. An epoch reads each block
    once; with the next epoch, all streams start over. In the last step of an epoch, only the longer streams have a
    block left.
    """

    def __init__(self, lengths: np.ndarray, rows: int, micro_batches: int):
        """`lengths` has the length of each block, in the order of the text; `rows` is the number of streams.

        Raises DataError if a micro-batch would have no stream, or a stream no block.
        """
        if rows < micro_batches:
            raise DataError(
                f"a step has {rows} streams of text (train.tokens_per_batch / data.block_size), too few for "
                f"train.micro_batches={micro_batches}: every micro-batch needs at least one"
            )
        if len(lengths) < max(rows, micro_batches):
            raise DataError(
                f"the training text has {len(lengths)} blocks, too few for {max(rows, micro_batches)} streams: reduce "
                "train.tokens_per_batch (train.batch_size), train.micro_batches or data.block_size"
            )
        self.lengths, self.sides, self.micro_batches = lengths, [lengths], micro_batches
        self.streams = np.array_split(np.arange(len(lengths)), rows)  # from the longest to the shortest
        if len(self.active_streams(self.steps_per_epoch - 1)) < micro_batches:
            # the last step would leave a micro-batch empty: skip the blocks beyond the end of the shortest stream
            self.streams = [stream[: len(self.streams[-1])] for stream in self.streams]

    @property
    def steps_per_epoch(self) -> int:
        return len(self.streams[0])

    @property
    def skipped_blocks(self) -> int:
        """Blocks at the ends of streams that no step reads."""
        return len(self.lengths) - sum(map(len, self.streams))

    def active_streams(self, position: int) -> np.ndarray:
        """The streams that have a block left at this step of an epoch."""
        return np.array([row for row, stream in enumerate(self.streams) if position < len(stream)])

    def step(self, number: int) -> list[np.ndarray]:
        """The micro-batches of a step, as indices of blocks.

        A stream is always in the same micro-batch, and so always read by the process that holds its state.
        """
        position = number % self.steps_per_epoch
        rows = self.active_streams(position)
        blocks = np.array([self.streams[row][position] for row in rows])
        return [blocks[rows % self.micro_batches == index] for index in range(self.micro_batches)]

    def padding(self) -> Padding:
        read = np.concatenate(self.streams)
        longest = int(self.lengths.max())
        return Padding(int(self.lengths[read].sum()), longest * len(read))

    def describe(self) -> str:
        skipped = f", {self.skipped_blocks} blocks skipped" if self.skipped_blocks else ""
        return f"{self.steps_per_epoch:,} steps an epoch in {len(self.streams)} streams{skipped}"


def stream_of(blocks: np.ndarray, num_blocks: int, streams: int) -> tuple[np.ndarray, np.ndarray]:
    """The number of the stream that each of `blocks` belongs to, and whether the block is the first of its stream.

    The text has `num_blocks` blocks, divided into `streams` streams as by `ContiguousPlan`.
    """
    size, longer = divmod(num_blocks, streams)  # as np.array_split: the first streams have one block more
    starts = np.arange(streams) * size + np.minimum(np.arange(streams), longer)
    numbers = np.searchsorted(starts, blocks, side="right") - 1
    return numbers, starts[numbers] == blocks
