"""What the build wrote into ortmodule/_build_info.py."""

VERSION: str
GIT_COMMIT: str | None
TORCH_VERSION: str
TORCH_CUDA: str | None
CUDA_TOOLKIT: str | None
PYTHON_VERSION: str
COMPILER: str
FLAGS: str
BUILD_TYPE: str
ONNX_VERSION: str
PROTOBUF_VERSION: str
