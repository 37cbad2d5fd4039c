"""Count the files of an inventory by column: millions of them in about a second, in bounded memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smlaunch.catalog.storage import storage_figure
from smlaunch.data.inventory_file import Inventory
from smlaunch.facts.dataset_stats import TABLE_PATTERN, DatasetCounter, DatasetStats


def summarize_inventory(inventory: Inventory) -> DatasetStats:
    """Return how many files there are, how large, and of which kinds."""
    dataset = DatasetCounter()
    small_file_bytes = storage_figure("small_file_bytes").low
    for batch in inventory.batches():
        if not batch.num_rows:
            continue
        sizes = batch.column("size").cast(pa.int64()).to_numpy()
        lengths = np.frexp(sizes.astype(np.float64))[1]
        # As a double, a size just below a large power of two may round up to it, which does not matter here.
        buckets = dict(enumerate(np.bincount(lengths).tolist()))
        is_table = pc.match_substring_regex(batch.column("key"), TABLE_PATTERN).to_numpy(zero_copy_only=False)
        dataset.add_histogram(
            buckets,
            int(sizes.sum()),
            int(sizes.max()),
            int(np.count_nonzero(sizes < small_file_bytes)),
            int(sizes[is_table].sum()),
        )
    return dataset.stats()
