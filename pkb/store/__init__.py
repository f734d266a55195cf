"""Run directories: the schema, and how rows are written and read."""
