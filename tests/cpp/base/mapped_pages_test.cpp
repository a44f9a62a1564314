// Pages of mapped files that are given back, and memory that is not touched.
#include "base/mapped_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

namespace ortmodule {
namespace {

constexpr size_t kPages = 8;

size_t resident(const char* start, size_t size) {
  std::vector<unsigned char> pages(kPages);
  EXPECT_EQ(::mincore(const_cast<char*>(start), size, pages.data()), 0);
  size_t count = 0;
  for (const unsigned char page : pages) count += page & 1;
  return count;
}

TEST(MappedPages, AreReadAgainFromTheFile) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t size = kPages * page;
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  const std::vector<char> bytes(size, 'x');
  ASSERT_EQ(std::fwrite(bytes.data(), 1, size, file), size);
  std::fflush(file);
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, ::fileno(file), 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto* const text = static_cast<const char*>(memory);
  {
    const auto noted = note_mapped(memory, size);
    EXPECT_EQ(text[0], 'x');
    release_pages(text + 1, size - 1);
    release_pages(text, size + 1);  // more than the file: nothing
    EXPECT_EQ(std::memcmp(text, bytes.data(), size), 0);
  }
  release_pages(text, size);
  ::munmap(memory, size);
  std::fclose(file);
}

TEST(MappedPages, NothingElseIsTouched) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const memory = ::mmap(nullptr, kPages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 'y', kPages * page);
  release_pages(memory, kPages * page);
  EXPECT_EQ(resident(static_cast<char*>(memory), kPages * page), kPages);
  EXPECT_EQ(static_cast<char*>(memory)[3 * page], 'y');
  ::munmap(memory, kPages * page);
}

}  // namespace
}  // namespace ortmodule
