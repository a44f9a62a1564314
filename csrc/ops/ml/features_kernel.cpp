// Kernels of ArrayFeatureExtractor, Binarizer and TfIdfVectorizer. The last one counts on the host.
#include <ATen/core/Tensor.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>

#include "base/status.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

void array_feature_extractor(KernelContext& c) {
  const at::Tensor x = c.in(0).dim() == 1 ? c.in(0).unsqueeze(0) : c.in(0);
  c.out(0, at::index_select(x, -1, c.in(1).reshape(-1)));
}

Kernel make_array_feature_extractor_grad(const Node& node) {
  return [sizes = HostInts(node, 2)](KernelContext& c) {
    c10::DimVector storage;
    const c10::IntArrayRef x = sizes.read(c, storage);
    const at::Tensor dz = x.size() == 1 ? c.in(0).squeeze(0) : c.in(0);
    c.out(0, at::zeros(x, dz.options()).index_add_(-1, c.in(1).reshape(-1), dz));
  };
}

// The pool's n-grams as a tree of items; `id` counts n-grams from 0 and is -1 where none ends.
struct Gram {
  int64_t id = -1;
  std::map<int64_t, Gram> next;
};

struct TfIdf {
  int64_t shortest, longest, skips, size = 0;
  bool truncates, weighs;
  std::vector<int64_t> indexes;
  std::vector<double> weights;  // per n-gram of the pool
  Gram pool;

  explicit TfIdf(const Node& node)
      : shortest(node.get_int("min_gram_length", 1)),
        longest(node.get_int("max_gram_length", 1)),
        skips(node.get_int("max_skip_count", 0)),
        indexes(node.get_ints("ngram_indexes")) {
    const std::string where = node.describe(), mode = node.get_string("mode", "TF");
    ORTMODULE_CHECK_GRAPH(mode == "TF" || mode == "IDF" || mode == "TFIDF", "[TfIdfVectorizer] unknown mode '", mode,
                          "' (", where, ")");
    ORTMODULE_CHECK(node.get_strings("pool_strings").empty(), kUnsupported,
                    "[TfIdfVectorizer] pool_strings is not supported: the engine has no tensors of strings (", where,
                    ")");
    ORTMODULE_CHECK_GRAPH(shortest >= 1 && longest >= shortest && skips >= 0, "[TfIdfVectorizer] n-grams of ", shortest,
                          " to ", longest, " items with ", skips, " skips (", where, ")");
    truncates = mode == "IDF";
    weighs = mode != "TF";
    const AttributeValue* value = node.find_attribute("weights");
    if (const auto* list = value ? std::get_if<std::vector<double>>(value) : nullptr) weights = *list;
    for (int64_t i : indexes) {
      ORTMODULE_CHECK_GRAPH(i >= 0 && i < (int64_t{1} << 31), "[TfIdfVectorizer] an n-gram index of ", i, " (", where,
                            ")");
      size = std::max(size, i + 1);
    }
    ORTMODULE_CHECK_GRAPH(weights.empty() || weights.size() == indexes.size(), "[TfIdfVectorizer] expected ",
                          indexes.size(), " weights, got ", weights.size(), " (", where, ")");
    fill(node.get_ints("ngram_counts"), node.get_ints("pool_int64s"), where);
  }

  // starts[n - 1] is where the n-grams of n items begin in `items`.
  void fill(const std::vector<int64_t>& starts, const std::vector<int64_t>& items, const std::string& where) {
    int64_t id = 0;
    for (size_t n = 1; n <= starts.size(); ++n) {
      const int64_t begin = starts[n - 1], end = n < starts.size() ? starts[n] : static_cast<int64_t>(items.size());
      ORTMODULE_CHECK_GRAPH(begin >= 0 && begin <= end && end <= static_cast<int64_t>(items.size()) &&
                                (end - begin) % static_cast<int64_t>(n) == 0,
                            "[TfIdfVectorizer] ngram_counts do not fit a pool of ", items.size(), " items (", where,
                            ")");
      for (int64_t i = begin; i < end; i += static_cast<int64_t>(n)) {
        Gram* gram = &pool;
        for (int64_t k = 0; k < static_cast<int64_t>(n); ++k) gram = &gram->next[items[static_cast<size_t>(i + k)]];
        gram->id = id++;
      }
    }
    ORTMODULE_CHECK_GRAPH(id == static_cast<int64_t>(indexes.size()), "[TfIdfVectorizer] the pool holds ", id,
                          " n-grams, ngram_indexes ", indexes.size(), " (", where, ")");
  }

  void count(const int64_t* row, int64_t length, float* out) const {
    for (int64_t distance = 1; distance <= skips + 1; ++distance)
      for (int64_t start = 0; start < length; ++start) {
        const Gram* gram = &pool;
        int64_t n = 1;
        for (int64_t i = start; i < length && n <= longest; i += distance, ++n) {
          const auto hit = gram->next.find(row[i]);
          if (hit == gram->next.end()) break;
          gram = &hit->second;
          // One item is the same n-gram at every distance.
          if (gram->id >= 0 && n >= shortest && (n > 1 || distance == 1)) add(gram->id, out);
        }
      }
  }

  void add(int64_t id, float* out) const {
    const double weight = weighs && !weights.empty() ? weights[static_cast<size_t>(id)] : 1;
    float& cell = out[indexes[static_cast<size_t>(id)]];
    cell = truncates ? static_cast<float>(weight) : cell + static_cast<float>(weight);
  }
};

Kernel make_tf_idf(const Node& node) {
  return [t = std::make_shared<const TfIdf>(node)](KernelContext& c) {
    const at::Tensor x = c.in(0).to(c10::kCPU, at::kLong).contiguous();
    ORTMODULE_CHECK(x.dim() <= 2, kRuntime, "[TfIdfVectorizer] X should be [C] or [N, C], got ", x.sizes());
    const int64_t rows = x.dim() == 2 ? x.size(0) : 1, length = x.dim() == 0 ? 1 : x.size(-1);
    at::Tensor y = at::zeros({rows, t->size}, at::TensorOptions(at::kFloat));
    for (int64_t r = 0; r < rows; ++r)
      t->count(x.const_data_ptr<int64_t>() + r * length, length, y.mutable_data_ptr<float>() + r * t->size);
    c.out(0, (x.dim() == 2 ? y : y.view({-1})).to(c.in(0).device()));
  };
}

}  // namespace

ORTMODULE_KERNEL("ai.onnx.ml", ArrayFeatureExtractor, "aten",
                 [](const Node&) -> Kernel { return array_feature_extractor; });
ORTMODULE_KERNEL("ai.ortmodule", ArrayFeatureExtractorGrad, "aten", make_array_feature_extractor_grad);
ORTMODULE_KERNEL("ai.onnx.ml", Binarizer, "aten", [](const Node& node) -> Kernel {
  return [threshold = node.get_float("threshold", 0)](KernelContext& c) {
    c.out(0, at::gt(c.in(0), threshold).to(c.in(0).scalar_type()));
  };
});
ORTMODULE_KERNEL("", TfIdfVectorizer, "aten", make_tf_idf);

}  // namespace ortmodule
