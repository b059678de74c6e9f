"""Looking into records: files in, statistics and readable text out."""
