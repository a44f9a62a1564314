"""Programs composed at random that ask whether a captured graph is still true: `python -m tests.trust --programs 300`.

A program is a small module whose forward mixes one to four pieces of state. A piece is a place (where the state lives,
`places.py`), what wraps it there (`containers.py`), what it is (`values*.py`), a way of reading it (`readings.py`) and
the changes that all of these offer; pieces that fit no such scheme are the rows of `rows_*.py`. `programs.py` composes
them and says when each change happens. `running.py` runs a program in a world of its own, once plain and once per
wrapper; `comparing.py` holds what was observed side by side.

Not here: lists of behaviors that a person thought of one by one (tests/behavior).
"""
