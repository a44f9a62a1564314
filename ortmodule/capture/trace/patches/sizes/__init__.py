"""Symbolic sizes: what is made of arithmetic with them, and what ends a trace that they make slow."""
