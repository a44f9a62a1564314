#include "base/registration.h"

#include <mutex>
#include <utility>

// built_with.h, Note [Built for these headers]
extern "C" {
extern ORTMODULE_API const char ORTMODULE_CORE_HEADERS;
const char ORTMODULE_CORE_HEADERS = 0;
}

namespace ortmodule {
namespace {

struct Errors {
  std::mutex mutex;
  std::vector<std::string> messages;
};

Errors& errors() {
  static Errors instance;
  return instance;
}

}  // namespace

void note_registration_error(const std::string& message) {
  const std::lock_guard<std::mutex> lock(errors().mutex);
  errors().messages.push_back(message);
}

std::vector<std::string> take_registration_errors() {
  const std::lock_guard<std::mutex> lock(errors().mutex);
  return std::exchange(errors().messages, {});
}

}  // namespace ortmodule
