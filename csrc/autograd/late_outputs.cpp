#include "autograd/late_outputs.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/accumulate.h>

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "autograd/write_watch.h"
#include "base/status.h"
#include "kernels/aten_bridge.h"

namespace ortmodule {

// A tensor whose memory is made when it is asked for (Note [Late outputs]).
class LateTensorImpl final : public c10::TensorImpl {
 public:
  LateTensorImpl(c10::Storage nothing, c10::DispatchKeySet keys, caffe2::TypeMeta type, std::shared_ptr<LateCall> call)
      : TensorImpl(std::move(nothing), keys, type), call_(std::move(call)) {}

  bool has_storage() const override {
    ask();
    return TensorImpl::has_storage();
  }
  const c10::Storage& storage() const override {
    ask();
    return TensorImpl::storage();
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_change) const override {
    ask();
    return TensorImpl::shallow_copy_and_detach(version, allow_change);
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_change) const override {
    ask();
    return TensorImpl::shallow_copy_and_detach(std::move(version), allow_change);
  }
  // The call has weak references to this tensor, which keep it from being destroyed.
  void release_resources() override {
    if (call_) {
      if (is_settled() && !read_) ++call_->plan().counts.never_read;
      call_->drop_one();
    }
    call_.reset();
    TensorImpl::release_resources();
  }

  // With the call's lock. Whoever shares the storage by now finds the elements there, too.
  void give(const at::Tensor& value) {
    ORTMODULE_INTERNAL(value.sizes() == sizes() && value.dtype() == dtype(), "a late output is of another kind");
    const bool is_shared = storage_.use_count() > 1;
    const bool is_plain = value.is_contiguous() && value.storage_offset() == 0;
    if (!is_shared && is_plain) {
      storage_ = value.unsafeGetTensorImpl()->unsafe_storage();
    } else {
      auto* const held = new at::Tensor(value.clone(at::MemoryFormat::Contiguous));
      c10::DataPtr data(held->mutable_data_ptr(), held, [](void* t) { delete static_cast<at::Tensor*>(t); }, c10::kCPU);
      storage_.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    }
    settled_.store(true, std::memory_order_release);
  }
  bool is_settled() const { return settled_.load(std::memory_order_acquire); }

 private:
  void ask() const {
    if (!is_settled()) call_->settle(LateReason::kRead);
    read_ = true;
  }

  std::shared_ptr<LateCall> call_;
  std::atomic<bool> settled_{false};
  mutable std::atomic<bool> read_{false};
};

namespace {

std::atomic<void (*)(const std::function<void()>&)> runner{nullptr};

void run_outside(const std::function<void()>& work) {
  if (auto* const run = runner.load())
    run(work);
  else
    work();
}

// The calls that have late outputs, which hear of writes to what they read.
struct Calls final : WriteListener {
  std::mutex mutex;
  std::set<LateCall*> all;
  size_t listening = 0;  // of them

  static Calls& instance() {
    static auto* const calls = new Calls;  // late tensors may outlive what is destroyed at exit
    // Every operator may take the lock: a process is not forked while another thread has it.
    static const int forks =
        pthread_atfork([] { calls->mutex.lock(); }, [] { calls->mutex.unlock(); }, [] { calls->mutex.unlock(); });
    ORTMODULE_INTERNAL(forks == 0, "no memory for a handler of forks");
    return *calls;
  }

  // Those for which `which` holds, and which are not being destroyed.
  std::vector<std::shared_ptr<LateCall>> alive(const std::function<bool(const LateCall&)>& which) {
    std::vector<std::shared_ptr<LateCall>> found;
    const std::lock_guard<std::mutex> lock(mutex);
    for (LateCall* call : all)
      if (which(*call))
        if (auto held = call->weak_from_this().lock()) found.push_back(std::move(held));
    return found;
  }

  bool concerns(const at::Tensor& tensor) override {
    const c10::StorageImpl* const memory = memory_of(tensor);
    const std::lock_guard<std::mutex> lock(mutex);
    return memory && std::any_of(all.begin(), all.end(), [&](const LateCall* call) { return call->reads(memory); });
  }
  void before_write(const at::Tensor& tensor) override {
    const c10::StorageImpl* const memory = memory_of(tensor);
    for (const auto& call : alive([&](const LateCall& one) { return one.reads(memory); }))
      if (call->waits()) call->settle(LateReason::kWrite, true);
  }

