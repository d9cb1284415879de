#include "model/explorer.h"

#include <utility>

#include "model/engine.h"

namespace tccl::model {

Outcome explore(const Bounds& bounds, const std::function<void(Execution&)>& scenario) {
  return Engine().explore(bounds, scenario);
}

void Execution::share(const void* memory, std::size_t bytes) { share(memory, bytes, memory); }
void Execution::share(const void* memory, std::size_t bytes, const void* segment) {
  Engine::current()->share(memory, bytes, segment);
}
void Execution::add_thread(std::string name, std::function<void()> body) {
  Engine::current()->add_thread(std::move(name), std::move(body));
}
void Execution::join() { Engine::current()->join(); }

void report_violation(const std::string& text) { Engine::current()->violation(text); }
void require(bool condition, const char* text) {
  if (!condition) Engine::current()->violation(text);
}
void interruption_point() {
  if (Engine* engine = Engine::exploring()) engine->interruption_point();
}
void access(const void* memory, std::size_t bytes, bool is_write) {
  if (Engine* engine = Engine::exploring()) engine->plain_access(memory, bytes, is_write);
}

}  // namespace tccl::model
