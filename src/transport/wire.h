// How an algorithm sees the ranks of other hosts: messages, in order, to and from each of them.
//
// What goes over the wire lies in memory of the wire's own, never in a tensor: the network may
// touch it until it has finished with it, however the operation ends. Between two ranks the n-th
// message sent is the n-th expected; both are part of the same operation, or the ranks disagree.
//
// One operation at a time, on one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/layout.h"
#include "tccl/types.h"

namespace tccl {

class Wire {
 public:
  /// The longest message. Larger ones fill a fast network better, smaller ones leave sooner.
  static constexpr std::size_t kMostBytes = std::size_t{128} << 10;

  /// Memory for one message, given back to the wire when nobody holds it and the network has
  /// finished with it.
  class Letter {
   public:
    virtual ~Letter() = default;
    /// Of kMostBytes. Of a letter that is expected: once it was awaited.
    [[nodiscard]] virtual std::byte* data() noexcept = 0;
  };
  using LetterPtr = std::shared_ptr<Letter>;

  virtual ~Wire() = default;
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual const Layout& layout() const noexcept = 0;
  /// What the sums of the operation travel as.
  [[nodiscard]] virtual WireFormat format() const noexcept = 0;

  [[nodiscard]] virtual LetterPtr blank() = 0;
  /// Returns before it has left. The letter must not be written to any more.
  virtual void send(const LetterPtr& letter, std::size_t bytes, std::span<const int> to) = 0;
  void send(const LetterPtr& letter, std::size_t bytes, int to) {
    send(letter, bytes, std::span<const int>(&to, 1));
  }
  /// The next message of that rank; as soon as possible, so that it need not be kept elsewhere.
  [[nodiscard]] virtual LetterPtr expect(int from) = 0;
  /// Waits for it; its contents must be `bytes` long.
  virtual const std::byte* await(const LetterPtr& letter, std::size_t bytes) = 0;
  /// The length of a message that may have any; waits for it.
  [[nodiscard]] virtual std::size_t length_of(const LetterPtr& letter) = 0;
  /// Waits until at most this many messages of this rank have not left yet.
  virtual void let_leave(std::size_t at_most) = 0;
};

}  // namespace tccl