  // Null: a tensor without memory, or a late one, which is not asked for its.
  static const c10::StorageImpl* memory_of(const at::Tensor& tensor) {
    c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    if (dynamic_cast<const LateTensorImpl*>(impl) || !impl->has_storage()) return nullptr;
    return impl->unsafe_storage().unsafeGetStorageImpl();
  }
};

// Memory that is not there yet.
c10::Storage no_memory(size_t bytes) {
  return {c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(nullptr, c10::kCPU), c10::GetCPUAllocator(), true};
}

// Hears of it when the tensor's metadata is copied, its storage with it (`.data = late`).
class CopiedMeta final : public c10::BackendMeta {
 public:
  explicit CopiedMeta(const std::shared_ptr<LateCall>& call) : call_(call) {}
  c10::intrusive_ptr<BackendMeta> clone(const c10::intrusive_ptr<BackendMeta>&) const override {
    if (const auto call = call_.lock()) call->settle(LateReason::kRead);
    return {};
  }

 private:
  const std::weak_ptr<LateCall> call_;
};

bool is_close(const at::Tensor& a, const at::Tensor& b) {
  const double x = a.item<double>(), y = b.item<double>();
  if (!std::isfinite(x) || !std::isfinite(y)) return std::isnan(x) == std::isnan(y);
  const double limit = a.scalar_type() == at::kFloat || a.scalar_type() == at::kDouble ? 1e-2 : 0.1;
  return std::abs(x - y) <= limit * std::max({1e-3, std::abs(x), std::abs(y)});
}

}  // namespace

void set_late_runner(void (*run)(const std::function<void()>& work)) { runner = run; }

void settle_all_late() {
  for (const auto& call : Calls::instance().alive([](const LateCall&) { return true; }))
    if (call->waits()) call->settle(LateReason::kWrite, true);
}

void settle_before_write(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) Calls::instance().before_write(tensor);
}

LateCall::LateCall(std::shared_ptr<TrainingAgent> whole, std::shared_ptr<LatePlan> plan, GivenValues given)
    : whole_(std::move(whole)), plan_(std::move(plan)), given_(std::move(given)) {
  for (const at::Tensor& value : given_->read()) memory_.push_back(value.storage().unsafeGetStorageImpl());
  std::sort(memory_.begin(), memory_.end());
  Calls& calls = Calls::instance();
  const std::lock_guard<std::mutex> lock(calls.mutex);
  calls.all.insert(this);
}

LateCall::~LateCall() {
  listen(false);
  {
    Calls& calls = Calls::instance();
    const std::lock_guard<std::mutex> lock(calls.mutex);
    calls.all.erase(this);
  }
  if (!settled_ && lost_.empty()) plan_->counts.in_a_row = 0;
}

void LateCall::listen(bool on) {
  if (listens_.exchange(on) == on) return;
  Calls& calls = Calls::instance();
  const std::lock_guard<std::mutex> lock(calls.mutex);
  const size_t before = calls.listening;
  calls.listening += on ? 1 : static_cast<size_t>(-1);
  if ((before == 0) != (calls.listening == 0)) listen_to_writes(calls, on);
}

bool LateCall::reads(const c10::StorageImpl* memory) const {
  return listens_ && std::binary_search(memory_.begin(), memory_.end(), memory);
}

void LateCall::drop_one() {
  if (--alive_ == 0) listen(false);
}

std::shared_ptr<LateCall> LateCall::begin(std::shared_ptr<TrainingAgent> whole, std::shared_ptr<LatePlan> plan,
                                          const std::vector<at::Tensor>& inputs) {
  std::optional<GivenValues> given = GivenValues::take(whole->program(), inputs);
  if (!given) return nullptr;
  return std::shared_ptr<LateCall>(new LateCall(std::move(whole), std::move(plan), std::move(*given)));
}

