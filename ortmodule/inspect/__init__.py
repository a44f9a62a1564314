"""A page that shows what the engine makes of a model: `python -m ortmodule.inspect DIR|model.onnx`.

DIR is filled by a program that runs with `DebugOptions(inspect_path=DIR)`, `SessionOptions.inspect_path` or
`ORTMODULE_INSPECT_PATH`; docs/inspect.md has the rest.
"""

from .folder import flush, read
from .onnx_model import inspect_model
from .page import page_of, write_page

__all__ = ["flush", "inspect_model", "page_of", "read", "write_page"]
