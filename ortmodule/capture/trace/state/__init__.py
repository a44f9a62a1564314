"""State outside of a traced module: what a forward asks of it, and what a trace leaves as it was."""
