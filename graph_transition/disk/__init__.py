"""Captured graphs on disk: for which module and call one was made (key.py), what is stored of it, and where.

Not here: whether a capture is needed (manager.py).
"""
