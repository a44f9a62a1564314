"""Options(outputs="lazy"): what programs see of outputs that are computed late."""
