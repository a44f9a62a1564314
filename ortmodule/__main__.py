"""`python -m ortmodule`: prints the environment and the build, for bug reports."""

from __future__ import annotations

from .environment import environment
from .graph_transition.disk_cache import usage
from .options import Options


def main() -> None:
    facts = environment()
    options = Options()
    count, size = usage(options.cache_dir) if options.cache_dir else (0, 0)
    kept = f"{options.cache_dir}, {count} graphs, {size / 2**20:.1f} of {options.cache_dir_mib} MiB"
    facts["disk cache"] = kept if options.cache_dir else "off (ORTMODULE_CACHE_DIR)"
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:{width}}  {value}")


if __name__ == "__main__":
    main()
