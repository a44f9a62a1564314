"""How a call of a module is led: through the engine (engine_call.py), to PyTorch (eager_calls.py, fallback.py)."""
