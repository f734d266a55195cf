"""The Parquet schema of a run, written down once. Every reader and writer uses these constants.

A change of any column is a change of SCHEMA_VERSION; ``READABLE_VERSIONS`` lists what the reader still takes.
Rows are the records of ``pkb.records``: same names, with ``key`` spread into its five columns. Mappings (sent, usage,
seconds_by_stage, extra) are stored as JSON text, so that their keys may grow without a new schema.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 1
READABLE_VERSIONS = (1,)

KEY = [
    pa.field("run", pa.string(), nullable=False),
    pa.field("model", pa.string(), nullable=False),
    pa.field("problem", pa.string(), nullable=False),  # NNN_stem
    pa.field("attempt", pa.int32(), nullable=False),
    pa.field("turn", pa.int32(), nullable=False),
    pa.field("schema_version", pa.int32(), nullable=False),
]

GENERATIONS = pa.schema(
    [
        *KEY,
        pa.field("status", pa.string(), nullable=False),
        pa.field("prompt_hash", pa.string(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("answer", pa.string(), nullable=False),
        pa.field("reasoning", pa.string(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("extraction", pa.string(), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("sent", pa.string(), nullable=False),  # JSON
        pa.field("usage", pa.string(), nullable=False),  # JSON
        pa.field("cost_usd", pa.float64()),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("tries", pa.int32(), nullable=False),
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
    ]
)

EVALUATIONS = pa.schema(
    [
        *KEY,
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("measured", pa.string()),
        pa.field("speedup", pa.float64()),
        pa.field("speedup_low", pa.float64()),
        pa.field("speedup_high", pa.float64()),
        pa.field("reference_ms", pa.float64()),
        pa.field("candidate_ms", pa.float64()),
        pa.field("max_error", pa.float64()),
        pa.field("trials", pa.int32(), nullable=False),
        pa.field("world_size", pa.int32(), nullable=False),
        pa.field("size", pa.string(), nullable=False),
        pa.field("dtype", pa.string(), nullable=False),
        pa.field("device", pa.string(), nullable=False),
        pa.field("shared_device", pa.bool_(), nullable=False),
        pa.field("reuses_output", pa.bool_()),
        pa.field("collective_bytes", pa.int64()),
        pa.field("sandbox", pa.string(), nullable=False),
        pa.field("policy", pa.string(), nullable=False),
        pa.field("protocol", pa.int32(), nullable=False),
        pa.field("build_log", pa.string(), nullable=False),
        pa.field("seconds_by_stage", pa.string(), nullable=False),  # JSON
        pa.field("node", pa.string(), nullable=False),
        pa.field("try", pa.int32(), nullable=False),  # 0-based; > 0 after harness errors
        pa.field("log", pa.string(), nullable=False),  # path of the attempt's log, relative to the run directory
        pa.field("extra", pa.string(), nullable=False),  # JSON
    ]
)

TABLES = {"generations": GENERATIONS, "evaluations": EVALUATIONS}
#: Columns that can be megabytes; tables never read them.
TEXT_COLUMNS = {"prompt", "answer", "reasoning", "source", "build_log", "detail", "sent", "extra"}
