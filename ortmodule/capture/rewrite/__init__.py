"""The second stage: an exported program loses its regions, and its writes say what they mean for gradients."""
