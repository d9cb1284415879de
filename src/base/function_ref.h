// A borrowed callable, for a parameter that is called before the call returns. Two words, never
// allocates.
// Thread safety: that of the callable.
#pragma once

#include <type_traits>
#include <utility>

namespace tccl {

template <class Signature>
class FunctionRef;

template <class Result, class... Args>
class FunctionRef<Result(Args...)> {
 public:
  template <class F>
  requires(!std::is_same_v<F, FunctionRef> && std::is_invocable_r_v<Result, const F&, Args...>)
      FunctionRef(const F& callable)
  noexcept  // implicit, so that a lambda can be passed
      : object_(&callable), call_([](const void* object, Args... args) -> Result {
          return (*static_cast<const F*>(object))(std::forward<Args>(args)...);
        }) {}

  Result operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  const void* object_;
  Result (*call_)(const void*, Args...);
};

}  // namespace tccl
