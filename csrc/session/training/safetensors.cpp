#include "session/training/safetensors.h"

#include <ATen/ops/empty.h>
#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "base/status.h"

namespace ortmodule {
namespace {

using Json = nlohmann::json;

constexpr std::pair<const char*, at::ScalarType> kTypes[] = {
    {"F64", at::kDouble},         {"F32", at::kFloat},        {"F16", at::kHalf},
    {"BF16", at::kBFloat16},      {"I64", at::kLong},         {"I32", at::kInt},
    {"I16", at::kShort},          {"I8", at::kChar},          {"U8", at::kByte},
    {"BOOL", at::kBool},          {"U16", at::kUInt16},       {"U32", at::kUInt32},
    {"U64", at::kUInt64},         {"C64", at::kComplexFloat}, {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E5M2", at::kFloat8_e5m2}};

// The format's own limit.
constexpr uint64_t kLongestHeader = 100'000'000;

at::ScalarType type_named(const std::string& name, const std::string& tensor, const std::string& path) {
  for (const auto& [text, type] : kTypes)
    if (name == text) return type;
  fail(ErrorCode::kUnsupported, "'", path, "': the tensor '", tensor, "' is of type '", name, "', which torch has not");
}

const char* name_of(at::ScalarType wanted, const std::string& tensor) {
  for (const auto& [text, type] : kTypes)
    if (wanted == type) return text;
  fail(ErrorCode::kUnsupported, "the tensor '", tensor, "' is of type ", c10::toString(wanted),
       ", which safetensors has not");
}

struct Place {
  std::string name;
  at::ScalarType type;
  std::vector<int64_t> shape;
  uint64_t begin, end;
};

// One file that is being read; what it says of itself stands in every error.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path, std::ios::binary) {
    file_.seekg(0, std::ios::end);
    const std::streamoff end = file_.tellg();
    ORTMODULE_CHECK_ARG(file_ && end >= 0, "the file '", path_, "' cannot be read");
    size_ = static_cast<uint64_t>(end);
  }

  TensorFile read() {
    TensorFile out;
    const Json header = read_header();
    std::vector<Place> places;
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__")
        out.metadata = metadata_of(entry);
      else
        places.push_back(place_of(name, entry));
    }
    check_cover(places);
    for (const Place& place : places) out.tensors[place.name] = read_tensor(place);
    return out;
  }

 private:
  template <typename... Args>
  void check(bool condition, const Args&... args) const {
    ORTMODULE_CHECK(condition, kParse, "'", path_, "' is no whole safetensors file: ", args...);
  }

  void read_bytes(void* to, uint64_t offset, uint64_t count) {
    file_.seekg(static_cast<std::streamoff>(offset));
    file_.read(static_cast<char*>(to), static_cast<std::streamsize>(count));
    check(static_cast<uint64_t>(file_.gcount()) == count, "it ends early");
  }

  Json read_header() {
    uint64_t length = 0;
    check(size_ >= sizeof(length), "it has ", size_, " bytes");
    read_bytes(&length, 0, sizeof(length));
    check(length <= kLongestHeader && length <= size_ - sizeof(length), "its header should have ", length, " bytes");
    data_ = sizeof(length) + length;
    std::string text(length, '\0');
    read_bytes(text.data(), sizeof(length), length);
    Json header = Json::parse(text, nullptr, false);
    check(header.is_object(), "its header is no JSON object");
    return header;
  }

  std::map<std::string, std::string> metadata_of(const Json& entry) const {
    std::map<std::string, std::string> out;
    check(entry.is_object(), "__metadata__ is no object");
    for (const auto& [key, value] : entry.items()) {
      check(value.is_string(), "__metadata__ has '", key, "', which is no text");
      out[key] = value.get<std::string>();
    }
    return out;
  }

  static bool are_sizes(const Json& list) {
    return list.is_array() && std::all_of(list.begin(), list.end(), [](const Json& n) {
             return n.is_number_unsigned() && n.get<uint64_t>() <= INT64_MAX;
           });
  }

  Place place_of(const std::string& name, const Json& entry) const {
    const bool whole = entry.is_object() && entry.contains("dtype") && entry["dtype"].is_string() &&
                       entry.contains("shape") && are_sizes(entry["shape"]) && entry.contains("data_offsets") &&
                       are_sizes(entry["data_offsets"]) && entry["data_offsets"].size() == 2;
    check(whole, "the entry of '", name, "' lacks its dtype, shape or data_offsets");
    Place place{name, type_named(entry["dtype"].get<std::string>(), name, path_),
                entry["shape"].get<std::vector<int64_t>>(), entry["data_offsets"][0].get<uint64_t>(),
                entry["data_offsets"][1].get<uint64_t>()};
    check(place.begin <= place.end && place.end <= size_ - data_, "'", name, "' lies at [", place.begin, ", ",
          place.end, ") of ", size_ - data_, " bytes");
    uint64_t bytes = c10::elementSize(place.type);
    bool fits = true;
    for (int64_t size : place.shape) fits = fits && !c10::mul_overflows(bytes, static_cast<uint64_t>(size), &bytes);
    check(fits && bytes == place.end - place.begin, "'", name, "' has ", place.end - place.begin,
          " bytes, which are not its shape's");
    return place;
  }

  // Neither a hole nor a byte that two tensors have.
  void check_cover(std::vector<Place>& places) const {
    std::sort(places.begin(), places.end(),
              [](const Place& a, const Place& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
    uint64_t next = 0;
    for (const Place& place : places) {
      check(place.begin == next, "'", place.name, "' begins at ", place.begin, ", not at ", next);
      next = place.end;
    }
    check(next == size_ - data_, size_ - data_ - next, " bytes belong to no tensor");
  }

  at::Tensor read_tensor(const Place& place) {
    at::Tensor tensor = at::empty(place.shape, at::TensorOptions(place.type));
    if (tensor.numel() > 0) read_bytes(tensor.data_ptr(), data_ + place.begin, place.end - place.begin);
    return tensor;
  }

  std::string path_;
  std::ifstream file_;
  uint64_t size_ = 0, data_ = 0;
};

}  // namespace

TensorFile read_safetensors(const std::string& path) { return Reader(path).read(); }

void write_safetensors(const std::string& path, const TensorFile& file) {
  // Of large elements first, so that each tensor is aligned to its own.
  std::vector<std::pair<std::string, at::Tensor>> ordered(file.tensors.begin(), file.tensors.end());
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return a.second.element_size() > b.second.element_size(); });
  Json header = Json::object();
  if (!file.metadata.empty()) header["__metadata__"] = file.metadata;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : ordered) {
    const uint64_t end = offset + tensor.nbytes();
    header[name] = {{"dtype", name_of(tensor.scalar_type(), name)},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  AtomicFile out(path);
  out.append({reinterpret_cast<const char*>(&length), sizeof(length)});
  out.append(text);
  for (const auto& [name, tensor] : ordered) {
    const at::Tensor plain = tensor.detach().cpu().contiguous();
    out.append({static_cast<const char*>(plain.data_ptr()), plain.nbytes()});
  }
  out.commit();
}

}  // namespace ortmodule
