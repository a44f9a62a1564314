// What libortmodule.so shows to programs and to the Python extension. Everything else is hidden (CMakeLists.txt).
#pragma once

#define ORTMODULE_API __attribute__((visibility("default")))
