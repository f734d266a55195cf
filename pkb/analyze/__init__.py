"""From a run's Parquet to metrics, tables and reports."""