std::vector<at::Tensor> LateCall::run_quick(std::vector<at::Tensor>&& inputs, const std::vector<size_t>* unchecked) {
  std::vector<at::Tensor> made;
  {
    const DrawnState::Scope drawing(drawn_);
    made = plan_->quick->forward(std::move(inputs), &quick_state_, unchecked);
  }
  ++plan_->counts.calls;
  const SymbolTable& symbols = quick_state_->frame.symbols;
  const TrainingProgram& program = whole_->program();
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < plan_->quick_outputs.size(); ++i) {
    if (const int place = plan_->quick_outputs[i]; place >= 0) {
      outputs.push_back(made[static_cast<size_t>(place)]);
      if (outputs[i].dim() == 0 && outputs[i].is_floating_point()) losses_.emplace_back(i, outputs[i].detach().clone());
      continue;
    }
    const TypeInfo& type = program.output_types[i];
    std::vector<int64_t> sizes;
    for (const Dim& dim : *type.shape) sizes.push_back(dim.evaluate(symbols));
    const auto meta = c10::scalarTypeToTypeMeta(to_scalar_type(type.dtype));
    const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * meta.itemsize();
    auto impl = c10::make_intrusive<LateTensorImpl>(no_memory(bytes), c10::DispatchKeySet(c10::DispatchKey::CPU), meta,
                                                    shared_from_this());
    impl->set_sizes_contiguous(sizes);
    impl->set_backend_meta(c10::make_intrusive<CopiedMeta>(shared_from_this()));
    const c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> held(std::move(impl));
    late_.push_back({i, Weak(held)});
    outputs.emplace_back(held);
  }
  alive_ = late_.size();
  listen(true);
  return outputs;
}

void LateCall::check_given() {
  constexpr const char* kAdvice =
      "; what it shows is as of the forward and can no longer be computed. Look at it before that, or use "
      "Options(outputs=\"all\")";
  constexpr const char* kWhat = "an output of ORTModule was not computed in its forward, since when ";
  ORTMODULE_CHECK(lost_.empty(), kRuntime, kWhat, lost_, kAdvice);
  ORTMODULE_INTERNAL(given_, "a late output is computed after the call was done with");
  const auto change = given_->change();
  if (!change) return;
  lost_ = *change;
  listen(false);
  ++plan_->counts.lost;
  ++plan_->counts.in_a_row;
  fail(ErrorCode::kRuntime, kWhat, lost_, kAdvice);
}

std::vector<at::Tensor> LateCall::run_whole(std::shared_ptr<RunState>* state) {
  const at::ThreadLocalStateGuard as_then(modes_);
  const at::NoGradGuard no_grad;
  const DrawnState::Scope drawing(drawn_);
  std::vector<at::Tensor> outputs = whole_->forward(given_->again(), state);
  compare_losses(outputs);
  return outputs;
}

void LateCall::compare_losses(const std::vector<at::Tensor>& outputs) const {
  for (const auto& [output, loss] : losses_)
    ORTMODULE_INTERNAL(is_close(outputs[output], loss), "a forward that computes all outputs gives the loss ",
                       outputs[output].item<double>(), ", and one without gave ", loss.item<double>(),
                       "; use Options(outputs=\"all\")");
}

void LateCall::settle_locked(LateReason why, std::vector<Held>& held) {
  if (settled_) return;
  check_given();
  const bool is_before = !quick_begun_ && !gradients_ended_;
  if (is_before) quick_state_.reset();
  const std::vector<at::Tensor> outputs = run_whole(is_before ? &whole_state_ : nullptr);
  for (const auto& [output, weak] : late_)
    if (auto tensor = weak.lock()) {
      static_cast<LateTensorImpl*>(tensor.get())->give(outputs[output]);
      held.push_back(std::move(tensor));
    }
  settled_ = true;
  listen(false);
  LateCounts& counts = plan_->counts;
  ++counts.in_a_row;
  ++(why == LateReason::kRead ? counts.read : why == LateReason::kBackward ? counts.at_backward : counts.at_write);
  if (gradients_ended_) given_.reset();
}

void LateCall::settle(LateReason why, bool quiet) {
  const auto self = shared_from_this();
  run_outside([&] {
    std::vector<Held> held;  // the last one may end the call's gradients, which takes the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      settle_locked(why, held);
    } catch (const std::exception&) {
      if (!quiet) throw;
    }
  });
}

std::shared_ptr<LateCall::RunState> LateCall::begin_quick() {
  const std::lock_guard<std::mutex> lock(mutex_);
  quick_begun_ = true;
  return quick_state_;
}

std::shared_ptr<LateCall::RunState> LateCall::whole_state() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!whole_state_) {
    check_given();
    run_whole(&whole_state_);
  }
  quick_state_.reset();
  return std::move(whole_state_);
}

bool LateCall::waits() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !settled_ && lost_.empty() &&
         std::any_of(late_.begin(), late_.end(), [](const Late& late) { return late.tensor.use_count() > 0; });
}

void LateCall::end_gradients() {
  const std::lock_guard<std::mutex> lock(mutex_);
  gradients_ended_ = true;
  quick_state_.reset();
  whole_state_.reset();
  if (settled_) given_.reset();
}

}  // namespace ortmodule
