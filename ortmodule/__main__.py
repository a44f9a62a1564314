"""`python -m ortmodule`: prints the environment and the build, for bug reports."""

from __future__ import annotations

from .environment import environment


def main() -> None:
    facts = environment()
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:{width}}  {value}")


if __name__ == "__main__":
    main()
