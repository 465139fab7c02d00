"""Reports: pure functions of records."""
