#include "runtime/torch_error.h"

namespace ortmodule {

std::optional<TypedError::Type> type_of(const c10::Error& error) {
  using Type = TypedError::Type;
  if (dynamic_cast<const c10::IndexError*>(&error)) return Type::kIndex;
  if (dynamic_cast<const c10::NotImplementedError*>(&error)) return Type::kNotImplemented;
  if (dynamic_cast<const c10::LinAlgError*>(&error)) return Type::kLinearAlgebra;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error)) return Type::kOutOfMemory;
  return std::nullopt;
}

void throw_as_torch(const TypedError& error) {
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  switch (error.type()) {
    case TypedError::Type::kIndex:
      throw c10::IndexError(here, error.what());
    case TypedError::Type::kNotImplemented:
      throw c10::NotImplementedError(here, error.what());
    case TypedError::Type::kLinearAlgebra:
      throw c10::LinAlgError(here, error.what());
    case TypedError::Type::kOutOfMemory:
      throw c10::OutOfMemoryError(here, error.what());
  }
  throw error;
}

}  // namespace ortmodule
