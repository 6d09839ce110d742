"""From the journal to Parquet: columns, records, samples."""
