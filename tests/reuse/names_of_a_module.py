"""Names that a test adds to and takes away (test_computed_names.py)."""
